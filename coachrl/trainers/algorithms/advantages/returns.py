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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from coachrl.trainers.algorithms.advantages.groups import Flags, Places
from coachrl.trainers.algorithms.advantages.tokens import Floats, Tokens, sums_to_go
from coachrl.trainers.masking import known_rewards
from coachrl.types import TrainSample

ReturnKind = Literal["own", "centered_sum", "sum_as_in_the_paper"]


@dataclass(frozen=True)
class TokenReturns:
    """tokens: of the samples. values_T: the return of each of them. unknown: by role, the actions that are trained on a
    return of which a later part is not known. baselines: the mean that was subtracted, by "<role>/<turn>"."""

    tokens: Tokens
    values_T: Floats
    unknown: Mapping[str, int]
    baselines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JointReturns:
    """by_action: the return of each action of known reward, by its id. unknown: as in `TokenReturns`."""

    by_action: dict[str, float]
    unknown: Mapping[str, int]


def token_returns(
    samples: Sequence[TrainSample], rewards: Mapping[str, float | None], kind: ReturnKind, kl_beta: float
) -> TokenReturns:
    """G_t = sum_{u >= t} rho_u for the tokens of each action, and what `kind` adds of the agent's later actions.

    A masked action's worth is not known, and its own tokens have G_t without a part of their own.
    """
    tokens = Tokens(samples)
    known_N, returns_T = _own_returns(samples, tokens, rewards, kl_beta)
    if kind == "own":
        return TokenReturns(tokens, returns_T, {})
    earning_N = known_N & (tokens.lengths_N > 0)
    worths_N, shifts_N = np.zeros(len(samples)), np.zeros(len(samples))
    worths_N[earning_N] = returns_T[tokens.starts_N[earning_N]]
    agents, places, baselines = Agents(samples), Places([(s.role, s.turn) for s in samples]), {}
    if kind == "centered_sum":
        centered_N, means = places.center(worths_N, earning_N, leave_one_out=True)
        baselines = {f"{role}/{turn}": mean for (role, turn), mean in means.items()}
        worths_N, shifts_N = centered_N, np.where(earning_N, centered_N - worths_N, 0.0)
    else:
        of_role = Places([s.role for s in samples])
        worths_N = np.where(earning_N, worths_N, places.means(worths_N, earning_N, of_role.means(worths_N, earning_N)))
    returns_T = returns_T + tokens.spread(agents.later(worths_N) + shifts_N)
    return TokenReturns(tokens, returns_T, _count_unknown(samples, agents, known_N), baselines)


def joint_returns(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> JointReturns:
    """R_t = sum_{u >= t} r_u over the agent's actions from this one on (MAGRPO, Eq. 1), for actions of known reward.

    The reward is the team's, and measured for a reply that was cut short as for any other: that one is known. What is
    unknown counts as the mean of its role and turn among the episodes of its own task.
    """
    known_N, worths_N = _measured(samples, rewards)
    of_role = Places([(s.task_id, s.role) for s in samples]).means(worths_N, known_N)
    of_turn = Places([(s.task_id, s.role, s.turn) for s in samples]).means(worths_N, known_N, of_role)
    return _joint(samples, np.where(known_N, worths_N, of_turn), known_N)


def centered_joint_returns(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> JointReturns:
    """sum_{u >= t} (r_u - mean r_u), each mean among the episodes of one task that took turn u in that role: the
    advantage of MAGRPO's Eq. 1 where all took equally many turns, and 0 by turns alone where they did not."""
    known_N, worths_N = _measured(samples, rewards)
    places = Places([(s.task_id, s.role, s.turn) for s in samples])
    return _joint(samples, places.center(worths_N, known_N, leave_one_out=False)[0], known_N)


def _joint(samples: Sequence[TrainSample], worths_N: Floats, known_N: Flags) -> JointReturns:
    agents = Agents(samples)
    returns = zip((s.action_id for s in samples), (agents.later(worths_N) + worths_N).tolist(), known_N, strict=True)
    by_action = {action_id: value for action_id, value, known in returns if known}
    return JointReturns(by_action, _count_unknown(samples, agents, known_N))


def _measured(samples: Sequence[TrainSample], rewards: Mapping[str, float | None]) -> tuple[Flags, Floats]:
    """Which rewards are known, of replies that were cut short too, and the rewards, 0 where they are not."""
    known = known_rewards(samples, rewards, cut_short=True)
    values_N = np.array([known.get(s.action_id, np.nan) for s in samples], dtype=np.float64)
    known_N = ~np.isnan(values_N)
    return known_N, np.where(known_N, values_N, 0.0)


class Agents:
    """The actions of each agent in their order: of the one that plays a role in an episode. Roles that share a policy
    are agents of their own."""

    def __init__(self, samples: Sequence[TrainSample]) -> None:
        numbers: dict[tuple[str, str], int] = {}
        places = [numbers.setdefault((s.episode_id, s.role), len(numbers)) for s in samples]
        agents_N = np.array(places, dtype=np.int64)
        indices_N = np.array([s.index for s in samples], dtype=np.int64)
        self._counts = np.bincount(agents_N, minlength=len(numbers))
        self._order_N = np.lexsort(np.stack([indices_N, agents_N]))  # agent by agent, in the order of the episode

    def later(self, worths_N: Floats) -> Floats:
        """For each action the sum of the worths of later actions of the same agent."""
        if not worths_N.size:
            return worths_N
        from_next_N = np.append(sums_to_go(worths_N[self._order_N], self._counts)[1:], 0.0)
        from_next_N[np.cumsum(self._counts) - 1] = 0.0  # what comes after an agent's last action is another agent's
        later_N = np.empty_like(from_next_N)
        later_N[self._order_N] = from_next_N
        return later_N


def _own_returns(
    samples: Sequence[TrainSample], tokens: Tokens, rewards: Mapping[str, float | None], kl_beta: float
) -> tuple[Flags, Floats]:
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
        with np.errstate(invalid="ignore"):  # of what is left out, log-probs may be anything
            gaps_T = tokens.join(s.old_logprobs_L for s in samples) - tokens.join(references)
        rho_T -= kl_beta * np.where(np.repeat(known_N, tokens.lengths_N), gaps_T, 0.0)
    tokens.add_at_last(rho_T, rewards_N)
    return known_N, tokens.to_go(rho_T)


def _count_unknown(samples: Sequence[TrainSample], agents: Agents, known_N: Flags) -> dict[str, int]:
    if known_N.all():
        return {}
    struck = np.flatnonzero(known_N & (agents.later((~known_N).astype(np.float64)) > 0)).tolist()
    return dict(Counter(samples[place].role for place in struck if samples[place].masked_because is None))
