"""How the candidates of one state are rewarded while the episode waits (tree sampling)."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, Pipeline
from coachrl.pipelines.team.team import Rewards, Tree
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.advantages.rewards import environment_reward, score_reward


def make_tree(config: RunConfig, coach: CoachPool | None) -> Tree | None:
    """The run's tree sampling, or None where it samples in parallel. `coach` is None where the environment gives
    rewards."""
    if config.sampling.scheme != "tree":
        return None
    rewards = by_coach(coach) if coach is not None else by_environment(config.reward.team_weight)
    return Tree(config.sampling.candidates, rewards)


def by_environment(team_weight: float) -> Rewards:
    """`team_weight * team + local`, as the environment has given it already. Raises ConfigError where it has not."""

    async def rewards(requests: Sequence[CoachRequest]) -> list[float | None]:
        for request in requests:
            if request.action.reward is None:
                raise ConfigError(
                    f"sampling.scheme=tree: {request.role.name}'s candidates got no reward from an environment, so "
                    "that none can be chosen; take reward.source=coach"
                )
        return [environment_reward(request.action, team_weight) for request in requests]

    return rewards


def by_coach(pool: CoachPool) -> Rewards:
    """The coach's scores, asked for at once."""

    async def rewards(requests: Sequence[CoachRequest]) -> list[float | None]:
        for request in requests:
            pool.submit(request)
        return [score_reward(score) for score in await pool.scores([request.action.id for request in requests])]

    return rewards


def check_rewards(config: RunConfig, pipeline: Pipeline) -> None:
    """Raises ConfigError where `pipeline` has no environment for what the run asks of it, or cannot be sampled as a
    tree."""
    environment, tree = pipeline.environment, config.sampling.scheme == "tree"
    environment_rewards = make_algorithm(config.algorithm).needs_environment(config.reward)
    if tree and not pipeline.branches:
        raise ConfigError(
            f"sampling.scheme=tree: an episode of pipeline {pipeline.name} cannot go on from several replies, since "
            "nobody can copy the state of an app; take sampling.scheme=parallel with train.group_size"
        )
    if environment_rewards and pipeline.joint_rewards and tree:
        raise ConfigError(
            f"sampling.scheme=tree: pipeline {pipeline.name} rewards what its agents did together, so that one agent's "
            "candidates cannot be compared; take algorithm.name=magrpo with sampling.scheme=parallel, or "
            "reward.source=coach"
        )
    if environment_rewards and environment is None and not pipeline.joint_rewards:
        raise ConfigError(
            f"reward.source=environment: pipeline {pipeline.name} has no environment that rewards actions; "
            "take reward.source=coach, or a pipeline with one"
        )
    if tree and environment is not None and environment.copy is Environment.copy:
        raise ConfigError(
            f"sampling.scheme=tree: pipeline {pipeline.name} is not copyable: its environment "
            f"{environment.__name__} has no copy()"
        )
