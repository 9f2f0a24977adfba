"""Log-probabilities of given tokens under a model: for the update, for the reference, and for supervised losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache

from coachrl.trainers.backends.torch import gradient_checkpointing
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.attention import KeyValues, PackedRows, Prefix
from coachrl.trainers.backends.torch.engine.decode import prefix_to_share
from coachrl.trainers.backends.torch.loss import TokenBatch, selected_tokens
from coachrl.types import TrainSample

_HEAD_ELEMENTS = 2**25  # logits that exist at once; over a large vocabulary they are most of a step's memory


@dataclass(frozen=True)
class MicroBatch(TokenBatch):
    """Samples of like length, side by side, padded on the right: a causal model's real tokens never see the padding.

    prefix_1S: S tokens that all prompts begin with, to be run once; S may be 0. ids_BT: the rest of each sample, of
    `lengths` tokens. rows_N, columns_N: where in that rest the model predicts each of the N selected response tokens.
    """

    prefix_1S: Tensor
    ids_BT: Tensor
    lengths: tuple[int, ...]
    rows_N: Tensor
    columns_N: Tensor


def micro_batches(
    samples: Sequence[TrainSample], max_tokens: int, device: torch.device, all_tokens: bool = False
) -> Iterator[MicroBatch]:
    """`samples` sorted by role and length, cut so that a batch runs at most `max_tokens` padded tokens (or one sample).

    What all prompts of a role begin with (a system prompt, examples) counts once in each batch, for it is run once.
    The selected tokens are those of mask 1, or every response token with `all_tokens`.
    """
    # The longest first: too little memory shows at once.
    ordered = sorted(samples, key=lambda sample: (sample.role, -sample.length))
    for _, group in groupby(ordered, key=lambda sample: sample.role):
        members = list(group)
        shared = prefix_to_share([sample.prompt_ids_P.tolist() for sample in members])
        batch: list[TrainSample] = []
        for sample in members:
            if batch and shared + (len(batch) + 1) * (batch[0].length - shared) > max_tokens:
                yield _micro_batch(batch, shared, device, all_tokens)
                batch = []
            batch.append(sample)
        yield _micro_batch(batch, shared, device, all_tokens)


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


def by_role(batches: Iterable[MicroBatch]) -> Iterator[list[MicroBatch]]:
    """Micro-batches that have one prefix."""
    return (list(group) for _, group in groupby(batches, key=lambda batch: batch.samples[0].role))


def shared_prefix(model: Any, batches: Sequence[MicroBatch]) -> SharedPrefix | None:
    """The prefix of these micro-batches of one role; None where the model runs by padded batches."""
    return SharedPrefix(model, batches[0].prefix_1S) if attention.is_used_by(model) else None


def token_logprobs(
    model: Any, batch: MicroBatch, temperature: float = 1.0, prefix: SharedPrefix | None = None
) -> tuple[Tensor, Tensor]:
    """Natural log-probabilities (N,) of the batch's selected tokens, and the entropies (N,) of their distributions:
    softmax(logits / temperature), which is what they were drawn from.

    prefix: from `shared_prefix`; where it is not given, the common prefix is run for this batch alone. The output layer
    is applied at the selected positions only, a block at a time; its logits are computed once more in the backward pass
    instead of being kept. Entropies carry no gradient.
    """
    if attention.is_used_by(model):
        states = prefix.states() if prefix else attention.read_prefix(model, batch.prefix_1S)
        hidden_ND = _packed_hidden_states(model, batch, states)
    else:
        hidden_ND = _padded_hidden_states(model, batch)
    head = model.get_output_embeddings()
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


def _packed_hidden_states(model: Any, batch: MicroBatch, prefix: Prefix) -> Tensor:
    """Of the selected tokens, (N, D). All rows run as one, without padding."""
    device = batch.ids_BT.device
    lengths_B = torch.tensor(batch.lengths, device=device)
    columns_T = torch.arange(batch.ids_BT.shape[1], device=device)
    real_BT = columns_T < lengths_B[:, None]
    places_BT = (columns_T + batch.prefix_1S.shape[1]).expand_as(real_BT)
    with attention.use(PackedRows(batch.lengths, prefix, device)):
        output = model.base_model(
            input_ids=batch.ids_BT[real_BT][None], position_ids=places_BT[real_BT][None], use_cache=False
        )
    begins_B = lengths_B.cumsum(0) - lengths_B
    return output.last_hidden_state[0].index_select(0, begins_B[batch.rows_N] + batch.columns_N)


def _padded_hidden_states(model: Any, batch: MicroBatch) -> Tensor:
    """The same for architectures that are not proven. No mask is needed: padding comes after every real token."""
    if gradient_checkpointing.keeps_inputs_only(model):  # a prefix's cache is not for its layers: each row has its own
        shared = batch.prefix_1S.shape[1]
        whole_BT = torch.cat([batch.prefix_1S.expand(len(batch.samples), -1), batch.ids_BT], dim=1)
        output = model.base_model(input_ids=whole_BT, use_cache=False)
        return output.last_hidden_state[batch.rows_N, batch.columns_N + shared]
    cache: Any = None
    if batch.prefix_1S.shape[1]:
        cache = DynamicCache()
        model.base_model(input_ids=batch.prefix_1S, past_key_values=cache, use_cache=True)
        for layer in cache.layers:  # views: the gradients of all rows add up in the one prefix
            layer.keys = layer.keys.expand(len(batch.samples), -1, -1, -1)
            layer.values = layer.values.expand(len(batch.samples), -1, -1, -1)
    output = model.base_model(input_ids=batch.ids_BT, past_key_values=cache, use_cache=cache is not None)
    return output.last_hidden_state[batch.rows_N, batch.columns_N]


def plain_head(model: Any) -> bool:
    """Whether logits are the output layer's, untouched: some architectures scale or cap them afterwards."""
    ids = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return bool(torch.allclose(model.get_output_embeddings()(hidden).float(), logits.float(), rtol=1e-2, atol=1e-2))


def _micro_batch(samples: list[TrainSample], shared: int, device: torch.device, all_tokens: bool) -> MicroBatch:
    ids = np.zeros((len(samples), max(sample.length for sample in samples) - shared), dtype=np.int64)
    rows, columns, targets, selected = [], [], [], []
    for row, sample in enumerate(samples):
        prompt = len(sample.prompt_ids_P) - shared
        ids[row, : sample.length - shared] = np.concatenate([sample.prompt_ids_P[shared:], sample.response_ids_L])
        chosen = selected_tokens(sample, all_tokens)
        places = np.flatnonzero(chosen)
        rows.append(np.full(len(places), row))
        columns.append(places + prompt - 1)  # the token before predicts
        targets.append(sample.response_ids_L[places])
        selected.append(chosen)

    def whole(parts: list[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

    return MicroBatch(
        tuple(samples),
        tuple(selected),
        whole(targets),
        prefix_1S=whole([samples[0].prompt_ids_P[:shared]])[None],
        ids_BT=torch.from_numpy(ids).to(device),
        lengths=tuple(sample.length - shared for sample in samples),
        rows_N=whole(rows),
        columns_N=whole(columns),
    )


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
