"""What every algorithm does with a batch: leave out what has no reward, and hand the samples back with advantages."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from coachrl.text import counted
from coachrl.trainers.algorithms.advantages.groups import Groups
from coachrl.trainers.algorithms.advantages.tokens import Floats, Tokens
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.samples import TRUNCATED
from coachrl.types import Action, ActionCredit, Episode, TrainSample

Rewards = Mapping[str, float | None]
"""Action id -> its reward, or None where there is none to be had."""

WHY_LEFT_OUT = {
    "truncated": "cut at max_new_tokens of their role or pipeline; train.mask_truncated=false trains on them",
    "unscored": "the coach gave no score; coach.max_failed_fraction says how many may",
    "group_of_one": "nothing to compare with; train.group_size=2 or more",
    "no_spread": "all of a group scored alike; a larger train.group_size, or sampling.candidates of a tree",
}
"""Why an action is left out of the update (`masked_because`), with the setting that decides it."""


@dataclass(frozen=True)
class AdvantageBatch:
    """Samples with their advantages, and how many actions were left out for which reason.

    unknown_returns: by role, the actions that are trained on a return of which a later part is not known (`returns`).
    metrics: what else the algorithm has to say of the batch, by the name that it has after "train/" in a run's file.
    groups: how many there were in all; of them groups_of_one, and groups_without_spread (of two or more).
    """

    samples: Samples
    masked: Mapping[str, int]
    unknown_returns: Mapping[str, int]
    metrics: Mapping[str, float] = field(default_factory=dict)
    groups: int = 0
    groups_of_one: int = 0
    groups_without_spread: int = 0


def mask_unscored(samples: Samples, rewards: Rewards) -> Samples:
    """The same samples; those without a reward are masked, and say "unscored" where nothing else kept them out.

    Raises KeyError where an action has no entry in `rewards`, ValueError where one comes twice.
    """
    reasons = {s.action_id: "unscored" for group in samples.values() for s in group if rewards[s.action_id] is None}
    masked = {policy: [_mask(s, reasons.get(s.action_id)) for s in group] for policy, group in samples.items()}
    everything = all_samples(masked)
    if len({sample.action_id for sample in everything}) < len(everything):
        raise ValueError("an action comes twice among the samples: it would be compared with itself")
    return masked


def left_out_in_words(metrics: Mapping[str, float]) -> list[str]:
    """What a step's metrics say of the actions that were left out: how many, why, and which setting decides it."""
    return [
        f"{counted(round(value), 'action')} left out: {WHY_LEFT_OUT.get(reason, reason)}"
        for key, value in metrics.items()
        if value and (reason := key.removeprefix("train/masked/")) != key
    ]


def all_samples(samples: Samples) -> list[TrainSample]:
    """The samples of all policies, in one list."""
    return [sample for group in samples.values() for sample in group]


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


def with_advantages(
    samples: Samples,
    advantages: Mapping[str, Floats | float] | Floats,
    *,
    tokens: Tokens | None = None,
    leave_out: Mapping[str, str] | None = None,
    unknown_returns: Mapping[str, int] | None = None,
    metrics: Mapping[str, float] | None = None,
    groups: Groups | None = None,
) -> AdvantageBatch:
    """The batch that an algorithm hands to training.

    advantages: action id -> one value for each token, or one for all of them; 0 for actions that are not in it. Or one
    value for each token of `all_samples(samples)`, one sample after the other. tokens: theirs, where at hand.
    leave_out: action id -> why it is masked after all. groups: what was compared with each other, to be counted.
    """
    reasons = leave_out or {}
    masked = samples
    if reasons:
        masked = {policy: [_mask(s, reasons.get(s.action_id)) for s in group] for policy, group in samples.items()}
    everything = all_samples(masked)
    if tokens is None or reasons:
        tokens = Tokens(everything)
    values_T = advantages if isinstance(advantages, np.ndarray) else _at_tokens(everything, tokens, advantages)
    with_values = iter(_credited(everything, tokens, values_T))
    credited = {policy: list(islice(with_values, len(group))) for policy, group in masked.items()}
    return AdvantageBatch(
        credited,
        masked=dict(Counter(s.masked_because for s in all_samples(credited) if s.masked_because)),
        unknown_returns=unknown_returns or {},
        metrics=metrics or {},
        groups=groups.count if groups else 0,
        groups_of_one=groups.of_one if groups else 0,
        groups_without_spread=groups.without_spread if groups else 0,
    )


def with_credit(episodes: Sequence[Episode], rewards: Rewards, batch: AdvantageBatch) -> list[Episode]:
    """The episodes, each action with what the batch made of it: what a reader of the run is shown."""
    credits = {sample.action_id: _credit(sample, rewards[sample.action_id]) for sample in all_samples(batch.samples)}

    def credited(actions: Sequence[Action]) -> tuple[Action, ...]:
        return tuple(replace(action, credit=credits.get(action.id)) for action in actions)

    return [
        replace(episode, actions=credited(episode.actions), rejected_candidates=credited(episode.rejected_candidates))
        for episode in episodes
    ]


def _credit(sample: TrainSample, reward: float | None) -> ActionCredit:
    trained_L = sample.mask_L > 0
    if sample.advantages_L is None or not trained_L.any():
        return ActionCredit(reward, None, sample.masked_because)
    return ActionCredit(reward, float(sample.advantages_L[trained_L].mean()), sample.masked_because)


def _mask(sample: TrainSample, reason: str | None) -> TrainSample:
    if reason is None or sample.masked_because:
        return sample
    return _changed(sample, mask_L=np.zeros_like(sample.mask_L), masked_because=reason)


def _at_tokens(samples: Sequence[TrainSample], tokens: Tokens, advantages: Mapping[str, Floats | float]) -> Floats:
    given = [advantages.get(sample.action_id, 0.0) for sample in samples]
    if all(type(value) is float for value in given):
        return tokens.spread(np.array(given, dtype=np.float64))
    sizes = tokens.lengths_N.tolist()
    return tokens.join([v if isinstance(v, np.ndarray) else np.full(n, v) for v, n in zip(given, sizes, strict=True)])


def _credited(samples: Sequence[TrainSample], tokens: Tokens, values_T: Floats) -> list[TrainSample]:
    """The samples with their advantages, 0 where they are masked."""
    values_T = values_T * tokens.mask_T
    parts = tokens.split(values_T.astype(np.float32))
    with _no_collection():
        return [_changed(sample, advantages_L=part) for sample, part in zip(samples, parts, strict=True)]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Around what makes as many objects as there are samples, all of which stay: to look through them for garbage again
    and again is a sixth of the time that advantages take."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _changed(sample: TrainSample, **fields: object) -> TrainSample:
    """As `dataclasses.replace`, which goes through every field again: for a million samples that is most of the time
    that advantages take."""
    changed = object.__new__(TrainSample)
    object.__setattr__(changed, "__dict__", {**sample.__dict__, **fields})
    return changed
