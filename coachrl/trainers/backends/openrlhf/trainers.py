"""One policy's DeepSpeed processes: an OpenRLHF actor group that trains, and one that holds the initial weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.errors import BackendError
from coachrl.trainers.backends.openrlhf import handover, remote
from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.bindings import (
    PolicyModelActor,
    RayActorGroup,
    ReferenceModelActor,
    get_strategy,
)
from coachrl.trainers.backends.openrlhf.cluster import answers, named, reason
from coachrl.trainers.backends.openrlhf.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.rollout.balance import Shares, share_out
from coachrl.trainers.backends.openrlhf.steps import Loss, RankStep, train_policy, weighs
from coachrl.types import TrainSample

BUCKET_BYTES = 2**29  # of weights that go to the engines in one message


class TrainerGroup:
    """Trains one policy, and knows its initial weights where a reference is kept.

    The methods that start something give Ray's references, so that all policies can work at once.
    """

    def __init__(
        self,
        placed: PolicyPlacement,
        config: RunConfig,
        reserved: PlacementGroup,
        model: Path,
        loss: Loss,
    ) -> None:
        self.placed, self.config, self.model = placed, config, model
        self._loss = loss
        self._strategy = get_strategy(openrlhf_arguments(config, placed))
        self._policy = self._group(PolicyModelActor, placed.trainers, reserved)
        self._reference = self._group(ReferenceModelActor, placed.references, reserved) if placed.references else None

    def start(self, engines: list[Any]) -> list[Any]:
        """Load the weights everywhere, and join the engines that they will be sent to."""
        loading = self._policy.async_init_model_from_pretrained(self._strategy, str(self.model), 1, engines)
        if self._reference is not None:
            loading += self._reference.async_init_model_from_pretrained(self._strategy, str(self.model))
        temperature = self.config.sampling.temperature
        return loading + [
            handle.__ray_call__.remote(remote.use_response_logprobs, temperature)
            for group in (self._policy, self._reference)
            for handle in (group._actor_handlers if group is not None else ())
        ]

    def train(self, samples: Sequence[TrainSample], seed: int) -> tuple[list[Any], int]:
        """Train on samples: references that give the statistics of all ranks together, and how many micro-batches hold
        no sample. seed: of the order in which samples make optimizer steps; a resumed run takes the same."""
        steps = [self._step(minibatch) for minibatch in self._minibatches(samples, np.random.default_rng(seed))]
        ranks = zip(*(ranks for ranks, _ in steps), strict=True)
        clip = self.config.train.clip_range
        return [
            handle.__ray_call__.remote(train_policy, rank, self._loss, clip)
            for handle, rank in zip(self._policy._actor_handlers, ranks, strict=True)
        ], sum(padding for _, padding in steps)

    def send_weights(self) -> list[Any]:
        return self._call(handover.send_weights, BUCKET_BYTES)

    def attach_engines(self, engines: list[Any]) -> list[Any]:
        """Send weights to `engines` from now on."""
        return self._call(remote.attach_engines, engines)

    def load_optimizer(self) -> list[Any]:
        """The optimizer's state into GPU memory (see `OpenRLHFConfig.sleeps`)."""
        return self._policy.async_run_method("reload_states")

    def unload_optimizer(self) -> list[Any]:
        return self._policy.async_run_method("offload_states")

    def save(self, folder: Path) -> list[Any]:
        return self._call(remote.save_policy, str(folder.resolve()))

    def load(self, folder: Path, scratch: Path | None = None) -> list[Any]:
        """Each reference tells whether DeepSpeed found its state there. scratch: where it is converted, if another
        number of trainers wrote it."""
        return self._call(remote.load_policy, str(folder.resolve()), str(scratch.resolve()) if scratch else None)

    def reference_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi_ref of every response token, (L,) for each sample. Of a policy that trains an adapter it is the model
        without it: no second one is in memory."""
        if self.config.torch.lora_rank is not None:
            return self._logprobs(self._policy, samples, of_base=True)
        if self._reference is None:
            raise ValueError(f"no reference is kept for {self._name}")
        return self._logprobs(self._reference, samples)

    def trainer_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi of every response token under the weights that are trained, (L,) for each sample."""
        return self._logprobs(self._policy, samples)

    def kill(self) -> None:
        for group in (self._policy, self._reference):
            for handle in group._actor_handlers if group is not None else ():
                ray.kill(handle)

    @property
    def _name(self) -> str:
        return f"policy {self.placed.policy}"

    def _group(self, kind: Any, count: int, reserved: PlacementGroup) -> Any:
        """Raises BackendError where the first process, whose address the others need, does not start."""
        try:
            group = RayActorGroup(1, count, kind, pg=reserved, num_gpus_per_actor=self.placed.trainer_share)
        except RayError as error:
            raise BackendError(f"starting the trainers of {self._name} failed: {reason(error)}") from error
        role = "trainer" if kind is PolicyModelActor else "reference"
        for rank, handle in enumerate(group._actor_handlers):
            named(handle, f"{role} {rank} of {self._name}")
        return group

    def _minibatches(self, samples: Sequence[TrainSample], draw: np.random.Generator) -> Iterator[list[TrainSample]]:
        """Those of all optimizer steps; one in which no sample weighs is left out."""
        size = self.config.train.ppo_mini_batch_size or len(samples)
        for _ in range(self.config.train.ppo_epochs):
            shuffled = [samples[place] for place in draw.permutation(len(samples))]
            for begin in range(0, len(shuffled), size):
                minibatch = shuffled[begin : begin + size]
                if any(map(weighs, minibatch)):
                    yield minibatch

    def _step(self, minibatch: Sequence[TrainSample]) -> tuple[list[RankStep], int]:
        """Each rank's part of an optimizer step, and the number of micro-batches without a sample. A sample without
        weight has no gradient and is not run; it counts in the mean."""
        tokens = float(sum(sample.mask_L.sum() for sample in minibatch))
        divisor = len(minibatch) if self._loss == "policy_gradient" else tokens
        weighing = [sample for sample in minibatch if weighs(sample)]
        shares = self._share_out(weighing)
        ranks = [
            RankStep(tuple(tuple(weighing[place] for place in batch) for batch in rank), divisor)
            for rank in shares.ranks
        ]
        return ranks, shares.padding

    def _share_out(self, samples: Sequence[TrainSample]) -> Shares:
        budget = self.config.openrlhf.micro_batch_tokens
        return share_out([sample.length for sample in samples], self.placed.trainers, budget)

    def _logprobs(self, group: Any, samples: Sequence[TrainSample], of_base: bool = False) -> list[NDArray[np.float32]]:
        shares = self._share_out(samples)
        batches = [[tuple(samples[place] for place in batch) for batch in rank] for rank in shares.ranks]
        references = [
            handle.__ray_call__.remote(remote.logprobs, batch, of_base)
            for handle, batch in zip(group._actor_handlers, batches, strict=True)
        ]
        limit = self.config.openrlhf.answer_timeout_s
        replies = answers(references, f"log-probabilities of {self._name}", limit)
        places = [place for rank in shares.ranks for batch in rank for place in batch]
        found = dict(zip(places, itertools.chain.from_iterable(replies), strict=True))
        return [found[place] for place in range(len(samples))]

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        return [handle.__ray_call__.remote(function, *arguments) for handle in self._policy._actor_handlers]
