"""Who sits on which GPU, worked out and checked before anything starts. Plain arithmetic: needs no Ray, no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coachrl.config import OpenRLHFConfig
from coachrl.errors import ConfigError
from coachrl.storage.files import at_home
from coachrl.text import counted

_SHARE_STEP = 10_000  # Ray counts fractions of a GPU in steps of 0.0001


@dataclass(frozen=True)
class PolicyPlacement:
    """One policy's processes.

    trainers, references: data-parallel processes, one a GPU (0: none). slots: of each vLLM engine the place where it
    sits; place s is the GPUs from s * tensor_parallel on, which one engine spreads over. trainer_share, engine_share:
    the fraction of a GPU that one process claims from Ray; a reference claims as much as its trainer. memory_fraction:
    share of a GPU's memory that one engine takes for weights and cache. reference_of: the policy whose references know
    this one's initial weights, itself or an earlier one that begins alike; None where no process keeps them.
    """

    policy: str
    trainers: int
    references: int
    slots: tuple[int, ...]
    tensor_parallel: int
    trainer_share: float
    engine_share: float
    memory_fraction: float
    reference_of: str | None = None

    @property
    def engines(self) -> int:
        return len(self.slots)

    @property
    def engine_gpus(self) -> int:
        return self.engines * self.tensor_parallel


@dataclass(frozen=True)
class Placement:
    """All policies' processes. gpus: whole GPUs claimed; colocated: all of them share the same ones. workers: rollout
    workers, none where the driver plays all episodes."""

    policies: tuple[PolicyPlacement, ...]
    colocated: bool
    gpus: int
    workers: int = 0

    def engines_at(self, slot: int) -> int:
        """How many engines share one place; none do where trainers and engines sit apart."""
        return sum(placed.slots.count(slot) for placed in self.policies) if self.colocated else 1

    @property
    def crowd(self) -> int:
        """Engines on the GPU that has most of them."""
        return max(self.engines_at(slot) for placed in self.policies for slot in placed.slots)

    @property
    def cores(self) -> int:
        """Processor cores claimed: one with each GPU, and one for each rollout worker."""
        return self.gpus + self.workers

    def lines(self) -> list[str]:
        """The placement for people: one line of total, one for each policy, one for rollout workers."""
        how = "shared by all policies" if self.colocated else "trainers and engines apart"
        workers = [f"{self.workers} rollout workers, each on a processor core"] if self.workers else []
        return [f"{self.gpus} GPUs, {how}", *(_describe(policy, self.colocated) for policy in self.policies), *workers]

    def check(self, gpus: float, cores: float = math.inf) -> None:
        """Raises ConfigError where fewer GPUs or processor cores are free than are claimed, saying who claims them."""
        if gpus < self.gpus:
            parts = "; ".join(_describe(policy, self.colocated) for policy in self.policies)
            raise ConfigError(f"the run needs {self.gpus} GPUs, {gpus:g} available: {parts}. {self._remedy()}")
        if cores < self.cores:
            raise ConfigError(
                f"the run needs {self.cores} processor cores, {cores:g} available: one with each of {self.gpus} GPUs "
                f"and of {self.workers} rollout workers. Lower rollout.workers, or connect to a larger cluster"
            )

    def _remedy(self) -> str:
        if self.colocated:
            return "Set openrlhf.gpus to what there is, or connect to a larger cluster with openrlhf.ray_address"
        return "Set openrlhf.colocate=true to share GPUs, or lower openrlhf.gpus and openrlhf.engines"


def plan_placement(
    settings: OpenRLHFConfig,
    trainable: Mapping[str, bool],
    reference: bool,
    workers: int = 0,
    adapters: bool = False,
    models: Mapping[str, str | Path] | None = None,
) -> Placement:
    """Placement of every policy. trainable: policy -> whether it is trained; reference: whether its initial weights are
    asked for; workers: rollout workers; adapters: whether adapters are trained, beside which no process keeps those
    weights: the trainer has them; models: the folder or name of each policy's initial weights, where those that begin
    alike are to share references. Raises ConfigError where the settings contradict each other."""
    asked = [name for name, trained in trainable.items() if trained and reference and not adapters]
    references = _references(asked, models or {})
    width = settings.tensor_parallel
    if settings.colocate:
        slots = _shared_slots(settings, list(trainable))
        crowds = Counter(slot for chosen in slots.values() for slot in chosen)
        # Trainers of all policies sit on every GPU. What meets on a GPU shares it evenly.
        claims = sum(trainable.values()) + len(set(references.values())) + max(crowds.values())
        share = math.floor(_SHARE_STEP / claims) / _SHARE_STEP
    else:
        engines = settings.engines if settings.engines is not None else max(1, settings.gpus // width)
        slots = dict.fromkeys(trainable, tuple(range(engines)))
        crowds = Counter(range(engines))  # each policy's are GPUs of its own
        share = 1.0
    placed = []
    for name, trained in trainable.items():
        keeps_reference = references.get(name) == name
        placed.append(
            PolicyPlacement(
                policy=name,
                trainers=settings.gpus if trained else 0,
                references=settings.gpus if keeps_reference else 0,
                slots=slots[name],
                tensor_parallel=width,
                trainer_share=0.5 if keeps_reference and not settings.colocate else share,
                engine_share=share,
                memory_fraction=settings.engine_memory / max(crowds[slot] for slot in slots[name]),
                reference_of=references.get(name),
            )
        )
    gpus = settings.gpus if settings.colocate else sum(policy.trainers + policy.engine_gpus for policy in placed)
    return Placement(tuple(placed), settings.colocate, gpus, workers)


def _references(policies: Iterable[str], models: Mapping[str, str | Path]) -> dict[str, str]:
    """For each of these policies the first that begins from the same weights. Everything else that decides their
    log-probabilities (precision, attention, temperature) is the run's."""
    first: dict[object, str] = {}
    return {policy: first.setdefault(_initial_weights(policy, models), policy) for policy in policies}


def _initial_weights(policy: str, models: Mapping[str, str | Path]) -> object:
    """Equal for policies that begin alike: the folder wherever it was named from, or a name as it is."""
    if policy not in models:
        return (policy,)  # like no other
    name, folder = str(models[policy]), at_home(models[policy])
    return folder.resolve() if "/" in name and folder.is_dir() else name


def _shared_slots(settings: OpenRLHFConfig, policies: list[str]) -> dict[str, tuple[int, ...]]:
    """The places of each policy's engines, on as many different GPUs as there are."""
    gpus, width = settings.gpus, settings.tensor_parallel
    engines = settings.engines or 1
    if engines * width > gpus:
        raise ConfigError(
            f"openrlhf.colocate puts every engine beside a trainer, so {engines} engines of {width} GPUs each need "
            f"{engines * width} GPUs and openrlhf.gpus is {gpus}: lower openrlhf.engines or openrlhf.tensor_parallel"
        )
    return _spread(policies, gpus // width, settings.engines)


def _spread(policies: list[str], places: int, engines: int | None) -> dict[str, tuple[int, ...]]:
    """For each policy the places of its engines: `engines` of them, or by default an even part of all places and at
    least one. They go to the places in turn, so that engines meet only where there are more of them than places."""
    even, rest = divmod(places, len(policies))
    counts = [engines or max(1, even + (number < rest)) for number in range(len(policies))]
    begins = [sum(counts[:number]) for number in range(len(policies))]
    return {
        policy: tuple(sorted((begin + number) % places for number in range(count)))
        for policy, begin, count in zip(policies, begins, counts, strict=True)
    }


def _describe(placed: PolicyPlacement, colocated: bool) -> str:
    width = f" over {placed.tensor_parallel} GPUs" if placed.tensor_parallel > 1 else ""
    at = f" on GPU {_gpus_of(placed)}" if colocated else ""
    parts = [f"{counted(placed.engines, 'engine')}{width}{at} with {placed.memory_fraction:.2f} of a GPU's memory"]
    if placed.trainers:
        parts.insert(0, counted(placed.trainers, "trainer"))
    if placed.references:
        parts.insert(1, counted(placed.references, "reference"))
    elif placed.reference_of is not None:
        parts.insert(1, f"the references of {placed.reference_of}")
    claim = f", {placed.engine_share:.4g} GPU a process" if colocated else ""
    return f"{placed.policy}: {', '.join(parts)}{claim}"


def _gpus_of(placed: PolicyPlacement) -> str:
    """Of its engines, as ranges: "0-2", "3-4,7"."""
    gpus = [slot * placed.tensor_parallel + place for slot in placed.slots for place in range(placed.tensor_parallel)]
    ends = [gpu for gpu in gpus if gpu + 1 not in gpus]
    begins = [gpu for gpu in gpus if gpu - 1 not in gpus]
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(begins, ends, strict=True))
