"""Tokens per second of the two backends of one process, vLLM's engine against the embedded one, in one run.

    python benchmarks/vllm_speed.py
    python benchmarks/vllm_speed.py --model Qwen/Qwen3-0.6B --requests 64 256 vllm.max_num_seqs=512

Both draw the same requests (equal prompts, seeds and limits; a reply may end earlier) in an environment that has vLLM.
Rounds are interleaved and the best of each is taken: other processes only ever make a round slower. Replies are counted
by the tokens that were drawn. `hand-over` is what `sync_weights` and the first token after it take. `--clock process`
counts processor time, whose ratios hold beside other work (with OMP_NUM_THREADS=1: threads that wait count too).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import numpy as np

from coachrl.config import RunConfig, load_config
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.vllm.backend import VllmBackend
from coachrl.types import Generation, SamplingParams

POLICY = "solver"
CLOCKS = {"wall": time.perf_counter, "process": time.process_time}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--prefix-tokens", type=int, default=150, help="common to all prompts")
    parser.add_argument("--own-tokens", type=int, default=25, help="that each prompt adds to the prefix")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("settings", nargs="*", help="of a run, as key=value")
    return parser.parse_args()


def prompts_of(count: int, args: argparse.Namespace) -> list[list[int]]:
    rng = np.random.default_rng(0)
    prefix = rng.integers(100, 30_000, args.prefix_tokens).tolist()
    return [[*prefix, *rng.integers(100, 30_000, args.own_tokens).tolist()] for _ in range(count)]


def draw(backend: Any, count: int, args: argparse.Namespace, repeat: int) -> tuple[float, float]:
    """Tokens, and the seconds they took."""

    async def ask() -> list[Generation]:
        asked = (
            backend.generate(POLICY, prompt, SamplingParams(args.new_tokens, seed=1000 * repeat + i))
            for i, prompt in enumerate(prompts_of(count, args))
        )
        return await asyncio.gather(*asked)

    clock = CLOCKS[args.clock]
    began = clock()
    replies = asyncio.run(ask())
    return sum(len(reply.token_ids) for reply in replies), clock() - began


def hand_over(backend: Any, args: argparse.Namespace) -> float:
    clock = CLOCKS[args.clock]
    began = clock()
    backend.sync_weights()
    draw(backend, 1, argparse.Namespace(**{**vars(args), "new_tokens": 1}), 0)
    return clock() - began


def main() -> None:
    args = arguments()
    config: RunConfig = load_config(None, ["backend=vllm", "torch.generation_batch=128", *args.settings])
    made = {
        name: backend({POLICY: args.model}, config)
        for name, backend in (("torch", TorchBackend), ("vllm", VllmBackend))
    }
    for count in args.requests:
        rates: dict[str, list[float]] = {name: [] for name in made}
        for repeat in range(args.repeats + 1):
            for name, backend in made.items():
                tokens, seconds = draw(backend, count, args, repeat)
                if repeat:  # the first round warms up
                    rates[name].append(tokens / seconds)
        best = {name: max(values) for name, values in rates.items()}
        shown = ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in best.items())
        pairs = [ours / theirs for ours, theirs in zip(rates["vllm"], rates["torch"], strict=True)]
        print(
            f"{count:4d} requests: {shown}; ratio {best['vllm'] / best['torch']:.2f} (of pairs {np.median(pairs):.2f})"
        )
    for name, backend in made.items():
        print(f"hand-over, {name}: {min(hand_over(backend, args) for _ in range(args.repeats)):.2f} s")
        backend.close()


if __name__ == "__main__":
    main()
