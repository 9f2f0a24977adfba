"""What training costs on one GPU: tokens/s, how busy the card is, kernels, memory; and what rounding each variant adds.

    python benchmarks/gpu_training.py
    python benchmarks/gpu_training.py --model FOLDER --samples 128 --micro-batch-tokens 32768

Each variant takes one gradient of the same random samples, for two shapes: prompts of equal length that share nothing,
and rows of any length behind a common prefix. Variants, of which the first is the baseline of all ratios:

    in pieces   attention in products of bounded size, as on a CPU
    fused       attention as one kernel, which is what a GPU uses
    compiled    the same, with torch.compile=true

The best of `--repeats` counts. The card's share is the time of its kernels, as torch's profiler has them, over that of
the update; the error is the mean |difference| of log-probabilities from those of float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from coachrl.config import RunConfig
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.logprobs import micro_batches, token_logprobs
from coachrl.trainers.backends.torch.models.sources import model_folder
from coachrl.trainers.backends.torch.policy import TrainablePolicy
from coachrl.types import TrainSample

VARIANTS = ("in pieces", "fused", "compiled")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sample, without the common prefix")
    parser.add_argument("--prefix-tokens", type=int, default=300)
    parser.add_argument("--micro-batch-tokens", type=int, nargs="+", default=[16384])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", type=int, default=0, help="show so many of the costliest kernels")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: this measures what a GPU does")
    folder, device = model_folder(args.model), torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.model}")
    exact = TrainablePolicy(folder, config_of(precision="float32"), device)
    vocabulary = exact.model.config.get_text_config().vocab_size
    shapes = {
        "equal rows": random_samples(args.samples, args.length, vocabulary),
        "prefix": random_samples(args.samples, args.length, vocabulary, args.prefix_tokens),
    }
    truth = {name: logprobs_of(exact, samples, 4096) for name, samples in shapes.items()}
    del exact
    print("| variant | rows | micro-batch tokens | tokens/s | ratio | card | kernels | peak memory, GB | error |")
    print("|---" * 9 + "|", flush=True)
    base: dict[tuple[str, int], float] = {}
    for variant in args.variants:
        with attention_of(variant):
            for name, samples in shapes.items():
                for size in args.micro_batch_tokens:
                    # New each time: what one shape left, or compiled for, is not the next one's.
                    policy = TrainablePolicy(folder, config_of(size, compile=variant == "compiled"), device)
                    cells = measure(policy, samples, args)
                    rate = cells[0]
                    ratio = rate / base.setdefault((name, size), rate)
                    error = float(np.abs(logprobs_of(policy, samples, size) - truth[name]).mean())
                    print(
                        f"| {variant} | {name} | {size} | {rate:.0f} | {ratio:.2f} | {cells[1]:.0%} | {cells[2]} "
                        f"| {cells[3]:.1f} | {error:.4f} |",
                        flush=True,
                    )
                    del policy
                    torch.cuda.empty_cache()


def config_of(micro_batch_tokens: int = 4096, **settings: Any) -> RunConfig:
    # No step moves the weights: every variant is held against the same ones.
    return RunConfig.model_validate(
        {"torch": {"micro_batch_tokens": micro_batch_tokens, **settings}, "train": {"learning_rate": 1e-12}}
    )


@contextmanager
def attention_of(variant: str) -> Iterator[None]:
    can_fuse = attention._can_fuse
    if variant == "in pieces":
        attention._can_fuse = lambda *given: False
    try:
        yield
    finally:
        attention._can_fuse = can_fuse


def measure(policy: TrainablePolicy, samples: Sequence[TrainSample], args: argparse.Namespace) -> tuple:
    """Tokens/s, the card's share of the time, kernels of an update, and the most memory in 10^9 bytes."""
    tokens = sum(sample.length for sample in samples)
    for _ in range(2):  # the optimizer's state is made, and code for these shapes
        policy.train(samples)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(args.repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        policy.train(samples)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 1e9
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        policy.train(samples)
        torch.cuda.synchronize()
    kernels = [event for event in profiled.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA]
    busy_s = sum(event.self_device_time_total for event in kernels) / 1e6
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[: args.kernels]:
        print(f"    {event.self_device_time_total / 1e3:8.1f} ms {event.count:6} {event.key[:110]}")
    return tokens / min(times), busy_s / min(times), sum(event.count for event in kernels), peak


@torch.no_grad()
def logprobs_of(policy: TrainablePolicy, samples: Sequence[TrainSample], size: int) -> np.ndarray:
    """Of all trained tokens, in one order for all sizes of micro-batches."""
    found = {}
    for batch in chain.from_iterable(micro_batches(samples, size, policy.device)):
        with policy._precision():
            values_N, _ = token_logprobs(policy.model, batch)
        found |= dict(zip((sample.action_id for sample in batch.samples), batch.split(values_N), strict=True))
    return np.concatenate([found[sample.action_id] for sample in samples])


def random_samples(count: int, length: int, vocabulary: int, prefix_tokens: int | None = None) -> list[TrainSample]:
    """Of `length` random tokens each, a quarter prompt and three quarters reply. prefix_tokens: that all begin with so
    many tokens beside, and are of a quarter of the length to all of it."""
    rng = np.random.default_rng(0)
    prefix = rng.integers(vocabulary, size=prefix_tokens or 0)
    samples = []
    for n in range(count):
        own = length if prefix_tokens is None else int(rng.integers(length // 4, length + 1))
        prompt, response = own // 4, own - own // 4
        samples.append(
            TrainSample(
                policy="policy",
                action_id=str(n),
                episode_id=str(n),
                task_id=str(n),
                role="policy",
                turn=0,
                index=0,
                prompt_ids_P=np.concatenate([prefix, rng.integers(vocabulary, size=prompt)]),
                response_ids_L=rng.integers(vocabulary, size=response),
                old_logprobs_L=np.full(response, -np.log(vocabulary), dtype=np.float32),
                mask_L=np.ones(response, dtype=np.float32),
                advantages_L=np.full(response, (-1.0) ** n, dtype=np.float32),
            )
        )
    return samples


if __name__ == "__main__":
    main()
