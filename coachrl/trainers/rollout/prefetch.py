"""The episodes of each step: made when they are asked for, or while the step before is still being trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from coachrl.types import Episode

Start = Callable[[int], Coroutine[Any, Any, list[Episode]]]


class RolloutPrefetcher:
    """`start(step)` plays a step's episodes. With `ahead` they may begin early: see `begin`."""

    def __init__(self, start: Start, ahead: bool, last_step: int) -> None:
        self._start, self._ahead, self._last_step = start, ahead, last_step
        self._begun: dict[int, asyncio.Task[list[Episode]]] = {}

    async def take(self, step: int) -> tuple[list[Episode], int]:
        """The episodes of `step`, and how many updates old the weights are that played them."""
        begun = self._begun.pop(step, None)
        return (await self._start(step), 0) if begun is None else (await begun, 1)

    def begin(self, step: int) -> None:
        """Play `step` in the background, with the weights that the engines hold now. Without `ahead`: nothing."""
        if self._ahead and step <= self._last_step:
            self._begun[step] = asyncio.create_task(self._start(step))

    async def settle(self) -> None:
        """Wait until nothing is being played, so that weights may change. What failed is raised by `take`."""
        if self._begun:
            await asyncio.wait(self._begun.values())

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what computes for long: beside the episodes, where some are being played meanwhile."""
        return await asyncio.to_thread(function, *arguments) if self._begun else function(*arguments)

    def give_up(self) -> None:
        """End what was begun. `take` of it raises CancelledError."""
        for task in self._begun.values():
            task.cancel()

    async def stop(self) -> None:
        """Give up what was begun, and wait until it has ended."""
        self.give_up()
        await asyncio.gather(*self._begun.values(), return_exceptions=True)
        self._begun = {}
