"""What tests of the torch backend draw from it and read of it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from flat_config import with_settings
from made_samples import reply_sample

from coachrl.types import SamplingParams

EXACT = with_settings(learning_rate=1e-3, device="cpu", precision="float32")


def generate(backend, count=6, policy="solver", max_new_tokens=12):
    prompts = [
        backend.tokenizer(policy).encode_chat([{"role": "user", "content": "word " * (1 + i % 4)}])
        for i in range(count)
    ]

    async def main():
        replies = (
            backend.generate(policy, prompt, SamplingParams(max_new_tokens, seed=i)) for i, prompt in enumerate(prompts)
        )
        return await asyncio.gather(*replies)

    return prompts, asyncio.run(main())


def samples_of(prompts, replies, advantages=None, policy="solver"):
    advantages = advantages or [(-1.0) ** i for i in range(len(prompts))]
    return [
        reply_sample(prompt, reply, advantage, policy=policy, action_id=f"e/{i}", index=i)
        for i, (prompt, reply, advantage) in enumerate(zip(prompts, replies, advantages, strict=True))
    ]


def logprobs_now(backend, samples, policy="solver"):
    """Summed log-probability of each response under the trained weights, by a plain forward pass."""
    model = backend._policies[policy].model
    sums = []
    for sample in samples:
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids_P, sample.response_ids_L]))[None]
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        sums.append(float(logprobs[len(sample.prompt_ids_P) - 1 :].sum()))
    return np.array(sums)


def weights(backend, policy="solver"):
    return torch.cat([p.detach().flatten().clone() for p in backend._policies[policy].model.parameters()])
