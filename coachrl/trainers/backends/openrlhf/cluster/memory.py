"""How much memory a run of the distributed backend takes, worked out before it starts. Plain arithmetic.

The rules are estimates. Activations are held against the real graph of a model by a test; what a process and vLLM take
beside weights and cache has not been held against a card yet. In bytes for each weight, with R data-parallel ranks:

| | trainer | reference |
|---|---|---|
| weights in bfloat16 | 2/R with ZeRO-3, 2 with ZeRO-2 | the same |
| float32 weights 4, AdamW 8, sums of gradients 4 | 16/R, in main memory while engines generate | |

With adapters the second line is that of their weights alone, and there is no reference beside the trainer. Weights that
ZeRO-3 gathers, and its bucket for the gradients of what is trained, are at most 3 GB. An engine takes the share of a
card that it was given; what its weights leave of it keeps prompts and replies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.config import OpenRLHFConfig
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement, PolicyPlacement

CARD_GB = 85.5  # a card of "80 GB", which holds 79.6 GiB
PROCESS_GB = 1.0  # CUDA's context, NCCL's buffers, and what an engine that sleeps does not give back
_GATHERED_GB = 2.0  # ZeRO-3: 10^9 weights at most, and half as many gradients on their way
ENGINE_GB = 1.6  # CUDA graphs and activations of an engine
_HEAD_GB = 0.5  # blocks of logits
# What to lower: no length moves what engines take, which is a share of the card.
_ENGINES = "openrlhf.engine_memory"
_ALL = f"openrlhf.max_length, openrlhf.micro_batch_tokens or {_ENGINES}"
PINNED = 1.35  # main memory that is pinned comes in powers of two


@dataclass(frozen=True)
class ModelShape:
    """parameters: number of weights. hidden, intermediate: widths of a layer and of its MLP. queries, keys: widths of
    what attention makes of a token, over all heads. context: the longest sequence."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    vocabulary: int
    context: int

    @property
    def weights_gb(self) -> float:
        """In bfloat16."""
        return 2 * self.parameters / 1e9

    def activations_gb(self, tokens: int, checkpointing: bool) -> float:
        """At the peak of a forward and backward pass over `tokens`. With checkpointing every layer keeps its input,
        and one is computed again."""
        layer = 2 * (4 * self.intermediate + 6 * self.hidden + 5 * (self.queries + 2 * self.keys))
        kept = 2 * self.hidden * self.layers + layer if checkpointing else layer * self.layers
        return tokens * (kept + layer / 4) / 1e9 + 2 * self.vocabulary * self.hidden / 1e9 + _HEAD_GB

    def adapter_parameters(self, rank: int) -> int:
        """Of an adapter of all linear layers but the output layer: rank times the inputs and outputs of each."""
        attention = (self.hidden + self.queries) * 2 + (self.hidden + self.keys) * 2
        mlp = (self.hidden + self.intermediate) * 3
        return rank * self.layers * (attention + mlp)

    def cache_bytes(self) -> int:
        """Keys and values of one token, in bfloat16."""
        return 4 * self.layers * self.keys


# Of models that shipped configurations name, so that a plan needs no download, and no package that makes them.
_KNOWN = {
    "Qwen/Qwen3-4B": ModelShape(4_022_468_096, 36, 2560, 9728, 4096, 1024, 151_936, 40_960),
    "smollm2-135m": ModelShape(134_515_008, 30, 576, 1536, 576, 192, 49_152, 8192),
    "tiny-random": ModelShape(394_112, 2, 128, 256, 128, 128, 257, 16_384),
}


def shape_of(model: str, folder: Path | None, parameters: int | None) -> ModelShape | None:
    """folder: where `model` lies, None for a name that would have to be fetched first; parameters: its number of
    weights, where that is known. None where not enough is known."""
    if folder is None or parameters is None:
        return _KNOWN.get(model)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        heads = config["num_attention_heads"]
        head = config.get("head_dim") or config["hidden_size"] // heads
        return ModelShape(
            parameters=parameters,
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            queries=heads * head,
            keys=config.get("num_key_value_heads", heads) * head,
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
        )
    except (OSError, ValueError, KeyError, TypeError):  # another kind of model: nothing is said of it
        return None


@dataclass(frozen=True)
class MemoryPlan:
    """Gigabytes (10^9) on the fullest GPU, by what happens there; main_gb: of main memory on all machines together.
    cached_tokens: what an engine of each policy keeps; longest: tokens of the longest sample of each."""

    card_gb: float
    generating_gb: float
    training_gb: Mapping[str, float]
    cached_tokens: Mapping[str, int]
    longest: Mapping[str, int]
    main_gb: float

    def lines(self) -> list[str]:
        """For people."""
        card = f"of {self.card_gb:.0f} GB"
        return [
            judged(f"generating: {self.generating_gb:.0f} {card}", self.generating_gb, self.card_gb, _ENGINES),
            *(
                judged(f"training {policy} at {self.longest[policy]:,} tokens: {gb:.0f} {card}", gb, self.card_gb, _ALL)
                for policy, gb in self.training_gb.items()
            ),
            *(
                kept_line(f"an engine of {policy}", tokens, self.longest[policy], "openrlhf.engine_memory")
                for policy, tokens in self.cached_tokens.items()
            ),
            f"main memory: {self.main_gb:.0f} GB on all machines together",
        ]


def plan_memory(
    settings: OpenRLHFConfig,
    placement: Placement,
    shapes: Mapping[str, ModelShape],
    card_gb: float,
    lora_rank: int | None = None,
) -> MemoryPlan:
    """shapes: of every policy's model. card_gb: memory of one GPU. lora_rank: of adapters, where those are trained."""
    longest = {policy: settings.max_length or shape.context for policy, shape in shapes.items()}
    held = {placed.policy: _held_gb(settings, placed, shapes[placed.policy]) for placed in placement.policies}
    trained = {
        policy: shape.parameters if lora_rank is None else shape.adapter_parameters(lora_rank)
        for policy, shape in shapes.items()
    }
    states = {placed.policy: _states_gb(settings, placed, trained[placed.policy]) for placed in placement.policies}
    training = {}
    for placed in placement.policies:
        if placed.trainers:
            policy = placed.policy
            alone = settings.sleeps or not placement.colocated
            together = 1 if alone else sum(bool(other.trainers) for other in placement.policies)
            work = _pass_gb(settings, shapes[policy], trained[policy], longest[policy])
            training[policy] = together * (states[policy] + work)
    engines_gb = settings.engine_memory * card_gb
    if placement.colocated:
        everyone = sum(held.values())
        engines_left = placement.crowd * PROCESS_GB if settings.sleeps else engines_gb
        generating = engines_gb + everyone + (0.0 if settings.sleeps else sum(states.values()))
        training = {policy: gb + everyone + engines_left for policy, gb in training.items()}
    else:
        generating = engines_gb
        training = {policy: gb + held[policy] for policy, gb in training.items()}
    return MemoryPlan(
        card_gb=card_gb,
        generating_gb=generating,
        training_gb=training,
        cached_tokens={
            placed.policy: _cached_tokens(placed, shapes[placed.policy], card_gb) for placed in placement.policies
        },
        longest=longest,
        main_gb=_main_gb(settings, placement, shapes, trained),
    )


def _held_gb(settings: OpenRLHFConfig, placed: PolicyPlacement, shape: ModelShape) -> float:
    """What a policy's trainer and reference hold on a GPU whatever happens there."""
    parts = placed.trainers if settings.zero_stage == 3 else 1
    processes = bool(placed.trainers) + bool(placed.references)
    return processes * (shape.weights_gb / max(parts, 1) + PROCESS_GB)


def _states_gb(settings: OpenRLHFConfig, placed: PolicyPlacement, trained: int) -> float:
    """A trainer's optimizer, float32 weights and gradients on a GPU, where they are there at all. trained: weights."""
    if not placed.trainers or settings.adam_offload:
        return 0.0
    return 16 * trained / placed.trainers / 1e9


def _pass_gb(settings: OpenRLHFConfig, shape: ModelShape, trained: int, longest: int) -> float:
    """What a pass over the longest sample takes on a GPU beside what lies there. trained: weights."""
    tokens = max(longest, settings.micro_batch_tokens)
    gathered = min(_GATHERED_GB, shape.weights_gb) + min(_GATHERED_GB / 2, 2 * trained / 1e9)
    of_zero_3 = gathered if settings.zero_stage == 3 else 0.0
    return of_zero_3 + shape.activations_gb(tokens, settings.gradient_checkpointing)


def _cached_tokens(placed: PolicyPlacement, shape: ModelShape, card_gb: float) -> int:
    room_gb = placed.memory_fraction * card_gb - shape.weights_gb / placed.tensor_parallel - ENGINE_GB
    return max(0, int(room_gb * 1e9 * placed.tensor_parallel / shape.cache_bytes()))


def _main_gb(
    settings: OpenRLHFConfig, placement: Placement, shapes: Mapping[str, ModelShape], trained: Mapping[str, int]
) -> float:
    """Weights of engines that sleep and do not throw them away, and states of trainers that do not train. trained:
    weights by policy."""
    total = 0.0
    for placed in placement.policies:
        if settings.sleeps and (settings.sleep_level == 1 or not placed.trainers):
            total += placed.engines * shapes[placed.policy].weights_gb * PINNED
        if placed.trainers and (settings.sleeps or settings.adam_offload):
            total += 16 * trained[placed.policy] / 1e9
    return total


def judged(line: str, needed_gb: float, card_gb: float, remedy: str) -> str:
    """The line, with what to lower where a card does not hold what it says."""
    return line if needed_gb <= card_gb else f"{line}: TOO MUCH, lower {remedy}"


def kept_line(engine: str, tokens: int, longest: int, remedy: str) -> str:
    """What an engine keeps of prompts and replies, with what to raise where that is not even one of full length."""
    line = f"{engine} keeps {tokens:,} tokens, {tokens / longest:.1f} of full length"
    return line if tokens >= longest else f"{line}: TOO FEW, raise {remedy}"
