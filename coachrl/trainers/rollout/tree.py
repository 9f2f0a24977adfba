"""How the candidates of one state are rewarded while the episode waits (tree sampling)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.config.load import RunConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Pipeline
from coachrl.trainers.algorithms.rewards import score_reward, world_reward

Rewards = Callable[[Sequence[CoachRequest]], Awaitable[list[float | None]]]


@dataclass(frozen=True)
class Tree:
    """candidates: drawn from each state. rewards: one for each request, which come side by side; None where there is
    none to be had."""

    candidates: int
    rewards: Rewards


def make_tree(config: RunConfig, coach: CoachPool | None) -> Tree | None:
    """The run's tree sampling, or None where it samples in parallel. `coach` is None where the world gives rewards."""
    if config.sampling.scheme != "tree":
        return None
    rewards = by_coach(coach) if coach is not None else by_world(config.advantage.alpha)
    return Tree(config.sampling.candidates, rewards)


def by_world(alpha: float) -> Rewards:
    """`alpha * team + local`, as the world has given it already. Raises ConfigError where it has not."""

    async def rewards(requests: Sequence[CoachRequest]) -> list[float | None]:
        for request in requests:
            if request.action.reward is None:
                raise ConfigError(
                    f"sampling.scheme=tree: {request.role.name}'s candidates got no reward from a world, so that none "
                    "can be chosen; take advantage.rewards=coach"
                )
        return [world_reward(request.action, alpha) for request in requests]

    return rewards


def by_coach(pool: CoachPool) -> Rewards:
    """The coach's scores, asked for at once."""

    async def rewards(requests: Sequence[CoachRequest]) -> list[float | None]:
        for request in requests:
            pool.submit(request)
        return [score_reward(score) for score in await pool.scores([request.action.id for request in requests])]

    return rewards


def check_rewards(config: RunConfig, pipeline: Pipeline) -> None:
    """Raises ConfigError where `pipeline` has no world for what the run asks of it, or one that cannot be copied."""
    world, joint = getattr(pipeline, "world", None), getattr(pipeline, "joint_rewards", False)
    by_world = config.advantage.rewards == "world" and config.advantage.mode != "outcome"
    if by_world and joint and config.sampling.scheme == "tree":
        raise ConfigError(
            f"sampling.scheme=tree: pipeline {pipeline.name} rewards what its agents did together, so that one agent's "
            "candidates cannot be compared; take advantage.mode=magrpo with sampling.scheme=parallel, or "
            "advantage.rewards=coach"
        )
    if by_world and world is None and not joint:
        raise ConfigError(
            f"advantage.rewards=world: pipeline {pipeline.name} has no world that rewards actions; "
            "take advantage.rewards=coach, or a pipeline with one"
        )
    if config.sampling.scheme == "tree" and world is not None and not callable(getattr(world, "copy", None)):
        raise ConfigError(
            f"sampling.scheme=tree: pipeline {pipeline.name} is not copyable: its world {world.__name__} has no copy()"
        )
