"""vLLM's engine and the embedded backend's trainer in one process, on one GPU or on CPU: no Ray, no DeepSpeed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coachrl.storage.temporary import LockedFolder, drop_left
from coachrl.trainers.backends.base import check_room
from coachrl.trainers.backends.torch.backend import PolicyTrainer, token_teller
from coachrl.trainers.backends.torch.policy import DTYPES, load_model
from coachrl.trainers.backends.vllm.engine import Engine
from coachrl.trainers.backends.vllm.replies import generation, new_ones
from coachrl.trainers.backends.vllm.shapes import check_shapes
from coachrl.trainers.backends.vllm.turns import Request, Turns, Weights
from coachrl.types import Generation, SamplingParams

_PREFIX = "coachrl-adapters-"


class VllmBackend(PolicyTrainer):
    """`Backend` with one engine that all policies use in turn.

    Every policy's weights lie beside the engine in the engine's precision, and are copied into it when the policy has
    its turn. With `torch.share_base` the engine keeps the frozen weights, and is given adapters alone: all policies are
    served side by side. While policies train, an engine on the same GPU holds no memory of it.
    """

    def _start_generating(self) -> None:
        """Raises ConfigError where the models' shapes differ, and BackendError where the engine does not start."""
        self._dtype = DTYPES[self.config.torch.precision]
        folders = [tokenizer.folder for tokenizer in self._tokenizers.values()]
        check_shapes(folders, self.config.torch.share_base)
        longest = max(map(self.context_length, self._tokenizers))
        shares = self.config.torch.share_base
        self._weights = {} if shares else self._frozen_weights()  # by policy: those that replies are drawn with
        drop_left(_PREFIX, _memory_folder())
        self._adapters = LockedFolder(_PREFIX, _memory_folder())
        self._kept: list[Path] = []  # folders of the adapters that were handed over last
        self._copy_weights()
        adapters, limits = len(self._policies) if shares else 0, self.config.vllm
        self._turns = Turns(lambda: Engine(folders[0], self.config, longest, self.device, adapters), limits)

    def context_length(self, policy: str) -> int:
        """Tokens that prompt and reply may have together: the model's, or `vllm.max_length` where that is less."""
        context = super().context_length(policy)
        return min(context, self.config.vllm.max_length or context)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        """Requests need not wait for those of other episodes."""
        return contextlib.nullcontext()

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """One reply. Raises ContextOverflow where prompt and reply cannot fit: nothing is cut; EngineGone where the
        engine fails, EngineStuck where it does not answer. A caller that is cancelled ends its request."""
        check_room(policy, len(prompt_ids), sampling.max_new_tokens, self.context_length(policy))
        version, stop_ids = self._weights_version, self.tokenizer(policy).eos_ids
        tell = token_teller()
        told = None if tell is None else new_ones(tell)
        request = Request(self._weights[policy], policy, tuple(prompt_ids), sampling, stop_ids, told)
        reply = await self._turns.ask(request)
        return generation(reply, sampling, version)

    def close(self) -> None:
        self._turns.close()
        self._adapters.remove()

    def _rest(self) -> None:
        self._turns.rest()

    @torch.no_grad()
    def _copy_weights(self) -> None:
        if self.config.torch.share_base:
            self._weights = dict.fromkeys(self._tokenizers, self._written_adapters())
            return
        for policy, trained in self._policies.items():
            self._weights[policy] = self._copied(trained.model, trained.weights())

    def _written_adapters(self) -> Weights:
        """All adapters as they are now, in a folder of their own: earlier ones may still be asked for."""
        place = Path(tempfile.mkdtemp(dir=self._adapters.path))
        folders = {policy: place / str(number) for number, policy in enumerate(self._policies)}
        for policy, folder in folders.items():
            adapter = self._policies[policy].adapter
            assert adapter is not None  # share_base comes with a rank
            adapter.save(folder, self._tokenizers[policy].folder)
        for earlier in self._kept[:-1]:
            shutil.rmtree(earlier)
        self._kept = [*self._kept[-1:], place]
        return Weights(None, folders)

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


def _memory_folder() -> str | None:
    """Where files lie in memory, where the system has such a place."""
    shared = "/dev/shm"
    return shared if os.access(shared, os.W_OK) else None
