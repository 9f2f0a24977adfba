"""One policy's DeepSpeed processes: an OpenRLHF actor group that trains, and one that holds the initial weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.errors import BackendError
from coachrl.trainers.backends.openrlhf import remote
from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.balance import Shares, share_out
from coachrl.trainers.backends.openrlhf.bindings import (
    PolicyModelActor,
    RayActorGroup,
    ReferenceModelActor,
    get_strategy,
)
from coachrl.trainers.backends.openrlhf.cluster import answers, reason
from coachrl.trainers.backends.openrlhf.experiences import experience, forward_batch, response_logprobs
from coachrl.trainers.backends.openrlhf.placement import PolicyPlacement
from coachrl.types import TrainSample

_COMPARED_SAMPLES = 16  # of each rank: their log-probabilities are computed again, to see that both sides agree


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
        loss: Literal["ppo", "magrpo"],
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
        return loading

    def hand_over(self, samples: Sequence[TrainSample], seed: int) -> Shares:
        """Put samples into the trainers' buffers, balanced by tokens, and prepare the optimizer steps over them."""
        shares = self._share_out(samples, self.config.train.ppo_mini_batch_size)
        ordered = [place for rank in shares.ranks for place in rank]
        batch = [experience(None if place is None else samples[place]) for place in ordered]
        answers(self._policy.async_run_method_batch("append", experience=batch), f"handing samples to {self._name}")
        per_step = shares.per_step * self.placed.trainers
        answers(self._call(remote.prepare_update, shares.steps, per_step, seed), f"preparing to train {self._name}")
        if self._loss == "magrpo":
            answers(self._call(remote.use_mean_likelihood), f"setting the loss of {self._name}")
        return shares

    def fit(self) -> list[Any]:
        """Train on what was handed over. Each reference gives the statistics of all ranks together."""
        return self._policy.async_run_method("fit", kl_ctl=0.0)

    def send_weights(self) -> list[Any]:
        return self._policy.async_run_method("broadcast_to_vllm")

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

    def load(self, folder: Path) -> list[Any]:
        """Each reference tells whether DeepSpeed found its state there."""
        return self._call(remote.load_policy, str(folder.resolve()))

    def reference_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi_ref of every response token, (L,) for each sample."""
        if self._reference is None:
            raise ValueError(f"no reference is kept for {self._name}")
        return self._logprobs(self._reference, samples)

    def trainer_logprobs(self, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        """log pi of every response token under the weights that are trained, (L,) for each sample."""
        return self._logprobs(self._policy, samples)

    def sampler_gap(self, samples: Sequence[TrainSample]) -> float:
        """Mean over response tokens of |log pi_trainer - log pi_sampler|, on samples of every length."""
        by_length = sorted(samples, key=_tokens)
        stride = max(1, len(samples) // (_COMPARED_SAMPLES * self.placed.trainers))
        chosen = by_length[::stride]
        gaps = [
            np.abs(ours - sample.old_logprobs_L)
            for ours, sample in zip(self._logprobs(self._policy, chosen), chosen, strict=True)
        ]
        return float(np.concatenate(gaps).mean())

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
            return RayActorGroup(1, count, kind, pg=reserved, num_gpus_per_actor=self.placed.trainer_share)
        except RayError as error:
            raise BackendError(f"starting the trainers of {self._name} failed: {reason(error)}") from error

    def _share_out(self, samples: Sequence[TrainSample], minibatch: int | None) -> Shares:
        micro = self.config.openrlhf.micro_batch_size
        return share_out([_tokens(sample) for sample in samples], self.placed.trainers, micro, minibatch)

    def _logprobs(self, group: Any, samples: Sequence[TrainSample]) -> list[NDArray[np.float32]]:
        shares, micro = self._share_out(samples, None), self.config.openrlhf.micro_batch_size
        places = [rank[i : i + micro] for rank in shares.ranks for i in range(0, len(rank), micro)]
        batches = [forward_batch([None if p is None else samples[p] for p in batch]) for batch in places]
        arguments = {key: [batch[key] for batch in batches] for key in batches[0]}
        replies = answers(group.async_run_method_batch("forward", **arguments), f"log-probabilities of {self._name}")
        # What a process keeps in its own cache is missing when the engines beside it wake.
        answers(group.async_run_method("empty_cache"), f"emptying caches of {self._name}")
        found: dict[int, NDArray[np.float32]] = {}
        for batch, rows in zip(places, itertools.chain.from_iterable(replies), strict=True):
            for place, row in zip(batch, rows, strict=True):
                if place is not None:
                    found[place] = response_logprobs(samples[place], row)
        return [found[place] for place in range(len(samples))]

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        return [handle.__ray_call__.remote(function, *arguments) for handle in self._policy._actor_handlers]


def _tokens(sample: TrainSample) -> int:
    return len(sample.prompt_ids_P) + len(sample.response_ids_L)
