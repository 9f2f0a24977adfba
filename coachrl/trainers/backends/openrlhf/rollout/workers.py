"""The driver's side of rollout workers: shares episodes out, heeds what workers tell, and answers what they ask."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from coachrl.errors import BackendError, ConfigError, WorkerLost
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import derive_seed
from coachrl.text import one_line, said
from coachrl.trainers.backends.openrlhf.backend import OpenRLHFBackend
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import DEATHS, reason
from coachrl.trainers.backends.openrlhf.rollout.worker import (
    LIFE,
    EpisodeFinished,
    Failed,
    Graded,
    Message,
    Question,
    RolloutWorker,
    Submitted,
    WorkerConfig,
)
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, end_episode
from coachrl.types import Action, Episode

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 10.0


@dataclass
class _Share:
    """What has been heard of one worker's part of a rollout."""

    actions: dict[str, list[Action]] = field(default_factory=dict)  # by episode, those that went to the coach
    episodes: dict[str, Episode] = field(default_factory=dict)
    answering: set[asyncio.Task[None]] = field(default_factory=set)
    end: str = "died"  # of the worker, in words


class RolloutWorkers:
    """`RolloutExecutor` in `count` processes, spread over the Ray cluster, a processor core each.

    A worker that dies is started again; the episodes that it had under way carry an infra_error. One that stands still
    is ended first.
    make_sandbox: makes the sandbox of one worker, None where pipelines need none.
    """

    def __init__(self, backend: OpenRLHFBackend, count: int, make_sandbox: Callable[[], Sandbox] | None) -> None:
        self._backend, self._make_sandbox = backend, make_sandbox
        self._timeout_s = backend.config.openrlhf.start_timeout_s
        self._silence_s = backend.config.rollout.silence_timeout_s
        self._handles = [self._worker(place) for place in range(count)]
        self._started = [handle.start.remote() for handle in self._handles]

    async def start(self) -> None:
        """Wait for all. Raises SandboxUnavailable, or BackendError where one does not start in time."""
        for place in range(len(self._handles)):
            await self._ready(place)

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Episode]:
        """One episode for each spec, in the order of `specs`; see `rollout`. Raises ConfigError where the pipeline or a
        task cannot be sent to other processes."""
        config, count = self._config(context), len(self._handles)
        shares = [(specs[i::count], _sendable(specs[i::count], "a ground truth of the tasks")) for i in range(count)]
        following = [asyncio.create_task(self._follow(i, *share, config, context)) for i, share in enumerate(shares)]
        try:
            played = await asyncio.gather(*following)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        episodes = {key: episode for share in played for key, episode in share.items()}
        return [episodes[spec.episode_id] for spec in specs]

    async def close(self) -> None:
        """End the workers, their sandboxes first. With a cluster that is gone they are gone too."""
        if self._backend.is_lost():
            return
        with contextlib.suppress(RayError, TimeoutError):
            closing = [_answer_of(handle.close.remote()) for handle in self._handles]
            await asyncio.wait_for(asyncio.gather(*closing, return_exceptions=True), _CLOSE_TIMEOUT_S)
        with contextlib.suppress(RayError):
            for handle in self._handles:
                ray.kill(handle)

    def _worker(self, place: int) -> Any:
        models = {
            policy: (tokenizer.folder.resolve(), tokenizer.context_length)
            for policy, tokenizer in self._backend.tokenizers.items()
        }
        made = ray.remote(concurrency_groups={LIFE: 1})(RolloutWorker)
        worker = made.options(num_cpus=1, scheduling_strategy="SPREAD")
        seed = derive_seed(self._backend.config.seed, "rollout worker", place)
        return worker.remote(models, self._make_sandbox, seed, Path.cwd())

    async def _ready(self, place: int) -> None:
        try:
            await asyncio.wait_for(_answer_of(self._started[place]), self._timeout_s)
        except TimeoutError as error:
            raise BackendError(f"rollout worker {place} did not start within {self._timeout_s:g} s") from error
        except RayError as error:
            raise BackendError(f"rollout worker {place} did not start: {reason(error)}") from error

    def _config(self, context: RolloutContext) -> Any:
        """What the workers are told of `context`, where each of them finds it."""
        engines, version = self._backend.engines()
        pipeline = copy.copy(context.pipeline)
        pipeline.adviser = None  # it may hold an open client, which cannot be sent
        config = WorkerConfig(
            pipeline=pipeline,
            engines=engines,
            weights_version=version,
            sampling=context.sampling,
            scored=context.submit is not None,
            scored_as_a_whole=context.submit_episode is not None,
            outcome_to=context.outcome_to,
            candidates=context.tree.candidates if context.tree is not None else None,
            episode_timeout_s=context.episode_timeout_s,
            answer_timeout_s=self._backend.config.openrlhf.answer_timeout_s,
            advised=context.pipeline.adviser is not None,
        )
        return _sendable(config, f"pipeline {pipeline.name}")

    async def _follow(
        self, place: int, specs: Sequence[EpisodeSpec], sent: Any, config: Any, context: RolloutContext
    ) -> dict[str, Episode]:
        """One worker's episodes, by id."""
        if not specs:
            return {}
        await self._ready(place)
        worker, share, whole = self._handles[place], _Share(), False
        watching = asyncio.create_task(self._watch(worker, share))
        try:
            async for message in _messages(worker.play.options(num_returns="streaming").remote(sent, config)):
                self._heed(message, share, worker, context)
            whole = True
        except DEATHS as error:
            self._replace(place, worker, share.end, error)
            for spec in specs:
                if spec.episode_id not in share.episodes:
                    lost = WorkerLost(f"the process that played the episode {share.end}")
                    self._end(end_episode(spec, context, share.actions.get(spec.episode_id, []), lost), share, context)
        finally:
            watching.cancel()
            for task in share.answering:
                task.cancel()
            if not whole:
                worker.stop.remote()
        return share.episodes

    async def _watch(self, worker: Any, share: _Share) -> None:
        """End a worker that stands still: whoever waits for it then hears that it died."""
        while await _gives_sign(worker, self._silence_s):
            await asyncio.sleep(min(_LOOK_EVERY_S, self._silence_s / 10))
        share.end = f"gave no sign of life for {self._silence_s:g} s and was ended"
        ray.kill(worker)

    def _heed(self, message: Message, share: _Share, worker: Any, context: RolloutContext) -> None:
        match message:
            case Submitted(request):
                share.actions.setdefault(request.action.episode_id, []).append(request.action)
                if context.submit is not None:
                    context.submit(request)
            case Graded(requests):
                if context.submit_episode is not None:
                    context.submit_episode(requests)
            case EpisodeFinished(episode):
                self._end(episode, share, context)
            case Question():
                task = asyncio.create_task(self._answer(worker, message, context))
                share.answering.add(task)
                task.add_done_callback(share.answering.discard)
            case Failed(error):
                raise error

    async def _answer(self, worker: Any, question: Question, context: RolloutContext) -> None:
        result, error = None, None
        try:
            result = await self._respond(question, context)
        except Exception as caught:  # noqa: BLE001 - raised where the question was asked, and from there by `_follow`
            error = caught
        worker.answer.remote(question.number, result, error)

    async def _respond(self, question: Question, context: RolloutContext) -> Any:
        match question.about:
            case "engines":
                return await self._backend.mend(*question.arguments)
            case "advice":
                if context.pipeline.adviser is None:
                    raise ValueError("this pipeline has no adviser to ask")
                return await context.pipeline.adviser.advise(*question.arguments)
            case "rewards":
                if context.tree is None:
                    raise ValueError("only tree sampling has candidates to reward")
                return await context.tree.rewards(*question.arguments)

    def _end(self, episode: Episode, share: _Share, context: RolloutContext) -> None:
        share.episodes[episode.id] = episode
        if episode.infra_error is not None or episode.overflowed:
            log.warning("episode %s: %s", episode.id, episode.infra_error or episode.outcome.reason)
        if context.on_episode is not None:
            context.on_episode(episode)

    def _replace(self, place: int, worker: Any, end: str, error: Exception) -> None:
        if self._handles[place] is not worker:
            return
        log.warning("rollout worker %d %s, and is started again (%s)", place, end, reason(error))
        self._handles[place] = self._worker(place)
        self._started[place] = self._handles[place].start.remote()


def _sendable(given: Any, whose: str) -> Any:
    """Where Ray's workers find it. Raises ConfigError for what holds anything that cannot be sent."""
    try:
        return ray.put(given)
    except RayError:
        raise
    except Exception as error:  # what is to be sent may hold anybody's objects, which may raise anything
        why = one_line(said(error.__cause__ or error))  # Ray raises a page of its own from it
        raise ConfigError(
            f"rollout.workers: {whose} cannot be sent to other processes ({why}); set rollout.workers=1"
        ) from error


async def _messages(stream: Any) -> AsyncIterator[Message]:
    async for reference in stream:
        yield await reference


async def _gives_sign(worker: Any, limit_s: float) -> bool:
    """Whether a worker answers in time, or is known to have died. It is counted in looks: a driver that was stopped
    itself takes nobody for silent when it goes on."""
    asked = asyncio.ensure_future(_answer_of(worker.is_alive.options(concurrency_group=LIFE).remote()))
    look_s, waited_s = min(1.0, limit_s / 10), 0.0
    try:
        while waited_s < limit_s:
            if (await asyncio.wait([asked], timeout=look_s))[0]:
                asked.exception()  # looked at: who follows the worker hears of it
                return True
            waited_s += look_s
        return False
    finally:
        asked.cancel()


async def _answer_of(reference: Any) -> Any:
    return await reference
