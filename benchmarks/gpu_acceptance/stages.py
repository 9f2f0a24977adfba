"""The stages. Each runs in a process of its own, writes rows as it goes, and raises where it cannot go on."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from runs import NO_CUDA, Setting, finish, is_installed, start
from speed import step_of_a_run, throughput_of_training
from table import Rows

from coachrl.doctor.hand_over import SAME, advised, drawn, gap
from coachrl.runs.checkpoints import SEAL
from coachrl.runs.folder import Run

_AT_FIRST = 0.1  # mean |log pi| between two precisions of the same weights: 0.034 was measured at 1.6 nats a token
_ROUNDED = 2.0  # times the difference before any hand-over


def doctor(setting: Setting, rows: Rows) -> None:
    """What `coachrl doctor` misses, one row each."""
    program = [sys.executable, "-c", "from coachrl.cli.main import main; main()"]
    done = subprocess.run([*program, "doctor", "--backend", "vllm", "--json"], capture_output=True, text=True)
    if not done.stdout.startswith("["):
        raise RuntimeError(done.stderr.strip() or "coachrl doctor printed nothing")
    findings = json.loads(done.stdout)
    missing = [f for f in findings if not f["ok"] and not f["optional"]]
    rows.judge("checks", f"{len(findings) - len(missing)} of {len(findings)}", "none is MISSING", not missing)
    for finding in missing:
        rows.judge(finding["name"], f"{finding['detail']} ({finding['remedy']})", "there", False)


def install(setting: Setting, rows: Rows) -> None:
    """Whether what is installed loads, and computes on the card."""
    for package in ("torch", "transformers", "vllm"):
        module = importlib.import_module(package)
        rows.tell(package, str(module.__version__))
    if not setting.on_gpu:
        rows.skip("a product and a step of AdamW on the card", NO_CUDA)
        return
    weight = torch.nn.Parameter(torch.randn(256, 256, device="cuda"))
    with torch.autocast("cuda", torch.bfloat16):
        loss = (torch.randn(64, 256, device="cuda") @ weight).float().square().mean()
    loss.backward()
    torch.optim.AdamW([weight], fused=True).step()
    finite = bool(torch.isfinite(weight).all())
    card = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    rows.judge("a product and a step of AdamW on the card", card, "finite weights", finite)


def hand_over(setting: Setting, rows: Rows) -> None:
    """The engine draws, the trainer moves, the engine is given the new weights: are they the same again?"""
    from coachrl.trainers.backends.vllm.backend import VllmBackend

    policies = ("first", "second")
    config = setting.config(f"train.learning_rate={'1e-2' if setting.tiny else '1e-4'}")
    began = time.monotonic()
    backend = VllmBackend(dict.fromkeys(policies, setting.model), config)
    rows.tell("start of engine and trainer", f"{time.monotonic() - began:.1f} s")
    try:
        gaps = _gaps(backend, policies, 0)
        rows.judge("difference of log-probabilities, at the start", _shown(gaps), f"< {SAME}", max(gaps) < SAME)
        for step in (1, 2):
            backend.update({policy: advised(drawn(backend, policy, step)) for policy in policies})
            stale = _gaps(backend, policies, step)
            began = time.monotonic()
            backend.sync_weights()
            gaps = _gaps(backend, policies, step)
            rows.judge(f"the same after update {step}, before the hand-over", _shown(stale), "more than after it",
                       min(stale) > max(gaps))  # fmt: skip
            rows.judge(f"after hand-over {step}", _shown(gaps), f"< {SAME}", max(gaps) < SAME)
        rows.tell("hand-over, new replies and their log-probabilities", f"{time.monotonic() - began:.1f} s")
    finally:
        backend.close()


def _gaps(backend: Any, policies: Sequence[str], step: int) -> list[float]:
    """Of each policy, over replies that are drawn now."""
    return [gap(backend, policy, 100 + step) for policy in policies]


def _shown(gaps: Sequence[float]) -> str:
    return ", ".join(f"{gap:.4f}" for gap in gaps)


def learning(setting: Setting, rows: Rows, within_s: float) -> None:
    """`coachrl train --config one_gpu`, as far as it comes."""
    run = _train(setting, rows, "learning", within_s)
    steps = [record for record in run.metrics() if "train/success" in record]
    curve = [record["train/success"] for record in steps]
    evaluated = [record["eval/success"] for record in run.metrics() if "eval/success" in record]
    quarter = max(1, len(curve) // 4)
    rises = len(curve) > 1 and np.mean(curve[-quarter:]) > np.mean(curve[:quarter])
    shown = " ".join(f"{value:.2f}" for value in curve)
    expected = "a value for each step" if setting.tiny else "the last quarter above the first"
    rows.judge("success in training, by step", shown, expected, bool(curve) and (setting.tiny or rises))
    rows.tell("success on held-out problems", " ".join(f"{value:.2f}" for value in evaluated))
    rows.tell("a step, median", f"{np.median([record['time/step_s'] for record in steps]):.1f} s")
    _judge_gaps(rows, steps)


def _train(setting: Setting, rows: Rows, name: str, within_s: float, *more: str) -> Run:
    process = start("train", "--config", "one_gpu", *setting.words(f"name={name}", *more))
    code, ended = finish(process, within_s)
    good = code == 0 or (ended and code == 143)
    rows.judge("coachrl train ended", f"with {code}{', when its time was up' if ended else ''}", "0, or 143", good)
    folder = setting.folder / "runs" / name
    if not folder.is_dir():  # a run that has done nothing leaves none
        raise RuntimeError(f"coachrl train ended before it had evaluated or trained, after {within_s:.0f} s at most")
    return Run.open(folder)


def _judge_gaps(rows: Rows, steps: Sequence[dict[str, float]]) -> None:
    """In the first step nothing has been handed over yet: what differs there is the rounding of two precisions of the
    same weights, which grows with the entropy of the replies."""
    name = "train/sampler_trainer_logprob_gap/"
    by_step = [[value for key, value in record.items() if key.startswith(name)] for record in steps]
    first, *later = [max(values) for values in by_step if values] or [float("nan")]  # none where nothing was trained
    rows.judge("difference between engine and trainer in the first step", f"{first:.4f}", f"< {_AT_FIRST}",
               first < _AT_FIRST)  # fmt: skip
    what, limit = "the largest after a hand-over", max(SAME, _ROUNDED * min(first, _AT_FIRST))
    if later:
        rows.judge(what, f"{max(later):.4f}", f"< {limit:.4f}", max(later) < limit)
    else:
        rows.judge(what, "no step was trained after the first", f"< {limit:.4f}", False)


def step(setting: Setting, rows: Rows) -> None:
    """Steps in this process: speed of the rollout against the engine alone, memory against the planner."""
    asyncio.run(step_of_a_run(setting, rows))


def training(setting: Setting, rows: Rows) -> None:
    """Speed of the trainer alone against the card's limit."""
    throughput_of_training(setting, rows)


def resume(setting: Setting, rows: Rows, within_s: float) -> None:
    """A run that is killed after its first checkpoint, and goes on."""
    deadline = time.monotonic() + within_s
    more = ("train.steps=3", "train.tasks_per_step=4", "train.checkpoint_every=1", "eval.every=100",
            "tasks.heldout_count=2")  # fmt: skip
    process = start("train", "--config", "one_gpu", *setting.words("name=cut", *more))
    folder = setting.folder / "runs" / "cut"
    _kill_when(process, lambda: (folder / "checkpoints" / "step-000001" / SEAL).exists(), deadline)
    lost = len(Run.open(folder).checkpoints())
    code, _ = finish(start("train", "--resume", str(folder)), deadline - time.monotonic())
    steps = [int(record["step"]) for record in Run.open(folder).metrics()]
    rows.judge("killed after its first checkpoint, and resumed", f"ended with {code}", "0", code == 0)
    rows.judge("steps that it has recorded", f"{steps}, from {lost} checkpoint", "[0, 1, 2, 3]", steps == [0, 1, 2, 3])


def _kill_when(process: subprocess.Popen[str], happened: Callable[[], bool], deadline: float) -> None:
    """SIGKILL, as a machine that is taken away."""
    while not happened():
        if process.poll() is not None:
            raise RuntimeError(f"coachrl train ended with {process.returncode} before its first checkpoint")
        if time.monotonic() > deadline:
            raise TimeoutError("there was no checkpoint in time")
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def distributed(setting: Setting, rows: Rows, within_s: float) -> None:
    """Ray, an OpenRLHF trainer and its engine on the one card."""
    what = "two steps on the distributed backend"
    if not setting.on_gpu:
        rows.skip(what, NO_CUDA)
        return
    missing = [package for package in ("ray", "openrlhf", "deepspeed") if not is_installed(package)]
    if missing:
        rows.skip(what, f"not installed: {', '.join(missing)}")
        return
    more = ("backend=openrlhf", "openrlhf.gpus=1", "openrlhf.max_length=2048", "train.steps=2", "eval.every=100",
            "train.tasks_per_step=16", "tasks.heldout_count=2")  # fmt: skip
    run = _train(setting, rows, "distributed", within_s, *more)
    steps = [record for record in run.metrics() if "train/success" in record]
    rows.judge("steps", str(len(steps)), "2", len(steps) == 2)
    _judge_gaps(rows, steps)
