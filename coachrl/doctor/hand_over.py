"""A real hand-over of weights between a tiny trainer and a tiny engine: the engine draws, the trainer takes a step, the
engine is given the new weights. Do both give the same log-probabilities before and after, and others in between?"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coachrl.config import RunConfig
from coachrl.sandbox.checks import Finding
from coachrl.text import error_told
from coachrl.trainers.backends.openrlhf.training.flash_attention import needs_flash_attn
from coachrl.trainers.backends.torch.models.tiny_random import write_tiny_random
from coachrl.trainers.samples import sample_alone
from coachrl.types import Generation, SamplingParams, TrainSample

SAME = 0.03  # mean |log pi| between engine and trainer, both in bfloat16
_REPLIES = 16
_LIMIT_S = 600.0  # an engine takes a minute or two to start
_POLICY = "tiny"
_FOUND = "found.json"
_NEEDED = {"vllm": ("vllm",), "openrlhf": ("ray", "vllm", "deepspeed", "openrlhf")}


@dataclass(frozen=True)
class HandOver:
    """Mean |log pi_engine - log pi_trainer| of replies drawn at the start, after an update whose weights were not
    handed over yet, and once they were."""

    start: float
    stale: float
    after: float

    @property
    def agrees(self) -> bool:
        return max(self.start, self.after) < min(SAME, self.stale)

    def __str__(self) -> str:
        return (
            f"log-probabilities of engine and trainer differ by {self.start:.4f}, by {self.stale:.4f} after an update, "
            f"and by {self.after:.4f} once its weights are handed over"
        )


def try_hand_over(settings: RunConfig, backend: str, limit_s: float = _LIMIT_S) -> Finding:
    """With the small model of this module, in a process of its own: what dies there is a finding. settings: whose
    devices, ZeRO stage and Ray cluster are used."""
    if missing := [name for name in _NEEDED[backend] if importlib.util.find_spec(name) is None]:
        return Finding(
            "hand-over", False, f"not tried without {', '.join(missing)}", "see the lines above", optional=True
        )
    if backend == "openrlhf" and settings.openrlhf.ray_address is None and not _gpus():
        why = "not tried: it takes a GPU, and torch sees none"
        return Finding("hand-over", True, why, optional=True, skipped=True)
    remedy = "the lines above say what is missing"
    if backend == "openrlhf" and needs_flash_attn(settings.openrlhf.attention):
        remedy += "; openrlhf.attention=sdpa needs no flash-attn"
    with _place(settings) as folder:
        config = _tiny_run(settings, backend, limit_s)
        (folder / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "coachrl.doctor.hand_over", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Finding("hand-over", False, f"it did not end within {limit_s:g} s", remedy)
        if done.returncode:
            told = error_told(done.stderr) or f"it ended with {done.returncode}"
            return Finding("hand-over", False, told[:300], remedy)
        found = HandOver(**json.loads((folder / _FOUND).read_text(encoding="utf-8")))
    return Finding("hand-over", found.agrees, str(found), "engine and trainer must agree: paste this into an issue")


def measure(backend: Any, policy: str) -> HandOver:
    """backend: one whose policies have not been moved since they were handed over last."""
    start = gap(backend, policy, 0)
    backend.update({policy: advised(drawn(backend, policy, 1))})
    stale = gap(backend, policy, 2)
    backend.sync_weights()
    return HandOver(start, stale, gap(backend, policy, 3))


def gap(backend: Any, policy: str, step: int) -> float:
    """Mean |log pi_engine - log pi_trainer| over replies that are drawn now. step: another one has other seeds."""
    [filled] = backend.with_trainer_logprobs({policy: drawn(backend, policy, step)}).values()
    return float(np.mean(np.concatenate([np.abs(s.old_logprobs_L - s.trainer_logprobs_L) for s in filled])))


def drawn(backend: Any, policy: str, step: int) -> list[TrainSample]:
    """Replies as samples, with no advantages yet."""
    encode = backend.tokenizer(policy).encode_chat
    prompts = [encode([{"role": "user", "content": f"What is {n} plus {step}?"}]) for n in range(_REPLIES)]

    async def ask() -> list[Generation]:
        asked = (backend.generate(policy, p, SamplingParams(24, seed=1000 * step + n)) for n, p in enumerate(prompts))
        return await asyncio.gather(*asked)

    samples = []
    for n, (prompt, reply) in enumerate(zip(prompts, asyncio.run(ask()), strict=True)):
        sample = sample_alone(f"{policy}/{n}", prompt, reply.token_ids, np.ones(len(reply.token_ids)))
        samples.append(replace(sample, old_logprobs_L=np.array(reply.logprobs, dtype=np.float32)))
    return samples


def advised(samples: Sequence[TrainSample]) -> list[TrainSample]:
    """Every other reply was good."""
    return [replace(sample, advantages_L=sample.mask_L * (-1.0) ** n) for n, sample in enumerate(samples)]


def _tiny_run(settings: RunConfig, backend: str, limit_s: float) -> RunConfig:
    """On one GPU, of which the engine takes little, and compiles nothing for it."""
    given = settings.openrlhf
    distributed = {"zero_stage": given.zero_stage, "attention": given.attention, "ray_address": given.ray_address}
    engine = {"max_num_seqs": _REPLIES, "engine_args": {"enforce_eager": True}}
    return RunConfig.model_validate(
        {
            "backend": backend,
            "train": {"learning_rate": 1e-2},
            "torch": {"device": settings.torch.device},
            "vllm": {"memory": 0.2, **engine},
            "openrlhf": {"engine_memory": 0.2, "start_timeout_s": limit_s, **engine, **distributed},
        }
    )


@contextmanager
def _place(settings: RunConfig) -> Iterator[Path]:
    """A folder that is there for all who load the model: of a cluster, on the storage that its machines share."""
    shared = settings.out if settings.openrlhf.ray_address is not None else None
    if shared is not None:
        shared.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coachrl-doctor-", dir=shared) as folder:
        yield Path(folder).resolve()


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _main(folder: Path) -> None:
    config = RunConfig.model_validate_json((folder / "config.json").read_text(encoding="utf-8"))
    models = {_POLICY: write_tiny_random(folder / "model", context_length=512)}
    backend: Any
    if config.backend == "vllm":
        from coachrl.trainers.backends.vllm.backend import VllmBackend

        backend = VllmBackend(models, config)
    else:
        from coachrl.trainers.backends.openrlhf.backend import OpenRLHFBackend

        backend = OpenRLHFBackend(models, config)
    try:
        found = measure(backend, _POLICY)
    finally:
        backend.close()
    (folder / _FOUND).write_text(json.dumps(asdict(found)), encoding="utf-8")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
