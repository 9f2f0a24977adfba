"""Training in this process, on CPU or one GPU, with separate weights for every policy; and the embedded backend, which
generates with transformers models beside it.

A trainable policy is held twice: float32 weights that are trained, and a copy that generates (of the embedded backend:
bfloat16, in the layout that the processor multiplies fastest; it is given up while the policies train, and made anew by
`sync_weights`). Policies that are not trained, and references, share one frozen copy of each initial model. With
`torch.share_base` trainable policies share it too: each is an adapter over it, and nothing is held twice.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coachrl.config import RunConfig
from coachrl.errors import CheckpointError, PolicyError
from coachrl.machine import machine_cpus
from coachrl.pipelines.generation import token_listener
from coachrl.text import first_line
from coachrl.trainers.backends.base import Samples, check_room, tokenizer_of, with_logprobs
from coachrl.trainers.backends.torch.engine.batcher import LockstepBatcher
from coachrl.trainers.backends.torch.engine.decode import Request, generate_batch
from coachrl.trainers.backends.torch.engine.linears import copy_weights, drop_weights
from coachrl.trainers.backends.torch.footprint import offloads_optimizer
from coachrl.trainers.backends.torch.logprobs import micro_batches, shared_prefix, token_logprobs
from coachrl.trainers.backends.torch.loss import Loss
from coachrl.trainers.backends.torch.models.lora import make_adaptable
from coachrl.trainers.backends.torch.models.sources import parameter_count
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import DTYPES, TrainablePolicy, load_generator
from coachrl.trainers.backends.torch.saved_state import saved_version
from coachrl.types import Generation, SamplingParams, TrainSample


class PolicyTrainer(ABC):
    """The half of a `Backend` that trains: weights, references, checkpoints. What generates is its subclasses'."""

    def __init__(
        self,
        models: Mapping[str, str | Path],
        config: RunConfig,
        trainable: Mapping[str, bool] | None = None,
        loss: Loss = "ppo",
        keep_reference: bool = False,
    ) -> None:
        """models: policy -> "smollm2-135m", a Hugging Face folder, or a hub name. trainable: policy -> whether `update`
        may move it; those not named are trained. keep_reference: hold the initial weights for `with_reference`.
        Raises PolicyError."""
        self.config, self._keeps_reference = config, keep_reference
        self.device = pick_device(config.torch.device)
        # Threads beyond a container's quota would wait for those that the kernel holds back.
        threads = config.torch.threads or _usual_threads()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        by_model = {model: ChatTokenizer(model) for model in dict.fromkeys(map(str, models.values()))}
        self._tokenizers = {policy: by_model[str(model)] for policy, model in models.items()}
        self._frozen: dict[Path, Any] = {}
        trained = {
            policy: tokenizer.folder
            for policy, tokenizer in self._tokenizers.items()
            if trainable is None or trainable.get(policy, True)
        }
        offload = self._offloads_optimizer(trained.values())
        self._policies = {
            policy: TrainablePolicy(folder, config, self.device, loss, offload, self._shared_base(folder))
            for policy, folder in trained.items()
        }
        self._weights_version = 0
        self._start_generating()

    @abstractmethod
    def _start_generating(self) -> None:
        """Make what generates, with the weights that are trained. The last part of making a backend."""

    @abstractmethod
    def _copy_weights(self) -> None:
        """Give what generates the weights that are trained."""

    def _rest(self) -> None:  # noqa: B027  not all that generates has to
        """Let what generates leave memory to the policies, which are about to compute. It comes back by itself."""

    def tokenizer(self, policy: str) -> ChatTokenizer:
        """Raises PolicyError where there is no such policy."""
        return tokenizer_of(self._tokenizers, policy)

    def context_length(self, policy: str) -> int:
        """Tokens that prompt and reply may have together."""
        return self.tokenizer(policy).context_length

    def with_reference(self, samples: Samples) -> Samples:
        """The same samples with `ref_logprobs_L` filled (None where no reference is kept)."""
        if not self._keeps_reference:
            return samples
        self._rest()
        return with_logprobs(samples, "ref_logprobs_L", self._reference_logprobs)

    def with_trainer_logprobs(self, samples: Samples) -> Samples:
        """The same samples with `trainer_logprobs_L` filled; the sampler's for a policy that is not trained."""
        self._rest()
        return with_logprobs(samples, "trainer_logprobs_L", self._trainer_logprobs)

    def update(self, samples: Samples, learning_rate: float | None = None) -> dict[str, float]:
        """Train every trainable policy on its samples, one policy after another. Statistics: see `TrainablePolicy`."""
        self._rest()
        rate = self.config.train.learning_rate if learning_rate is None else learning_rate
        stats: dict[str, float] = {}
        for policy, group in samples.items():
            self.tokenizer(policy)
            if policy in self._policies:
                release_free_memory()
                self._policies[policy].set_learning_rate(rate)
                trained = self._policies[policy].train(group)
                stats.update({f"{name}/{policy}": value for name, value in trained.items()})
        release_free_memory()
        return stats

    @torch.no_grad()
    def sync_weights(self) -> None:
        """Make the trained weights those that `generate` uses."""
        self._weights_version += 1
        self._copy_weights()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """All of `save`: the weights that it writes are in this process, which generates meanwhile."""
        self.save(folder)
        return lambda: None

    def save(self, folder: Path) -> None:
        """Write `folder/<policy>/` for every trainable policy: a Hugging Face model, or an adapter of peft's form where
        the base is shared, its optimizer and its counters."""
        for policy, trained in self._policies.items():
            trained.save(folder / policy, self._weights_version)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, and generate with it: of policies that are not trained the version of the weights,
        which they were made from. Raises CheckpointError."""
        missing = [policy for policy in self._policies if not (folder / policy / "state.json").is_file()]
        if missing:
            raise CheckpointError(f"checkpoint {folder}: nothing was saved there for policy {', '.join(missing)}")
        for policy in self._tokenizers:
            if policy in self._policies:
                self._weights_version = self._policies[policy].load(folder / policy)
            elif (folder / policy / "state.json").is_file():
                self._weights_version = saved_version(folder / policy)
        self._copy_weights()

    def _reference_logprobs(self, policy: str, samples: list[TrainSample]) -> list[np.ndarray]:
        return self._logprobs(self._frozen_model(self.tokenizer(policy).folder), samples)

    def _trainer_logprobs(self, policy: str, samples: list[TrainSample]) -> list[np.ndarray]:
        if policy not in self._policies:
            return [sample.old_logprobs_L for sample in samples]
        trained = self._policies[policy]
        with trained.precision(), trained.in_use() as model:  # what the ratio of the update begins at 1 with
            return self._logprobs(model, samples)

    @torch.no_grad()
    def _logprobs(self, model: Any, samples: list[TrainSample]) -> list[np.ndarray]:
        """log pi(t) of every response token, for each sample."""
        filled: dict[int, np.ndarray] = {}
        for batches in micro_batches(samples, self.config.torch.micro_batch_tokens, self.device, all_tokens=True):
            prefix = shared_prefix(model, batches)
            for batch in batches:
                logprobs_N, _ = token_logprobs(model, batch, self.config.sampling.temperature, prefix)
                filled |= zip(map(id, batch.samples), batch.split(logprobs_N), strict=True)
        return [filled[id(sample)] for sample in samples]

    def _offloads_optimizer(self, trained: Iterable[Path]) -> bool:
        """Raises PolicyError where that is asked for and cannot be."""
        if self.device.type != "cpu":
            if self.config.torch.offload_optimizer is True:
                raise PolicyError(f"torch.offload_optimizer is for the CPU, and the device is {self.device}")
            return False
        return offloads_optimizer(self.config.torch, [parameter_count(folder) or 0 for folder in trained])

    def _frozen_model(self, folder: Path) -> Any:
        if folder not in self._frozen:
            model = self._load_generator(folder)
            if self.config.torch.share_base:
                make_adaptable(model)
            self._frozen[folder] = model
        return self._frozen[folder]

    def _shared_base(self, folder: Path) -> Any:
        """What all policies that begin from this model are adapters over; None where each has weights of its own."""
        return self._frozen_model(folder) if self.config.torch.share_base else None

    def _load_generator(self, folder: Path) -> Any:
        return load_generator(folder, DTYPES[self.config.torch.precision], self.device)


class TorchBackend(PolicyTrainer):
    """`Backend` on transformers models. Replies depend on seed, prompt and weights; batches are made in lock-step."""

    def _start_generating(self) -> None:
        self._copied = {} if self.config.torch.share_base else self._policies  # those with a copy that generates
        self._generators = {
            policy: (self._load_generator if policy in self._copied else self._frozen_model)(tokenizer.folder)
            for policy, tokenizer in self._tokenizers.items()
        }
        self._synced = True
        self._copy_weights()  # what is float32 in both lies in memory once
        self._batcher = LockstepBatcher(self._generate_batch)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Marks one episode as in flight: see `LockstepBatcher`."""
        return self._batcher.episode(patience_s)

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit the model's context: nothing is cut;
        RuntimeError between `update` and `sync_weights`."""
        if not self._synced:
            raise RuntimeError("weights were updated: sync_weights comes before the next reply")
        check_room(policy, len(prompt_ids), sampling.max_new_tokens, self.context_length(policy))
        return await self._batcher.submit(policy, Request(tuple(prompt_ids), sampling, told=token_teller()))

    def update(self, samples: Samples, learning_rate: float | None = None) -> dict[str, float]:
        """As of `PolicyTrainer`. Nothing generates until `sync_weights`."""
        self._synced = False
        for policy in self._copied:
            drop_weights(self._generators[policy])
        return super().update(samples, learning_rate)

    def close(self) -> None:
        self._batcher.close()

    def _generate_batch(self, policy: str, requests: Sequence[Request]) -> list[Generation]:
        model, tokenizer = self._generators[policy], self._tokenizers[policy]
        with self._policies[policy].in_use() if policy in self._policies else nullcontext():
            return generate_batch(
                model, requests, tokenizer.eos_ids, self._weights_version, self.config.torch.generation_batch
            )

    @torch.no_grad()
    def _copy_weights(self) -> None:
        for policy, trained in self._copied.items():
            copy_weights(self._generators[policy], trained.weights())
        self._synced = True


def _usual_threads() -> int:
    """As torch has it, and the environment asks for."""
    asked = "OMP_NUM_THREADS" in os.environ
    return torch.get_num_threads() if asked else min(torch.get_num_threads(), machine_cpus())


def token_teller() -> Callable[[int], None] | None:
    """Tells whoever listens to the reply that is asked for here a token, from the thread that draws; None where nobody
    does."""
    heard, loop = token_listener(), asyncio.get_running_loop()
    if heard is None:
        return None

    def tell(token: int) -> None:
        loop.call_soon_threadsafe(heard, token)

    return tell


def release_free_memory() -> None:
    """Give freed heap pages back to the system, where the C library can. Activations and caches of ever new sizes leave
    its heap in pieces, and the thread that generates has a heap of its own: on CPU, three 135M policies otherwise grow
    from 6 to 15 GB within six steps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def pick_device(name: str) -> torch.device:
    """The torch device of a setting; "auto" is a GPU where there is one. Raises PolicyError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which a device that only looks like one (meta) has not
    except (RuntimeError, AssertionError) as error:
        raise PolicyError(f"device {name!r} cannot be used here: {first_line(error)}") from error
    return device
