"""Which actions are left out of an update, and why: their tokens are masked by zeros, with the reason beside them.

An action whose coach score failed has no reward. That is never counted as 0: the action is masked here, after
`coachrl.trainers.samples` has masked what broke or was cut at its length limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from coachrl.config import TrainConfig
from coachrl.text import counted
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.samples import BROKEN, TRUNCATED, all_samples, changed, to_samples
from coachrl.types import Episode, Role, TrainSample

Rewards = Mapping[str, float | None]
"""Action id -> its reward, or None where there is none."""

WHY_LEFT_OUT = {
    "truncated": "cut at max_new_tokens of their role or pipeline; train.mask_truncated=false trains on them",
    BROKEN: "their episodes broke for no fault of the agents; the run's episodes say in infra_error why",
    "blocked": "a file that an earlier agent owed was not there; train.mask_blocked=false trains on them",
    "unscored": "no score of the coach (coach.max_failed_fraction says how many may fail), or None of your own reward",
    "frozen": "their policy keeps its weights; policies.NAME.trainable=true trains it",
    "few": "too few for their policy in one step; train.min_actions=1 trains on them",
    "group_of_one": "nothing to compare with; train.group_size=2 or more",
    "no_spread": "all of a group scored alike; a larger train.group_size, or sampling.candidates of a tree",
}
"""Why an action is left out of the update (`masked_because`), with the setting that decides it."""


def training_samples(episodes: Sequence[Episode], roles: Iterable[Role], settings: TrainConfig) -> Samples:
    """The samples of a step: `to_samples`, less what the settings leave out."""
    samples = to_samples(episodes, settings.mask_truncated)
    if not settings.mask_blocked:
        return samples
    return masked_for(samples, {action_id: "blocked" for episode in episodes for action_id in blocked(episode, roles)})


def blocked(episode: Episode, roles: Iterable[Role]) -> list[str]:
    """The ids of actions whose agent lacked a file that it needed: it was there neither in this turn of its nor in an
    earlier one (what was there it took away itself), and the action did not leave all that the role owes anyway."""
    by_name = {role.name: role for role in roles}
    given: dict[str, set[str]] = {}
    found = []
    for action in sorted(episode.all_actions, key=lambda action: action.index):
        role, had = by_name[action.role], given.setdefault(action.role, set())
        had.update(action.files_before)
        owes = set(role.required_files)
        if not had.issuperset(role.needed_files) and not (owes and owes.issubset(action.files_after)):
            found.append(action.id)
    return found


def mask_unscored(samples: Samples, rewards: Rewards) -> Samples:
    """The same samples; those without a reward are masked, and say "unscored" where nothing else kept them out. A score
    that failed gives none: see `score_reward` in algorithms/advantages/rewards.py.

    Raises KeyError where an action has no entry in `rewards`, ValueError where one comes twice.
    """
    reasons = {s.action_id: "unscored" for group in samples.values() for s in group if rewards[s.action_id] is None}
    masked = masked_for(samples, reasons)
    everything = all_samples(masked)
    if len({sample.action_id for sample in everything}) < len(everything):
        raise ValueError("an action comes twice among the samples: it would be compared with itself")
    return masked


def masked_for(samples: Samples, reasons: Mapping[str, str]) -> Samples:
    """The same samples; those whose action is among `reasons` (by its id) are masked, and say why where nothing else
    kept them out."""
    return {
        policy: [_mask(sample, reasons.get(sample.action_id)) for sample in group] for policy, group in samples.items()
    }


def known_rewards(samples: Iterable[TrainSample], rewards: Rewards, *, cut_short: bool = False) -> dict[str, float]:
    """Action id -> reward, of the actions that are trained on. cut_short: and of replies that were cut short, where the
    reward is measured on what they came to and not on the text."""
    reasons = (None, TRUNCATED) if cut_short else (None,)
    known: dict[str, float] = {}
    for sample in samples:
        reward = rewards[sample.action_id]
        if reward is not None and sample.masked_because in reasons:
            known[sample.action_id] = reward
    return known


def left_out_in_words(metrics: Mapping[str, float]) -> list[str]:
    """What a step's metrics say of the actions that were left out: how many, why, and which setting decides it."""
    return [
        f"{counted(round(value), 'action')} left out: {WHY_LEFT_OUT.get(reason, reason)}"
        for key, value in metrics.items()
        if value and (reason := key.removeprefix("train/masked/")) != key
    ]


def _mask(sample: TrainSample, reason: str | None) -> TrainSample:
    return sample if reason is None or sample.masked_because else masked(sample, reason)


def masked(sample: TrainSample, reason: str) -> TrainSample:
    """The same sample, masked for this reason whatever else kept it out."""
    none_L = np.zeros_like(sample.mask_L)
    advantages_L = None if sample.advantages_L is None else none_L
    return changed(sample, mask_L=none_L, advantages_L=advantages_L, masked_because=reason)
