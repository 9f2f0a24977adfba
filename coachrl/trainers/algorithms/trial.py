"""Tries an algorithm of the user's own on a made-up step, before a run loads or plays anything: else a slip in it would
be found only when the first step has been played, hours later."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import coachrl
from coachrl.config import RunConfig
from coachrl.config.algorithm import SHIPPED
from coachrl.errors import ConfigError
from coachrl.seeding import generator
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.advantages.batches import NotFinite
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.boundary import batch_of
from coachrl.trainers.backends.base import Samples
from coachrl.trainers.rollout.rollout import EpisodeSpec
from coachrl.trainers.samples import changed, to_samples
from coachrl.trainers.schedule import step_specs
from coachrl.types import Action, Episode, Outcome, Role, Task, TrainSample

log = logging.getLogger(__name__)

_PACKAGE = Path(coachrl.__file__).parent


def try_algorithm(config: RunConfig, roles: Sequence[Role], tasks: Sequence[Task]) -> None:
    """Have a fresh instance of the run's own algorithm make advantages of a made-up first step; a shipped one needs no
    try. roles: of the team; tasks: those to train on. Only what was played is made up: ids, roles, policies, numbers of
    episodes and candidates are those of the run, every reward is known, and one reply was cut short.

    Raises ConfigError where it would fail in any step: where it gives what is no batch, or raises what the figures have
    no part in, such as a misspelled name. Whatever else it raises, made-up figures may have brought about: there is a
    warning, and no more.
    """
    if config.algorithm.name in SHIPPED:
        return
    algorithm = make_algorithm(config.algorithm)
    rng = generator(config.seed, "trial")
    samples = _made_up(algorithm, config, roles, tasks)
    rewards = {sample.action_id: float(rng.random()) for group in samples.values() for sample in group}
    try:
        batch_of(algorithm, samples, rewards)
    except ConfigError as error:
        if _is_wrong(algorithm, error):
            raise ConfigError(f"{error} (tried on a made-up step, before anything was played)") from error
        log.warning("%s (tried on a made-up step; a real one may go well, else the run ends there)", error)


def _is_wrong(algorithm: Algorithm, error: ConfigError) -> bool:
    """Whether what went wrong does not hang on what is made up."""
    said = error.__cause__
    if said is None:  # it gave something that is no batch of the samples
        return True
    raised = said.__cause__
    if raised is None:  # what coachrl says of shapes and ids; a ConfigError of the user's own may be about figures
        return _is_said_by_coachrl(said) and not isinstance(said, NotFinite)
    if isinstance(raised, (TypeError, AttributeError)):
        # None in the place of what `rewards` or `explore` would have noted down raises these too.
        return all(_is_coachrls(getattr(type(algorithm), method)) for method in ("rewards", "explore"))
    return isinstance(raised, (NameError, ImportError, NotImplementedError))


def _is_said_by_coachrl(error: BaseException) -> bool:
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(_PACKAGE)


def _is_coachrls(function: object) -> bool:
    return str(getattr(function, "__module__", "")).startswith("coachrl.")


def _made_up(algorithm: Algorithm, config: RunConfig, roles: Sequence[Role], tasks: Sequence[Task]) -> Samples:
    """What the first step would give the algorithm, its tokens made up and the first reply cut short."""
    specs = step_specs(tasks, config, 1)
    episodes = [_episode(spec, config, roles, is_first=spec is specs[0]) for spec in specs]

    def completed(sample: TrainSample) -> TrainSample:
        reference = {"ref_logprobs_L": sample.old_logprobs_L} if algorithm.needs_reference else {}
        trainers = {"trainer_logprobs_L": sample.old_logprobs_L} if algorithm.needs_trainer_logprobs else {}
        return changed(sample, **reference, **trainers)

    samples = to_samples(episodes)
    return {policy: [completed(sample) for sample in group] for policy, group in samples.items()}


def _episode(spec: EpisodeSpec, config: RunConfig, roles: Sequence[Role], is_first: bool) -> Episode:
    """Every role that is trained takes a part, of two turns where it may take as many."""
    candidates = config.sampling.replies_per_turn
    turns = [(role, turn) for role in roles if not role.external for turn in range(min(2, role.max_turns))]
    actions = [
        _action(spec, role, turn, index, candidate, candidates > 1)
        for index, (role, turn) in enumerate(turns)
        for candidate in range(candidates)
    ]
    if is_first and actions:
        actions[0] = replace(actions[0], finish_reason="length")
    return Episode(
        spec.episode_id,
        spec.task.id,
        spec.task.category,
        config.pipeline.name,
        tuple(action for action in actions if action.candidate == 0),
        Outcome(success=True),
        rejected_candidates=tuple(action for action in actions if action.candidate),
        task_prompt=spec.task.prompt,
    )


def _action(spec: EpisodeSpec, role: Role, turn: int, index: int, candidate: int, has_siblings: bool) -> Action:
    length = 3 + (spec.seed + index + candidate) % 5
    return Action(
        id=f"{spec.episode_id}/{index}{f'.{candidate}' if has_siblings else ''}",
        episode_id=spec.episode_id,
        index=index,
        role=role.name,
        policy=role.policy,
        turn=turn,
        prompt_ids=(1, 2, 3, 4),
        response_ids=tuple(range(5, 5 + length)),
        logprobs=(-0.5,) * length,
        finish_reason="stop",
        weights_version=0,
        prompt_text="made up",
        text="made up",
        candidate=candidate,
    )
