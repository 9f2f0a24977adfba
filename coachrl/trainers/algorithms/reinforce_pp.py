"""REINFORCE++ over the agents of a team (MAPPA, arXiv 2601.23228, Eq. 1 to 4).

For an action a with response tokens t = 1..L, reward r_a and k_t = log pi_old(t) - log pi_ref(t) the token rewards are

    rho_t = -beta k_t,   plus r_a at t = L                                        (Eq. 1, 2)

The return-to-go is undiscounted; with `returns` "sum_as_in_the_paper" it goes on over the token rewards of later
actions of the same agent in the episode:

    G_t = sum_{u >= t} rho_u                                                      (Eq. 3)
    A_t = (G_t - mu) / sigma   over all valid tokens that share `normalize_over`  (Eq. 4)

That sum pays for taking turns (see `returns`), so it is not the default: "own" stops at the end of the action, and
"centered_sum" adds later actions' rewards less what turns of their role and place are worth on average. A centered sum
is 0 where there is nothing to say, so Eq. 4 gives it its scale alone: sigma is its root mean square, and mu is 0.
And where rewards tell nothing apart, nothing is trained on: see `normalize`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal

import numpy as np
from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch, with_advantages
from coachrl.trainers.algorithms.advantages.groups import Places
from coachrl.trainers.algorithms.advantages.returns import ReturnKind, token_returns
from coachrl.trainers.algorithms.advantages.tokens import Floats, Tokens
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards, mask_unscored
from coachrl.trainers.samples import all_samples
from coachrl.types import TrainSample

_ROUNDING = 1e-9  # of returns, relative: a mean of equal numbers may differ from them in the last bits
VARIANCE_FLOOR = 1e-8  # REINFORCE++ clamps the population variance here (MAPPA, App. G.3)


class ReinforcePPConfig(AlgorithmConfig):
    """The settings of REINFORCE++."""

    name: str = "reinforce_pp"
    returns: ReturnKind = Field(
        "own",
        description="own: an action's return is its own reward. centered_sum: its reward and those of the same agent's "
        "later actions, each held against the mean of its role and turn. sum_as_in_the_paper: those rewards as they "
        "are, which pays for taking turns.",
    )
    normalize_over: Literal["batch", "policy", "role", "role_turn"] = Field(
        "batch", description="The tokens that share one mean and one deviation."
    )
    kl_beta: float = Field(
        0.01, ge=0, description="Weight of the KL penalty in token rewards; 0 keeps no reference model."
    )


class ReinforcePP(Algorithm):
    """Returns of tokens, normalized over the batch: no groups, so that one episode of a task is enough."""

    Config = ReinforcePPConfig
    settings: ReinforcePPConfig

    @property
    def needs_reference(self) -> bool:
        return self.settings.kl_beta > 0

    def advantages(self, samples: Samples, rewards: Rewards) -> AdvantageBatch:
        """Eq. 1 to 4. In the returns of an agent's earlier actions, an action without a reward counts as one that is as
        good as others of its role and turn (`returns`)."""
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        kind, key = self.settings.returns, _KEYS[self.settings.normalize_over]
        returns = token_returns(everything, rewards, kind, self.settings.kl_beta)
        earned_T = returns.values_T
        if self.settings.kl_beta > 0:
            earned_T = token_returns(everything, rewards, kind, kl_beta=0.0).values_T
        places, centered = Places(map(key, everything)), kind == "centered_sum"
        normalized_T = normalize(returns.tokens, returns.values_T, earned_T, places, centered=centered)
        baselines = {f"baseline/{place}": mean for place, mean in returns.baselines.items()}
        return with_advantages(
            batch, normalized_T, tokens=returns.tokens, unknown_returns=returns.unknown, metrics=baselines
        )


_KEYS: dict[str, Callable[[TrainSample], Hashable]] = {
    "batch": lambda sample: "",
    "policy": lambda sample: sample.policy,
    "role": lambda sample: sample.role,
    "role_turn": lambda sample: (sample.role, sample.turn),
}


def normalize(tokens: Tokens, returns_T: Floats, earned_T: Floats, places: Places, *, centered: bool) -> Floats:
    """(G - mu) / sigma over the valid tokens of each place; population variance. mu is 0 where they are `centered`.

    0 in a place where `earned_T`, the returns without the KL penalty, tell no token from another. By Eq. 4 the penalty,
    all that differs then, would be made as large as rewards are: in the first step, where it is rounding, and once a
    team solves everything, when it would undo what was learned."""
    valid_T = tokens.mask_T > 0
    numbers_T = np.repeat(places.numbers_N, tokens.lengths_N)
    means_K, deviations_K = np.zeros(len(places.keys_K)), np.full(len(places.keys_K), np.inf)
    for number in range(len(places.keys_K)):
        here_T = valid_T & (numbers_T == number)
        valid, earned = returns_T[here_T], earned_T[here_T]
        if not _differ(earned if centered else earned - earned[:1], earned):
            continue
        means_K[number] = 0.0 if centered else valid.mean()
        variance = np.mean((valid - means_K[number]) ** 2)
        deviations_K[number] = np.sqrt(max(variance, VARIANCE_FLOOR))
    return (returns_T - means_K[numbers_T]) / deviations_K[numbers_T]


def _differ(gaps: Floats, values: Floats) -> bool:
    """Whether any of the gaps between values is more than their rounding."""
    return bool(gaps.size) and bool(np.abs(gaps).max() > _ROUNDING * np.abs(values).max())
