"""Episodes to training samples, by policy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from coachrl.trainers.backends.base import Samples
from coachrl.types import Action, Episode, TrainSample

TRUNCATED = "truncated"
BROKEN = "infrastructure"


def to_samples(episodes: Iterable[Episode], mask_truncated: bool = True) -> Samples:
    """One `TrainSample` per action that a policy wrote, under its policy, in the order of episodes and actions;
    candidates too.

    Actions that must not be trained on keep their place with a mask of zeros and say why in `masked_because`:
    "infrastructure" (its episode broke, and not by the agents' doing), "truncated" (the reply hit its length limit).
    What the coach could not score is masked by `coachrl.trainers.masking`.
    """
    samples: Samples = {}
    for episode in episodes:
        for action in episode.all_actions:
            if not action.response_ids:
                continue
            samples.setdefault(action.policy, []).append(_sample(action, episode, mask_truncated))
    return samples


def all_samples(samples: Samples) -> list[TrainSample]:
    """The samples of all policies, in one list."""
    return [sample for group in samples.values() for sample in group]


def sample_alone(name: str, prompt_ids: ArrayLike, response_ids: ArrayLike, mask: ArrayLike) -> TrainSample:
    """A sample that comes of no episode."""
    mask_L = np.array(mask, dtype=np.float32)
    return TrainSample(
        policy="",
        action_id=name,
        episode_id=name,
        task_id=name,
        role="",
        turn=0,
        index=0,
        prompt_ids_P=np.array(prompt_ids, dtype=np.int64),
        response_ids_L=np.array(response_ids, dtype=np.int64),
        old_logprobs_L=np.zeros_like(mask_L),
        mask_L=mask_L,
    )


def changed(sample: TrainSample, **fields: object) -> TrainSample:
    """The sample with other `fields`. `dataclasses.replace` goes through every field again: for a million samples that
    is most of the time that advantages take."""
    made = object.__new__(TrainSample)
    object.__setattr__(made, "__dict__", {**sample.__dict__, **fields})
    return made


def _sample(action: Action, episode: Episode, mask_truncated: bool) -> TrainSample:
    reason = action.infra_error
    if reason is None and episode.infra_error is not None:
        reason = BROKEN
    if reason is None and mask_truncated and action.finish_reason == "length":
        reason = TRUNCATED
    length = len(action.response_ids)
    return TrainSample(
        policy=action.policy,
        action_id=action.id,
        episode_id=episode.id,
        task_id=episode.task_id,
        role=action.role,
        turn=action.turn,
        index=action.index,
        prompt_ids_P=np.asarray(action.prompt_ids, dtype=np.int64),
        response_ids_L=np.asarray(action.response_ids, dtype=np.int64),
        old_logprobs_L=np.asarray(action.logprobs, dtype=np.float32),
        mask_L=np.full(length, 0.0 if reason else 1.0, dtype=np.float32),
        masked_because=reason,
    )
