"""Scores a saved run's actions again, without rolling out. Stopped at any moment, it goes on where it was."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from coachrl.coach.base import CoachRequest, is_import_path, is_language_model
from coachrl.coach.kinds.ensemble import hash_of
from coachrl.coach.kinds.own import code_of
from coachrl.coach.pool import CoachPool
from coachrl.coach.prompt_rendering import find_coach_prompt, with_suggestion
from coachrl.config import CoachConfig, MemberConfig, RunConfig, flat_settings, resumable_settings
from coachrl.errors import CoachError, ConfigError
from coachrl.rescore.store import Rescore, RescoreMetadata, append_scores, existing_rescore, open_rescore
from coachrl.runs.folder import Run
from coachrl.runs.locks import locked
from coachrl.runs.reading import requests_of, tasks_of, team_of, training_episodes
from coachrl.seeding import generator
from coachrl.storage.jsonl import drop_torn_line
from coachrl.text import counted
from coachrl.types import CoachScore, Episode, is_still

Progress = Callable[[int, int], None]  # scores written, of how many
MakePool = Callable[[RunConfig, Path, int], CoachPool]  # of a configuration, with its ledger, for a repeat

# What does not change how a coach judges: a rescore may go on with other values of these.
_OPERATIONAL = {
    *resumable_settings(CoachConfig),
    *("name", "prompt", "library", "cache", "retrospective", "strategic"),
}
_WAITING_PER_CALL = 4  # requests in memory for each call in flight


@dataclass(frozen=True)
class ScoredAction:
    """An action that a coach may be asked about, with what the run's own coach said, if it was asked."""

    action_id: str
    role: str
    task_id: str
    task_category: str
    score: CoachScore | None
    digest: str = ""


@dataclass(frozen=True)
class ActionFilter:
    """Which of a run's actions to score. failed_only: those whose last score is a failure. sample: so many, drawn at
    random by `seed`."""

    failed_only: bool = False
    sample: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed and self.sample is None:
            raise ConfigError("seed draws a sample of the actions, and all are asked about: give sample, too")


@dataclass(frozen=True)
class Rescored:
    """actions: all of the run's. rescore: everything that this coach gave, now and before; None where it was never
    asked, as nothing had failed. asked: how many actions it was asked about now."""

    actions: list[ScoredAction]
    rescore: Rescore | None
    asked: int


class SavedActions:
    """The actions of a run that its coach may be asked about, and the requests for them. Reads the run's tasks and team
    once, its episodes each time, one at a time: they may be larger than memory."""

    def __init__(self, run: Run, config: RunConfig) -> None:
        self._run, self._outcome_to = run, config.coach.evidence.ground_truth
        self._team = team_of(run)
        self._tasks = tasks_of(run, config)

    def __iter__(self) -> Iterator[ScoredAction]:
        for scored in training_episodes(self._run):
            for request in self._requests(scored.episode):
                action, episode = request.action, scored.episode
                own = scored.scores.get(action.id)
                about = (episode.task_id, episode.task_category)
                yield ScoredAction(action.id, action.role, *about, own, action.digest)

    def requests(self, wanted: Collection[str]) -> Iterator[tuple[Episode, CoachRequest]]:
        """Each wanted action with an episode that holds it alone."""
        for scored in training_episodes(self._run):
            for request in self._requests(scored.episode):
                if request.action.id in wanted:
                    yield replace(scored.episode, actions=(request.action,), rejected_candidates=()), request

    def _requests(self, episode: Episode) -> list[CoachRequest]:
        return requests_of(episode, self._tasks, self._team, self._outcome_to)


def rescored_by(config: RunConfig, repeat: int) -> RescoreMetadata:
    """Who scores under this configuration. Raises ConfigError where its prompt cannot be used, or where it would need
    the run's statistics as they were at each step."""
    coach = config.coach
    if coach.strategic.window_steps:
        raise ConfigError("a rescore shows the coach no statistics of the run: set coach.strategic.window_steps=0")
    own_code = {
        f"code of {member.name}": code_of(member.name) for member in coach.members if is_import_path(member.name)
    }
    return RescoreMetadata(
        coach=coach.label,
        prompt=", ".join(str(member.prompt) for member in coach.members if member.prompt is not None) or None,
        prompt_hash=hash_of([_prompt_hash(member, config) for member in coach.members]),
        repeat=repeat,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=flat_settings(coach.model_dump(mode="json", exclude=_OPERATIONAL), "coach.") | own_code,
    )


def _prompt_hash(member: MemberConfig, config: RunConfig) -> str:
    """As it stands on the member's scores."""
    if not is_language_model(member.name):
        return ""
    prompt = find_coach_prompt(member.prompt, config.pipeline.name)
    return (with_suggestion(prompt) if config.coach.suggest else prompt).sha256


def choose(actions: Sequence[ScoredAction], done: Mapping[str, CoachScore], which: ActionFilter) -> list[str]:
    """Ids of the actions to ask about now, in the order of `actions`. What is done is not asked again, unless it failed
    and failures are what is asked for. A sample depends on the run and the seed alone, so that a stopped one goes on.

    Raises ConfigError where a sample of failures is asked for.
    """
    if which.failed_only:
        if which.sample is not None:
            raise ConfigError("--failed-only takes every failed action: give no --sample with it")
        last = [(action.action_id, done.get(action.action_id, action.score)) for action in actions]
        return [action_id for action_id, score in last if score is not None and score.status == "failed"]
    ids = [action.action_id for action in actions]
    if which.sample is not None and which.sample < len(ids):
        drawn = generator(which.seed, "rescore").choice(len(ids), size=which.sample, replace=False)
        ids = [ids[place] for place in sorted(drawn)]
    return [action_id for action_id in ids if action_id not in done]


async def rescore_run(
    run: Run, config: RunConfig, by: RescoreMetadata, which: ActionFilter, progress: Progress, make_pool: MakePool
) -> Rescored:
    """Score the chosen actions with the coach of `config`. make_pool: what makes that coach.

    Other coaches may score the same run meanwhile, and it may be trained; this coach may not score it twice at once.
    Raises ConfigError, TaskError, CoachUnavailable before anything is written.
    """
    with locked(run.folder / f"rescore-{by.label}.lock", f"rescoring with {by.label}"):
        return await _rescore(run, config, by, which, progress, make_pool)


async def _rescore(
    run: Run, config: RunConfig, by: RescoreMetadata, which: ActionFilter, progress: Progress, make_pool: MakePool
) -> Rescored:
    saved = SavedActions(run, config)
    actions = list(saved)
    if not actions:
        raise ConfigError(f"{run.folder} holds no action of a training step: there is nothing to score")
    found = existing_rescore(run.folder, by)
    given = found.scores if found is not None else {}
    done = of_these(actions, given)
    if others := len(given) - len(done):
        run.warn(f"{counted(others, 'score')} of the rescore left out, of replies that the run no longer holds")
    wanted = choose(actions, done, which)
    if wanted:
        progress(0, len(wanted))
        folder = run.folder / "rescores" / by.label
        folder.parent.mkdir(exist_ok=True)
        drop_torn_line(folder / "ledger.jsonl")
        # The cache holds the replies that could not be read, and would answer with them for ever.
        pool = make_pool(config.without_cache() if which.failed_only else config, folder / "ledger.jsonl", by.repeat)
        try:
            try:
                await pool.check()
            except CoachError:
                if found is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    with suppress(OSError):  # it holds other rescores
                        folder.parent.rmdir()
                raise
            rescore = open_rescore(run.folder, by)
            count = itertools.count(1)
            requests, room = saved.requests(set(wanted)), _WAITING_PER_CALL * config.coach.concurrency
            await _score(requests, pool, rescore, room, lambda: progress(next(count), len(wanted)))
        finally:
            await pool.close()
    now = existing_rescore(run.folder, by)
    return Rescored(actions, now and replace(now, scores=of_these(actions, now.scores)), len(wanted))


def of_these(actions: Sequence[ScoredAction], scores: Mapping[str, CoachScore]) -> dict[str, CoachScore]:
    """Those of the scores that were given to what stands under their ids now."""
    digests = {action.action_id: action.digest for action in actions}
    return {key: one for key, one in scores.items() if is_still(one.action_digest, digests.get(key))}


async def _score(
    requests: Iterator[tuple[Episode, CoachRequest]],
    pool: CoachPool,
    rescore: Rescore,
    most_waiting: int,
    on_score: Callable[[], None],
) -> None:
    """Each score is written as soon as it is there. most_waiting: requests that are held in memory at once."""
    room = asyncio.Semaphore(most_waiting)

    async def settle(episode: Episode) -> None:
        try:
            digests = {action.id: action.digest for action in episode.actions}
            found = (await pool.settle([episode])).values()
            append_scores(rescore, [replace(score, action_digest=digests[score.action_id]) for score in found])
            on_score()
        finally:
            room.release()

    try:
        async with asyncio.TaskGroup() as group:
            for episode, request in requests:
                await room.acquire()
                pool.submit(request)
                group.create_task(settle(episode))
    except BaseExceptionGroup as errors:  # the first one cancelled the others
        raise errors.exceptions[0] from None
