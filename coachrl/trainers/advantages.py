"""From rewards of actions to advantages of tokens. Pure numpy; the only place that knows an algorithm.

For an action a with response tokens t = 1..L, reward r_a and k_t = log pi_old(t) - log pi_ref(t) the token rewards are
rho_t = -beta k_t, plus r_a at t = L (MAPPA Eq. 1, 2). The return-to-go is undiscounted, G_t = sum_{u >= t} rho_u
(Eq. 3). With return scope "agent" it goes on over the token rewards of later actions of the same agent in the episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coachrl.trainers.backend import Samples
from coachrl.types import TrainSample

VARIANCE_FLOOR = 1e-8  # REINFORCE++ clamps the population variance here (MAPPA, App. G.3)
SPREAD_FLOOR = 1e-6  # GRPO adds this to the deviation

Mode = Literal["reinforce_pp", "reward_backprop", "grpo", "outcome"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Credit:
    """Samples with their advantages, and how many actions were left out for which reason."""

    samples: Samples
    masked: Mapping[str, int]
    groups_without_spread: int = 0


def compute_advantages(
    samples: Samples,
    rewards: Mapping[str, float | None],
    *,
    mode: Mode = "reinforce_pp",
    return_scope: Literal["agent", "action"] = "agent",
    normalize_over: Literal["batch", "policy", "role"] = "batch",
    kl_beta: float = 0.0,
) -> Credit:
    """The same samples with `advantages_L` filled.

    rewards: action id -> r_a, or None where the coach gave no score: that action is masked, and counted.
    "reinforce_pp": A = (G - mu) / sigma over all valid tokens that share `normalize_over` (MAPPA Eq. 4).
    "reward_backprop" and "outcome" are the same on other rewards (see `rewards.action_rewards`). "grpo": r_a minus the
    mean of its group, divided by the sample deviation; a group is one task, role and turn, the state is not compared.
    Raises KeyError where an action has no entry in `rewards`.
    """
    prepared = {policy: [_mask_unscored(s, rewards[s.action_id]) for s in group] for policy, group in samples.items()}
    flat = [sample for group in prepared.values() for sample in group]
    masked: dict[str, int] = {}
    for sample in flat:
        if sample.masked_because:
            masked[sample.masked_because] = masked.get(sample.masked_because, 0) + 1
    if mode == "grpo":
        advantages, flat_groups = _group_relative(flat, rewards)
    else:
        returns = _returns(flat, rewards, return_scope, kl_beta)
        advantages, flat_groups = _normalise(flat, returns, _NORMALIZE_KEYS[normalize_over]), 0
    credited = {
        policy: [replace(s, advantages_L=(advantages[s.action_id] * s.mask_L).astype(np.float32)) for s in group]
        for policy, group in prepared.items()
    }
    return Credit(credited, masked, flat_groups)


_NORMALIZE_KEYS: dict[str, Callable[[TrainSample], str]] = {
    "batch": lambda sample: "",
    "policy": lambda sample: sample.policy,
    "role": lambda sample: sample.role,
}


def _mask_unscored(sample: TrainSample, reward: float | None) -> TrainSample:
    if reward is not None or sample.masked_because:
        return sample
    return replace(sample, mask_L=np.zeros_like(sample.mask_L), masked_because="unscored")


def _token_rewards(sample: TrainSample, reward: float | None, kl_beta: float) -> Floats:
    """rho_1..rho_L of one action; zeros where it is masked, since nothing true is known of its worth."""
    if sample.masked_because or reward is None:
        return np.zeros(len(sample.response_ids_L))
    if kl_beta > 0 and sample.ref_logprobs_L is None:
        raise ValueError("kl_beta > 0 needs reference log-probs: call Backend.with_reference first")
    rho = np.zeros(len(sample.response_ids_L))
    if kl_beta > 0 and sample.ref_logprobs_L is not None:
        rho -= kl_beta * (sample.old_logprobs_L.astype(np.float64) - sample.ref_logprobs_L)
    rho[-1:] += reward
    return rho


def _returns(
    samples: list[TrainSample], rewards: Mapping[str, float | None], return_scope: str, kl_beta: float
) -> dict[str, Floats]:
    """G_1..G_L by action id."""
    later: dict[tuple[str, str], float] = {}
    returns: dict[str, Floats] = {}
    for sample in sorted(samples, key=lambda s: s.index, reverse=True):
        rho = _token_rewards(sample, rewards[sample.action_id], kl_beta)
        agent = (sample.episode_id, sample.role)
        carried = later.get(agent, 0.0) if return_scope == "agent" else 0.0
        returns[sample.action_id] = np.cumsum(rho[::-1])[::-1] + carried
        later[agent] = later.get(agent, 0.0) + float(rho.sum())
    return returns


def _normalise(
    samples: list[TrainSample], returns: Mapping[str, Floats], key: Callable[[TrainSample], str]
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


def _group_relative(samples: list[TrainSample], rewards: Mapping[str, float | None]) -> tuple[dict[str, Floats], int]:
    """(r - mean) / (std + 1e-6) inside each (task, role, turn); groups of one or without spread give zeros."""
    groups: dict[tuple[str, str, int], list[tuple[TrainSample, float]]] = {}
    advantages = {sample.action_id: np.zeros(len(sample.response_ids_L)) for sample in samples}
    for sample in samples:
        reward = rewards[sample.action_id]
        if reward is not None and not sample.masked_because:
            groups.setdefault((sample.task_id, sample.role, sample.turn), []).append((sample, reward))
    without_spread = 0
    for members in groups.values():
        values = np.asarray([reward for _, reward in members], dtype=np.float64)
        if len(values) < 2 or np.ptp(values) == 0:
            without_spread += 1
            continue
        scaled = (values - values.mean()) / (values.std(ddof=1) + SPREAD_FLOOR)
        for (sample, _), advantage in zip(members, scaled, strict=True):
            advantages[sample.action_id] = np.full(len(sample.response_ids_L), advantage)
    return advantages, without_spread
