"""What every algorithm hands back: the samples of a batch with their advantages."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from coachrl.errors import ConfigError
from coachrl.text import brief
from coachrl.trainers.algorithms.advantages.groups import Groups
from coachrl.trainers.algorithms.advantages.tokens import Floats, Tokens
from coachrl.trainers.backends.base import Samples, weighs
from coachrl.trainers.masking import Rewards, masked, masked_for
from coachrl.trainers.samples import all_samples, changed
from coachrl.types import Action, ActionCredit, Episode, TrainSample


class NotFinite(ConfigError):
    """An advantage is no finite number, as some rewards may make it of others."""


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

    Raises ConfigError for advantages of another shape, of actions that are not among the samples, and for what is not a
    finite number.
    """
    reasons = leave_out or {}
    masked = samples
    if reasons:
        masked = masked_for(samples, reasons)
    everything = all_samples(masked)
    if tokens is None or reasons:
        tokens = Tokens(everything)
    values_T = _at_tokens(everything, tokens, advantages)
    with_values = iter(_credited(everything, tokens, values_T))
    credited = {policy: list(islice(with_values, len(group))) for policy, group in masked.items()}
    return AdvantageBatch(
        credited,
        masked=_reasons(credited),
        unknown_returns=unknown_returns or {},
        metrics=metrics or {},
        groups=groups.count if groups else 0,
        groups_of_one=groups.of_one if groups else 0,
        groups_without_spread=groups.without_spread if groups else 0,
    )


def without_frozen(batch: AdvantageBatch, frozen: Container[str]) -> AdvantageBatch:
    """The batch, less the actions of policies that are not trained (`policies.NAME.trainable`), which count as nothing
    else. What theirs were worth stays in the means that others are held against."""
    samples = {
        policy: [masked(sample, "frozen") for sample in group] if policy in frozen else group
        for policy, group in batch.samples.items()
    }
    return replace(batch, samples=samples, masked=_reasons(samples))


def without_few(batch: AdvantageBatch, min_actions: int) -> AdvantageBatch:
    """The batch, less the policies that have fewer than `min_actions` actions with a gradient (`train.min_actions`).
    What theirs were worth stays in the means, too."""
    few = {
        sample.action_id: "few"
        for group in batch.samples.values()
        if 0 < sum(map(weighs, group)) < min_actions
        for sample in group
    }
    if not few:
        return batch
    samples = masked_for(batch.samples, few)
    return replace(batch, samples=samples, masked=_reasons(samples))


def _reasons(samples: Samples) -> dict[str, int]:
    """How many actions are left out, by why."""
    return dict(Counter(s.masked_because for s in all_samples(samples) if s.masked_because))


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


def _at_tokens(
    samples: Sequence[TrainSample], tokens: Tokens, advantages: Mapping[str, Floats | float] | Floats
) -> Floats:
    """One value for each token, whichever way the algorithm gave them."""
    sizes = tokens.lengths_N.tolist()
    if isinstance(advantages, np.ndarray):
        values_T = advantages
        if values_T.shape != (sum(sizes),):
            raise ConfigError(f"advantages have the shape {values_T.shape}, and the samples {sum(sizes)} tokens in all")
    else:
        if unknown := advantages.keys() - {sample.action_id for sample in samples}:
            first = brief(min(unknown, key=str))
            raise ConfigError(f"advantages are given for {first}, which is no action of the step")
        given = [advantages.get(sample.action_id, 0.0) for sample in samples]
        if all(type(value) is float for value in given):
            values_T = tokens.spread(np.array(given, dtype=np.float64))
        else:
            named = zip(samples, given, sizes, strict=True)
            values_T = tokens.join([_of_action(sample, value, size) for sample, value, size in named])
    with np.errstate(over="ignore"):
        finite_T = np.isfinite(values_T.astype(np.float32))  # as it is trained on
    if not finite_T.all():
        at = int(np.searchsorted(np.cumsum(sizes), np.flatnonzero(~finite_T)[0], side="right"))
        raise NotFinite(f"the advantage of action {samples[at].action_id} is no finite number of 32 bits")
    return values_T


def _of_action(sample: TrainSample, value: Any, size: int) -> Floats:
    """What was given for one action, at each of its tokens."""
    try:
        if np.asarray(value).dtype.kind in "US":  # which NumPy would read as a number
            raise TypeError
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (size,))
    except (TypeError, ValueError):
        what = f"an array of {value.shape}" if isinstance(value, np.ndarray) else brief(value)
        raise ConfigError(
            f"the advantage of action {sample.action_id} is {what}: it must be one number, or one for each of its "
            f"{size} tokens"
        ) from None


def _credited(samples: Sequence[TrainSample], tokens: Tokens, values_T: Floats) -> list[TrainSample]:
    """The samples with their advantages, 0 where they are masked."""
    values_T = values_T * tokens.mask_T
    parts = tokens.split(values_T.astype(np.float32))
    with _no_collection():
        return [changed(sample, advantages_L=part) for sample, part in zip(samples, parts, strict=True)]


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
