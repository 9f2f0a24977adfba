"""From rewards of actions to advantages of tokens. Pure numpy; the only place that knows an algorithm.

For an action a with response tokens t = 1..L, reward r_a and k_t = log pi_old(t) - log pi_ref(t) the token rewards are
rho_t = -beta k_t, plus r_a at t = L (MAPPA Eq. 1, 2). The return-to-go is undiscounted, G_t = sum_{u >= t} rho_u
(Eq. 3). With return scope "agent" it goes on over the token rewards of later actions of the same agent in the episode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coachrl.trainers.algorithms.returns import Floats, ReturnScope, joint_returns, token_returns
from coachrl.trainers.backends.base import Samples
from coachrl.types import TrainSample

VARIANCE_FLOOR = 1e-8  # REINFORCE++ clamps the population variance here (MAPPA, App. G.3)
SPREAD_FLOOR = 1e-6  # GRPO adds this to the deviation

Mode = Literal["reinforce_pp", "retrospective", "grpo", "at_grpo", "magrpo", "outcome"]
Group = tuple[str | int, ...]
Members = list[tuple[TrainSample, float]]


@dataclass(frozen=True)
class AdvantageBatch:
    """Samples with their advantages, and how many actions were left out for which reason.

    unknown_returns: by role, the actions that are trained on a return of which a later part is not known (`returns`).
    groups: how many there were in all; of them groups_of_one, and groups_without_spread (of two or more).
    """

    samples: Samples
    masked: Mapping[str, int]
    unknown_returns: Mapping[str, int]
    groups: int = 0
    groups_of_one: int = 0
    groups_without_spread: int = 0


def compute_advantages(
    samples: Samples,
    rewards: Mapping[str, float | None],
    *,
    mode: Mode = "reinforce_pp",
    return_scope: ReturnScope = "agent",
    normalize_over: Literal["batch", "policy", "role"] = "batch",
    kl_beta: float = 0.0,
    group_by: Literal["task", "turn"] = "task",
) -> AdvantageBatch:
    """The same samples with `advantages_L` filled; in the modes with groups one value for every token of an action.

    rewards: action id -> r_a, or None where there is none: that action is masked, and counted. In the returns of the
    agent's earlier actions it counts as the mean of its role and turn (see `returns`), and it is in no group.
    "reinforce_pp": A = (G - mu) / sigma over all valid tokens that share `normalize_over` (MAPPA Eq. 4).
    "retrospective" and "outcome" are the same on other rewards (see `rewards.action_rewards`).
    "at_grpo" (Stronger-MAS, Alg. 1): (r - mean) / (std + 1e-6) with the unbiased deviation, among the candidates of one
    episode, role and turn. A group of one, or without spread, gives no sample: its actions are masked.
    "grpo": the same formula among all actions of one task, whatever their roles, turns and states; with `group_by`
    "turn" among those of one task, role and turn. Groups of one and without spread give zeros.
    "magrpo" (MAGRPO, Eq. 1): R_t - mean R_t among the episodes of one task, for each role and turn, where R_t sums the
    rewards of the agent's actions from t on. No deviation. A reply that was cut short still counts in sums and means.
    Raises KeyError where an action has no entry in `rewards`, ValueError where one comes twice.
    """
    prepared = {policy: [_mask_unscored(s, rewards[s.action_id]) for s in group] for policy, group in samples.items()}
    flat = [sample for group in prepared.values() for sample in group]
    if len({sample.action_id for sample in flat}) < len(flat):
        raise ValueError("an action comes twice among the samples: it would be compared with itself")
    groups: list[Members] = []
    unknown: Mapping[str, int] = {}
    if mode in ("reinforce_pp", "retrospective", "outcome"):
        returns = token_returns(flat, rewards, return_scope, kl_beta)
        advantages = _normalise(flat, returns.by_action, _NORMALIZE_KEYS[normalize_over])
        unknown = returns.unknown
    else:
        values = _own_rewards(flat, rewards)
        if mode == "magrpo":
            joint = joint_returns(flat, rewards)
            values, unknown = joint.by_action, joint.unknown
        groups = _grouped(flat, values, _GROUP_KEYS[group_by if mode == "grpo" else mode])
        advantages = _group_relative(flat, groups, scaled=mode != "magrpo")
    reasons = _without_comparison(groups) if mode == "at_grpo" else {}
    credited = {
        policy: [_credited(_mask(s, reasons.get(s.action_id)), advantages[s.action_id]) for s in group]
        for policy, group in prepared.items()
    }
    masked = Counter(s.masked_because for group in credited.values() for s in group if s.masked_because)
    alone = sum(len(members) == 1 for members in groups)
    without_spread = sum(map(_has_no_spread, groups)) - alone
    return AdvantageBatch(credited, dict(masked), unknown, len(groups), alone, without_spread)


_GROUP_KEYS: dict[str, Callable[[TrainSample], Group]] = {
    "at_grpo": lambda sample: (sample.episode_id, sample.role, sample.turn),
    "magrpo": lambda sample: (sample.task_id, sample.role, sample.turn),
    "turn": lambda sample: (sample.task_id, sample.role, sample.turn),
    "task": lambda sample: (sample.task_id,),
}

_NORMALIZE_KEYS: dict[str, Callable[[TrainSample], str]] = {
    "batch": lambda sample: "",
    "policy": lambda sample: sample.policy,
    "role": lambda sample: sample.role,
}


def _mask_unscored(sample: TrainSample, reward: float | None) -> TrainSample:
    return _mask(sample, "unscored" if reward is None else None)


def _mask(sample: TrainSample, reason: str | None) -> TrainSample:
    if reason is None or sample.masked_because:
        return sample
    return replace(sample, mask_L=np.zeros_like(sample.mask_L), masked_because=reason)


def _credited(sample: TrainSample, advantages_L: Floats) -> TrainSample:
    return replace(sample, advantages_L=(advantages_L * sample.mask_L).astype(np.float32))


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


def _own_rewards(samples: list[TrainSample], rewards: Mapping[str, float | None]) -> dict[str, float]:
    """r_a of the actions that are trained on."""
    return {s.action_id: r for s in samples if (r := rewards[s.action_id]) is not None and not s.masked_because}


def _grouped(
    samples: list[TrainSample], values: Mapping[str, float], key: Callable[[TrainSample], Group]
) -> list[Members]:
    """The members of each group with their values, for the samples that have one."""
    groups: dict[Group, Members] = {}
    for sample in samples:
        if sample.action_id in values:
            groups.setdefault(key(sample), []).append((sample, values[sample.action_id]))
    return list(groups.values())


def _group_relative(samples: list[TrainSample], groups: list[Members], scaled: bool) -> dict[str, Floats]:
    """value - mean inside each group, over std + 1e-6 where `scaled`; zeros where there is nothing to compare with."""
    advantages = {sample.action_id: np.zeros(len(sample.response_ids_L)) for sample in samples}
    for members in groups:
        if _has_no_spread(members):
            continue
        values = np.asarray([value for _, value in members], dtype=np.float64)
        relative = values - values.mean()
        if scaled:
            relative /= values.std(ddof=1) + SPREAD_FLOOR
        for (sample, _), advantage in zip(members, relative, strict=True):
            advantages[sample.action_id] = np.full(len(sample.response_ids_L), advantage)
    return advantages


def _has_no_spread(members: Members) -> bool:
    return len({value for _, value in members}) == 1


def _without_comparison(groups: list[Members]) -> dict[str, str]:
    """Action id -> why its group teaches nothing."""
    return {
        sample.action_id: "group_of_one" if len(members) == 1 else "no_spread"
        for members in groups
        if _has_no_spread(members)
        for sample, _ in members
    }
