"""REINFORCE++ over the agents of a team (MAPPA, arXiv 2601.23228, Eq. 1 to 4).

For an action a with response tokens t = 1..L, reward r_a and k_t = log pi_old(t) - log pi_ref(t) the token rewards are

    rho_t = -beta k_t,   plus r_a at t = L                                        (Eq. 1, 2)

The return-to-go is undiscounted, and with `return_scope` "agent" it goes on over the token rewards of later actions of
the same agent in the episode:

    G_t = sum_{u >= t} rho_u                                                      (Eq. 3)
    A_t = (G_t - mu) / sigma   over all valid tokens that share `normalize_over`  (Eq. 4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.batches import AdvantageBatch, Rewards, all_samples, mask_unscored, with_advantages
from coachrl.trainers.algorithms.returns import Floats, ReturnScope, token_returns
from coachrl.trainers.backends.base import Samples
from coachrl.types import TrainSample

VARIANCE_FLOOR = 1e-8  # REINFORCE++ clamps the population variance here (MAPPA, App. G.3)


class ReinforcePPConfig(AlgorithmConfig):
    """The settings of REINFORCE++."""

    name: str = "reinforce_pp"
    return_scope: ReturnScope = Field(
        "agent",
        description="agent: an action's return includes the rewards of the same agent's later actions. "
        "action: its own reward alone.",
    )
    normalize_over: Literal["batch", "policy", "role"] = Field(
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
        """Eq. 1 to 4. In the returns of an agent's earlier actions, an action without a reward counts as the mean of
        its role and turn (`returns`)."""
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        returns = token_returns(everything, rewards, self.settings.return_scope, self.settings.kl_beta)
        normalized = normalize(everything, returns.by_action, _KEYS[self.settings.normalize_over])
        return with_advantages(batch, normalized, unknown_returns=returns.unknown)


_KEYS: dict[str, Callable[[TrainSample], str]] = {
    "batch": lambda sample: "",
    "policy": lambda sample: sample.policy,
    "role": lambda sample: sample.role,
}


def normalize(
    samples: Sequence[TrainSample], returns: Mapping[str, Floats], key: Callable[[TrainSample], str]
) -> dict[str, Floats]:
    """(G - mu) / sigma over the valid tokens of each key; population variance."""
    advantages: dict[str, Floats] = {}
    for name in {key(sample) for sample in samples}:
        members = [sample for sample in samples if key(sample) == name]
        valid = np.concatenate([returns[s.action_id][s.mask_L > 0] for s in members])
        mean = valid.mean() if valid.size else 0.0
        deviation = np.sqrt(max(valid.var(), VARIANCE_FLOOR)) if valid.size else 1.0
        for sample in members:
            advantages[sample.action_id] = (returns[sample.action_id] - mean) / deviation
    return advantages
