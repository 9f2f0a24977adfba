"""The one narrow protocol between coachrl and whatever generates and trains. Only its implementations know torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from coachrl.types import Generation, Sampling, TrainSample

Message = Mapping[str, str]  # {"role": "user" | "assistant" | "system", "content": text}
Samples = dict[str, list[TrainSample]]  # by policy


class PolicyTokenizer(Protocol):
    """Chat text to token ids and back, for one policy. Light: it needs no torch."""

    context_length: int

    def encode_chat(self, messages: Sequence[Message], thinking: bool = False) -> tuple[int, ...]:
        """Token ids of the conversation, ending where the assistant's next reply begins."""
        ...

    def continue_chat(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], message: Message, thinking: bool = False
    ) -> tuple[int, ...]:
        """`prompt_ids`, then `response_ids` exactly as sampled, then `message` and the opening of the next reply."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text without special tokens."""
        ...


class Backend(Protocol):
    """Holds every policy's weights. `generate` is asynchronous and many calls are in flight at once."""

    def tokenizer(self, policy: str) -> PolicyTokenizer: ...

    def episode(self) -> AbstractAsyncContextManager[None]:
        """Marks one episode as in flight. A backend that batches in lock-step waits until every episode in flight
        either generates or has ended; others return a null context."""
        ...

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit the model's context: nothing is cut."""
        ...

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
