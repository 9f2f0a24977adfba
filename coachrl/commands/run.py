"""One call each for the verbs of the command line: train, evaluate, roll out."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from coachrl.coach.base import is_language_model
from coachrl.coach.clients.cache import check_cache
from coachrl.commands.build import (
    Prepared,
    RunComponents,
    initial_models,
    load_parts,
    make_backend,
    make_coach_pool,
    open_components,
    prepare,
)
from coachrl.commands.dry_run import DryRun, check_disk, make_dry_run, opening_lines
from coachrl.commands.interrupt import asked_to_end, interrupts_acknowledged, is_written_anew, what_stays, written_at
from coachrl.commands.progress import Display
from coachrl.config import RunConfig
from coachrl.errors import (
    CheckpointError,
    CoachrlError,
    ConfigError,
    EngineGone,
    GoesOnElsewhere,
    NothingTrained,
    Preempted,
    ProcessLost,
)
from coachrl.pipelines.team.roles import with_swapped_policies
from coachrl.runs import checkpoints
from coachrl.runs.beginning import (
    changed_settings,
    changed_tasks,
    changed_team,
    check_settings,
    check_tasks,
    check_team,
    keep_settings,
    keep_tasks,
    tasks_measured_on,
)
from coachrl.runs.chosen import BEST, LAST, checkpoint_kept
from coachrl.runs.folder import LOCK, Run
from coachrl.runs.initial_models import Models, changed_models, check_models, keep_models, records
from coachrl.runs.reading import check_played
from coachrl.runs.records import episode_line, step_of
from coachrl.runs.trackers import check_trackers, open_trackers
from coachrl.storage.atomic import check_place, write_aside
from coachrl.storage.files import whole_text
from coachrl.storage.jsonl import drop_torn_line, json_line, writable_file
from coachrl.trainers.algorithms.trial import try_algorithm
from coachrl.trainers.callbacks import Callbacks, StepAudit
from coachrl.trainers.evaluate import evaluate, evaluation_metrics, speed_metrics
from coachrl.trainers.loop import Trainer
from coachrl.trainers.rollout.kept_replies import KeptReplies
from coachrl.trainers.rollout.rollout import RolloutContext, rollout
from coachrl.trainers.rollout.tree import make_tree
from coachrl.trainers.schedule import first_specs
from coachrl.types import CoachScore, Episode, SamplingParams, Task

log = logging.getLogger(__name__)


async def train_run(config: RunConfig, run: Run, console: Console, resume: bool, restarted: int | None = None) -> None:
    """Train `run` to its last step, from its last checkpoint where `resume` is set. Nobody else writes to it meanwhile:
    raises ConfigError where another process does. What was broken off before its first line of metrics is removed.

    restarted: how often the run has been handed on to a new process; None where the caller hands it to none. Else
    raises GoesOnElsewhere where an engine in this process is lost and `train.restarts` allow for another.
    """
    if resume:
        check_played(run)
    with run.locked("training"):
        try:
            with run.logging(), _end_logged():
                await _train_with_restarts(config, run, console, resume, restarted)
        except BaseException as error:  # Ctrl-C, too, leaves nothing half-written
            if isinstance(error, Exception) and run.is_lost:
                gone = f"{run.folder} was moved or removed meanwhile, or its {LOCK}; where it was moved"
                error.add_note(f"{gone}, continue with: coachrl train --resume NEW_PLACE")
            run.discard_if_empty()
            if isinstance(error, Exception) and _may_go_on(config, run, error):
                error.add_note(what_stays(config, run))
            raise


@contextmanager
def _end_logged() -> Iterator[None]:
    """The terminal that is told of it may be closed."""
    try:
        yield
    except CoachrlError as error:
        log.info("the run ends: %s", error)
        raise


def _may_go_on(config: RunConfig, run: Run, error: Exception) -> bool:
    """Whether a run that `error` ended can be resumed once its cause is mended, and does not say so already."""
    begun = bool(config.train.keep_checkpoints) and (run.folder / "metrics.jsonl").exists()
    return begun and not isinstance(error, CheckpointError | NothingTrained) and "--resume" not in str(error)


async def _train_with_restarts(
    config: RunConfig, run: Run, console: Console, resume: bool, restarted: int | None
) -> None:
    """Where a process of the backend dies, everything is closed and the run is resumed, up to `train.restarts` times.
    One that dies before the first line of metrics would die again. An engine in this process dies with this process."""
    begun, earlier = restarted or 0, written_at(config.train.notice_file)
    for restart in itertools.count(begun):
        try:
            await _train_locked(config, run, console, resume or restart > begun, again=restart > begun, earlier=earlier)
            return
        except ProcessLost as error:
            await asyncio.sleep(0)  # a Ctrl-C that came meanwhile is raised here
            elsewhere = isinstance(error, EngineGone)
            again = restart < config.train.restarts and not (elsewhere and restarted is None)
            if is_written_anew(config.train.notice_file, earlier):  # while everything was closed
                raise Preempted(_asked_to_end(error, config, run)) from error
            if not again or not config.train.keep_checkpoints or not run.metrics():
                raise type(error)(f"{error}; {what_stays(config, run)}") from error
            place = run.last_checkpoint().name if run.checkpoints() else "the beginning, since there is no checkpoint"
            where = f"{place}, in a new process" if elsewhere else place
            log.warning("%s; restart %d of %d, from %s", error, restart + 1, config.train.restarts, where)
            if elsewhere:
                raise GoesOnElsewhere(run.folder, restart + 1) from error


def _asked_to_end(error: ProcessLost, config: RunConfig, run: Run) -> str:
    return f"{error}; the process was asked to end; {what_stays(config, run)}"


async def _train_locked(
    config: RunConfig, run: Run, console: Console, resume: bool, again: bool, earlier: int | None
) -> None:
    """again: as for `make_backend`. earlier: as for `asked_to_end`."""
    if resume:  # first: a whole one that a kill left without its name is the newest
        run.drop_left()
        drop_torn_line(run.ledger)  # before the coach is tried, whose calls stand there, too
    checkpoint = run.checkpoint_to_resume() if resume else None
    first_step = step_of(checkpoint) + 1 if checkpoint is not None else 0
    stays = partial(what_stays, config, run)
    with Display(console, config.train.steps) as display, interrupts_acknowledged(stays):
        display.on_phase("checking tasks, coach and packages", None)
        async with _prepare_training(config, run.ledger) as ready:
            tasks = (ready.train_tasks, ready.heldout_tasks)
            if resume:  # a restart, too, reads tasks and prompts again
                _check_beginning(run, config, ready)
            try_algorithm(config, ready.pipeline.roles, ready.train_tasks)
            plan = make_dry_run(config, max(0, first_step - 1), tasks, run.folder)
            check_disk(plan)
            for line in opening_lines(config, ready, plan):
                console.print(line)
            await _train(config, run, ready, display, checkpoint, first_step, resume, again, earlier)


def _check_beginning(run: Run, config: RunConfig, ready: Prepared) -> None:
    """Raises CheckpointError where the run would go on with something else than it began with. Models that must be
    fetched first are looked at once they are here."""
    check_settings(run, config)
    check_team(run, ready.pipeline.roles)
    check_tasks(run, ready.train_tasks, ready.heldout_tasks)
    if not ready.unchecked:  # else it is for a machine that has the models
        check_models(run, initial_models(config, ready.policies, fetch=False))


async def dry_run(config: RunConfig, done: int, folder: Path | None = None) -> DryRun:
    """What training would do after step `done`, in `folder` where the run has one already. Raises what training would
    raise before it asks anybody or loads a model, and writes nothing. A run on GPUs is planned without its packages."""
    async with _prepare_training(config.without_cache(), None, planning=True) as ready:
        asks_models = ready.coach is not None and any(is_language_model(each.name) for each in config.coach.members)
        if asks_models and isinstance(config.coach.cache, Path):
            check_cache(config.coach.cache)
        tasks = (ready.train_tasks, ready.heldout_tasks)
        if folder is not None:
            _check_beginning(Run(folder), config, ready)
        try_algorithm(config, ready.pipeline.roles, ready.train_tasks)
        plan = make_dry_run(config, done, tasks, folder, ready.unchecked)
        if not plan.unchecked:  # else it is made for another machine
            check_disk(plan)
        return plan


def _prepare_training(
    config: RunConfig, ledger: Path | None, planning: bool = False
) -> AbstractAsyncContextManager[Prepared]:
    check_trackers(config.track)
    return prepare(config, ledger, with_coach=True, planning=planning)


async def _train(
    config: RunConfig,
    run: Run,
    ready: Prepared,
    display: Display,
    checkpoint: Path | None,
    first_step: int,
    resume: bool,
    again: bool,
    earlier: int | None,
) -> None:
    """earlier: as for `asked_to_end`."""
    if config.track:
        display.on_phase("starting trackers", None)
    with open_trackers(config.track, run, config, first_step) as trackers:
        display.on_phase("asking the coach, loading the model", None)
        async with load_parts(config, ready, partial(make_backend, config, ready.policies, again)) as components:
            models = initial_models(config, components.policies, fetch=True)
            if resume:
                check_models(run, models)
            if (pool := components.coach) is not None:
                display.coach_queue = lambda: pool.waiting
            trainer = Trainer(
                config,
                run,
                pipeline=components.pipeline,
                backend=components.backend,
                sandbox=components.sandbox,
                coach=components.coach,
                train_tasks=components.train_tasks,
                heldout_tasks=components.heldout_tasks,
                callback=Callbacks(display, trackers),
                audit=_audit(config, run, components),
                executor=components.executor,
            )
            display.drawn_tokens = trainer.drawn_tokens
            display.on_unread = trainer.end_soon
            if checkpoint is not None:
                trainer.resume(checkpoint)
            elif resume:
                trainer.start_over()
            _keep_beginning(run, config, components, models)
            with asked_to_end(trainer.end_soon, config.train.notice_file, earlier):
                try:
                    await trainer.train()
                except ProcessLost as error:
                    await asyncio.sleep(0)  # what came meanwhile is heard
                    if trainer.ends_soon:
                        raise Preempted(_asked_to_end(error, config, run)) from error
                    raise


def _keep_beginning(run: Run, config: RunConfig, components: RunComponents, models: Models) -> None:
    """What a run that goes on is held to, once it is known to be the run's: its checkpoint has been read."""
    if run.roles() is None:
        run.write_roles(components.pipeline.roles)
    keep_settings(run, config)
    keep_tasks(run, components.train_tasks, components.heldout_tasks)
    keep_models(run, models)


def _audit(config: RunConfig, run: Run, components: RunComponents) -> StepAudit | None:
    """The coach of the reference set has no cache: it would answer with what it said before."""
    if config.audit.every == 0 or components.coach is None:
        return None
    from coachrl.audit.training import TrainingAudit  # pandas and SciPy take a second to import

    client_factory = components.client_factory.past_the_cache()
    make_pool = partial(make_coach_pool, config, run.ledger, client_factory=client_factory)
    return TrainingAudit(config, run, components.pipeline.roles, components.train_tasks, make_pool)


async def evaluate_run(
    config: RunConfig,
    run: Run | None,
    episodes_file: Path | None,
    console: Console,
    swap_policies: str | None = None,
    which: str = LAST,
) -> dict[str, Any]:
    """Held-out metrics of a checkpoint of the run, or of the initial weights. `episodes_file` gets one line an
    episode; where it cannot be written, ConfigError is raised with a note that has the figures. Until then the replies
    are kept beside it as they are drawn, so that the same evaluation, begun again after a kill, draws the rest.

    swap_policies: two policies, as "a,b", whose roles play with each other's weights. which: as for
    `chosen_checkpoint`."""
    if episodes_file is not None:
        check_place(episodes_file, "--episodes ")
    kept = _place_of_replies(config, episodes_file)
    stays = "nothing is kept" if kept is None else "the replies so far are kept: the same command goes on from there"
    with (
        checkpoint_kept(run, which) if run is not None else nullcontext() as checkpoint,
        Display(console) as display,
        interrupts_acknowledged(lambda: stays),
    ):
        if checkpoint is not None:
            checkpoints.read(checkpoint, {})  # before a model is loaded: it takes as long as everything else
        display.on_phase("checking tasks, loading the model", None)
        async with open_components(config, None, with_coach=False, checkpoint=checkpoint) as components:
            if run is not None:
                warn_where_changed(config, run, components)
                _warn_where_cut_short(config, run, len(components.heldout_tasks))
                if which == BEST:
                    _warn_where_chosen_by(components.heldout_tasks, run)
            if swap_policies is not None:
                components.pipeline.roles = with_swapped_policies(components.pipeline.roles, swap_policies)
            display.on_phase("held-out tasks", len(components.heldout_tasks) * config.eval.samples_per_task)
            settings = _drawn_with(config, components, checkpoint) if kept is not None else ""
            replies = KeptReplies(components.backend, kept, settings)
            if replies.on_disk:
                console.print(f"{replies.on_disk} replies are on disk from before: those of this evaluation are taken")
            episodes, metrics = await _played(config, components, replies, display)
    if episodes_file is not None:
        _write_played(episodes_file, episodes, metrics)
        with suppress(OSError):
            replies.remove()
    return metrics


async def _played(
    config: RunConfig, components: RunComponents, replies: KeptReplies, display: Display
) -> tuple[list[Episode], dict[str, Any]]:
    """The held-out tasks, and what was measured of them."""
    context = RolloutContext(
        pipeline=components.pipeline,
        backend=replies,
        sandbox=components.sandbox,
        sampling=SamplingParams(temperature=config.eval.temperature, top_p=config.eval.top_p),
        on_episode=display.on_episode,
        executor=components.executor,
    )
    tasks, began = components.heldout_tasks, time.monotonic()
    episodes = await evaluate(tasks, context, config.eval.samples_per_task, config.seed, "eval")
    drawn = sum(replies.drawn_tokens(episode.actions) for episode in episodes)
    speed = speed_metrics(episodes, time.monotonic() - began, drawn)
    return episodes, {**evaluation_metrics(tasks, episodes), **speed}


def _write_played(file: Path, episodes: Sequence[Episode], metrics: Mapping[str, Any]) -> None:
    """A line for each episode. Raises ConfigError with a note that has the figures, which may have taken hours."""
    try:
        write_aside(file, "".join(episode_line(episode, {}) for episode in episodes))
    except OSError as error:
        unwritten = ConfigError(f"--episodes {file} cannot be written: {error.strerror}")
        unwritten.add_note(f"what was measured: {json_line(metrics).strip()}")
        raise unwritten from error


def _place_of_replies(config: RunConfig, episodes_file: Path | None) -> Path | None:
    """Beside the file of episodes; None where replies do not come by this process. Raises ConfigError for a place where
    nothing can be kept."""
    if episodes_file is None or config.rollout.processes:
        return None
    place = episodes_file.with_name(f".{episodes_file.name}.replies")
    check_place(place, "--episodes ")
    return writable_file(place)


def _drawn_with(config: RunConfig, components: RunComponents, checkpoint: Path | None) -> str:
    """All that replies depend on, but for the prompts and how they are drawn."""
    engine = {"torch": None, "vllm": config.vllm, "openrlhf": config.openrlhf}[config.backend]
    sections = [section.model_dump(mode="json") for section in (config.torch, engine) if section is not None]
    models = records(initial_models(config, components.policies, fetch=True))
    sealed = "" if checkpoint is None else whole_text(checkpoint / checkpoints.SEAL)
    return json.dumps([config.backend, sections, models, sealed], sort_keys=True)


def warn_where_changed(config: RunConfig, run: Run, components: RunComponents) -> None:
    """Where the run's own settings are others by now, or give another team, other tasks (of which some that are held
    out may have been trained on), or other weights to lay adapters over."""
    own = run.config()
    found = [changed_settings(run, own)]
    if config.pipeline == own.pipeline:
        found.append(changed_team(run, components.pipeline.roles))
    if (config.tasks, config.seed) == (own.tasks, own.seed):
        found.append(changed_tasks(run, components.train_tasks, components.heldout_tasks))
    same = [policy for policy in components.policies if config.initial_model(policy) == own.initial_model(policy)]
    found.append(changed_models(run, initial_models(config, same, fetch=True)))
    for changed in filter(None, found):
        log.warning("%s: %s", run.folder, changed)


def _warn_where_cut_short(config: RunConfig, run: Run, measured: int) -> None:
    """Where other held-out tasks than the run's are read, and no more of them than the run held out."""
    given, count = getattr(config.tasks, "heldout", None), config.tasks.heldout_count
    own = run.config().tasks
    if given is not None and given != getattr(own, "heldout", None) and count == own.heldout_count == measured:
        log.warning(
            "of %s the first %d tasks are measured at most, since tasks.heldout_count says so in the run's "
            "configuration; tasks.heldout_count=null takes all",
            given,
            count,
        )


def _warn_where_chosen_by(tasks: Sequence[Task], run: Run) -> None:
    """Where the best checkpoint is measured with tasks that it was chosen by."""
    if known := tasks_measured_on(run, tasks):
        log.warning(
            "the best checkpoint was chosen by its success on %s tasks, so that this figure tends to be too high: "
            "tasks that the run has not seen measure it fairly",
            "these very" if known == len(tasks) else f"{known:,} of these {len(tasks):,}",
        )


async def rollout_once(
    config: RunConfig, count: int, ledger: Path, console: Console
) -> tuple[list[Episode], Mapping[str, CoachScore]]:
    """`count` scored episodes of the first training tasks of a run, with the initial weights."""
    with Display(console) as display, interrupts_acknowledged(lambda: "nothing is kept"):
        display.on_phase("checking tasks, asking the coach, loading the model", None)
        async with open_components(config, ledger, with_coach=True) as components:
            specs = first_specs(components.train_tasks, config, count)
            display.on_phase("episodes", len(specs))
            context = RolloutContext(
                pipeline=components.pipeline,
                backend=components.backend,
                sandbox=components.sandbox,
                sampling=SamplingParams(temperature=config.sampling.temperature),
                submit=components.coach.submit if components.coach is not None else None,
                submit_episode=components.coach.submit_episode if components.coach is not None else None,
                outcome_to=config.coach.evidence.ground_truth,
                tree=make_tree(config, components.coach),
                on_episode=display.on_episode,
                executor=components.executor,
            )
            episodes = await rollout(specs, context)
            scores = await components.coach.settle(episodes) if components.coach is not None else {}
    return episodes, scores
