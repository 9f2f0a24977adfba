"""DeepSpeed processes that hold one model together: OpenRLHF's actor groups, of trainers and of references."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.errors import BackendError
from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.bindings import PolicyModelActor, RayActorGroup, get_strategy
from coachrl.trainers.backends.openrlhf.cluster.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers, named, reason
from coachrl.trainers.backends.openrlhf.rollout.balance import Shares, share_out
from coachrl.trainers.backends.openrlhf.training import remote
from coachrl.types import TrainSample


class Ranks:
    """DeepSpeed processes that hold one model together, one a GPU. whose: in messages, for example "policy solver"."""

    def __init__(
        self, kind: Any, count: int, placed: PolicyPlacement, config: RunConfig, reserved: PlacementGroup, whose: str
    ) -> None:
        """Raises BackendError where the first process, whose address the others need, does not start."""
        self.placed, self.config, self._lock = placed, config, threading.Lock()
        role = "trainer" if kind is PolicyModelActor else "reference"
        try:
            self.group = RayActorGroup(1, count, kind, pg=reserved, num_gpus_per_actor=placed.trainer_share)
        except RayError as error:
            raise BackendError(f"starting the {role}s of {whose} failed: {reason(error)}") from error
        for rank, handle in enumerate(self.handles):
            named(handle, f"{role} {rank} of {whose}")

    @property
    def handles(self) -> list[Any]:
        return list(self.group._actor_handlers)

    def load_model(self, model: Path, *arguments: Any) -> list[Any]:
        """Load the weights of `model`, ready for `logprobs`. Ray's references, to wait for."""
        strategy = get_strategy(openrlhf_arguments(self.config, self.placed))
        loading = self.group.async_init_model_from_pretrained(strategy, str(model), *arguments)
        return loading + self.call(remote.use_response_logprobs, self.config.sampling.temperature)

    def call(self, function: Any, *arguments: Any) -> list[Any]:
        """The same on every rank."""
        return self.call_each(function, [arguments] * len(self.handles))

    def call_each(self, function: Any, of_ranks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """With arguments for each rank. Ranks gather weights together, so calls of several threads reach all of them
        in one order."""
        with self._lock:
            return [
                handle.__ray_call__.remote(function, *arguments)
                for handle, arguments in zip(self.handles, of_ranks, strict=True)
            ]

    def share_out(self, samples: Sequence[TrainSample]) -> Shares:
        budget = self.config.openrlhf.micro_batch_tokens
        return share_out([sample.length for sample in samples], len(self.handles), budget)

    def logprobs(self, samples: Sequence[TrainSample], policy: str, of_base: bool = False) -> list[NDArray[np.float32]]:
        """Natural log-probabilities of every response token, (L,) for each sample of one policy. They run by
        themselves, so that its figures do not hang on who else asks; of threads that ask at once one comes after
        another. of_base: of the model without its adapter."""
        shares = self.share_out(samples)
        references = self.call_each(remote.logprobs, [(batches, of_base) for batches in shares.of(samples)])
        limit = self.config.openrlhf.answer_timeout_s
        replies = answers(references, f"log-probabilities of policy {policy}", limit)
        places = [place for rank in shares.ranks for batch in rank for place in batch]
        found = dict(zip(places, itertools.chain.from_iterable(replies), strict=True))
        return [found[place] for place in range(len(samples))]

    def kill(self) -> None:
        for handle in self.handles:
            ray.kill(handle)
