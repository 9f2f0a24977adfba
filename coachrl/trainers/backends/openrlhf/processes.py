"""The processes of the distributed backend: engines, trainers and references, on the GPUs that the run has reserved.
They are started, replaced and ended here, and take turns in GPU memory."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from coachrl.config import RunConfig
from coachrl.errors import BackendError, EngineLost
from coachrl.trainers.backends.openrlhf.bindings import ReferenceModelActor
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement, PolicyPlacement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers, connect, in_time, release
from coachrl.trainers.backends.openrlhf.cluster.seats import take_seats
from coachrl.trainers.backends.openrlhf.cluster.watch import ClusterWatch
from coachrl.trainers.backends.openrlhf.engines.engine_group import EngineGroup
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet
from coachrl.trainers.backends.openrlhf.training.ranks import Ranks
from coachrl.trainers.backends.openrlhf.training.trainers import TrainerGroup
from coachrl.trainers.backends.torch.loss import Loss
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer

log = logging.getLogger(__name__)


class Processes:
    """Those of one run, and the cluster that they are in.

    Attributes:
        engines: by policy.
        trainers: by policy; of those that are trained alone.
        references: by the policy beside whose trainers they sit.
        watch: sees whether the cluster is still there.
    """

    def __init__(
        self, config: RunConfig, placement: Placement, tokenizers: Mapping[str, ChatTokenizer], loss: Loss
    ) -> None:
        """Join the cluster, or start one: nothing runs in it yet. Raises BackendError where none answers."""
        self._config, self._placement, self._tokenizers, self._loss = config, placement, tokenizers, loss
        self._limit_s = config.openrlhf.answer_timeout_s
        self.engines: dict[str, EngineGroup] = {}
        self.trainers: dict[str, TrainerGroup] = {}
        self.references: dict[str, Ranks] = {}
        self._replaced: dict[str, int] = {}  # policy -> number of updates when its engines were last replaced
        self._reserved: list[PlacementGroup] = []
        self._connected = connect(config.openrlhf.ray_address)
        self.watch = ClusterWatch(ray.get_runtime_context().gcs_address)

    def start(self, draw_from: Callable[[str, EngineSet], None]) -> None:
        """Reserve GPUs, start engines, then trainers. Engines that share a GPU start one policy after another: each
        measures the memory that it finds free. They are asleep before trainers come. draw_from: is told each policy's
        engines. Raises BackendError where something does not start."""
        began, limit = time.monotonic(), self._config.openrlhf.start_timeout_s
        seats, self._reserved = take_seats(self._placement, limit)
        for placed in self._placement.policies:
            tokenizer = self._tokenizers[placed.policy]
            pool = EngineGroup(placed, self._config, seats[placed.policy].engines, tokenizer.context_length)
            self.engines[placed.policy] = pool
            pool.start(tokenizer.folder)
            draw_from(placed.policy, pool.engines)
            if self._placement.crowd > 1:
                self._settle(pool, in_time(began, limit))
        for pool in self.engines.values():
            if self._placement.colocated and self._placement.crowd == 1:
                self._settle(pool, in_time(began, limit))
        # An engine that fails must end the wait of the trainers that want to join it: all are waited for together.
        references = [ref for pool in self.engines.values() for ref in pool.loaded()]
        for placed in self._placement.policies:
            if placed.trainers:
                name = placed.policy
                references += self._start_trainers(placed, seats[name].trainers)
                if self._config.openrlhf.sleeps:  # optimizers come into GPU memory, and leave it again
                    answers(references, f"starting the trainers of policy {name}", in_time(began, limit))
                    references = []
        answers(references, "starting engines and trainers", in_time(began, limit))

    def _start_trainers(self, placed: PolicyPlacement, reserved: PlacementGroup) -> list[Any]:
        """A policy's trainers, and the references beside them. Ray's references, to wait for."""
        name, model, starting = placed.policy, self._tokenizers[placed.policy].folder, list[Any]()
        if placed.references:
            asking = [other.policy for other in self._placement.policies if other.reference_of == name]
            whose = f"policy {', '.join(asking)}"
            kept = Ranks(ReferenceModelActor, placed.references, placed, self._config, reserved, whose)
            self.references[name] = kept
            starting += kept.load_model(model)
        known = self.references.get(placed.reference_of or "")
        self.trainers[name] = TrainerGroup(placed, self._config, reserved, self._loss, known)
        return starting + self.trainers[name].start(model, self.engines[name].handles)

    def _settle(self, pool: EngineGroup, timeout_s: float) -> None:
        """Wait until engines have started, and put them to sleep where they take turns."""
        answers(pool.loaded(), f"starting the engines of policy {pool.placed.policy}", timeout_s)
        if self._config.openrlhf.sleeps:
            answers(pool.sleep(), f"engines of policy {pool.placed.policy} going to sleep", timeout_s)

    def replace_engines(self, policy: str, why: str, updates: int) -> None:
        """Start a policy's dead engines again, once between two updates: with its initial weights, and asleep where the
        others are. updates: how many there were. Raises EngineLost, and ClusterLost where the cluster is gone."""
        if self._replaced.get(policy) == updates:
            raise EngineLost(f"an engine of policy {policy} died for the second time in one step: {why}")
        self._replaced[policy] = updates
        pool, trainer = self.engines[policy], self.trainers.get(policy)
        self.watch.wait()
        try:
            places = pool.replace_dead(self._tokenizers[policy].folder)
            log.warning("%d of the engines of policy %s died and were started again (%s)", len(places), policy, why)
            joining = trainer.attach_engines(pool.handles) if trainer is not None else []
            limit = self._config.openrlhf.start_timeout_s
            answers([*pool.loaded(), *joining], f"starting the engines of policy {policy} again", limit)
            if not pool.awake:
                answers(pool.follow_to_sleep(places), f"engines of policy {policy} going to sleep", limit)
        except BackendError as failure:
            raise EngineLost(f"an engine of policy {policy} died and could not be replaced: {failure}") from failure

    def end(self) -> None:
        """End all of them, give the GPUs back, and leave the cluster where it was joined here."""
        groups = (self.engines, self.trainers, self.references)
        for kill in [group.kill for of_policies in groups for group in of_policies.values()]:
            kill()
        self.engines, self.trainers, self.references = {}, {}, {}
        release(self._reserved)
        self._reserved = []
        if self._connected:
            ray.shutdown()

    def send_weights(self, policies: set[str]) -> None:
        """Engines that sleep are woken for it, their weights first: room for the cache is there once trainers are
        done."""
        if not policies:
            return
        asleep = [self.engines[policy] for policy in policies if not self.engines[policy].awake]
        limit = self._config.openrlhf.start_timeout_s
        waking = [ref for pool in asleep for ref in pool.wake("weights")]
        answers(waking, "waking the engines for new weights", limit)
        references = [ref for policy in policies for ref in self.trainers[policy].send_weights()]
        answers(references, "sending weights to the engines", limit)
        for policy in policies:
            self.engines[policy].have_weights()
        waking = [ref for pool in asleep for ref in pool.wake("kv_cache")]
        answers(waking, "waking the engines", limit)

    def without_weights(self) -> set[str]:
        """Policies whose engines threw their weights away."""
        return {policy for policy, pool in self.engines.items() if pool.lacks_weights}

    def rest_engines(self) -> None:
        """Put engines to sleep, where they take turns with the trainers."""
        if self._config.openrlhf.sleeps:
            awake = [pool for pool in self.engines.values() if pool.awake]
            answers([ref for pool in awake for ref in pool.sleep()], "engines going to sleep", self._limit_s)

    def wake_engines(self) -> None:
        """Those that threw their weights away are sent the trainers' first, whatever they slept for: an update, or a
        step in which their policy was not trained, a checkpoint that was loaded, the start of the run."""
        self.send_weights(self.without_weights())
        asleep = [pool for pool in self.engines.values() if not pool.awake]
        if asleep:
            answers([ref for pool in asleep for ref in pool.wake()], "waking the engines", self._limit_s)

    def taking_turns(self, policies: Iterable[str]) -> list[list[str]]:
        """Policies whose optimizers are in GPU memory at once: one after another where they take turns in it."""
        return [[policy] for policy in policies] if self._config.openrlhf.sleeps else [list(policies)]

    def move_optimizers(self, move: str, policies: Iterable[str]) -> None:
        """`load_optimizer` or `unload_optimizer` of these policies, where they take turns at all."""
        if self._config.openrlhf.sleeps:
            moving = [ref for policy in policies for ref in getattr(self.trainers[policy], move)()]
            answers(moving, "moving optimizers", self._limit_s)
