"""What engines of vLLM are asked for and what they drew, alike in this process and in a cluster. Importing this module
imports no vLLM."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from coachrl.errors import BackendError, EngineLost
from coachrl.types import FinishReason, Generation, SamplingParams


class LogitsNotFinite(EngineLost):
    """An engine drew from logits that are no numbers: its weights, or what it keeps of prompts, are garbage. What it
    drew means nothing, and an update with it ends in a gradient that is not finite."""


@dataclass(frozen=True)
class Reply:
    """What the engine drew. logprobs: of the distribution that each token was drawn from."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class Growing:
    """What there is of a reply while it is drawn."""

    token_ids: tuple[int, ...]


def request_parameters(sampling: SamplingParams, stop_ids: Iterable[int], grows: bool = False) -> Any:
    """vLLM's `SamplingParams` of a reply. grows: each step gives what is there of it."""
    from vllm import SamplingParams as Parameters
    from vllm.sampling_params import RequestOutputKind

    return Parameters(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop_token_ids=sorted(stop_ids),
        logprobs=0,  # the sampled token's alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE if grows else RequestOutputKind.FINAL_ONLY,
    )


def growing(output: Any) -> Growing:
    """Of one of vLLM's `RequestOutput`s that goes on."""
    return Growing(tuple(output.outputs[0].token_ids))


def read_reply(output: Any) -> Reply:
    """Of one of vLLM's `RequestOutput`s, asked for `flat_logprobs` of the drawn tokens alone: an object for each token
    takes thirty times as long to send and to read. Raises LogitsNotFinite, and BackendError where neither the model nor
    a limit ended it."""
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length"):
        raise BackendError(f"vLLM ended a reply with {completion.finish_reason!r}")
    ids, flat = tuple(completion.token_ids), completion.logprobs
    if tuple(flat.token_ids) != ids:
        raise BackendError("vLLM gave log-probabilities of other tokens than those that it drew")
    if not math.isfinite(sum(flat.logprobs)):
        raise LogitsNotFinite("an engine drew tokens whose log-probabilities are no numbers; its weights are garbage")
    return Reply(ids, tuple(flat.logprobs), completion.finish_reason)


def generation(reply: Reply, sampling: SamplingParams, weights_version: int) -> Generation:
    """The reply as a backend returns it. At temperature 0 each token was certain, whatever vLLM says of it: the most
    likely one is taken, as the embedded engine takes it, with log-probability 0."""
    logprobs = (0.0,) * len(reply.token_ids) if sampling.temperature == 0 else reply.logprobs
    return Generation(reply.token_ids, logprobs, reply.finish_reason, weights_version)


def new_ones(tell: Callable[[int], None]) -> Callable[[tuple[int, ...]], None]:
    """Is given all tokens of a reply again and again, and tells each of them once."""
    count = 0

    def told(token_ids: tuple[int, ...]) -> None:
        nonlocal count
        for token in token_ids[count:]:
            tell(token)
        count = len(token_ids)

    return told
