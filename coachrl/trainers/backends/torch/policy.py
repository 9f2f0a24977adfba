"""One policy's trainable weights: a float32 model, its optimizer, and how a batch of samples moves it."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from coachrl.config import RunConfig
from coachrl.errors import CheckpointError, PolicyError
from coachrl.resources import cache_folder, quiet, say_once
from coachrl.text import counted, first_line, one_line
from coachrl.trainers.backends.base import ADAM_BETAS
from coachrl.trainers.backends.torch import compiled, gradient_checkpointing
from coachrl.trainers.backends.torch.engine import linears
from coachrl.trainers.backends.torch.engine.proof import use_shared_prefix_of
from coachrl.trainers.backends.torch.logprobs import (
    SharedPrefix,
    micro_batches,
    plain_head,
    shared_prefix,
    token_logprobs,
)
from coachrl.trainers.backends.torch.loss import Loss, Totals, optimizer_steps
from coachrl.trainers.backends.torch.models import disk_errors
from coachrl.trainers.backends.torch.models.lora import Adapter, make_adaptable, merged_weights
from coachrl.trainers.backends.torch.models.sources import (
    ADAPTER_WEIGHTS,
    copy_tokenizer,
    holds_only,
    model_folder,
    why_not_loaded,
)
from coachrl.trainers.backends.torch.offload import MomentsInFile
from coachrl.trainers.backends.torch.packed import PackedBatch
from coachrl.trainers.backends.torch.saved_state import count, fits, is_finite
from coachrl.types import TrainSample

log = logging.getLogger(__name__)

_ADAPTERS = "adapters.safetensors"

Precision = Literal["bfloat16", "float32"]
_loading = threading.Lock()  # transformers sets torch's default dtype for the whole process while it makes a model
DTYPES: dict[Precision, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model with every weight found, and finite. Raises PolicyError where the folder does not hold
    one."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        with _loading, quiet("transformers"):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=False,  # without it, somebody would be asked
                use_safetensors=True,
            )
    except Exception as error:  # whatever a library makes of files that are not as it expects them
        raise PolicyError(f"model {folder}: it cannot be loaded: {why_not_loaded(error)}") from error
    model, found = loaded
    if found["missing_keys"]:
        raise PolicyError(f"model {folder}: weights are missing: {', '.join(sorted(found['missing_keys'])[:3])}")
    if found["unexpected_keys"]:
        names = sorted(found["unexpected_keys"])
        shown, left = one_line(", ".join(names[:3])), counted(len(names), "weight")
        say_once(log.warning, "model %s: left out %s that its kind does not have: %s", folder, left, shown)
    if broken := [name for name, weights in model.named_parameters() if not is_finite(weights)]:
        raise PolicyError(f"model {folder}: its weights are not finite: {', '.join(broken[:3])}")
    return model.to(device).eval()  # no dropout in training either: pi and pi_old must be one function


def load_generator(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A model that only generates: by shared-prefix attention and packed layers, where both give its own logits.
    Raises PolicyError."""
    model = load_model(folder, dtype, device).requires_grad_(False)
    packable = linears.can_pack(model)
    if use_shared_prefix_of(folder, model, linears.pack if packable else None):
        if packable and not holds_only(folder, "BF16"):
            # What packing leaves in float32 was rounded when the model was loaded, and is given what the files hold.
            linears.copy_weights(model, load_model(folder, torch.float32, device).state_dict().items())
        return model
    # What was packed cannot be unpacked.
    return load_model(folder, dtype, device).requires_grad_(False) if packable else model


def merge_adapter(base: str | Path, adapter: Path, target: Path) -> None:
    """Write the model `base` with an adapter added to its weights: a Hugging Face folder in float32, with tokenizer.
    Raises PolicyError for the model, CheckpointError for the adapter, and OSError for the disk."""
    folder = model_folder(base)
    model = load_model(folder, torch.float32, torch.device("cpu"))
    make_adaptable(model)
    _write_model(model, merged_weights(model, Adapter.read(model, adapter)), folder, target)


def _write_model(model: Any, weights: Iterable[tuple[str, Tensor]], initial: Path, folder: Path) -> None:
    """initial: the folder that the model came from, whose tokenizer it keeps. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with disk_errors.as_the_system_has_them():
        model.save_pretrained(folder, state_dict=dict(weights))
    copy_tokenizer(initial, folder)


class TrainablePolicy:
    """Float32 weights, all of them or those of adapters, with AdamW. Statistics are named without the policy.

    Of the configuration it reads the sections `train` and `torch`, the seed, how long replies may be, and the
    temperature that they are drawn at: log-probabilities and ratios are of that distribution.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        device: torch.device,
        loss: Loss = "ppo",
        offload: bool = False,
        base: Any = None,
    ) -> None:
        """offload: whether the optimizer's state lies in a file, see `offload.py`. base: the frozen model of `folder`,
        for adapters over a model that several policies share; without it the policy loads one of its own.

        Raises PolicyError where the model cannot be loaded, or scales its logits in a way that is not known here."""
        self.device, self.steps = device, 0
        self._train, self._torch = config.train, config.torch
        self._temperature, self._seed = config.sampling.temperature, config.seed
        self._longest_reply = config.pipeline.max_new_tokens
        self._loss = loss
        self._initial_folder = folder
        self._shares_base = base is not None
        self.model = load_model(folder, torch.float32, device) if base is None else base
        if not plain_head(self.model):
            raise PolicyError(f"model {folder}: its architecture changes logits after the output layer; not supported")
        if self._torch.gradient_checkpointing:
            gradient_checkpointing.check_support(self.model, folder)
        if not self._shares_base:
            with self.precision():
                use_shared_prefix_of(folder, self.model)
        if self._torch.compile:
            compiled.compile_layers(self.model, folder, self.precision)
        self.adapter: Adapter | None = None
        self._trained: Mapping[str, Tensor] = dict(self.model.named_parameters())
        if self._torch.lora_rank is not None:
            if not self._shares_base:
                make_adaptable(self.model)
            self.adapter = Adapter(self.model, self._torch.lora_rank, self._torch.lora_alpha, config.seed)
            self._trained = self.adapter.parameters()
        self._optimizer = torch.optim.AdamW(
            list(self._trained.values()),
            lr=config.train.learning_rate,
            weight_decay=config.train.weight_decay,
            betas=ADAM_BETAS,
            fused=True if device.type in ("cpu", "cuda") else None,
        )
        self._moments = MomentsInFile(self._optimizer, cache_folder() / "optimizer") if offload else None

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    @contextmanager
    def in_use(self) -> Iterator[Any]:
        """The model, which computes with this policy's weights inside."""
        with nullcontext() if self.adapter is None else self.adapter.in_use():
            yield self.model

    def train(self, samples: Sequence[TrainSample]) -> dict[str, float]:
        """`ppo_epochs` passes over the samples, an optimizer step for each minibatch. Empty where no sample has weight.

        A step whose gradient is not finite is left out and counted in `skipped`. A micro-batch that does not fit into
        memory is left out; `out_of_memory` is the share of samples that were.
        """
        update = _Update()
        samples = [sample for sample in samples if sample.mask_L.any()]
        steps = optimizer_steps(samples, self._train, self._loss, self._shuffled, self._longest_reply)
        for weighing, divisor in steps:
            with self.in_use(), gradient_checkpointing.recomputed(self.model, self._torch.gradient_checkpointing):
                self._step(weighing, divisor, update)
        if self._moments is not None:
            self._moments.let_go()
        if not update.steps:
            return {}
        stats = {"skipped": float(update.skipped), "learning_rate": float(self._optimizer.param_groups[0]["lr"])}
        if update.unheld:
            stats["out_of_memory"] = update.unheld / update.weighing
        if not update.totals.sums["tokens"]:  # nothing fitted into memory
            return stats
        stats |= update.totals.means(update.steps)
        if update.steps > update.skipped:
            stats["grad_norm"] = update.grad_norm / (update.steps - update.skipped)
        stats["tokens"] = float(sum(sample.mask_L.sum() for sample in samples))
        return stats | reference_kl(samples)

    @torch.no_grad()
    def mean_nll(self, samples: Sequence[TrainSample]) -> float:
        """Mean of -log pi over all tokens of mask 1; NaN where there are none."""
        total, tokens = 0.0, 0
        for batches in micro_batches(samples, self._torch.micro_batch_tokens, self.device):
            with self.precision(), self.in_use():
                prefix = shared_prefix(self.model, batches)
                for batch in batches:
                    logprobs_N, _ = token_logprobs(self.model, batch, prefix=prefix)
                    total -= float(logprobs_N.sum())
                    tokens += len(logprobs_N)
        return total / tokens if tokens else float("nan")

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights by their names in a model without adapters."""
        if self.adapter is None:
            return iter(self.model.state_dict().items())
        return merged_weights(self.model, self.adapter)

    def save_model(self, folder: Path) -> None:
        """Weights (float32, with adapters added in) and tokenizer, as a Hugging Face folder that loads anywhere."""
        _write_model(self.model, self.weights(), self._initial_folder, folder)

    def save(self, folder: Path, weights_version: int) -> None:
        """What `save_model` writes, or an adapter folder where the base is shared, and the optimizer and counters
        beside it. Raises OSError where the disk does not take it."""
        try:
            if self.adapter is not None and self._shares_base:
                self.adapter.save(folder, self._initial_folder)
            else:
                self.save_model(folder)
            # To a path, torch writes by itself, and does not say what the system said.
            with disk_errors.as_the_system_has_them(), (folder / "optimizer.pt").open("wb") as file:
                torch.save(self._optimizer.state_dict()["state"], file)
            if self.adapter is not None and not self._shares_base:
                # Not under peft's name: transformers would add it to the saved weights, which hold it already.
                save_file({name: p.detach() for name, p in self._trained.items()}, folder / _ADAPTERS)
        except (OSError, SafetensorError, RuntimeError) as error:  # the last two are others' words for the first
            if isinstance(error, OSError) and error.filename:
                raise
            raise OSError(f"checkpoint {folder} cannot be written: {first_line(error)}") from error
        state = {"steps": self.steps, "weights_version": weights_version}
        (folder / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> int:
        """Restore what `save` wrote; returns the weights version. Raises CheckpointError, with nothing changed."""
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            steps, version = (count(state[name]) for name in ("steps", "weights_version"))
            moments = torch.load(folder / "optimizer.pt", map_location=self.device, weights_only=True)
            restored = self._restored(folder)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"checkpoint {folder}: {first_line(error)}") from error
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"checkpoint {folder}: optimizer.pt is cut short or damaged") from error
        except PolicyError as error:
            raise CheckpointError(f"checkpoint {error}") from error
        parameters = list(self._trained.values())
        if [p.shape for p in parameters] != [p.shape for p in restored] or not fits(moments, parameters):
            raise CheckpointError(f"checkpoint {folder}: it was saved from a model of another shape")
        if not all(map(is_finite, (*restored, *(value for kept in moments.values() for value in kept.values())))):
            raise CheckpointError(f"checkpoint {folder}: not all of its numbers are finite; go on from an older one")
        with torch.no_grad():
            for parameter, value in zip(parameters, restored, strict=True):
                parameter.copy_(value)
        if self._moments is not None:
            self._moments.fill(moments)
        else:
            groups = self._optimizer.state_dict()["param_groups"]  # settings come from the configuration, not the file
            self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.steps = steps
        return version

    def _restored(self, folder: Path) -> list[Tensor]:
        """What was saved of the weights that are trained, in their order. Raises what reading the files raises."""
        if self.adapter is None:
            return [parameter.detach() for parameter in load_model(folder, torch.float32, self.device).parameters()]
        saved = load_file(folder / (ADAPTER_WEIGHTS if self._shares_base else _ADAPTERS), device=str(self.device))
        return [saved[name] for name in self._trained]

    def _shuffled(self, count: int) -> NDArray[np.int64]:
        """Seeded by the step, not by a generator's state: a resumed run shuffles alike."""
        return np.random.default_rng([self._seed, self.steps]).permutation(count)

    def _step(self, weighing: list[TrainSample], divisor: float, update: _Update) -> None:
        whole = all(
            self._add_gradient(batches, divisor, update)
            for batches in micro_batches(weighing, self._torch.micro_batch_tokens, self.device)
        )
        norm = float(torch.nn.utils.clip_grad_norm_(self._trained.values(), self._train.max_grad_norm))
        update.steps += 1
        update.weighing += len(weighing)
        if np.isfinite(norm) and whole:
            self._optimizer.step()
            self.steps += 1
            update.grad_norm += norm
        else:
            why = "its gradient is not finite" if whole else "memory ran out in the middle of its gradient"
            log.warning("step %d left out: %s", self.steps, why)
            update.skipped += 1
        self._optimizer.zero_grad(set_to_none=True)

    def _add_gradient(self, batches: list[PackedBatch], divisor: float, update: _Update) -> bool:
        """Add the gradient of micro-batches with one prefix. False where memory ran out in the middle of a backward
        pass, which leaves a part of its gradient behind."""
        everything = sum(len(batch.samples) for batch in batches)
        held = 0
        with _leaving_out(everything, update) as attempt, self.precision():
            prefix = shared_prefix(self.model, batches)
        if not attempt.succeeded:
            return True
        for batch in batches:
            with _leaving_out(len(batch.samples), update) as forward:
                loss = self._forward(batch, divisor, update, prefix)
            if not forward.succeeded:
                continue
            with _leaving_out(len(batch.samples), update) as backward:
                (loss / divisor).backward()
            if not backward.succeeded:
                return False
            held += len(batch.samples)
        if prefix is None or not held:
            return True
        with _leaving_out(held, update) as attempt:
            prefix.backward()
        return attempt.succeeded

    def _forward(self, batch: PackedBatch, divisor: float, update: _Update, prefix: SharedPrefix | None) -> Tensor:
        """The loss of one micro-batch, summed; its statistics are added to the update's."""
        with self.precision():
            logprobs_N, entropy_N = token_logprobs(self.model, batch, self._temperature, prefix)
        clip = self._train.clip_ranges
        loss = update.totals.add(batch, logprobs_N, entropy_N, self._loss, clip, first=update.steps == 0)
        update.totals.sums["loss"] += float(loss.detach()) / divisor
        return loss

    def precision(self) -> torch.autocast:
        """Forward passes inside are those of an update."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._torch.precision == "bfloat16")


def reference_kl(samples: Sequence[TrainSample]) -> dict[str, float]:
    """Mean over trained tokens of log pi_old - log pi_ref, where every sample has a reference."""
    gaps = [(s.old_logprobs_L - s.ref_logprobs_L)[s.mask_L > 0] for s in samples if s.ref_logprobs_L is not None]
    return {"ref_kl": float(np.concatenate(gaps).mean())} if len(gaps) == len(samples) else {}


@dataclass
class _Update:
    """What is counted while an update runs. steps: begun; of them `skipped`. weighing: samples that have a gradient; of
    them `unheld` did not fit into memory. grad_norm: the sum over steps that were taken."""

    totals: Totals = field(default_factory=Totals)
    steps: int = 0
    skipped: int = 0
    weighing: int = 0
    unheld: int = 0
    grad_norm: float = 0.0


@dataclass
class _Attempt:
    succeeded: bool = False


@contextmanager
def _leaving_out(samples: int, update: _Update) -> Iterator[_Attempt]:
    """Counts samples as `unheld` where what is done inside runs out of memory, and so does not succeed."""
    attempt = _Attempt()
    try:
        yield attempt
        attempt.succeeded = True
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        log.warning("%d samples did not fit into memory and are left out", samples)
        update.unheld += samples


def _out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether a device or the host had no memory left; torch names that of the host in words alone."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
