"""vLLM's worker extension on CPU: as that for GPUs, with gloo and vLLM's way of loading weights a second time."""

import torch
from ledger import Memory, note
from openrlhf_cpu import gloo_group
from vllm.v1.worker.cpu_worker import CPUWorker

from coachrl.trainers.backends.openrlhf.buckets import Receiver, parts, size_of

MEMORY = Memory()
_execute = CPUWorker.execute_model


def _sleep(self, level=1):
    MEMORY.sleep()


def _wake_up(self, tags=None):
    MEMORY.wake(tags)


def _execute_model(self, *args, **kwargs):
    MEMORY.touch("weights", "kv_cache")
    return _execute(self, *args, **kwargs)


# vLLM's extension class may add methods alone, and on CPU these do nothing.
CPUWorker.sleep, CPUWorker.wake_up, CPUWorker.execute_model = _sleep, _wake_up, _execute_model


class CpuWorker(Receiver):
    def init_process_group(
        self, master_address, master_port, rank_offset, world_size, group_name, backend="gloo", use_ray=False
    ):
        rank = torch.distributed.get_rank() + rank_offset
        self._received = []
        self._weights_group = gloo_group(master_address, master_port, rank, world_size)

    def update_weight(self, name, dtype, shape, empty_cache=False):
        """vLLM packs weights for the CPU once they are loaded, so they come in again all together: the last bucket is
        marked with `empty_cache`."""
        MEMORY.touch("weights")
        note("weights")
        assert dtype == self.model_config.dtype, f"the trainer holds {dtype}, the engine {self.model_config.dtype}"
        flat = torch.empty(size_of(shape), dtype=dtype)
        self._weights_group.broadcast(flat, src=0)
        self._received += parts(name, shape, flat)
        if empty_cache:
            received, self._received = self._received, []
            self.reload_weights(weights_iterator=iter(received), is_checkpoint_format=True)
