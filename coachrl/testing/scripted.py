"""Shipped fakes, so that users can test their pipelines without a model: a scripted policy and a scripted coach.

policy = ScriptedPolicy(lambda call: "\\\\boxed{7}" if call.policy == "verifier" else "3 + 4")
episodes = await rollout(specs, RolloutContext(pipeline, policy, sandbox=None))
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coachrl.coach.base import CoachRequest
from coachrl.errors import CheckpointError, ContextOverflow
from coachrl.pipelines.generation import Message
from coachrl.trainers.backends.base import Samples, with_logprobs
from coachrl.types import CoachScore, Generation, SamplingParams, TrainSample

_END = 0  # end-of-sequence; every other token id is a character's code point


@dataclass(frozen=True)
class Call:
    """One request to a scripted policy. prompt is the whole conversation as text."""

    policy: str
    prompt: str
    sampling: SamplingParams


class CharacterTokenizer:
    """One token a character; messages are `<role>content` and a line end."""

    knows_tools = False

    def __init__(self, context_length: int = 100_000) -> None:
        self.context_length = context_length

    def encode_chat(
        self, messages: Sequence[Message], thinking: bool = False, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>"
        return tuple(map(ord, text))

    def continue_chat(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        messages: Sequence[Message],
        thinking: bool = False,
    ) -> tuple[int, ...]:
        return (*prompt_ids, *response_ids, ord("\n"), *self.encode_chat(messages, thinking))

    def encode_opening(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != _END)


class ScriptedPolicy:
    """A `Backend` whose replies come from a function. Keeps every call and every batch of samples that it was given."""

    def __init__(self, reply: Callable[[Call], str], context_length: int = 100_000) -> None:
        self._reply = reply
        self._tokenizer = CharacterTokenizer(context_length)
        self._version = 0
        self.calls: list[Call] = []
        self.updates: list[Samples] = []
        self.learning_rates: list[float | None] = []

    def tokenizer(self, policy: str) -> CharacterTokenizer:
        return self._tokenizer

    @contextlib.asynccontextmanager
    async def episode(self, patience_s: float | None = None) -> AsyncIterator[None]:
        yield

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        if len(prompt_ids) + sampling.max_new_tokens > self._tokenizer.context_length:
            raise ContextOverflow(
                f"{policy}: prompt of {len(prompt_ids)} tokens and reply of {sampling.max_new_tokens} exceed "
                f"the context of {self._tokenizer.context_length}"
            )
        call = Call(policy, self._tokenizer.decode(prompt_ids), sampling)
        self.calls.append(call)
        ids = (*map(ord, self._reply(call)), _END)
        cut = ids[: sampling.max_new_tokens]
        return Generation(cut, (-1.0,) * len(cut), "stop" if cut == ids else "length", self._version)

    def with_reference(self, samples: Samples) -> Samples:
        return with_logprobs(samples, "ref_logprobs_L", _old_logprobs)

    def with_trainer_logprobs(self, samples: Samples) -> Samples:
        return with_logprobs(samples, "trainer_logprobs_L", _old_logprobs)

    def update(self, samples: Samples, learning_rate: float | None = None) -> dict[str, float]:
        self.updates.append(samples)
        self.learning_rates.append(learning_rate)
        return {f"tokens/{policy}": float(sum(s.mask_L.sum() for s in group)) for policy, group in samples.items()}

    def sync_weights(self) -> None:
        self._version += 1

    def begin_save(self, folder: Path) -> Callable[[], None]:
        self.save(folder)
        return lambda: None

    def save(self, folder: Path) -> None:
        (folder / "scripted.json").write_text(json.dumps({"version": self._version}), encoding="utf-8")

    def load(self, folder: Path) -> None:
        try:
            self._version = json.loads((folder / "scripted.json").read_text(encoding="utf-8"))["version"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{folder}: no scripted policy was saved there ({error})") from error

    def close(self) -> None:
        pass


def _old_logprobs(policy: str, samples: list[TrainSample]) -> list[NDArray[np.float32]]:
    return [sample.old_logprobs_L.copy() for sample in samples]


class ScriptedCoach:
    """A `Coach` whose scores come from a function; raise CoachError in it to script a failure."""

    name = "scripted"

    def __init__(self, score: Callable[[CoachRequest], float]) -> None:
        self._score = score
        self.requests: list[CoachRequest] = []

    async def score(self, request: CoachRequest) -> CoachScore:
        self.requests.append(request)
        return CoachScore(request.action.id, "scored", self._score(request), model=self.name)

    async def close(self) -> None:
        pass
