"""Speed of generation and training against what the machine could do, and memory against the plan."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch
from distributed_speed import measure_step
from gpu_training import random_samples
from runs import NO_CUDA, Setting
from table import Rows

from coachrl.commands.build import open_components
from coachrl.config import RunConfig
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.backends.openrlhf.cluster.memory import shape_of
from coachrl.trainers.backends.torch.backend import pick_device
from coachrl.trainers.backends.torch.models.sources import model_folder, parameter_count
from coachrl.trainers.backends.torch.policy import TrainablePolicy
from coachrl.trainers.backends.vllm.memory import OneGpuPlan, plan_one_gpu
from coachrl.types import TrainSample

_STEPS = 3  # the first warms up
_ROUNDED = 1.1  # the plan's figures are estimates, and this is what they may miss by
_POLL_S = 0.002
_SECONDS_OF_PRODUCTS = 1.0


async def step_of_a_run(setting: Setting, rows: Rows) -> None:
    """Each step plays the team's episodes, then gives the engine the same requests all at once: what it does where
    nobody keeps it waiting. Memory is read all the while."""
    config = setting.config("name=step")
    async with open_components(config, None, with_coach=False) as components:
        watched = _Watched(components.backend)
        steps = [
            await measure_step(replace(components, backend=watched), config, number) for number in range(1, _STEPS + 1)
        ]
        policies = {policy: config.policies[policy].model or config.model if policy in config.policies else config.model
                    for policy in {role.policy for role in components.pipeline.roles}}  # fmt: skip
    middle = sorted(steps[1:], key=lambda found: found["rollout_against_engines"])[len(steps[1:]) // 2]
    rows.tell("tokens/s of the rollout", f"{middle['rollout_tokens_per_s']:.0f}")
    rows.tell("tokens/s of the engine alone, the same requests at once", f"{middle['engines_tokens_per_s']:.0f}")
    rows.tell("rollout against the engine alone", f"{middle['rollout_against_engines']:.2f}")
    rows.tell("update; hand-over", f"{middle['update_s']:.2f} s; {middle['sync_s']:.2f} s")
    rows.tell("memory in use: generating; at rest; training", watched.shown())
    if setting.on_gpu:
        _hold_against_plan(rows, watched, _plan(config, policies))
    else:
        rows.skip("memory against the planner", NO_CUDA)


class _Watched:
    """A backend whose memory is read: that of the whole card, or without one of this process. In 10^9 bytes."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.generating_gb = self.resting_gb = self.training_gb = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def with_reference(self, samples: Any) -> Any:
        """The first thing after a rollout: the engine is still awake."""
        self.generating_gb = max(self.generating_gb, _used_gb())
        return self._backend.with_reference(samples)

    def update(self, samples: Any, learning_rate: float | None = None) -> dict[str, float]:
        self._backend._rest()  # as `update` begins: what the engine leaves is not the training's
        self.resting_gb = max(self.resting_gb, _used_gb())
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_POLL_S):
                self.training_gb = max(self.training_gb, _used_gb())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            stats: dict[str, float] = self._backend.update(samples, learning_rate)
            return stats
        finally:
            over.set()
            thread.join()

    def shown(self) -> str:
        return f"{self.generating_gb:.1f}; {self.resting_gb:.1f}; {self.training_gb:.1f} GB"


def _used_gb() -> float:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 1e9
    return float(psutil.Process().memory_info().rss) / 1e9


def _plan(config: RunConfig, policies: dict[str, str]) -> OneGpuPlan | None:
    """None for a model of another kind than the plan knows."""
    shapes = {policy: shape_of(m, model_folder(m), parameter_count(m)) for policy, m in policies.items()}
    known = {policy: shape for policy, shape in shapes.items() if shape is not None}
    if len(known) < len(shapes):
        return None
    card_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    reference = make_algorithm(config.algorithm).needs_reference
    return plan_one_gpu(config, known, len(known), reference, card_gb)


def _hold_against_plan(rows: Rows, watched: _Watched, plan: OneGpuPlan | None) -> None:
    if plan is None:
        rows.skip("memory against the planner", "the planner does not know this kind of model")
        return
    for what, found, planned in (
        ("generating", watched.generating_gb, plan.generating_gb),
        ("training", watched.training_gb, plan.training_gb),
    ):
        expected = f"{planned:.1f} GB by the plan, or less"
        rows.judge(f"memory while {what}", f"{found:.1f} GB", expected, found <= _ROUNDED * planned)


def throughput_of_training(setting: Setting, rows: Rows) -> None:
    """Random tokens through the trainer. Its limit by roofline: 6 floating-point operations for each weight and token
    (2 forward, 4 backward; neither attention nor what is computed twice is counted), at the rate that large bfloat16
    products reach on this very machine."""
    config, folder = setting.config(), model_folder(setting.model)
    policy = TrainablePolicy(folder, config, pick_device(config.torch.device))
    weights = sum(weight.numel() for weight in policy.model.parameters())
    count, length = (8, 64) if setting.tiny else (64, 512)
    samples = random_samples(count, length, policy.model.config.vocab_size)
    norm = policy.train(samples).get("grad_norm", float("nan"))  # warms up
    rate = _tokens_per_s(policy, samples)
    limit = _product_rate(policy.device, 512 if setting.tiny else 8192)
    rows.judge("gradient of random tokens", f"{norm:.3g}", "finite", bool(np.isfinite(norm)))
    rows.tell("tokens/s of training", f"{rate:.0f}, samples of {length}")
    rows.tell("bfloat16 products here", f"{limit / 1e12:.2f} TFLOP/s")
    rows.tell("training against that limit, at 6 operations a weight and token", f"{6 * weights * rate / limit:.1%}")
    if setting.on_gpu:
        rows.tell("the most memory that training took", f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
        del policy
        compiled = TrainablePolicy(folder, setting.config("torch.compile=true"), pick_device(config.torch.device))
        compiled.train(samples)
        rows.tell("tokens/s with torch.compile=true", f"{_tokens_per_s(compiled, samples):.0f}")
    else:
        rows.skip("tokens/s with torch.compile=true", NO_CUDA)


def _tokens_per_s(policy: TrainablePolicy, samples: list[TrainSample]) -> float:
    """The best of three: other processes only ever make one slower."""
    tokens = sum(len(sample.prompt_ids_P) + len(sample.response_ids_L) for sample in samples)
    times = []
    for _ in range(3):
        began = time.monotonic()
        policy.train(samples)
        times.append(time.monotonic() - began)
    return tokens / min(times)


@torch.no_grad()
def _product_rate(device: torch.device, size: int) -> float:
    """Floating-point operations a second."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    left @ right
    settle()
    began, products = time.monotonic(), 0
    while time.monotonic() - began < _SECONDS_OF_PRODUCTS:
        for _ in range(8):
            left @ right
        settle()
        products += 8
    return products * 2 * size**3 / (time.monotonic() - began)
