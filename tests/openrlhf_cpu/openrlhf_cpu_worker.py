"""vLLM's worker extension on CPU: as that for GPUs, with gloo and vLLM's way of loading weights a second time."""

import torch
from ledger import Memory, note
from openrlhf_cpu import gloo_group
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from coachrl.trainers.backends.openrlhf.engines.buckets import Receiver, parts, require_whole, size_of

MEMORY = Memory()
_execute = CPUWorker.execute_model


class LedgerBackend(SleepModeBackend):
    """In place of CUDA's memory: of weights that are thrown away nothing is left."""

    def __init__(self, worker):
        super().__init__()
        self._model = worker.model_runner.model

    def suspend(self, level=1):
        MEMORY.sleep(level)
        if level == 2:
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                tensor.data.fill_(torch.nan if tensor.is_floating_point() else 0)

    def resume(self, tags=None):
        MEMORY.wake(tags)


def _sleep_mode_backend(self):
    if self._sleep_mode_backend is None:
        self._sleep_mode_backend = LedgerBackend(self)
    return self._sleep_mode_backend


def _execute_model(self, *args, **kwargs):
    MEMORY.run()
    return _execute(self, *args, **kwargs)


# vLLM's extension class may add methods alone, and on CPU these do nothing. Sleep and wake are those for GPUs.
CPUWorker.sleep, CPUWorker.wake_up, CPUWorker.execute_model = Worker.sleep, Worker.wake_up, _execute_model
CPUWorker._get_sleep_mode_backend = _sleep_mode_backend
CPUWorker.synchronize_device = torch.accelerator.synchronize = lambda *_: None
torch.accelerator.get_memory_info = lambda *_: (0, 0)


def _kept_on_gpus(tensor):
    """Scales of attention are numbers that vLLM keeps in main memory."""
    return tensor.dim() > 0


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
            require_whole(self, self._reload(received), _kept_on_gpus)
            MEMORY.fill()

    def spoil_weights(self):
        for parameter in self.model_runner.model.parameters():
            parameter.data.fill_(torch.nan)

    def _reload(self, received):
        """The names of the parameters that are loaded."""
        model, loaded = self.model_runner.model, set()
        model.load_weights = lambda weights: loaded.update(type(model).load_weights(model, weights)) or loaded
        try:
            self.reload_weights(weights_iterator=iter(received), is_checkpoint_format=True)
        finally:
            del model.load_weights
        return loaded
