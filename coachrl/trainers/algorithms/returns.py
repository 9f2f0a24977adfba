"""From rewards of actions to returns: what an agent earns from an action to the end of its part. Pure numpy.

An action whose reward is not known (a failed or abstained score, a reply cut short, a fault of the infrastructure) is
not trained on, yet it is a part of what the actions before it return. Counted as 0 it would punish them, since scores
are 0 to 10: a failed call would be a number after all. It counts as the mean of what is known for its role and turn:

    w_a = w_a                                                             where it is known
        = mean of w_b over known b of the same role and turn              where not (of the role, where there is none)

Among n such actions the errors of that guess, one left out after the other, sum to 0, so that a failure which strikes
at random pushes the actions before it neither up nor down, however many turns their agents take. To leave those
actions out instead would keep long parts, which more failures strike, out of the means that all others are held
against. In a group whose members took equally many turns, one guess is the same as leaving the unknown reward out of
the sums and means of its turn: the terms r_u - mean r_u of Eq. 1 of MAGRPO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from coachrl.trainers.samples import TRUNCATED
from coachrl.types import TrainSample

Floats = NDArray[np.float64]
ReturnScope = Literal["agent", "action"]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Returns(Generic[Value]):
    """by_action: the return of each action, by its id. unknown: by role, the actions that are trained on a return of
    which a later part is not known."""

    by_action: dict[str, Value]
    unknown: Mapping[str, int]


def token_returns(
    samples: Sequence[TrainSample], rewards: Mapping[str, float | None], scope: ReturnScope, kl_beta: float
) -> Returns[Floats]:
    """G_t = sum_{u >= t} rho_u for the tokens of each action; with `scope` "agent" plus w of the agent's later actions.

    w = sum_t rho_t; a masked action's is not known, and its own tokens have G_t without a part of their own.
    """
    by_action: dict[str, Floats] = {}
    known: dict[str, float] = {}
    for sample in samples:
        reward = None if sample.masked_because else rewards[sample.action_id]
        if reward is None:
            by_action[sample.action_id] = np.zeros(len(sample.response_ids_L))
            continue
        rho = token_rewards(sample, reward, kl_beta)
        by_action[sample.action_id] = np.cumsum(rho[::-1])[::-1]
        known[sample.action_id] = float(rho.sum())
    if scope == "action":
        return Returns(by_action, {})
    for action_id, later in worth_of_later(samples, expected_worths(samples, known, among=lambda _: "batch")).items():
        by_action[action_id] += later
    return Returns(by_action, _count_unknown(samples, known))


def joint_returns(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> Returns[float]:
    """R_t = sum_{u >= t} r_u over the agent's actions from this one on (MAGRPO, Eq. 1), for actions of known reward.

    The reward is the team's, and measured for a reply that was cut short as for any other: that one is known. What is
    unknown counts as the mean of its role and turn among the episodes of its own task.
    """
    known = {
        sample.action_id: reward
        for sample in samples
        if (reward := rewards[sample.action_id]) is not None and sample.masked_because in (None, TRUNCATED)
    }
    later = worth_of_later(samples, expected_worths(samples, known, among=lambda sample: sample.task_id))
    by_action = {action_id: later[action_id] + reward for action_id, reward in known.items()}
    return Returns(by_action, _count_unknown(samples, known))


def token_rewards(sample: TrainSample, reward: float, kl_beta: float) -> Floats:
    """rho_1..rho_L of one action: rho_t = -beta k_t, plus the reward at t = L."""
    if kl_beta > 0 and sample.ref_logprobs_L is None:
        raise ValueError("kl_beta > 0 needs reference log-probs: call Backend.with_reference first")
    rho = np.zeros(len(sample.response_ids_L))
    if kl_beta > 0 and sample.ref_logprobs_L is not None:
        rho -= kl_beta * (sample.old_logprobs_L.astype(np.float64) - sample.ref_logprobs_L)
    rho[-1:] += reward
    return rho


def expected_worths(
    samples: Sequence[TrainSample], known: Mapping[str, float], among: Callable[[TrainSample], Hashable]
) -> Mapping[str, float]:
    """`known`, and for every other action the mean of the known ones with which it shares `among`, role and turn; where
    there are none, of those with which it shares `among` and role. 0 where there are none either: no return of an
    action that is trained on holds such a one, since that action is known and of its role."""
    if len(known) == len(samples):
        return known
    scored = [sample for sample in samples if sample.action_id in known]
    worths_N = np.asarray([known[sample.action_id] for sample in scored], dtype=np.float64)
    of_turn = _means([(among(sample), sample.role, sample.turn) for sample in scored], worths_N)
    of_role = _means([(among(sample), sample.role) for sample in scored], worths_N)
    worths = dict(known)
    for sample in samples:
        if sample.action_id not in known:
            otherwise = of_role.get((among(sample), sample.role), 0.0)
            worths[sample.action_id] = of_turn.get((among(sample), sample.role, sample.turn), otherwise)
    return worths


def worth_of_later(samples: Sequence[TrainSample], worths: Mapping[str, float]) -> dict[str, float]:
    """For each action the sum of `worths` over later actions of the same agent: the one that plays this role in this
    episode. Roles that share a policy are agents of their own."""
    so_far: dict[tuple[str, str], float] = {}
    later: dict[str, float] = {}
    for sample in sorted(samples, key=lambda s: s.index, reverse=True):
        agent = (sample.episode_id, sample.role)
        later[sample.action_id] = so_far.get(agent, 0.0)
        so_far[agent] = later[sample.action_id] + worths[sample.action_id]
    return later


def _means(keys_N: Sequence[Hashable], values_N: Floats) -> dict[Hashable, float]:
    """The mean of the values of each key."""
    numbers: dict[Hashable, int] = {}
    places_N = np.asarray([numbers.setdefault(key, len(numbers)) for key in keys_N], dtype=np.int64)
    means = np.bincount(places_N, values_N) / np.bincount(places_N)
    return dict(zip(numbers, means.tolist(), strict=True))


def _count_unknown(samples: Sequence[TrainSample], known: Mapping[str, float]) -> dict[str, int]:
    if len(known) == len(samples):
        return {}
    missing = worth_of_later(samples, {s.action_id: 0.0 if s.action_id in known else 1.0 for s in samples})
    trained = [s for s in samples if s.action_id in known and s.masked_because is None]
    return dict(Counter(s.role for s in trained if missing[s.action_id] > 0))
