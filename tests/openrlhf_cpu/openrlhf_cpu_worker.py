"""vLLM's worker extension on CPU: what OpenRLHF's does, with gloo and vLLM's way of loading weights a second time."""

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from openrlhf_cpu import gloo_group


class CpuWorker(WorkerWrap):
    def init_process_group(
        self, master_address, master_port, rank_offset, world_size, group_name, backend="gloo", use_ray=False
    ):
        rank = torch.distributed.get_rank() + rank_offset
        self._received = []
        self._weights_group = gloo_group(master_address, master_port, rank, world_size)

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """vLLM packs weights for the CPU once they are loaded, so they come in again all together: OpenRLHF marks the
        last one with `empty_cache`."""
        assert dtype == self.model_config.dtype, f"the trainer holds {dtype}, the engine {self.model_config.dtype}"
        weight = torch.empty(shape, dtype=dtype)
        self._weights_group.broadcast(weight, src=0)
        self._received.append((name, weight))
        if empty_cache:
            received, self._received = self._received, []
            self.reload_weights(weights_iterator=iter(received), is_checkpoint_format=True)
