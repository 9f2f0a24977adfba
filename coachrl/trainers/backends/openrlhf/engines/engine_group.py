"""One policy's vLLM engines: started, put to sleep, woken, and replaced where they die."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from coachrl.config import RunConfig
from coachrl.seeding import derive_seed
from coachrl.trainers.backends.openrlhf.bindings import RolloutRayActor
from coachrl.trainers.backends.openrlhf.cluster.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import DEATHS, named
from coachrl.trainers.backends.openrlhf.cluster.seats import Seat
from coachrl.trainers.backends.openrlhf.engines.buckets import RECEIVER, WHOLE_RECEIVER
from coachrl.trainers.backends.openrlhf.engines.listener import Listening
from coachrl.trainers.backends.openrlhf.engines.sockets import place_of_sockets
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet
from coachrl.trainers.backends.openrlhf.training.remote import has_failed


@ray.remote
class Engine(Listening, RolloutRayActor.__ray_metadata__.modified_class):
    """OpenRLHF's actor, asked over connections."""

    async def __init__(self, **arguments: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        self._sockets = place_of_sockets()
        await super().__init__(**arguments)


class EngineGroup:
    """The engines of one policy, each an `Engine`.

    `handles` are Ray's; `awake` says whether they hold their weights and cache in GPU memory, `lacks_weights` whether
    they threw their weights away and have not been sent new ones.
    """

    def __init__(
        self,
        placed: PolicyPlacement,
        config: RunConfig,
        seats: Sequence[Seat],
        max_length: int,
    ) -> None:
        """seats: one for each engine."""
        self.placed, self.awake, self.lacks_weights = placed, True, False
        # Nobody could send weights to the engines of a policy that is not trained.
        self._level = config.openrlhf.sleep_level if placed.trainers else 1
        self._config, self._seats, self._max_length = config, seats, max_length
        self.handles: list[Any] = []
        self.replaced = 0

    def start(self, model: Path) -> None:
        """Start every engine with the weights in `model`."""
        self.handles = [self._engine(index, model) for index in range(self.placed.engines)]
        self.awake = True

    def dead(self) -> list[int]:
        """Places of the engines that died, or have not answered for a minute."""
        states = [handle.__ray_call__.remote(has_failed) for handle in self.handles]
        return [index for index, state in enumerate(states) if _is_dead(state)]

    def replace_dead(self, model: Path) -> list[int]:
        """Start engines anew that died, with the weights in `model`, and awake; their places."""
        dead = self.dead()
        for index in dead:
            ray.kill(self.handles[index])
            self.handles[index] = self._engine(index, model)
        self.replaced += 1
        return dead

    def loaded(self) -> list[Any]:
        """References that are answered once each engine can generate."""
        return [handle.get_num_unfinished_requests.remote() for handle in self.handles]

    @property
    def engines(self) -> EngineSet:
        """The engines as they are now, to be asked."""
        return EngineSet(tuple(self.handles), self.replaced)

    def sleep(self) -> list[Any]:
        """Cache away, and weights too or to main memory (`openrlhf.sleep_level`). References to wait for."""
        self.awake, self.lacks_weights = False, self._level == 2
        return self.follow_to_sleep(range(len(self.handles)))

    def follow_to_sleep(self, places: Iterable[int]) -> list[Any]:
        """The same for engines that started while the others slept."""
        return [self.handles[place].sleep.remote(level=self._level) for place in places]

    def wake(self, *parts: str) -> list[Any]:
        """Back into GPU memory: "weights", "kv_cache", or both where none is named. References to wait for. Raises
        ValueError where it would let engines generate whose weights are missing: `have_weights` comes before."""
        if self.lacks_weights and parts != ("weights",):
            raise ValueError(f"engines of policy {self.placed.policy} threw their weights away and were sent none")
        self.awake = self.awake or not parts or "kv_cache" in parts
        return [handle.wake_up.remote(tags=list(parts) or None) for handle in self.handles]

    def have_weights(self) -> None:
        """New weights were sent to all of them."""
        self.lacks_weights = False

    def kill(self) -> None:
        for handle in self.handles:
            ray.kill(handle)
        self.handles = []

    def _engine(self, index: int, model: Path) -> Any:
        """OpenRLHF's own factory asks 0.2 GPU for each colocated engine, which more than a few policies exceed."""
        placed, given = self.placed, self._config.openrlhf
        seat, wide = self._seats[index], placed.tensor_parallel > 1
        arguments: dict[str, Any] = {
            "model": str(model),
            "worker_extension_cls": WHOLE_RECEIVER if self._level == 2 else RECEIVER,
            "tensor_parallel_size": placed.tensor_parallel,
            "distributed_executor_backend": "ray" if wide else "uni",
            "bundle_indices": list(seat.bundles) if wide else None,
            "num_gpus": placed.engine_share,
            "seed": derive_seed(self._config.seed, "engine", placed.policy, index) % 2**31,
            "max_model_len": self._max_length,
            "dtype": "bfloat16",
            "gpu_memory_utilization": placed.memory_fraction,
            "max_num_seqs": given.max_num_seqs,
            "max_num_batched_tokens": given.max_num_batched_tokens,
            "enable_prefix_caching": given.prefix_caching,
            "enable_sleep_mode": given.sleeps,
            "logprobs_mode": "processed_logprobs",  # of the distribution that is drawn from
            "max_logprobs": 1,
            "full_determinism": False,
            **given.engine_args,
        }
        share = 0.0 if wide else placed.engine_share  # a wide engine's workers claim their GPUs themselves
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=seat.group,
            placement_group_capture_child_tasks=True,
            placement_group_bundle_index=seat.bundles[0],
        )
        options = {"num_cpus": share, "num_gpus": share, "scheduling_strategy": strategy}
        engine = Engine.options(**options).remote(**arguments)
        return named(engine, f"engine {index} of policy {placed.policy}")


def _is_dead(state: Any) -> bool:
    try:
        return bool(ray.get(state, timeout=60))
    except (*DEATHS, GetTimeoutError):
        return True
