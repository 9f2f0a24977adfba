"""The one narrow protocol between coachrl and whatever generates and trains. Only its implementations know torch."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from coachrl.generation import Generator, Message, PolicyTokenizer
from coachrl.types import TrainSample

__all__ = ["Backend", "EpisodeGenerator", "Generator", "Message", "PolicyTokenizer", "Samples"]

Samples = dict[str, list[TrainSample]]  # by policy


class EpisodeGenerator(Generator, Protocol):
    """What episodes are played with."""

    def episode(self) -> AbstractAsyncContextManager[None]:
        """Marks one episode as in flight. A backend that batches in lock-step waits until every episode in flight
        either generates or has ended; others return a null context."""
        ...


class Backend(EpisodeGenerator, Protocol):
    """Holds every policy's weights."""

    def with_reference(self, samples: Samples) -> Samples:
        """The same samples with `ref_logprobs_L` filled (None where no reference model is kept: beta = 0)."""
        ...

    def update(self, samples: Samples) -> dict[str, float]:
        """One optimiser step or more of every policy that has samples of non-zero mask. Returns flat statistics,
        named `<statistic>/<policy>`."""
        ...

    def sync_weights(self) -> None:
        """Make the trained weights those that `generate` uses; `Generation.weights_version` grows by one."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything needed to continue (weights in Hugging Face form, optimiser, versions) under `folder`."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises CheckpointError."""
        ...

    def close(self) -> None: ...
