"""Log-probabilities of given tokens under a model: for the update, for the reference, and for supervised losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache

from coachrl.trainers.backends.torch import gradient_checkpointing
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.attention import KeyValues, PackedRows, Prefix
from coachrl.trainers.backends.torch.engine.decode import prefix_to_share
from coachrl.trainers.backends.torch.packed import PackedBatch, pack
from coachrl.types import TrainSample

_HEAD_ELEMENTS = 2**25  # logits that exist at once; over a large vocabulary they are most of a step's memory


def micro_batches(
    samples: Sequence[TrainSample], max_tokens: int, device: torch.device, all_tokens: bool = False
) -> Iterator[list[PackedBatch]]:
    """The batches of each role, whose prompts have one prefix. `samples` are sorted by length, and cut so that a batch
    runs at most `max_tokens` tokens if all its samples are as long as the longest (or one sample).

    What all prompts of a role begin with (a system prompt, examples) counts once in each batch, for it is run once.
    The selected tokens are those of mask 1, or every response token with `all_tokens`.
    """
    # The longest first: too little memory shows at once.
    ordered = sorted(samples, key=lambda sample: (sample.role, -sample.length))
    for _, group in groupby(ordered, key=lambda sample: sample.role):
        members = list(group)
        shared = prefix_to_share([sample.prompt_ids_P.tolist() for sample in members])
        batches: list[list[TrainSample]] = [[]]
        for sample in members:
            if batches[-1] and shared + (len(batches[-1]) + 1) * (batches[-1][0].length - shared) > max_tokens:
                batches.append([])
            batches[-1].append(sample)
        yield [pack(batch, device, all_tokens, shared) for batch in batches]


class SharedPrefix:
    """What all prompts of a role begin with, run once for all micro-batches of an optimizer step.

    Its keys and values are leaves: the micro-batches' gradients add up in them, in float32, and `backward` sends the
    sum through the prefix.
    """

    def __init__(self, model: Any, ids_1S: Tensor) -> None:
        self._outputs = attention.read_prefix(model, ids_1S)
        self._leaves = {
            layer: KeyValues(*(states.detach().float().requires_grad_(states.requires_grad) for states in pair))
            for layer, pair in self._outputs.items()
        }

    def states(self) -> Prefix:
        """For one micro-batch."""
        return {
            layer: KeyValues(
                *(leaf.to(output.dtype) for leaf, output in zip(leaves, self._outputs[layer], strict=True))
            )
            for layer, leaves in self._leaves.items()
        }

    def backward(self) -> None:
        outputs, gradients = [], []
        for layer, leaves in self._leaves.items():
            for leaf, output in zip(leaves, self._outputs[layer], strict=True):
                if leaf.grad is not None:
                    outputs.append(output)
                    gradients.append(leaf.grad.to(output.dtype))
        if outputs:
            torch.autograd.backward(outputs, gradients)


def shared_prefix(model: Any, batches: Sequence[PackedBatch]) -> SharedPrefix | None:
    """The prefix of these micro-batches of one role; None where the model runs by padded batches."""
    return SharedPrefix(model, batches[0].prefix_1S) if attention.is_used_by(model) else None


def token_logprobs(
    model: Any, batch: PackedBatch, temperature: float = 1.0, prefix: SharedPrefix | None = None
) -> tuple[Tensor, Tensor]:
    """Natural log-probabilities (N,) of the batch's selected tokens, and the entropies (N,) of their distributions:
    softmax(logits / temperature), which is what they were drawn from.

    prefix: from `shared_prefix`; where it is not given, the common prefix is run for this batch alone. The output layer
    is applied at the selected positions only, a block at a time; its logits are computed once more in the backward pass
    instead of being kept. Entropies carry no gradient.
    """
    if attention.is_used_by(model):
        states = prefix.states() if prefix else attention.read_prefix(model, batch.prefix_1S)
        with attention.use(PackedRows(batch.lengths, states, batch.ids_1T.device)):
            output = model.base_model(input_ids=batch.ids_1T, position_ids=batch.positions_1T, use_cache=False)
        hidden_TD = output.last_hidden_state[0]
    else:
        hidden_TD = _padded_hidden_states(model, batch)
    head = model.get_output_embeddings()
    hidden_ND = hidden_TD.index_select(0, batch.places_N)
    return head_logprobs(head, head.out_features, hidden_ND, batch.targets_N, temperature)


def head_logprobs(
    head: Callable[[Tensor], Tensor], vocabulary: int, hidden_ND: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (N,) of the targets, and the entropies (N,) of their distributions, from the hidden states that
    predict them. Logits (C, V) exist for a block at a time, and once more in the backward pass."""
    block = max(1, _HEAD_ELEMENTS // vocabulary)
    parts = []
    for hidden_CD, targets_C in zip(hidden_ND.split(block), targets_N.split(block), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(_logprobs_of_block, head, hidden_CD, targets_C, temperature, use_reentrant=False))
        else:
            parts.append(_logprobs_of_block(head, hidden_CD, targets_C, temperature))
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])


def _padded_hidden_states(model: Any, batch: PackedBatch) -> Tensor:
    """As rows of a rectangle, padded on the right, for architectures that shared-prefix attention is not proven for. No
    mask is needed: padding comes after every real token."""
    rows = batch.ids_1T[0].split(batch.lengths)
    ids_BT = pad_sequence(rows, batch_first=True)
    prefix_BS = batch.prefix_1S.expand(len(rows), -1)
    shared = prefix_BS.shape[1]
    if gradient_checkpointing.keeps_inputs_only(model):  # a prefix's cache is not for its layers: each row has its own
        ids_BT = torch.cat([prefix_BS, ids_BT], dim=1)
        hidden_BTD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[:, shared:]
    else:
        cache = _cached_prefix(model, batch.prefix_1S, len(rows)) if shared else None
        output = model.base_model(input_ids=ids_BT, past_key_values=cache, use_cache=cache is not None)
        hidden_BTD = output.last_hidden_state
    return torch.cat([hidden_TD[:length] for hidden_TD, length in zip(hidden_BTD, batch.lengths, strict=True)])


def _cached_prefix(model: Any, prefix_1S: Tensor, rows: int) -> Any:
    """Keys and values of the prefix for each row: views, so that the gradients of all add up in the one prefix."""
    cache: Any = DynamicCache()
    model.base_model(input_ids=prefix_1S, past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        layer.keys = layer.keys.expand(rows, -1, -1, -1)
        layer.values = layer.values.expand(rows, -1, -1, -1)
    return cache


def plain_head(model: Any) -> bool:
    """Whether logits are the output layer's, untouched: some architectures scale or cap them afterwards."""
    ids = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return bool(torch.allclose(model.get_output_embeddings()(hidden).float(), logits.float(), rtol=1e-2, atol=1e-2))


def _logprobs_of_block(
    head: Callable[[Tensor], Tensor], hidden_CD: Tensor, targets_C: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logits_CV = head(hidden_CD).float()
    if temperature != 1.0:
        logits_CV = logits_CV / temperature
    log_total_C = logits_CV.logsumexp(dim=-1)
    logprobs_C = logits_CV.gather(1, targets_C[:, None])[:, 0] - log_total_C
    with torch.no_grad():
        probabilities_CV = (logits_CV - log_total_C[:, None]).exp_()
        entropy_C = log_total_C - probabilities_CV.mul_(logits_CV).sum(dim=-1)
    return logprobs_C, entropy_C
