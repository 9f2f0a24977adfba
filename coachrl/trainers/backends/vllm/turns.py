"""Many policies use one engine in turn.

While a set of weights has its turn, requests for it join as they come, and the engine draws all of them side by side.
Once another set is asked for none joins any more; when those in flight have ended, the weights change, to those that
were asked for first. Policies that are asked at the same places of their episodes, as roles of a team are, so change a
few times a round. Adapters over one base are one set of weights, so policies that share a base need no turns.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from coachrl.config import VllmConfig
from coachrl.errors import EngineGone, EngineLost, PolicyError
from coachrl.text import counted, first_line
from coachrl.trainers.backends.vllm.engine_thread import EngineThread, Move
from coachrl.trainers.backends.vllm.replies import Growing, Reply
from coachrl.types import SamplingParams

if TYPE_CHECKING:  # it imports vLLM
    from coachrl.trainers.backends.vllm.engine import Engine

Told = Callable[[tuple[int, ...]], None]
"""Is given what there is of a reply after each step, in the engine's thread."""


@dataclass(frozen=True, eq=False)
class Weights:
    """What an engine generates with. tensors: by their names in the Hugging Face model; of those that are tied, the
    first alone; None for those of the folder that the engine was started with, over which `adapters` lie: policy ->
    folder of its adapter. number: of this set, among all of the process."""

    tensors: Mapping[str, Tensor] | None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count().__next__)


@dataclass(frozen=True, eq=False)
class Request:
    """One reply to draw, with these weights, and the policy's adapter over them where they have one. told: of what
    there is of it after each step; None where nobody listens."""

    weights: Weights
    policy: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    told: Told | None = None
    reply: Future[Reply] = field(default_factory=Future)


class Turns:
    """All that is done with the engine is done in one thread, one thing after another: requests come in, the engine
    makes a step, weights change. So nothing here is locked."""

    def __init__(self, start: Callable[[], Engine], limits: VllmConfig) -> None:
        """Raises what `start` raises, and EngineStuck where it does not end in time."""
        self._limit_s = limits.answer_timeout_s
        self._thread = EngineThread(Move("its start", limits.start_timeout_s, "vllm.start_timeout_s"))
        self._waiting: list[Request] = []
        self._in_flight: dict[str, Request] = {}
        self._turn: Weights | None = None
        self._names = map(str, itertools.count())
        self._stepping = False  # whether a step is in the thread's queue
        try:
            self._engine = self._thread.wait(self._thread.submit(start))
        except BaseException:  # Ctrl-C, too
            self._thread.leave()
            raise

    async def ask(self, request: Request) -> Reply:
        """A caller that is cancelled ends the request. Raises PolicyError where the engine refuses the request, and
        EngineGone where it fails or does not answer."""
        self._thread.submit(self._enter, request)
        return await self._thread.answer(request.reply)

    def rest(self) -> None:
        """Once everything asked for is answered, leave the GPU's memory to others until somebody asks again. Raises
        EngineGone where the engine fails or does not answer."""
        self._thread.wait(self._thread.submit(self._settle_and_sleep))

    def close(self) -> None:
        """What still waits is cancelled. An engine that does not answer is left to the end of the process."""
        self._thread.end(self._end)

    # What follows runs in the engine's thread.

    def _enter(self, request: Request) -> None:
        self._waiting.append(request)
        self._go_on()

    def _go_on(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._thread.submit(self._next_step)

    def _next_step(self) -> None:
        self._stepping = False
        self._step()
        if self._waiting or self._in_flight:
            self._go_on()

    def _settle_and_sleep(self) -> None:
        while self._waiting or self._in_flight:
            self._step()
        try:
            self._begin("leaving the GPU's memory")
            self._engine.sleep()
        except Exception as error:  # the boundary to vLLM, which has no class of errors of its own
            raise _lost(error) from error

    def _step(self) -> None:
        try:
            self._drop_cancelled()
            self._admit()
            if self._in_flight:
                self._begin(f"a pass for {counted(len(self._in_flight), 'request')}")
                for name, drawn in self._engine.step():
                    self._take(name, drawn)
        except Exception as error:  # noqa: BLE001  whatever the engine dies of: nobody may wait for it for ever
            self._fail(_lost(error))

    def _take(self, name: str, drawn: Reply | Growing) -> None:
        told = self._in_flight[name].told
        if told is not None:
            told(drawn.token_ids)
        if isinstance(drawn, Reply):
            _answer(self._in_flight.pop(name), drawn)

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.reply.cancelled()]
        cancelled = [name for name, request in self._in_flight.items() if request.reply.cancelled()]
        if cancelled:
            self._engine.abort(cancelled)
        for name in cancelled:
            del self._in_flight[name]

    def _admit(self) -> None:
        if not self._waiting:
            return
        if not self._in_flight:
            self._turn = self._waiting[0].weights
            self._begin("taking weights")
            self._engine.load(self._turn)
        elif any(request.weights is not self._turn for request in self._waiting):
            return
        joining = {next(self._names): request for request in self._waiting if request.weights is self._turn}
        self._waiting = [request for request in self._waiting if request.weights is not self._turn]
        self._in_flight |= joining  # before any begins: should the engine fail, all of them are answered
        for name, request in joining.items():
            self._add(name, request)

    def _add(self, name: str, request: Request) -> None:
        try:
            self._engine.add(name, request)
        except PolicyError as error:
            _answer(self._in_flight.pop(name), error)

    def _fail(self, error: EngineLost) -> None:
        begun, left = list(self._in_flight), [*self._in_flight.values(), *self._waiting]
        self._in_flight, self._waiting = {}, []
        for request in left:
            _answer(request, error)
        with contextlib.suppress(Exception):  # an engine that is gone cannot do that either
            self._engine.abort(begun)

    def _end(self) -> None:
        self._begin("its end")
        for request in [*self._in_flight.values(), *self._waiting]:
            request.reply.cancel()
        self._in_flight, self._waiting = {}, []
        self._engine.close()

    def _begin(self, what: str) -> None:
        self._thread.begin(Move(what, self._limit_s, "vllm.answer_timeout_s"))


def _lost(error: Exception) -> EngineGone:
    """For who waits in another thread: with the error itself as its cause, so that a log shows where it was raised."""
    lost = EngineGone(f"vLLM's engine failed: {type(error).__name__}: {first_line(error)}")
    lost.__cause__ = error
    return lost


def _answer(request: Request, answer: Reply | PolicyError | EngineLost) -> None:
    """Nothing where the request was cancelled; after this it cannot be."""
    if not request.reply.set_running_or_notify_cancel():
        return
    if isinstance(answer, Reply):
        request.reply.set_result(answer)
    else:
        request.reply.set_exception(answer)
