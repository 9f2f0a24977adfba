"""Speed and memory of the embedded backend on this machine, each next to what it would be without it.

    python benchmarks/embedded_speed.py
    python benchmarks/embedded_speed.py --model runs/latest/checkpoints/step-000010/solver --batches 16 --policies 1

Generation: the decode loop, the loop without its shared prefix, and `transformers.generate` as the baseline, on equal
prompts and equally many new tokens. Training: one optimizer step. Rows are interleaved and the best of `--repeats` is
taken, since other processes only ever make a run slower.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from coachrl.config import RunConfig, TorchConfig
from coachrl.trainers.backends.torch import decode
from coachrl.trainers.backends.torch.backend import TorchBackend, pick_device
from coachrl.trainers.backends.torch.decode import Request, generate_batch
from coachrl.trainers.backends.torch.policy import DTYPES, load_model
from coachrl.trainers.backends.torch.tokenizer import ChatTokenizer
from coachrl.types import SamplingParams, TrainSample

NO_EOS: frozenset[int] = frozenset()  # every reply runs to its limit, so that each variant draws equally many tokens


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), default="bfloat16", help="of generation and of forward passes"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64])
    parser.add_argument("--prefix-tokens", type=int, default=150, help="common to all prompts")
    parser.add_argument("--own-tokens", type=int, default=30, help="most that a prompt adds to the prefix")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--train-samples", type=int, default=32)
    parser.add_argument("--train-tokens", type=int, default=200, help="tokens of a sample; a quarter is its response")
    parser.add_argument("--micro-batch-tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--policies", type=int, default=3, help="separate weights that are trained in turn")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def prompts_of(count: int, args: argparse.Namespace, rng: np.random.Generator) -> list[tuple[int, ...]]:
    prefix = rng.integers(100, 30_000, args.prefix_tokens).tolist()
    lengths = rng.integers(max(1, args.own_tokens // 2), args.own_tokens + 1, count)
    return [(*prefix, *rng.integers(100, 30_000, length).tolist()) for length in lengths]


def transformers_generate(model: Any, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> None:
    import torch

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        temperature=1.0,
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )


def without_shared_prefix(run: Callable[[], object]) -> None:
    with mock.patch.object(decode, "prefix_to_share", lambda prompts: 0):
        run()


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure_generation(args: argparse.Namespace) -> None:
    device = pick_device("auto")
    model = load_model(ChatTokenizer(args.model).folder, DTYPES[args.dtype], device)
    rng = np.random.default_rng(0)
    print(f"\ngeneration on {device}, {args.dtype}: tokens/s (ratio to transformers.generate), {args.new_tokens} new")
    print(f"{'batch':>6} {'transformers':>14} {'own loop':>18} {'own, no prefix':>18}")
    for size in args.batches:
        prompts = prompts_of(size, args, rng)
        requests = [Request(prompt, SamplingParams(args.new_tokens, seed=i)) for i, prompt in enumerate(prompts)]

        def baseline(prompts: list[tuple[int, ...]] = prompts) -> None:
            transformers_generate(model, prompts, args.new_tokens)

        def own(requests: list[Request] = requests) -> None:
            generate_batch(model, requests, NO_EOS, weights_version=0)

        def own_without_prefix(own: Callable[[], object] = own) -> None:
            without_shared_prefix(own)

        variants = (baseline, own, own_without_prefix)
        times = [[seconds(variant) for variant in variants] for _ in range(args.repeats)]
        base, *others = (size * args.new_tokens / best for best in np.min(times, axis=0))
        print(f"{size:>6} {base:>14.0f} " + " ".join(f"{rate:>9.0f} ({rate / base:5.2f}x)" for rate in others))


def samples_of(policy: str, args: argparse.Namespace, rng: np.random.Generator) -> list[TrainSample]:
    response = args.train_tokens // 4
    samples = []
    for i in range(args.train_samples):
        length = int(rng.integers(response // 2, response + 1))
        samples.append(
            TrainSample(
                policy=policy,
                action_id=f"e/{i}",
                episode_id="e",
                task_id="t",
                role=policy,
                turn=0,
                index=i,
                prompt_ids_P=rng.integers(100, 30_000, args.train_tokens - response),
                response_ids_L=rng.integers(100, 30_000, length),
                old_logprobs_L=np.full(length, -10.0, dtype=np.float32),
                mask_L=np.ones(length, dtype=np.float32),
                advantages_L=np.full(length, (-1.0) ** i, dtype=np.float32),
            )
        )
    return samples


def measure_training(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(1)
    names = [f"policy{i}" for i in range(args.policies)]
    print(f"\ntraining: one step of {args.train_samples} samples x {args.train_tokens} tokens for each policy")
    print(f"{'micro-batch tokens':>18} {'policies':>9} {'s a policy':>11} {'tokens/s':>9} {'peak memory, GB':>16}")
    for micro_batch_tokens in sorted(args.micro_batch_tokens):  # peak memory of a process only ever grows
        config = RunConfig(torch=TorchConfig(micro_batch_tokens=micro_batch_tokens, precision=args.dtype))
        backend = TorchBackend(dict.fromkeys(names, args.model), config, keep_reference=True)
        samples = {name: samples_of(name, args, rng) for name in names}
        backend.with_reference(samples)
        update = partial(backend.update, samples)
        best = min(seconds(update) for _ in range(args.repeats)) / len(names)
        backend.sync_weights()
        tokens = sum(len(s.prompt_ids_P) + len(s.response_ids_L) for s in samples[names[0]])
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{micro_batch_tokens:>18} {len(names):>9} {best:>11.1f} {tokens / best:>9.0f} {peak_gb:>16.1f}")
        backend.close()
        del backend, update


if __name__ == "__main__":
    args = arguments()
    measure_training(args)
    measure_generation(args)
