"""Draws replies from engines: in the driver, and in the same way in every rollout worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from coachrl.errors import EngineLost
from coachrl.trainers.backends.base import check_room, tokenizer_of
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import DEATHS
from coachrl.trainers.backends.openrlhf.engines.connection import Engine, EngineDead
from coachrl.trainers.backends.openrlhf.rollout.balance import EngineChoice
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.vllm.replies import Reply, generation
from coachrl.types import Generation, SamplingParams

_DEAD = (*DEATHS, EngineDead)  # Ray's process died, or the one that vLLM started in it


@dataclass(frozen=True)
class EngineSet:
    """One policy's engines, as Ray's handles. replaced: how often dead ones among them were."""

    handles: tuple[Any, ...]
    replaced: int = 0


# policy -> place of the engine that this episode asked last
_HOMES: ContextVar[dict[str, int] | None] = ContextVar("engines of the episode", default=None)

# (policy, `replaced` of the set whose engine died, why) -> the set to ask from now on. Raises EngineLost.
Mend = Callable[[str, int, str], Awaitable[EngineSet]]


class Sampler:
    """Many requests at once for every policy; vLLM batches what is in flight by itself.

    mend: sees to an engine that died. generator: chooses between engines that are equally busy. timeout_s: within which
    an engine must answer a request. weights_version: of the weights that the engines hold.
    """

    def __init__(
        self,
        tokenizers: Mapping[str, ChatTokenizer],
        mend: Mend,
        generator: np.random.Generator,
        timeout_s: float,
    ) -> None:
        self._tokenizers = dict(tokenizers)
        self._timeout_s = timeout_s
        self._mend = mend
        self._generator = generator
        self._lines: dict[str, _Line] = {}
        self.weights_version = 0

    def use(self, policy: str, engines: EngineSet) -> None:
        """Ask these engines from now on."""
        choice = EngineChoice(len(engines.handles), self._generator)
        stop_ids = sorted(self.tokenizer(policy).eos_ids)
        before = self._lines[policy].asked if policy in self._lines else []
        connected = {engine.handle: engine for engine in before}
        asked = [connected.get(handle) or Engine(handle) for handle in engines.handles]
        self._lines[policy] = _Line(policy, engines, asked, stop_ids, choice, self._timeout_s)

    def close(self) -> None:
        """End the connections to all engines."""
        for line in self._lines.values():
            for engine in line.asked:
                engine.close()

    def tokenizer(self, policy: str) -> ChatTokenizer:
        """Raises PolicyError where there is no such policy."""
        return tokenizer_of(self._tokenizers, policy)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Marks one episode, whose requests to a policy go to one engine as far as its load allows."""
        return _at_home()

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit: nothing is cut. Where its engine dies
        another is asked, once; after that, EngineLost."""
        check_room(policy, len(prompt_ids), sampling.max_new_tokens, self.tokenizer(policy).context_length)
        version, line = self.weights_version, self._lines[policy]
        try:
            reply = await line.ask(prompt_ids, sampling)
        except _DEAD as error:
            await self._replace(policy, line, str(error))
            reply = await self._ask_again(policy, prompt_ids, sampling)
        return generation(reply, sampling, version)

    async def _replace(self, policy: str, line: _Line, why: str) -> None:
        if self._lines[policy] is not line:  # another request saw to it
            return
        engines = await self._mend(policy, line.engines.replaced, why)
        if self._lines[policy] is line:
            self.use(policy, engines)

    async def _ask_again(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Reply:
        try:
            return await self._lines[policy].ask(prompt_ids, sampling)
        except _DEAD as error:
            raise EngineLost(f"an engine of policy {policy} died twice while it answered one request") from error


@contextlib.asynccontextmanager
async def _at_home() -> AsyncIterator[None]:
    token = _HOMES.set({})
    try:
        yield
    finally:
        _HOMES.reset(token)


@dataclass(eq=False)
class _Line:
    """Requests to one policy's engines. asked: those of `engines`, one by one."""

    policy: str
    engines: EngineSet
    asked: Sequence[Engine]
    stop_ids: Sequence[int]
    choice: EngineChoice
    timeout_s: float

    async def ask(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Reply:
        homes = _HOMES.get()
        index = self.choice.choose(homes.get(self.policy) if homes is not None else None)
        if homes is not None:
            homes[self.policy] = index
        self.choice.in_flight[index] += 1
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self.asked[index].ask(prompt_ids, self.stop_ids, sampling)
        except TimeoutError as error:
            raise EngineLost(
                f"engine {index} of policy {self.policy} has not answered a request for {self.timeout_s:g} s "
                f"(openrlhf.answer_timeout_s)"
            ) from error
        finally:
            self.choice.in_flight[index] -= 1
