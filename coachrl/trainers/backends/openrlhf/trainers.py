"""The DeepSpeed processes that train one policy: what they are asked for, and in which steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.trainers.backends.base import weighs
from coachrl.trainers.backends.openrlhf import handover, remote
from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.bindings import PolicyModelActor, get_strategy
from coachrl.trainers.backends.openrlhf.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.ranks import Ranks, ReferenceGroup
from coachrl.trainers.backends.openrlhf.steps import RankStep, train_policy
from coachrl.trainers.backends.torch.loss import Loss
from coachrl.types import TrainSample

BUCKET_BYTES = 2**29  # of weights that go to the engines in one message


class TrainerGroup:
    """Trains one policy. references: they know its initial weights, where such are kept.

    The methods that start something give Ray's references, so that all policies can work at once.
    """

    def __init__(
        self,
        placed: PolicyPlacement,
        config: RunConfig,
        reserved: PlacementGroup,
        model: Path,
        loss: Loss,
        references: ReferenceGroup | None = None,
    ) -> None:
        self.placed, self.config, self.model, self.references = placed, config, model, references
        self._loss = loss
        self._strategy = get_strategy(openrlhf_arguments(config, placed))
        self._ranks = Ranks(PolicyModelActor, placed.trainers, placed, config, reserved, f"policy {placed.policy}")

    def start(self, engines: list[Any]) -> list[Any]:
        """Load the weights everywhere, and join the engines that they will be sent to."""
        return self._ranks.load(self._strategy, self.model, 1, engines)

    def train(self, samples: Sequence[TrainSample], seed: int) -> tuple[list[Any], int]:
        """Train on samples: references that give the statistics of all ranks together, and how many micro-batches hold
        no sample. seed: of the order in which samples make optimizer steps; a resumed run takes the same."""
        steps = [self._step(minibatch) for minibatch in self._minibatches(samples, np.random.default_rng(seed))]
        ranks = zip(*(ranks for ranks, _ in steps), strict=True)
        clip = self.config.train.clip_range
        running = self._ranks.call_each(train_policy, [(rank, self._loss, clip) for rank in ranks])
        return running, sum(padding for _, padding in steps)

    def send_weights(self) -> list[Any]:
        return self.call(handover.send_weights, BUCKET_BYTES)

    def attach_engines(self, engines: list[Any]) -> list[Any]:
        """Send weights to `engines` from now on."""
        return self.call(remote.attach_engines, engines)

    def load_optimizer(self) -> list[Any]:
        """The optimizer's state into GPU memory (see `OpenRLHFConfig.sleeps`)."""
        return self._ranks.group.async_run_method("reload_states")

    def unload_optimizer(self) -> list[Any]:
        return self._ranks.group.async_run_method("offload_states")

    def save(self, folder: Path) -> list[Any]:
        return self.call(remote.save_policy, str(folder.resolve()))

    def load(self, folder: Path, scratch: Path | None = None) -> list[Any]:
        """Each reference tells whether DeepSpeed found its state there. scratch: where it is converted, if another
        number of trainers wrote it."""
        return self.call(remote.load_policy, str(folder.resolve()), str(scratch.resolve()) if scratch else None)

    def reference_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi_ref of every response token, (L,) for each sample. Of a policy that trains an adapter it is the model
        without it: no second one is in memory."""
        if self.config.torch.lora_rank is not None:
            return self._ranks.logprobs(samples, self.placed.policy, of_base=True)
        if self.references is None:
            raise ValueError(f"no reference is kept for policy {self.placed.policy}")
        return self.references.logprobs(samples, self.placed.policy)

    def trainer_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi of every response token under the weights that are trained, (L,) for each sample."""
        return self._ranks.logprobs(samples, self.placed.policy)

    @property
    def handles(self) -> list[Any]:
        """Ray's, of its trainers by rank."""
        return self._ranks.handles

    def call(self, function: Any, *arguments: Any) -> list[Any]:
        """`function` of each trainer's actor."""
        return self._ranks.call(function, *arguments)

    def kill(self) -> None:
        self._ranks.kill()

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
        shares = self._ranks.share_out(weighing)
        ranks = [
            RankStep(tuple(tuple(weighing[place] for place in batch) for batch in rank), divisor)
            for rank in shares.ranks
        ]
        return ranks, shares.padding
