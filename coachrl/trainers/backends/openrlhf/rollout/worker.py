"""A rollout worker: a Ray actor that plays episodes beside others, away from the driver.

What it tells the driver comes as a stream of messages, in the order in which things happened. Coach, adviser and the
care for dead engines stay with the driver, so that their limits are those of the whole run: a worker asks.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coachrl.coach.base import CoachRequest, OutcomeTo
from coachrl.errors import CoachrlError
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.team.adviser import Advice, Adviser
from coachrl.pipelines.team.team import Tree
from coachrl.sandbox.base import Sandbox
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Episode, SamplingParams


@dataclass(frozen=True)
class WorkerConfig:
    """What a worker needs to know of a `RolloutContext`, in a form that can be sent.

    scored, scored_as_a_whole: whether actions go to the coach, and whole episodes to its retrospective pass.
    candidates: of a tree, whose rewards are asked of the driver; None without one. advised: whether the driver has an
    adviser for the pipeline.
    """

    pipeline: Pipeline
    engines: Mapping[str, EngineSet]
    weights_version: int
    sampling: SamplingParams
    scored: bool
    scored_as_a_whole: bool
    outcome_to: OutcomeTo
    candidates: int | None
    episode_timeout_s: float | None
    answer_timeout_s: float
    advised: bool


@dataclass(frozen=True)
class Submitted:
    """An action to be scored in the background."""

    request: CoachRequest


@dataclass(frozen=True)
class Graded:
    """An episode's actions, for the retrospective pass."""

    requests: tuple[CoachRequest, ...]


@dataclass(frozen=True)
class EpisodeFinished:
    episode: Episode


@dataclass(frozen=True)
class Question:
    """Waits for `RolloutWorker.answer`. rewards: of a tree's candidates; advice: the adviser's; engines: a set of them
    without dead ones."""

    number: int
    about: Literal["rewards", "advice", "engines"]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Failed:
    """The last message: what ended the rollout."""

    error: CoachrlError


Message = Submitted | Graded | EpisodeFinished | Question | Failed
Tell = Callable[[Message], None]


LIFE = "life"
"""The group of Ray's (a thread of its own in each worker) for what must be answered while an episode keeps the event
loop busy."""


class RolloutWorker:
    """Plays its share of a rollout's episodes. models: policy -> (folder, context length). seed: of the choice between
    engines that are equally busy. folder: where the run was started."""

    def __init__(
        self,
        models: Mapping[str, tuple[Path, int]],
        make_sandbox: Callable[[], Sandbox] | None,
        seed: int,
        folder: Path,
    ) -> None:
        _work_in(folder)
        self._generator = np.random.default_rng(seed)
        self._tokenizers = {policy: ChatTokenizer(folder) for policy, (folder, _) in models.items()}
        for policy, (_, context_length) in models.items():
            self._tokenizers[policy].context_length = context_length
        self._make_sandbox = make_sandbox
        self._sandbox: Sandbox | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._playing: set[asyncio.Task[list[Episode]]] = set()

    async def start(self) -> None:
        """Raises SandboxUnavailable."""
        if self._make_sandbox is not None:
            self._sandbox = self._make_sandbox()
            await self._sandbox.start()

    async def is_alive(self) -> bool:
        """A sign of life, asked for in `LIFE`."""
        return True

    async def play(self, specs: Sequence[EpisodeSpec], config: WorkerConfig) -> AsyncIterator[Message]:
        """Everything that happens until every spec is an episode, or `stop` is called."""
        outbox: asyncio.Queue[Message | None] = asyncio.Queue()
        ask = self._asker(outbox.put_nowait)
        sampler = self._sampler(config, ask)
        playing = asyncio.create_task(rollout(specs, self._context(config, sampler, outbox.put_nowait, ask)))
        playing.add_done_callback(lambda _: outbox.put_nowait(None))
        self._playing.add(playing)
        try:
            while (message := await outbox.get()) is not None:
                yield message
        finally:
            sampler.close()
            self._playing.discard(playing)
        if playing.cancelled():
            return
        error = playing.exception()
        if isinstance(error, CoachrlError):
            yield Failed(error)
        elif error is not None:
            raise error

    async def answer(self, number: int, result: Any, error: Exception | None) -> None:
        """The answer to a question, or what came up in place of one."""
        waiting = self._asked.get(number)
        if waiting is None or waiting.done():  # its episode has ended
            return
        if error is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(result)

    async def stop(self) -> None:
        """Give up everything that is being played, and close its workspaces."""
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def close(self) -> None:
        """End the sandbox too."""
        await self.stop()
        if self._sandbox is not None:
            await self._sandbox.close()

    def _sampler(self, config: WorkerConfig, ask: Callable[..., Any]) -> Sampler:
        sampler = Sampler(
            self._tokenizers, lambda *found: ask("engines", *found), self._generator, config.answer_timeout_s
        )
        sampler.weights_version = config.weights_version
        for policy, engines in config.engines.items():
            sampler.use(policy, engines)
        return sampler

    def _context(self, config: WorkerConfig, sampler: Sampler, tell: Tell, ask: Callable[..., Any]) -> RolloutContext:
        if config.advised:
            config.pipeline.adviser = DriverAdviser(ask)
        return RolloutContext(
            pipeline=config.pipeline,
            backend=sampler,
            sandbox=self._sandbox,
            sampling=config.sampling,
            submit=(lambda request: tell(Submitted(request))) if config.scored else None,
            submit_episode=(lambda requests: tell(Graded(tuple(requests)))) if config.scored_as_a_whole else None,
            outcome_to=config.outcome_to,
            on_episode=lambda episode: tell(EpisodeFinished(episode)),
            tree=Tree(config.candidates, lambda requests: ask("rewards", requests)) if config.candidates else None,
            episode_timeout_s=config.episode_timeout_s,
        )

    def _asker(self, tell: Tell) -> Callable[..., Any]:
        async def ask(about: Literal["rewards", "advice", "engines"], *arguments: Any) -> Any:
            number = next(self._numbers)
            self._asked[number] = asyncio.get_running_loop().create_future()
            tell(Question(number, about, arguments))
            try:
                return await self._asked[number]
            finally:
                del self._asked[number]

        return ask


def _work_in(folder: Path) -> None:
    """Ray starts its processes in a folder of the cluster's. A user's modules, and what their code names by a relative
    path, lie in the driver's, where this machine has that."""
    if folder.is_dir():
        os.chdir(folder)
        sys.path.append(str(folder))


class DriverAdviser(Adviser):
    """In place of the pipeline's own, which the driver has."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    async def advise(self, values: Mapping[str, object]) -> Advice:
        advice: Advice = await self._ask("advice", dict(values))
        return advice
