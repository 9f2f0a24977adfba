"""Replies of a backend, and training samples made of them."""

import asyncio

import numpy as np

from coachrl.types import SamplingParams, TrainSample

WORDS = ("cat", "sun", "tree", "a house", "two plus two", "river", "the moon", "snow")


def draw(backend, policy, count, step=0, max_new_tokens=12):
    """Prompts and their replies, all in flight at once."""
    tokenizer = backend.tokenizer(policy)
    prompts = [
        tokenizer.encode_chat([{"role": "user", "content": f"{WORDS[i % len(WORDS)]} " * (1 + i % 3)}])
        for i in range(count)
    ]

    async def ask():
        wanted = (
            backend.generate(policy, prompt, SamplingParams(max_new_tokens, seed=1000 * step + i))
            for i, prompt in enumerate(prompts)
        )
        return await asyncio.gather(*wanted)

    return prompts, asyncio.run(ask())


def samples_of(prompts, replies, policy, advantages=None):
    """Training samples; without advantages the signs alternate."""
    return [
        TrainSample(
            policy=policy,
            action_id=f"{policy}/{i}",
            episode_id=f"e{i}",
            task_id=f"t{i}",
            role=policy,
            turn=0,
            index=0,
            prompt_ids_P=np.array(prompt),
            response_ids_L=np.array(reply.token_ids),
            old_logprobs_L=np.array(reply.logprobs, dtype=np.float32),
            mask_L=np.ones(len(reply.token_ids), dtype=np.float32),
            advantages_L=np.full(
                len(reply.token_ids), (-1.0) ** i if advantages is None else advantages[i], dtype=np.float32
            ),
        )
        for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
    ]


def fresh(backend, policy, count, step=0):
    return samples_of(*draw(backend, policy, count, step), policy)
