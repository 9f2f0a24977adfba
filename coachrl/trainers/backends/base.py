"""The one narrow protocol between coachrl and whatever generates and trains. Only its implementations know torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coachrl.errors import BackendError, ContextOverflow, PolicyError
from coachrl.pipelines.generation import Generator
from coachrl.types import TrainSample

Samples = dict[str, list[TrainSample]]  # by policy
T = TypeVar("T")
ADAM_BETAS = (0.9, 0.95)  # of every backend's optimizer


class EpisodeGenerator(Generator, Protocol):
    """What episodes are played with."""

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Marks one episode as in flight. A backend that batches in lock-step waits until every episode in flight
        either generates or has ended, or those that are busy have taken longer than their `patience_s` together;
        others need not wait for anybody."""
        ...


class Backend(EpisodeGenerator, Protocol):
    """Holds every policy's weights."""

    def with_reference(self, samples: Samples) -> Samples:
        """The same samples with `ref_logprobs_L` filled (None where no reference model is kept: beta = 0)."""
        ...

    def with_trainer_logprobs(self, samples: Samples) -> Samples:
        """The same samples with `trainer_logprobs_L` filled: as the weights to be trained say it, where
        `old_logprobs_L` is as the sampler said it."""
        ...

    def update(self, samples: Samples, learning_rate: float | None = None) -> dict[str, float]:
        """One optimizer step or more of every policy that has samples of non-zero mask. learning_rate: of this update;
        without it the highest. Returns flat statistics, named `<statistic>/<policy>`."""
        ...

    def sync_weights(self) -> None:
        """Make the trained weights those that `generate` uses; `Generation.weights_version` grows by one."""
        ...

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Begin what `save` does. The function that is returned waits for the end of it; nothing is trained before."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything needed to continue (weights in Hugging Face form, optimizer, versions) under `folder`."""
        ...

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises CheckpointError."""
        ...

    def close(self) -> None: ...


def tokenizer_of(tokenizers: Mapping[str, T], policy: str) -> T:
    """Raises PolicyError where there is no such policy."""
    if policy not in tokenizers:
        raise PolicyError(f"no policy {policy!r}; there are {', '.join(sorted(tokenizers))}")
    return tokenizers[policy]


def check_room(policy: str, prompt: int, reply: int, context: int) -> None:
    """Raises ContextOverflow where a prompt and a reply of so many tokens do not fit a context of so many."""
    if prompt + reply > context:
        raise ContextOverflow(
            f"a prompt of {prompt} tokens and a reply of up to {reply} do not fit the context of {context} tokens of "
            f"policy {policy}"
        )


def require_finite(statistics: Mapping[str, float]) -> None:
    """Raises BackendError where a figure of an update is NaN or infinite. A policy that says by itself that it left
    steps out (`skipped`) may have no loss to report."""
    for name, value in statistics.items():
        policy = name.partition("/")[2]
        if not math.isfinite(value) and not statistics.get(f"skipped/{policy}"):
            raise BackendError(
                f"{name} is {value}: policy {policy} cannot be trained like this; go on from the last checkpoint, with "
                f"a lower train.learning_rate"
            )


def advantages_of(sample: TrainSample) -> NDArray[np.float32]:
    """Raises ValueError where the algorithm has given none."""
    if sample.advantages_L is None:
        raise ValueError(f"sample {sample.action_id} has no advantages: Algorithm.advantages comes before update")
    return sample.advantages_L


def weighs(sample: TrainSample) -> bool:
    """Whether a sample has a gradient. Raises ValueError where it has no advantages."""
    return bool((advantages_of(sample) * sample.mask_L).any())


def with_logprobs(
    samples: Samples, field: str, logprobs_of: Callable[[str, list[TrainSample]], Sequence[NDArray[np.float32]]]
) -> Samples:
    """The same samples, whose `field` holds what `logprobs_of` gives for the samples of each policy."""
    filled: Samples = {}
    for policy, group in samples.items():
        given: list[dict[str, Any]] = [{field: logprobs_L} for logprobs_L in logprobs_of(policy, group)]
        filled[policy] = [replace(sample, **fields) for sample, fields in zip(group, given, strict=True)]
    return filled
