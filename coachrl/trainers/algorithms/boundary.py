"""Between a run and its algorithm: what one of the user's own raises, or gives that is of no use, becomes one line, and
what it does to episodes, scores and rewards that it is given changes those of nobody else."""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coachrl.config import RewardConfig
from coachrl.config.algorithm import SHIPPED, algorithm_code
from coachrl.config.choices import awaited
from coachrl.errors import ConfigError
from coachrl.text import brief
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.trainers.algorithms.advantages.own_reward import checked_rewards
from coachrl.trainers.algorithms.base import Algorithm, Explored
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.masking import Rewards
from coachrl.types import CoachScore, Episode, TrainSample

if TYPE_CHECKING:
    from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext


def rewards_of(
    algorithm: Algorithm, episode: Episode, scores: Mapping[str, CoachScore], reward: RewardConfig
) -> Rewards:
    """What `algorithm.rewards` gives. Raises ConfigError where that is no reward for each action."""
    if algorithm.settings.name in SHIPPED:
        return algorithm.rewards(episode, scores, reward)
    with algorithm_code(algorithm.settings.name, f" in rewards, on episode {episode.id}"):
        given = algorithm.rewards(copy.deepcopy(episode), dict(scores), reward)
    return checked_rewards(given, episode, f"algorithm '{algorithm.settings.name}': its rewards")


async def explored(
    algorithm: Algorithm, episodes: Sequence[Episode], specs: Sequence[EpisodeSpec], context: RolloutContext
) -> Explored:
    """What `algorithm.explore` finds out. Raises ConfigError where that is not `Explored`."""
    name = algorithm.settings.name
    if name in SHIPPED:
        return await algorithm.explore(episodes, specs, context)
    with algorithm_code(name, " in explore"):
        exploring = algorithm.explore(copy.deepcopy(episodes), copy.deepcopy(specs), context)
        if not inspect.isawaitable(exploring):
            raise ConfigError(f"algorithm '{name}': its explore is a plain function: it must be `async def`")
        found: object = await awaited(exploring)
        if not isinstance(found, Explored):
            raise ConfigError(
                f"algorithm '{name}': its explore gave {brief(found)}: it must return `Explored(episodes)`"
            )
        return Explored(found.episodes, _figures(found.metrics, f"algorithm '{name}': its explore"))


def compared(algorithm: Algorithm, samples: Samples, rewards: Rewards) -> set[str]:
    """What `algorithm.tasks_to_compare` gives."""
    with algorithm_code(algorithm.settings.name, " in tasks_to_compare"):
        return algorithm.tasks_to_compare(_shown(samples), _rewards_of(samples, rewards))


def batch_of(algorithm: Algorithm, samples: Samples, rewards: Rewards) -> AdvantageBatch:
    """What `algorithm.advantages` gives. Raises ConfigError where that is no batch of the same samples."""
    name = algorithm.settings.name
    try:
        with algorithm_code(name):
            batch = algorithm.advantages(_shown(samples), _rewards_of(samples, rewards))
    except ConfigError as error:
        said = str(error)
        raise ConfigError(said if said.startswith("algorithm '") else f"algorithm '{name}': {said}") from error
    if not isinstance(batch, AdvantageBatch):
        raise ConfigError(
            f"algorithm '{name}' gave {type(batch).__name__}: `advantages` must return what `with_advantages` makes"
        )
    if {policy: len(group) for policy, group in batch.samples.items()} != {p: len(g) for p, g in samples.items()}:
        raise ConfigError(f"algorithm '{name}' gave other samples than it got: those to leave out must be masked")
    return replace(batch, metrics=_figures(batch.metrics, f"algorithm '{name}'"))


def _figures(metrics: Mapping[str, Any], what: str) -> dict[str, float]:
    """Metrics as a line of JSON takes them: what is no number, as a mean of nothing, is left out of it."""
    figures = {}
    for name, value in metrics.items():
        try:
            figures[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(f"{what} gave the metric {brief(name)} {brief(value)}: it must be a number") from None
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _shown(samples: Samples) -> dict[str, list[TrainSample]]:
    """Lists of its own."""
    return {policy: [*group] for policy, group in samples.items()}


def _rewards_of(samples: Samples, rewards: Rewards) -> dict[str, float | None]:
    """Not those of actions without a sample, as an external model's are: they are no actions of the step to it."""
    known = {sample.action_id for group in samples.values() for sample in group}
    return {action_id: reward for action_id, reward in rewards.items() if action_id in known}


def state_of(algorithm: Algorithm) -> str:
    """`algorithm.state()` as JSON; "" where there is none. Raises ConfigError where it cannot be written as JSON."""
    with algorithm_code(algorithm.settings.name, " in state"):
        state = algorithm.state()
    if not state:
        return ""
    try:
        return json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"algorithm '{algorithm.settings.name}': its state must be plain data, as JSON holds it: {error}"
        ) from error


def restore(algorithm: Algorithm, state: Any) -> None:
    """Hand `state`, read from a checkpoint, to the algorithm. Raises ConfigError where it cannot take it up."""
    with algorithm_code(algorithm.settings.name, " in restore"):
        algorithm.restore(state)
