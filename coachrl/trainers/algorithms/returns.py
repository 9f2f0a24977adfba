"""From rewards of actions to returns: what an agent earns from an action to the end of its part. Pure numpy.

`returns` says what an action's return is made of. With w its worth, its reward less the KL penalty of its tokens:

    own                    w_a
    centered_sum           sum of w_u - b_u  over a and the agent's later actions u
    sum_as_in_the_paper    sum of w_u        over a and the agent's later actions u

Scores are 0 to 10, so that the paper's sum pays for taking turns: under a coach that always says 7, the first of four
turns returns 28 and an only turn 7. The centered sum holds each worth against b, the mean of the other actions of its
role and turn in the batch, before it sums: a coach that says the same of all moves nothing, and a turn that is as good
as turns of its place are earns nothing by being there. An action that is alone in its place is held against nothing and
earns 0. To fall back on the role's mean there would let in how turns of that place differ from others, which is what
turns would be paid by again, and what the failure of a peer's score would move it by.

An action whose worth is not known (a failed or abstained score, a reply cut short, a fault of the infrastructure) is
not trained on, yet it is a part of what the actions before it return. Counted as 0 points it would punish them. In a
centered sum it is 0 after centering: as good as its peers. In the paper's sum it is the mean of what is known of its
role and turn (of its role, where there is none). Either way the errors of that guess, one action of a place left out
after the other, sum to 0: a failure that strikes at random pushes the actions before it neither up nor down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from coachrl.trainers.algorithms.tokens import Floats, Tokens, sums_to_go
from coachrl.trainers.samples import TRUNCATED
from coachrl.types import TrainSample

ReturnKind = Literal["own", "centered_sum", "sum_as_in_the_paper"]
Key = Callable[[TrainSample], Hashable]
Value = TypeVar("Value")
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True)
class Returns(Generic[Value]):
    """by_action: the return of each action, by its id. unknown: by role, the actions that are trained on a return of
    which a later part is not known. baselines: the mean that was subtracted, by "<role>/<turn>"."""

    by_action: dict[str, Value]
    unknown: Mapping[str, int]
    baselines: Mapping[str, float] = field(default_factory=dict)


def token_returns(
    samples: Sequence[TrainSample], rewards: Mapping[str, float | None], kind: ReturnKind, kl_beta: float
) -> Returns[Floats]:
    """G_t = sum_{u >= t} rho_u for the tokens of each action, and what `kind` adds of the agent's later actions.

    A masked action's worth is not known, and its own tokens have G_t without a part of their own.
    """
    tokens = Tokens(samples)
    known_N, returns_T = _own_returns(samples, tokens, rewards, kl_beta)
    if kind == "own":
        return Returns(_by_action(samples, tokens.split(returns_T)), {})
    starts_N = tokens.starts_N[known_N & (tokens.lengths_N > 0)]
    earning = [s for s, known in zip(samples, known_N & (tokens.lengths_N > 0), strict=True) if known]
    worths = dict(zip((s.action_id for s in earning), returns_T[starts_N].tolist(), strict=True))
    baselines: Mapping[str, float] = {}
    if kind == "centered_sum":
        centered, means = center(earning, worths, _of_place, leave_one_out=True)
        baselines = {f"{role}/{turn}": mean for (role, turn), mean in means.items()}
        shifts = {action_id: worth - worths[action_id] for action_id, worth in centered.items()}
        worths = centered
    else:
        worths, shifts = dict(expected_worths(samples, worths, among=lambda _: "batch")), {}
    later = worth_of_later(samples, worths)
    added_N = np.fromiter((later[s.action_id] + shifts.get(s.action_id, 0.0) for s in samples), float, len(samples))
    known = {s.action_id for s, is_known in zip(samples, known_N, strict=True) if is_known}
    by_action = _by_action(samples, tokens.split(returns_T + tokens.spread(added_N)))
    return Returns(by_action, _count_unknown(samples, known), baselines)


def joint_returns(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> Returns[float]:
    """R_t = sum_{u >= t} r_u over the agent's actions from this one on (MAGRPO, Eq. 1), for actions of known reward.

    The reward is the team's, and measured for a reply that was cut short as for any other: that one is known. What is
    unknown counts as the mean of its role and turn among the episodes of its own task.
    """
    known = measured_rewards(samples, rewards)
    later = worth_of_later(samples, expected_worths(samples, known, among=lambda sample: sample.task_id))
    by_action = {action_id: later[action_id] + reward for action_id, reward in known.items()}
    return Returns(by_action, _count_unknown(samples, known))


def centered_joint_returns(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> Returns[float]:
    """sum_{u >= t} (r_u - mean r_u), each mean among the episodes of one task that took turn u in that role: the
    advantage of MAGRPO's Eq. 1 where all took equally many turns, and 0 by turns alone where they did not."""
    known = measured_rewards(samples, rewards)
    scored = [sample for sample in samples if sample.action_id in known]
    centered, _ = center(scored, known, lambda s: (s.task_id, s.role, s.turn), leave_one_out=False)
    later = worth_of_later(samples, centered)
    by_action = {action_id: later[action_id] + worth for action_id, worth in centered.items()}
    return Returns(by_action, _count_unknown(samples, known))


def measured_rewards(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> dict[str, float]:
    """The rewards that are known, of replies that were cut short too: an environment measures what they came to."""
    return {
        sample.action_id: reward
        for sample in samples
        if (reward := rewards[sample.action_id]) is not None and sample.masked_because in (None, TRUNCATED)
    }


def center(
    samples: Sequence[TrainSample],
    worths: Mapping[str, float],
    key: Callable[[TrainSample], Place],
    *,
    leave_one_out: bool,
) -> tuple[dict[str, float], dict[Place, float]]:
    """Action id -> its worth less the mean of those that share its key, without its own where `leave_one_out`; 0 where
    it is alone. And the mean of each key."""
    places_N, keys = _numbered([key(sample) for sample in samples])
    worths_N = np.array([worths[s.action_id] for s in samples], dtype=np.float64)
    # Held against one of the place first: where all are equal the differences are 0 exactly, whatever the rounding.
    pivots = np.zeros(len(keys))
    pivots[places_N] = worths_N
    differences_N = worths_N - pivots[places_N]
    counts = np.bincount(places_N, minlength=len(keys))
    shifts = np.bincount(places_N, differences_N, minlength=len(keys)) / np.maximum(counts, 1)
    centered_N = differences_N - shifts[places_N]
    if leave_one_out:
        centered_N *= (counts / np.maximum(counts - 1, 1))[places_N]
    centered = dict(zip((s.action_id for s in samples), centered_N.tolist(), strict=True))
    return centered, dict(zip(keys, (pivots + shifts).tolist(), strict=True))


def expected_worths(samples: Sequence[TrainSample], known: Mapping[str, float], among: Key) -> Mapping[str, float]:
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
    """For each action the sum of `worths`, 0 where it is in none, over later actions of the same agent: the one that
    plays this role in this episode. Roles that share a policy are agents of their own."""
    if not samples:
        return {}
    agents_N, agents = _numbered([(sample.episode_id, sample.role) for sample in samples])
    indices_N = np.array([sample.index for sample in samples], dtype=np.int64)
    order_N = np.lexsort(np.stack([indices_N, agents_N]))  # agent by agent, in the order of the episode
    ids = [samples[place].action_id for place in order_N.tolist()]
    worths_N = np.array([worths.get(action_id, 0.0) for action_id in ids])
    counts = np.bincount(agents_N, minlength=len(agents))
    from_next_N = np.append(sums_to_go(worths_N, counts)[1:], 0.0)
    from_next_N[np.cumsum(counts) - 1] = 0.0  # what comes after an agent's last action is another agent's
    return dict(zip(ids, from_next_N.tolist(), strict=True))


def _own_returns(
    samples: Sequence[TrainSample], tokens: Tokens, rewards: Mapping[str, float | None], kl_beta: float
) -> tuple[NDArray[np.bool_], Floats]:
    """Which actions have a worth that is known, and sum_{u >= t} rho_u for the tokens of those, 0 for others.

    rho_1..rho_L of one action: rho_t = -beta k_t, plus the reward at t = L.
    """
    given = [None if s.masked_because else rewards[s.action_id] for s in samples]
    known_N = np.array([reward is not None for reward in given], dtype=bool)
    rewards_N = np.array([reward or 0.0 for reward in given], dtype=np.float64)
    rho_T = np.zeros(tokens.total)
    if kl_beta > 0:
        references = [s.ref_logprobs_L for s in samples if s.ref_logprobs_L is not None]
        if len(references) < len(samples):
            raise ValueError("kl_beta > 0 needs reference log-probs: call Backend.with_reference first")
        gaps_T = tokens.join(s.old_logprobs_L for s in samples) - tokens.join(references)
        rho_T -= kl_beta * gaps_T * tokens.spread(known_N.astype(float))
    tokens.add_at_last(rho_T, rewards_N)
    return known_N, tokens.to_go(rho_T)


def _of_place(sample: TrainSample) -> tuple[str, int]:
    return sample.role, sample.turn


def _by_action(samples: Sequence[TrainSample], values: Sequence[Floats]) -> dict[str, Floats]:
    return dict(zip((sample.action_id for sample in samples), values, strict=True))


def _numbered(keys_N: Sequence[Place]) -> tuple[NDArray[np.int64], list[Place]]:
    """The number of each key, and the keys by their numbers."""
    numbers: dict[Place, int] = {}
    places = [numbers.setdefault(key, len(numbers)) for key in keys_N]
    return np.asarray(places, dtype=np.int64), list(numbers)


def _means(keys_N: Sequence[Place], values_N: Floats) -> dict[Place, float]:
    """The mean of the values of each key."""
    places_N, keys = _numbered(keys_N)
    means = np.bincount(places_N, values_N) / np.bincount(places_N)
    return dict(zip(keys, means.tolist(), strict=True))


def _count_unknown(samples: Sequence[TrainSample], known: Container[str]) -> dict[str, int]:
    missing = {s.action_id: 1.0 for s in samples if s.action_id not in known}
    if not missing:
        return {}
    later = worth_of_later(samples, missing)
    trained = [s for s in samples if s.action_id in known and s.masked_because is None]
    return dict(Counter(s.role for s in trained if later[s.action_id] > 0))
