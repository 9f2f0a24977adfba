"""Replies of a backend, and training samples made of them."""

import asyncio

import numpy as np
from made_samples import reply_sample

from coachrl.trainers.algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig
from coachrl.types import SamplingParams

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
        reply_sample(
            prompt,
            reply,
            (-1.0) ** i if advantages is None else advantages[i],
            policy=policy,
            action_id=f"{policy}/{i}",
            episode_id=f"e{i}",
            task_id=f"t{i}",
        )
        for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
    ]


def fresh(backend, policy, count, step=0):
    return samples_of(*draw(backend, policy, count, step), policy)


def learn_low_tokens(backend, policy, steps, count):
    """The mean worth of each step's replies, and the statistics of each update. A reply is worth ten times its share of
    tokens below 128."""
    means, stats = [], []
    for step in range(steps):
        prompts, replies = draw(backend, policy, count, step + 100)
        worth = [10 * float(np.mean(np.array(reply.token_ids) < 128)) for reply in replies]
        samples = {policy: samples_of(prompts, replies, policy)}
        rewards = {sample.action_id: reward for sample, reward in zip(samples[policy], worth, strict=True)}
        stats.append(backend.update(ReinforcePP(ReinforcePPConfig(kl_beta=0)).advantages(samples, rewards).samples))
        backend.sync_weights()
        means.append(np.mean(worth))
    return means, stats
