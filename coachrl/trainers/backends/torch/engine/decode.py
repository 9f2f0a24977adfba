"""Draws replies with a transformers model: one seed, temperature and length limit for each of them.

`transformers.generate` has one random state for a whole batch, so a reply there depends on what else was in it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.plain import PlainDecoder
from coachrl.trainers.backends.torch.engine.sampling import draw
from coachrl.trainers.backends.torch.engine.slots import SlotDecoder
from coachrl.trainers.backends.torch.engine.threads import ThreadGovernor
from coachrl.types import Generation, SamplingParams

_threads = ThreadGovernor()  # of the process: its processors are
_MIN_SHARED_TOKENS = 16  # a shorter common prefix is not worth a forward pass of its own


@dataclass(frozen=True)
class Request:
    """One reply to draw. given_up: set from another thread once nobody waits for it any more. told: is given each token
    as it is drawn."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    given_up: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    told: Callable[[int], None] | None = field(default=None, compare=False, repr=False)


def generate_batch(
    model: Any,
    requests: Sequence[Request],
    eos_ids: frozenset[int],
    weights_version: int,
    batch_size: int | None = None,
) -> list[Generation]:
    """One reply for each request, in their order; at most `batch_size` of them are drawn side by side.

    A reply depends on its own prompt, seed and settings alone, up to the rounding of batched arithmetic. It ends with
    the first token of `eos_ids`, which it holds, or at `max_new_tokens`; one that is given up ends where it stands.
    """
    rows = [_Row(request) for request in requests]
    with _threads.batch():
        _answer(model, rows, eos_ids, min(len(rows), batch_size or len(rows)))
    return [row.generation(weights_version) for row in rows]


@torch.inference_mode()
def _answer(model: Any, rows: Sequence[_Row], eos_ids: frozenset[int], slots: int) -> None:
    prompts = [row.prompt_ids for row in rows]
    decoder_of = SlotDecoder if attention.is_used_by(model) else PlainDecoder
    decoder = decoder_of(model, prompts[0][: prefix_to_share(prompts)], slots)
    stop_ids = torch.tensor(sorted(eos_ids), device=model.device)
    waiting, active = deque(rows), list[_Row]()
    tokens_B = torch.empty(0, dtype=torch.long, device=model.device)
    while waiting or active:
        joining = [waiting.popleft() for _ in range(min(len(waiting), decoder.free_slots(len(active))))]
        logits = []
        with _threads.forward_pass():
            if active:
                logits.append(decoder.step(tokens_B))
            if joining:
                logits.append(decoder.join([row.prompt_ids for row in joining]))
        active += joining
        tokens_B, logprobs_B = _draw_rows(torch.cat(logits) if len(logits) > 1 else logits[0], active)
        stopped = torch.isin(tokens_B, stop_ids).tolist()
        for row, token, logprob, stop in zip(active, tokens_B.tolist(), logprobs_B.tolist(), stopped, strict=True):
            row.take(token, logprob, stop)
        going = [place for place, row in enumerate(active) if not row.finished]
        if len(going) < len(active):
            kept = decoder.keep(going)
            active = [active[place] for place in kept]
            tokens_B = tokens_B[kept]


def shared_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all prompts have in common, short of the last token of any: each must feed one."""
    longest = min(len(prompt) for prompt in prompts) - 1
    for place, tokens in zip(range(longest), zip(*prompts, strict=False), strict=False):
        if len(set(tokens)) > 1:
            return place
    return longest


def prefix_to_share(prompts: Sequence[Sequence[int]]) -> int:
    """`shared_prefix_length`, or 0 where running it once for all would not pay."""
    shared = shared_prefix_length(prompts)
    return shared if len(prompts) > 1 and shared >= _MIN_SHARED_TOKENS else 0


class _Row:
    """One request while it is being answered."""

    def __init__(self, request: Request) -> None:
        self.prompt_ids, self.sampling = request.prompt_ids, request.sampling
        # The first n draws of a seed are the same whatever the limit, so a longer limit extends the same reply.
        self.noise = np.random.default_rng(request.sampling.seed).random(request.sampling.max_new_tokens)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.stopped = False
        self._given_up, self._told = request.given_up, request.told

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) >= self.sampling.max_new_tokens or self._given_up.is_set()

    @property
    def next_noise(self) -> float:
        return 0.0 if self.finished else float(self.noise[len(self.tokens)])

    def take(self, token: int, logprob: float, stop: bool) -> None:
        if not self.finished:
            self.tokens.append(token)
            self.logprobs.append(logprob)
            self.stopped = stop
            if self._told is not None:
                self._told(token)

    def generation(self, weights_version: int) -> Generation:
        return Generation(
            tuple(self.tokens), tuple(self.logprobs), "stop" if self.stopped else "length", weights_version
        )


def _draw_rows(logits_BV: Tensor, rows: Sequence[_Row]) -> tuple[Tensor, Tensor]:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits_BV.device)

    return draw(
        logits_BV,
        column([row.sampling.temperature for row in rows]),
        column([row.sampling.top_p for row in rows]),
        column([row.next_noise for row in rows]),
    )
