"""vLLM's engine and the embedded backend's trainer in one process, on one GPU or on CPU: no Ray, no DeepSpeed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import torch
from torch import Tensor

from coachrl.trainers.backends.base import Samples
from coachrl.trainers.backends.torch.backend import PolicyTrainer
from coachrl.trainers.backends.torch.policy import DTYPES, load_model
from coachrl.trainers.backends.vllm.engine import Engine, Weights
from coachrl.trainers.backends.vllm.shapes import check_shapes
from coachrl.trainers.backends.vllm.turns import Turns
from coachrl.types import Generation, SamplingParams


class VllmBackend(PolicyTrainer):
    """`Backend` with one engine that all policies use in turn.

    Every policy's weights lie beside the engine in the engine's precision, and are copied into it when the policy has
    its turn. While policies train, an engine on the same GPU holds no memory of it.
    """

    def _start_generating(self) -> None:
        """Raises ConfigError where the models' shapes differ, and BackendError where the engine does not start."""
        self._dtype = DTYPES[self.config.torch.precision]
        folders = [tokenizer.folder for tokenizer in self._tokenizers.values()]
        check_shapes(folders)
        longest = max(map(self.context_length, self._tokenizers))
        self._weights = self._frozen_weights()  # by policy: those that replies are drawn with
        self._copy_weights()
        self._turns = Turns(lambda: Engine(folders[0], self.config, longest, self.device))

    def context_length(self, policy: str) -> int:
        """Tokens that prompt and reply may have together: the model's, or `vllm.max_length` where that is less."""
        context = super().context_length(policy)
        return min(context, self.config.vllm.max_length or context)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Requests need not wait for those of other episodes."""
        return contextlib.nullcontext()

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit: nothing is cut; EngineLost where the
        engine fails. A caller that is cancelled ends its request."""
        self.check_room(policy, len(prompt_ids), sampling.max_new_tokens)
        version, stop_ids = self._weights_version, self.tokenizer(policy).eos_ids
        asked = self._turns.ask(self._weights[policy], tuple(prompt_ids), sampling, stop_ids)
        reply = await asyncio.wrap_future(asked)
        certain = sampling.temperature == 0  # the most likely token, whatever its probability was
        logprobs = (0.0,) * len(reply.token_ids) if certain else reply.logprobs
        return Generation(reply.token_ids, logprobs, reply.finish_reason, version)

    def with_reference(self, samples: Samples) -> Samples:
        """See `PolicyTrainer`."""
        self._turns.rest()
        return super().with_reference(samples)

    def with_trainer_logprobs(self, samples: Samples) -> Samples:
        """See `PolicyTrainer`."""
        self._turns.rest()
        return super().with_trainer_logprobs(samples)

    def update(self, samples: Samples) -> dict[str, float]:
        """See `PolicyTrainer`."""
        self._turns.rest()
        return super().update(samples)

    def close(self) -> None:
        self._turns.close()

    @torch.no_grad()
    def _copy_weights(self) -> None:
        for policy, trained in self._policies.items():
            self._weights[policy] = self._copied(trained.model, trained.weights())

    def _frozen_weights(self) -> dict[str, Weights]:
        """Policies that are not trained and begin alike share one set, so that no weights change between them."""
        folders = {policy: t.folder for policy, t in self._tokenizers.items() if policy not in self._policies}
        models = {folder: load_model(folder, self._dtype, self.device) for folder in folders.values()}
        sets = {folder: self._copied(model, model.state_dict().items()) for folder, model in models.items()}
        return {policy: sets[folder] for policy, folder in folders.items()}

    def _copied(self, model: Any, weights: Iterable[tuple[str, Tensor]]) -> Weights:
        """A copy of a model's weights in the engine's precision; of parameters that are tied, the first alone."""
        # By their addresses; those of adapters added to weights are of passing tensors, and come again.
        lasting = {parameter.data_ptr() for parameter in model.parameters()}
        copies: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, weight in weights:
            address = weight.data_ptr()
            if address in lasting and address in seen:
                continue
            seen.add(address)
            copies[name] = weight.detach().to(self._dtype, copy=True)
        return Weights(copies)
