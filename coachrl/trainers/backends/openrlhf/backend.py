"""The distributed backend: `Backend` on vLLM engines and DeepSpeed trainers, in a Ray cluster.

Requests of all episodes are in flight at once and vLLM batches them; nothing here waits for an episode to catch up.
Where policies share GPUs and take turns in their memory (`sleeps`), the order is: generate with engines awake; put
them to sleep for log-probabilities and training, one policy after another; wake them to receive the new weights.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import numpy as np
import ray
from numpy.typing import NDArray

from coachrl.config import RunConfig
from coachrl.errors import BackendError, CheckpointError, ClusterLost, ConfigError, EngineLost, ProcessLost
from coachrl.pipelines.team.threads import in_a_thread
from coachrl.seeding import derive_seed, generator
from coachrl.trainers.backends.base import Samples, require_finite, weighs, with_logprobs
from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers, free_resources
from coachrl.trainers.backends.openrlhf.cluster.seats import check_machines
from coachrl.trainers.backends.openrlhf.processes import Processes
from coachrl.trainers.backends.openrlhf.rollout.sampler import EngineSet, Sampler
from coachrl.trainers.backends.openrlhf.training import flash_attention
from coachrl.trainers.backends.openrlhf.training.saved_state import SavedState
from coachrl.trainers.backends.openrlhf.training.trainers import TrainerGroup
from coachrl.trainers.backends.torch.loss import Loss
from coachrl.trainers.backends.torch.models.sources import check_brings_no_code, copy_tokenizer
from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer
from coachrl.trainers.backends.torch.policy import reference_kl
from coachrl.trainers.backends.torch.saved_state import saved_version
from coachrl.types import Generation, SamplingParams, TrainSample


class OpenRLHFBackend:
    """Every policy has its own engines, trainers and, where `keep_reference` is set, frozen initial weights: a process
    of their own, or the model under the adapter that is trained.

    tokenizers: by policy, with the context length that the run allows. processes: all that runs, on the GPUs that
    `placement` gives each.
    """

    def __init__(
        self,
        models: Mapping[str, str | Path],
        config: RunConfig,
        trainable: Mapping[str, bool] | None = None,
        loss: Loss = "ppo",
        keep_reference: bool = False,
        wait_for_gpus: bool = False,
    ) -> None:
        """models, trainable and keep_reference: as for `TorchBackend`. wait_for_gpus: those that are not free yet, for
        as long as the start may take; else they are missed at once.

        Raises PackageMissing where the attention needs flash-attn, which is not installed, PolicyError for models,
        ConfigError where the placement does not fit the cluster, and BackendError where something does not start;
        nothing is left running then."""
        flash_attention.require_flash_attn(config.openrlhf.attention)
        self.config, self._keeps_reference = config, keep_reference
        self.tokenizers = {policy: ChatTokenizer(model) for policy, model in models.items()}
        for tokenizer in self.tokenizers.values():
            check_brings_no_code(tokenizer.folder)
        self._limit_context()
        self._limit_s = config.openrlhf.answer_timeout_s
        self._sampler = Sampler(self.tokenizers, self.mend, generator(config.seed, "engines"), self._limit_s)
        trained = {policy: trainable is None or trainable.get(policy, True) for policy in models}
        self.placement = plan_placement(
            config.openrlhf,
            trained,
            keep_reference,
            config.rollout.processes,
            adapters=config.torch.lora_rank is not None,
            models=models,
        )
        self._updates = 0
        self._changed: set[str] = set()
        self._mending: dict[str, asyncio.Task[None]] = {}  # policy -> the replacement that is under way
        self.processes = Processes(config, self.placement, self.tokenizers, loss)
        try:
            if not wait_for_gpus:
                self.placement.check(*free_resources())
                check_machines(self.placement)
            self.processes.start(self._sampler.use)
        except BaseException:  # Ctrl-C, too, leaves no actor and no reservation behind
            self.close()
            raise

    def is_lost(self) -> bool:
        """Whether the cluster is gone, once that is known: a head that does not answer is waited for."""
        try:
            self.processes.watch.wait()
        except ClusterLost:
            return True
        return False

    def tokenizer(self, policy: str) -> ChatTokenizer:
        """Raises PolicyError where there is no such policy."""
        return self._sampler.tokenizer(policy)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Nothing to mark: engines take requests as they come."""
        return self._sampler.episode()

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit: nothing is cut. An engine that dies is
        replaced and asked again, once between two updates; after that, EngineLost."""
        self.processes.wake_engines()
        return await self._sampler.generate(policy, prompt_ids, sampling)

    def engines(self) -> tuple[dict[str, EngineSet], int]:
        """Every policy's engines, awake, and the version of their weights: for requests from other processes."""
        self.processes.wake_engines()
        return {policy: pool.engines for policy, pool in self.processes.engines.items()}, self._sampler.weights_version

    async def mend(self, policy: str, replaced: int, why: str) -> EngineSet:
        """The engines of a policy, once dead ones are replaced. replaced: of the set in which one was found dead; where
        it has been replaced since, nothing is done. Raises EngineLost at the second time between two updates, and
        ClusterLost where the cluster is gone. An engine takes a minute or two to start: other episodes go on, and an
        episode that gives up waiting does not end what others wait for."""
        if policy not in self._mending and self.processes.engines[policy].replaced == replaced:
            mending = asyncio.create_task(in_a_thread(partial(self._mend_now, policy, why), "ray"))
            mending.add_done_callback(lambda _: self._mending.pop(policy))
            self._mending[policy] = mending
        if policy in self._mending:
            await asyncio.shield(self._mending[policy])
        return self.processes.engines[policy].engines

    def _mend_now(self, policy: str, why: str) -> None:
        try:
            self.processes.replace_engines(policy, why, self._updates)
            if policy in self.processes.trainers:
                self.processes.send_weights({policy})
        except BackendError as failure:
            self.processes.watch.wait()
            if isinstance(failure, EngineLost):
                raise
            raise EngineLost(f"new weights for the engines of policy {policy}: {failure}") from failure

    def with_reference(self, samples: Samples) -> Samples:
        """The same samples with `ref_logprobs_L` filled (None where no reference is kept)."""
        if not self._keeps_reference:
            return samples
        self.processes.rest_engines()
        return with_logprobs(samples, "ref_logprobs_L", partial(self._logprobs, TrainerGroup.reference_logprobs))

    def with_trainer_logprobs(self, samples: Samples) -> Samples:
        """The same samples with `trainer_logprobs_L` filled; the sampler's for a policy that is not trained."""
        self.processes.rest_engines()
        return with_logprobs(samples, "trainer_logprobs_L", partial(self._logprobs, TrainerGroup.trainer_logprobs))

    def update(self, samples: Samples, learning_rate: float | None = None) -> dict[str, float]:
        """Train all policies at once, or in turn where they take turns in GPU memory. Statistics, for each policy:
        loss, approx_kl, clip_fraction, entropy, grad_norm, learning_rate, tokens, sampler_trainer_logprob_gap (in the
        first optimizer step), ref_kl, padding (micro-batches without a sample, run so that all ranks run as many).

        Samples of zero mask carry no weight and are not sent. Raises BackendError where a gradient, a weight or one of
        these figures is not finite, before a step is taken wherever that shows before."""
        batches = {
            policy: [sample for sample in group if sample.mask_L.any()]
            for policy, group in samples.items()
            if self.tokenizer(policy) and policy in self.processes.trainers
        }
        batches = {policy: group for policy, group in batches.items() if any(map(weighs, group))}
        self.processes.rest_engines()
        self._updates += 1
        rate = self.config.train.learning_rate if learning_rate is None else learning_rate
        stats: dict[str, float] = {}
        for together in self.processes.taking_turns(batches):
            stats |= self._train({policy: batches[policy] for policy in together}, rate)
        self._changed |= set(batches)
        return stats

    def sync_weights(self) -> None:
        """Send the trained weights to the engines of every policy that was trained, or whose engines threw theirs away,
        all policies at once. Engines that died meanwhile, of whatever policy, are replaced first: trainers would wait
        for them. Raises EngineLost where that fails."""
        behind = self._changed | self.processes.without_weights()
        for policy, pool in self.processes.engines.items():
            if pool.dead():
                self.processes.replace_engines(policy, "it died while policies were trained", self._updates)
                behind |= {policy} & self.processes.trainers.keys()
        self.processes.send_weights(behind)
        self._changed = set()
        self._sampler.weights_version += 1

    def save(self, folder: Path) -> None:
        """What `begin_save` begins, to its end."""
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Write `folder/<policy>/` for every trained policy: a Hugging Face model, or an adapter folder where adapters
        are trained, and beside it DeepSpeed's state. In a cluster of several machines the folder must be on storage
        that they share. Trainers write while engines generate; the function that is returned waits for them."""
        references = [
            ref for policy, trainer in self.processes.trainers.items() for ref in trainer.save(folder / policy)
        ]
        states = {
            p: SavedState(self._sampler.weights_version, self._updates, self._layout(p))
            for p in self.processes.trainers
        }

        def finish() -> None:
            answers(references, "saving the policies", self._limit_s)
            for policy, state in states.items():
                if self.config.torch.lora_rank is None:
                    copy_tokenizer(self.tokenizers[policy].folder, folder / policy)
                state.write(folder / policy)

        return finish

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, with any number of trainers, and generate with it; without trainers the version of
        the weights, which the engines have been started with. Raises CheckpointError, with nothing changed, where it is
        missing or comes from another ZeRO stage or another adapter."""
        if not self.processes.trainers:
            saved = [folder / policy for policy in self.tokenizers if (folder / policy).is_dir()]
            self._sampler.weights_version = max(map(saved_version, saved), default=0)
            return
        states = {p: SavedState.read(p, folder / p, self._layout(p)) for p in self.processes.trainers}
        # Of this process alone: `eval` takes no lock, so that others may load this checkpoint, and the run may tidy up.
        scratch = folder.parent / f".resharded-{folder.name}.{os.getpid()}"
        resharded = {p: scratch / p for p, state in states.items() if state.layout != self._layout(p)}
        self.processes.rest_engines()
        try:
            for together in self.processes.taking_turns(self.processes.trainers):
                self._load(folder, together, resharded)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        for state in states.values():
            self._sampler.weights_version, self._updates = state.weights_version, state.updates
        self.processes.send_weights(set(self.processes.trainers))

    def _load(self, folder: Path, policies: Sequence[str], resharded: Mapping[str, Path]) -> None:
        self.processes.move_optimizers("load_optimizer", policies)
        loading = [self.processes.trainers[policy].load(folder / policy, resharded.get(policy)) for policy in policies]
        references = [ref for of_policy in loading for ref in of_policy]
        try:
            found = answers(references, f"loading policy {', '.join(policies)}", self._limit_s)
        except ProcessLost:
            raise
        except BackendError as error:
            raise CheckpointError(f"checkpoint {folder}: {error}") from error
        if not all(found):
            raise CheckpointError(f"checkpoint {folder}: DeepSpeed's state is missing or cut short")
        self.processes.move_optimizers("unload_optimizer", policies)

    def close(self) -> None:
        """End every process that was started here, and give the GPUs back. Raises ClusterLost, in place of what the
        watch interrupted, where the cluster is gone and nothing is left to be ended."""
        try:
            self.processes.watch.wait()
            if ray.is_initialized():
                self._sampler.close()
                self.processes.end()
        finally:
            self.processes.watch.stop()

    def _limit_context(self) -> None:
        wanted = self.config.openrlhf.max_length
        for policy, tokenizer in self.tokenizers.items():
            if wanted is not None and wanted > tokenizer.context_length:
                raise ConfigError(
                    f"openrlhf.max_length is {wanted}, but the model of policy {policy} takes "
                    f"{tokenizer.context_length} tokens"
                )
            tokenizer.context_length = wanted or tokenizer.context_length

    def _logprobs(
        self,
        of: Callable[[TrainerGroup, Sequence[TrainSample]], list[NDArray[np.float32]]],
        policy: str,
        samples: list[TrainSample],
    ) -> list[NDArray[np.float32]]:
        """By one of a trainer's methods; the sampler's for a policy that is never trained, its own reference."""
        if policy not in self.processes.trainers or not samples:
            return [sample.old_logprobs_L for sample in samples]
        return of(self.processes.trainers[policy], samples)

    def _train(self, batches: Samples, rate: float) -> dict[str, float]:
        """These policies at once."""
        self.processes.move_optimizers("load_optimizer", batches)
        seed = derive_seed(self.config.seed, "order", self._updates)
        trainers = self.processes.trainers
        running = {policy: trainers[policy].train(group, seed, rate) for policy, group in batches.items()}
        stats: dict[str, float] = {}
        for policy, (references, padding) in running.items():
            found = answers(references, f"training policy {policy}", self._limit_s)[0]
            found["padding"], found["learning_rate"] = float(padding), rate
            found["tokens"] = float(sum(sample.mask_L.sum() for sample in batches[policy]))
            found |= reference_kl(batches[policy])
            stats |= {f"{name}/{policy}": value for name, value in found.items()}
        require_finite(stats)
        self.processes.move_optimizers("unload_optimizer", batches)
        return stats

    def _layout(self, policy: str) -> dict[str, int]:
        trainers, given = self.processes.trainers[policy].placed.trainers, self.config.torch
        adapter = {} if given.lora_rank is None else {"lora_rank": given.lora_rank, "lora_alpha": given.lora_alpha}
        return {"trainers": trainers, "zero_stage": self.config.openrlhf.zero_stage, **adapter}
