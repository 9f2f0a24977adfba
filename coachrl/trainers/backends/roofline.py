"""How long a step takes at most, from a card's figures: a roofline, worked out before a run starts. Plain arithmetic.

| | operations | bytes |
|---|---|---|
| a token read (prompts, references) | 2 a weight, and attention | |
| a token trained on | three times that; with adapters twice; once more where activations are computed again | |
| a pass of an engine, one token of each reply in flight | 2 a weight and reply | the weights once, each reply's cache |

A pass takes as long as the slower of the two. Of a card's peak a share is counted on that is usual where much work is
in flight; neither share has been held against a card yet. Nothing is counted for the coach, for programs, for weights
on their way, for optimizers, and for GPUs that wait for the last reply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coachrl.trainers.backends.openrlhf.cluster.memory import ModelShape

OF_OPERATIONS = 0.4  # of the peak, in prompts and in training
OF_BANDWIDTH = 0.7


@dataclass(frozen=True)
class Card:
    """A GPU by its maker's figures. teraflops: in bfloat16 and without sparsity; gb_per_s: of its memory."""

    name: str
    teraflops: float
    gb_per_s: float

    def operations_s(self, operations: float) -> float:
        return operations / (OF_OPERATIONS * self.teraflops * 1e12)

    def bytes_s(self, count: float) -> float:
        return count / (OF_BANDWIDTH * self.gb_per_s * 1e9)


# In the order in which their names are looked for: some are the beginning of others.
CARDS = (
    Card("B200", 2250, 8000),
    Card("H200", 989, 4800),
    Card("H100 PCIe", 756, 2000),
    Card("H100 NVL", 835, 3900),
    Card("H100", 989, 3350),
    Card("A100-SXM4-40GB", 312, 1555),
    Card("A100-PCIE-40GB", 312, 1555),
    Card("A100", 312, 2039),
    Card("L40S", 362, 864),
    Card("L4", 121, 300),
    Card("A10G", 70, 600),
    Card("A10", 125, 600),
    Card("RTX 5090", 210, 1792),
    Card("RTX 4090", 165, 1008),
    Card("RTX 3090", 71, 936),
)
ASSUMED = CARDS[4]


def card_named(name: str) -> Card | None:
    """The card that nvidia-smi calls so; None where its figures are not known here."""
    return next((card for card in CARDS if re.search(rf"\b{card.name}\b", name)), None)


@dataclass(frozen=True)
class PolicyWork:
    """What a step asks of one policy at most. replies: their number. prompt_tokens, reply_tokens: of all of them.
    at_once: how many one engine draws side by side. engine_gpus: on which it generates. forwards: passes over all
    tokens without training, of a reference or of the trainer. trained: how many times the operations of such a pass an
    update takes, 0 where there is none. trainer_gpus: on which both are done."""

    shape: ModelShape
    replies: int
    prompt_tokens: int
    reply_tokens: int
    at_once: int
    engine_gpus: int
    forwards: int
    trained: int
    trainer_gpus: int

    def generating_s(self, card: Card) -> float:
        """Of one GPU that does it alone."""
        length = (self.prompt_tokens + self.reply_tokens / 2) / self.replies
        weights = self.shape.parameters
        read = 2 * weights + self.at_once * length * self.shape.cache_bytes()
        each = max(card.bytes_s(read), card.operations_s(2 * weights * self.at_once))
        prompts = card.operations_s(self._operations(self.prompt_tokens, self.prompt_tokens / self.replies))
        return prompts + each * self.reply_tokens / self.at_once

    def forward_s(self, card: Card) -> float:
        """Of a pass over all prompts and replies, on one GPU alone."""
        tokens = self.prompt_tokens + self.reply_tokens
        return card.operations_s(self._operations(tokens, tokens / self.replies))

    def _operations(self, tokens: float, length: float) -> float:
        """A token attends to half of its sequence on average, and each place costs two products of all heads."""
        return tokens * (2 * self.shape.parameters + 4 * self.shape.layers * self.shape.queries * length / 2)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, every turn and every reply being full. one_step_off: the next step's episodes are played
    while this one trains."""

    generating_s: float
    forwards_s: float
    training_s: float
    one_step_off: bool = False

    @property
    def all_s(self) -> float:
        beside = self.forwards_s + self.training_s
        return max(self.generating_s, beside) if self.one_step_off else self.generating_s + beside


def step_time(works: Sequence[PolicyWork], gpus: int | None, card: Card, one_step_off: bool = False) -> StepTime:
    """gpus: that all policies share; None where each has its own. Policies generate at the same time: they end no
    sooner than the slowest, and than all of their work would on all shared GPUs together."""
    generating = [work.generating_s(card) for work in works]
    slowest = max(alone / work.engine_gpus for alone, work in zip(generating, works, strict=True))
    together = sum(generating) / gpus if gpus is not None else 0.0
    forwards = [work.forwards * work.forward_s(card) / max(1, work.trainer_gpus) for work in works]
    training = [work.trained * work.forward_s(card) / max(1, work.trainer_gpus) for work in works]
    in_turn = gpus is not None
    forwards_s, training_s = (sum(parts) if in_turn else max(parts) for parts in (forwards, training))
    return StepTime(max(slowest, together), forwards_s, training_s, one_step_off)
