"""Who is told of what happens in a run, or looks at its scores, while it trains."""

from __future__ import annotations

from typing import Any, Protocol

from coachrl.types import Episode


class Callback(Protocol):
    """Told of what happens, for people. Never changes the run."""

    def on_phase(self, phase: str, total: int) -> None:
        """A phase of `total` episodes begins ("step 3/12", "held-out tasks")."""

    def on_episode(self, episode: Episode) -> None: ...

    def on_metrics(self, metrics: dict[str, Any]) -> None: ...


class Callbacks:
    """Several watchers as one."""

    def __init__(self, *watchers: Callback) -> None:
        self._watchers = watchers

    def on_phase(self, phase: str, total: int) -> None:
        for callback in self._watchers:
            callback.on_phase(phase, total)

    def on_episode(self, episode: Episode) -> None:
        for callback in self._watchers:
            callback.on_episode(episode)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        for callback in self._watchers:
            callback.on_metrics(metrics)


class StepAudit(Protocol):
    """What looks at a run's scores while it trains."""

    def is_due(self, step: int) -> bool: ...

    async def metrics(self, step: int) -> dict[str, float]:
        """Of the steps up to `step`, whose episodes are written."""
        ...
