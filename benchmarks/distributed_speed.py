"""What a step of the distributed backend spends its time on, and how near rollouts come to the engines' own throughput.

    python benchmarks/distributed_speed.py --config one_gpu --steps 5
    python benchmarks/distributed_speed.py --config one_gpu train.tasks_per_step=256 openrlhf.sleep=false

Each step plays the pipeline's episodes, then asks the engines for replies to the same prompts once more, as long as
those were, all at the same instant: with nothing to wait for, that is their saturated throughput. Rewards are drawn at
random; no coach is asked. One JSON line a step, then medians without the first step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable
from typing import Any

from coachrl.commands.build import RunComponents, open_components
from coachrl.config import RunConfig, find_config, load_config
from coachrl.seeding import derive_seed, generator
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.rollout.rollout import RolloutContext, rollout
from coachrl.trainers.samples import to_samples
from coachrl.trainers.schedule import step_specs
from coachrl.types import Action, SamplingParams


async def timed(work: Awaitable[Any]) -> tuple[float, Any]:
    began = time.monotonic()
    result = await work
    return time.monotonic() - began, result


def timed_call(function: Any, *arguments: Any) -> tuple[float, Any]:
    began = time.monotonic()
    result = function(*arguments)
    return time.monotonic() - began, result


async def all_at_once(components: RunComponents, actions: list[Action], config: RunConfig) -> int:
    """Tokens of as many replies to the same prompts, each no longer than the reply that the rollout had."""
    replies = await asyncio.gather(
        *(
            components.backend.generate(
                action.policy,
                action.prompt_ids,
                SamplingParams(
                    len(action.response_ids), config.sampling.temperature, seed=derive_seed("again", action.id)
                ),
            )
            for action in actions
        )
    )
    return sum(len(reply.token_ids) for reply in replies)


async def measure_step(components: RunComponents, config: RunConfig, step: int) -> dict[str, float]:
    context = RolloutContext(
        components.pipeline,
        components.backend,
        components.sandbox,
        SamplingParams(temperature=config.sampling.temperature),
    )
    rollout_s, episodes = await timed(rollout(step_specs(components.train_tasks, config, step), context))
    actions = [action for episode in episodes for action in episode.actions]
    generated = sum(len(action.response_ids) for action in actions)
    engines_s, drawn = await timed(all_at_once(components, actions, config))
    draw = generator("reward", step)
    rewards: dict[str, float | None] = {action.id: float(draw.uniform(0, 10)) for action in actions}
    reference_s, samples = timed_call(components.backend.with_reference, to_samples(episodes, mask_truncated=False))
    batch = make_algorithm(config.algorithm).advantages(samples, rewards)
    update_s, stats = timed_call(components.backend.update, batch.samples)
    sync_s, _ = timed_call(components.backend.sync_weights)
    return {
        "step": step,
        "actions": len(actions),
        "rollout_s": rollout_s,
        "rollout_tokens_per_s": generated / rollout_s,
        "engines_tokens_per_s": drawn / engines_s,
        "rollout_against_engines": (generated / rollout_s) / (drawn / engines_s),
        "reference_s": reference_s,
        "update_s": update_s,
        "sync_s": sync_s,
        "sampler_trainer_logprob_gap": max(
            (value for name, value in stats.items() if name.startswith("sampler_trainer_logprob_gap/")), default=0.0
        ),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="one_gpu")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="settings as key.sub=value")
    args = parser.parse_args()
    config = load_config(find_config(args.config), args.overrides)
    rows = []
    async with open_components(config, None, with_coach=False) as components:
        for step in range(1, args.steps + 1):
            rows.append(await measure_step(components, config, step))
            print(json.dumps(rows[-1]), flush=True)
    warm = rows[1:] or rows
    print(json.dumps({name: statistics.median(row[name] for row in warm) for name in rows[0]}))


if __name__ == "__main__":
    asyncio.run(main())
