"""Drawing one token for each row from its logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from coachrl.errors import PolicyError

_BLOCK = 256  # tokens whose probabilities are summed up first: only the block that is hit is looked at one by one
_NUCLEUS = 1024  # most likely tokens that are sorted; a wider nucleus sorts the whole vocabulary


def draw(logits_BV: Tensor, temperature_B: Tensor, top_p_B: Tensor, noise_B: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (B,) and their natural log-probabilities (B,) under the distribution that they were drawn from.

    noise_B, uniform in [0, 1), picks by the inverse of the cumulative distribution. At temperature 0 the most likely
    token is taken, with log-probability 0. At temperature 1 and top_p 1 the distribution is softmax(logits).

    Raises PolicyError for logits that no token can be drawn from.
    """
    greedy_B = temperature_B == 0
    scaled_BV = logits_BV.float()
    if bool((temperature_B != 1).any()):
        scaled_BV = scaled_BV / torch.where(greedy_B, 1.0, temperature_B)[:, None]
    highest_B = scaled_BV.amax(dim=-1)
    if not bool(highest_B.isfinite().all()):  # of a row that holds NaN, NaN is the highest
        raise PolicyError(
            "a model's logits are not finite: its weights are damaged, do not fit torch.precision, or were updated too "
            "far (train.learning_rate)"
        )
    weights_BV = (scaled_BV - highest_B[:, None]).exp_()
    tokens_B, total_B = _draw_by_blocks(weights_BV, noise_B)
    logprobs_B = scaled_BV.gather(1, tokens_B[:, None])[:, 0] - highest_B - total_B.log()
    nucleus_B = (top_p_B < 1) & ~greedy_B
    if bool(nucleus_B.any()):
        tokens_B[nucleus_B], logprobs_B[nucleus_B] = _draw_of_nucleus(
            weights_BV[nucleus_B] / total_B[nucleus_B, None], top_p_B[nucleus_B], noise_B[nucleus_B]
        )
    if bool(greedy_B.any()):
        tokens_B[greedy_B], logprobs_B[greedy_B] = logits_BV[greedy_B].float().argmax(dim=-1), 0.0
    return tokens_B, logprobs_B


def _draw_by_blocks(weights_BV: Tensor, noise_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (B,) drawn in proportion to their weights, and the sums (B,) of the weights."""
    rows, size = weights_BV.shape
    blocks = functional.pad(weights_BV, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    ends_BK = blocks.sum(dim=-1).cumsum(dim=-1)
    begins_BK = functional.pad(ends_BK[:, :-1], (1, 0))
    block_B1, target_B1 = _invert(ends_BK, noise_B * ends_BK[:, -1])
    within_BC = blocks.gather(1, block_B1[:, :, None].expand(-1, 1, _BLOCK))[:, 0].cumsum(dim=-1)
    place_B1, _ = _invert(within_BC, (target_B1 - begins_BK.gather(1, block_B1))[:, 0])
    return (block_B1 * _BLOCK + place_B1)[:, 0], ends_BK[:, -1]


def _invert(cdf_BV: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """Where each row of a cumulative sum first exceeds its target, and the target, both (B, 1)."""
    total_B = cdf_BV[:, -1]
    # Strictly below the total, so that the place found is always one of non-zero weight.
    target_B = torch.minimum(target_B.to(cdf_BV), torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cdf_BV, target_B[:, None], right=True), target_B[:, None]


def _draw_of_nucleus(probabilities_BV: Tensor, top_p_B: Tensor, noise_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens of the smallest set of most likely ones whose mass reaches top_p, and their renormalised log-probs."""
    size = min(_NUCLEUS, probabilities_BV.shape[1])
    top_BK, ids_BK = probabilities_BV.topk(size, dim=-1)
    tokens_B, logprobs_B = _draw_of_sorted(top_BK, ids_BK, top_p_B, noise_B)
    wider_B = top_BK.sum(dim=-1) < top_p_B
    if size < probabilities_BV.shape[1] and bool(wider_B.any()):
        all_BV, ids_BV = probabilities_BV[wider_B].sort(dim=-1, descending=True)
        tokens_B[wider_B], logprobs_B[wider_B] = _draw_of_sorted(all_BV, ids_BV, top_p_B[wider_B], noise_B[wider_B])
    return tokens_B, logprobs_B


def _draw_of_sorted(sorted_BK: Tensor, ids_BK: Tensor, top_p_B: Tensor, noise_B: Tensor) -> tuple[Tensor, Tensor]:
    mass_before_BK = sorted_BK.cumsum(dim=-1) - sorted_BK
    outside_BK = mass_before_BK >= top_p_B[:, None]
    outside_BK[:, 0] = False
    kept_BK = sorted_BK.masked_fill(outside_BK, 0.0)
    cdf_BK = kept_BK.cumsum(dim=-1)
    place_B1, _ = _invert(cdf_BK, noise_B * cdf_BK[:, -1])
    logprobs_B = kept_BK.gather(1, place_B1)[:, 0].log() - cdf_BK[:, -1].log()
    return ids_BK.gather(1, place_B1)[:, 0], logprobs_B
