"""The DeepSpeed processes that train one policy: what they are asked for, and in which steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.trainers.backends.openrlhf.bindings import PolicyModelActor
from coachrl.trainers.backends.openrlhf.cluster.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.training import remote, weight_transfer
from coachrl.trainers.backends.openrlhf.training.ranks import Ranks
from coachrl.trainers.backends.openrlhf.training.steps import RankStep, train_policy
from coachrl.trainers.backends.torch.loss import Loss, optimizer_steps
from coachrl.types import TrainSample

BUCKET_BYTES = 2**29  # of weights that go to the engines in one message


class TrainerGroup(Ranks):
    """Trains one policy. references: they know its initial weights, where such are kept.

    The methods that start something give Ray's references, so that all policies can work at once.
    """

    def __init__(
        self,
        placed: PolicyPlacement,
        config: RunConfig,
        reserved: PlacementGroup,
        loss: Loss,
        references: Ranks | None = None,
    ) -> None:
        super().__init__(PolicyModelActor, placed.trainers, placed, config, reserved, f"policy {placed.policy}")
        self.references, self._loss = references, loss

    def start(self, model: Path, engines: list[Any]) -> list[Any]:
        """Load the weights of `model` everywhere, and join the engines that they will be sent to."""
        return self.load_model(model, 1, engines)

    def train(self, samples: Sequence[TrainSample], seed: int, learning_rate: float) -> tuple[list[Any], int]:
        """Train on samples: references that give the statistics of all ranks together, and how many micro-batches hold
        no sample. seed: of the order in which samples make optimizer steps; a resumed run takes the same."""
        steps: list[list[RankStep]] = []
        padding = 0
        shuffled = np.random.default_rng(seed).permutation
        longest = self.config.pipeline.max_new_tokens
        for weighing, divisor in optimizer_steps(samples, self.config.train, self._loss, shuffled, longest):
            shares = self.share_out(weighing)
            steps.append([RankStep(batches, divisor) for batches in shares.of(weighing)])
            padding += shares.padding
        alike = (self._loss, self.config.train.clip_ranges, learning_rate)
        return self.call_each(train_policy, [(of_rank, *alike) for of_rank in zip(*steps, strict=True)]), padding

    def send_weights(self) -> list[Any]:
        return self.call(weight_transfer.send_weights, BUCKET_BYTES)

    def attach_engines(self, engines: list[Any]) -> list[Any]:
        """Send weights to `engines` from now on."""
        return self.call(remote.attach_engines, engines)

    def load_optimizer(self) -> list[Any]:
        """The optimizer's state into GPU memory (see `OpenRLHFConfig.sleeps`)."""
        return self.group.async_run_method("reload_states")

    def unload_optimizer(self) -> list[Any]:
        return self.group.async_run_method("offload_states")

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
            return self.logprobs(samples, self.placed.policy, of_base=True)
        if self.references is None:
            raise ValueError(f"no reference is kept for policy {self.placed.policy}")
        return self.references.logprobs(samples, self.placed.policy)

    def trainer_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi of every response token under the weights that are trained, (L,) for each sample."""
        return self.logprobs(samples, self.placed.policy)
