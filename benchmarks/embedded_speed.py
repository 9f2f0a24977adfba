"""Speed and memory of the embedded backend on this machine, against its own plain loop and against others, in one run.

    python benchmarks/embedded_speed.py
    python benchmarks/embedded_speed.py --trl-python ~/trl/bin/python --vllm-python ~/vllm/bin/python
    OMP_NUM_THREADS=1 python benchmarks/embedded_speed.py --clock thread --repeats 2
    python benchmarks/embedded_speed.py --neighbors 1 --batches 32 --micro-batch-tokens

Generation draws replies of equal length after a common prefix. The baseline of all ratios is the plain loop, which runs
padded batches and is still what architectures without a proven shortcut get. The update is one gradient of the same
samples, with compiled layers too where there is a compiler (`--no-compile` leaves them out). Rows are interleaved and
the best of `--repeats` is taken, since other processes only ever make a run slower. `--clock thread` counts the
processor time of one thread, whose ratios hold beside other work. TRL and vLLM run in environments of their own; one
that is not given or fails is left out with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from coachrl.config import RunConfig, TorchConfig
from coachrl.trainers.backends.torch.backend import pick_device, release_free_memory
from coachrl.trainers.backends.torch.compiled import compile_layers
from coachrl.trainers.backends.torch.engine import attention
from coachrl.trainers.backends.torch.engine.decode import Request, generate_batch
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import DTYPES, TrainablePolicy, load_generator, load_model
from coachrl.types import SamplingParams, TrainSample

NO_EOS: frozenset[int] = frozenset()  # every reply runs to its limit, so that each variant draws equally many tokens
OTHERS = Path(__file__).with_name("others_speed.py")
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "thread": time.thread_time}
PLAIN, FAST, COMPILED = "plain loop", "shared prefix", "compiled too"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), default="bfloat16", help="of generation and of forward passes"
    )
    parser.add_argument("--batches", type=int, nargs="*", default=[8, 32, 64, 128])
    parser.add_argument("--prefix-tokens", type=int, default=150, help="common to all prompts")
    parser.add_argument("--own-tokens", type=int, default=25, help="that each prompt adds to the prefix")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--train-samples", type=int, default=32)
    parser.add_argument("--micro-batch-tokens", type=int, nargs="*", default=[768, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--neighbors", type=int, default=0, help="processes that keep a processor each busy meanwhile")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=shutil.which("g++") is not None,
        help="measure the update by compiled layers too (default: where there is a compiler)",
    )
    parser.add_argument("--trl-python", type=Path, help="the Python of an environment with trl and datasets")
    parser.add_argument("--vllm-python", type=Path, help="the Python of an environment with vllm for the CPU")
    return parser.parse_args()


def prompts_of(count: int, args: argparse.Namespace) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    prefix = rng.integers(100, 30_000, args.prefix_tokens).tolist()
    return [(*prefix, *rng.integers(100, 30_000, args.own_tokens).tolist()) for _ in range(count)]


def interleaved(variants: Mapping[str, Callable[[], object]], args: argparse.Namespace) -> dict[str, float]:
    """The least time of each variant, in seconds."""
    clock = CLOCKS[args.clock]
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(args.repeats):
        for name, run in variants.items():
            began = clock()
            run()
            best[name] = min(best[name], clock() - began)
    return best


def measure_generation(folder: Path, args: argparse.Namespace) -> dict[str, dict[int, float]]:
    """Variant -> rows -> tokens/s."""
    device = pick_device("auto")
    plain = load_model(folder, DTYPES[args.dtype], device).requires_grad_(False)
    fast = load_generator(folder, DTYPES[args.dtype], device)
    rates: dict[str, dict[int, float]] = {PLAIN: {}, FAST: {}}
    for rows in args.batches:
        requests = [
            Request(prompt, SamplingParams(args.new_tokens, seed=i)) for i, prompt in enumerate(prompts_of(rows, args))
        ]

        def run(model: Any, requests: Sequence[Request] = requests) -> None:
            generate_batch(model, requests, NO_EOS, weights_version=0)

        times = interleaved({PLAIN: lambda run=run: run(plain), FAST: lambda run=run: run(fast)}, args)
        for name, seconds in times.items():
            rates[name][rows] = rows * args.new_tokens / seconds
    return rates


def run_other(program: str, python: Path | None, folder: Path, args: argparse.Namespace) -> dict[str, float] | str:
    """What `others_speed.py` prints, or why there is nothing."""
    if python is None:
        return f"--{program}-python is not given"
    if args.clock != "wall":
        return "it is measured in wall time only"
    prompts = {str(rows): prompts_of(rows, args) for rows in {*args.batches, 32}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as workload:
        json.dump({"prompts": prompts, "new_tokens": args.new_tokens}, workload)
        workload.flush()
        command = [str(python), str(OTHERS), program, str(folder), workload.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except OSError as error:
            return f"{python}: {error.strerror}"
        except subprocess.CalledProcessError as error:
            return (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def print_generation(rates: Mapping[str, Mapping[int, float]], args: argparse.Namespace) -> None:
    print(f"\ngeneration, tokens/s (ratio to the {PLAIN}), {args.new_tokens} new tokens, {args.clock} time")
    print(f"{'':>16}" + "".join(f"{rows:>17} rows" for rows in args.batches))
    for name, by_rows in rates.items():
        cells = [
            f"{by_rows[rows]:>13.0f} ({by_rows[rows] / rates[PLAIN][rows]:5.2f}x)" if rows in by_rows else f"{'-':>22}"
            for rows in args.batches
        ]
        print(f"{name:>16}" + "".join(cells))


def samples_of(args: argparse.Namespace) -> list[TrainSample]:
    rng = np.random.default_rng(1)
    length = args.new_tokens
    return [
        TrainSample(
            policy="policy",
            action_id=f"e/{i}",
            episode_id="e",
            task_id="t",
            role="policy",
            turn=0,
            index=i,
            prompt_ids_P=np.array(prompt),
            response_ids_L=rng.integers(100, 30_000, length),
            old_logprobs_L=np.full(length, -10.0, dtype=np.float32),
            mask_L=np.ones(length, dtype=np.float32),
            advantages_L=np.full(length, (-1.0) ** i, dtype=np.float32),
        )
        for i, prompt in enumerate(prompts_of(args.train_samples, args))
    ]


def measure_update(folder: Path, args: argparse.Namespace) -> None:
    samples = samples_of(args)
    tokens = sum(len(s.prompt_ids_P) + len(s.response_ids_L) for s in samples)
    sizes = args.micro_batch_tokens
    config = RunConfig(torch=TorchConfig(precision=args.dtype))
    policy = TrainablePolicy(folder, config, pick_device("auto"))
    policy.train(samples)  # the optimizer's state is made
    names = (PLAIN, FAST, COMPILED) if args.compile else (PLAIN, FAST)
    variants = [(name, size) for size in sizes for name in names]
    peaks: dict[tuple[str, int], float] = {}
    runs: set[tuple[str, int]] = set()

    def step(name: str, size: int) -> None:
        policy.model.set_attn_implementation("sdpa" if name == PLAIN else attention.NAME)
        use_compiled(policy, folder, name == COMPILED)
        policy._torch = config.torch.model_copy(update={"micro_batch_tokens": size})
        release_free_memory()
        peak = peak_gb_of(lambda: policy.train(samples))
        if name != COMPILED or (name, size) in runs:  # not the one that compiles
            peaks.setdefault((name, size), peak)
        runs.add((name, size))

    times = interleaved({f"{name} {size}": lambda n=name, s=size: step(n, s) for name, size in variants}, args)
    print(f"\nupdate of {args.train_samples} samples, {tokens} tokens, {args.clock} time")
    print(f"{'':>16}{'micro-batch tokens':>20}{'tokens/s':>10}{'ratio':>8}{'peak memory, GB':>17}")
    base = times[f"{PLAIN} {sizes[0]}"]
    for name, size in variants:
        taken = times[f"{name} {size}"]
        print(f"{name:>16}{size:>20}{tokens / taken:>10.0f}{base / taken:>7.2f}x{peaks[name, size]:>17.2f}")


def use_compiled(policy: TrainablePolicy, folder: Path, wanted: bool) -> None:
    """Let the layers run as compiled code, which the first time makes, or as they are."""
    layers = [module for module in policy.model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if wanted and not _code:
        began = time.perf_counter()
        compile_layers(policy.model, folder, policy._precision)
        _code.extend(layer._compiled_call_impl for layer in layers)
        print(f"compiled in {time.perf_counter() - began:.0f} s (from its cache, where an earlier run left one)")
    for layer, code in zip(layers, _code, strict=bool(_code)):
        layer._compiled_call_impl = code if wanted else None


_code: list[Any] = []  # of each layer


def peak_gb_of(run: Callable[[], object]) -> float:
    """The most memory that this process held while `run` ran (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the peak so far
    run()
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found.group(1)) / 2**20 if found else float("nan")


@contextmanager
def busy_neighbors(count: int) -> Iterator[None]:
    program = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        for _ in range(count):
            stack.callback(stack.enter_context(subprocess.Popen(program)).kill)
        yield


def main() -> None:
    args = arguments()
    with busy_neighbors(args.neighbors):
        measure(args)


def measure(args: argparse.Namespace) -> None:
    folder = ChatTokenizer(args.model).folder
    if args.clock == "thread":
        torch.set_num_threads(1)
    rates: dict[str, Any] = measure_generation(folder, args)
    notes = []
    for program, python in (("trl", args.trl_python), ("vllm", args.vllm_python)):
        measured = run_other(program, python, folder, args)
        if isinstance(measured, str):
            notes.append(f"{program} is left out: {measured}")
            continue
        if "update" in measured:
            notes.append(f"{program}, update of 32 samples: {measured.pop('update'):.0f} tokens/s")
        rates[program] = {int(rows): rate for rows, rate in measured.items()}
    print_generation(rates, args)
    if args.micro_batch_tokens:
        measure_update(folder, args)
    print("\n" + "\n".join(notes))


if __name__ == "__main__":
    main()
