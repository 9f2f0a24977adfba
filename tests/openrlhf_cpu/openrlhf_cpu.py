"""Lets OpenRLHF's classes, unchanged, run without a GPU: gloo in place of NCCL, and a ledger where CUDA's memory is
addressed.

`start_ray` starts Ray with GPUs that exist in its books alone; `install` does the rest, here and in each Ray worker.
Ray's workers are forked from one process that has imported everything (see forks.py): each would need ten seconds.
"""

import functools
import importlib
import multiprocessing
import os
import shlex
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "support"))

import forks  # noqa: E402
import ledger  # noqa: E402

FORKS, SPAWN = "COACHRL_TEST_FORKS", "VLLM_RAY_BUNDLE_INDICES"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "DS_ACCELERATOR": "cpu",
    "RAY_memory_monitor_refresh_ms": "0",  # else Ray kills workers where others fill the machine's memory
    "RAY_worker_niceness": "0",  # else workers wait for everything else on a busy machine
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}

# Engine arguments for tiny models on CPU.
ENGINE_ARGS = {
    "worker_extension_cls": "openrlhf_cpu_worker.CpuWorker",
    "kv_cache_memory_bytes": 2**26,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 1024,
    "enable_chunked_prefill": False,  # it turns back the generators of seeded requests, which the CPU's refuse
    "enforce_eager": True,
    "enable_sleep_mode": False,
}


def free_gpus(ray, once_there_are=0.0, patience_s=60.0):
    """GPUs that are free in Ray's books, as soon as there are so many. Those of a process that ended take a while."""
    deadline = time.monotonic() + patience_s
    while (free := ray.available_resources().get("GPU", 0)) < once_there_are and time.monotonic() < deadline:
        time.sleep(0.2)
    return free


@functools.cache
def fork_server():
    """Has imported what engines, trainers and command lines need. It starts while this process imports the same."""
    return forks.ForkServer(["ready"], [HERE, HERE.parent / "distributed", HERE.parents[1]], environment=ENVIRONMENT)


def start_ray(folder, gpus=4):
    """Ray on this machine with `gpus` logical GPUs, and twice as many processor cores. folder: short, Ray makes sockets
    in it."""
    if FORKS not in os.environ:
        os.environ[FORKS] = fork_server().socket
    import ray

    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import REAP_ORPHANS

    os.environ.update(ENVIRONMENT | REAP_ORPHANS | {ledger.FILE: str(Path(folder) / "ledger.jsonl")})
    settings = {
        "address": "local",
        "num_cpus": 2 * gpus,
        "num_gpus": gpus,
        "include_dashboard": False,
        "_temp_dir": str(folder),
        "object_store_memory": 200 * 2**20,
    }
    for attempt in range(5):
        try:
            _init(settings)
            return
        except Exception as error:  # Ray gives itself 30 s to start, which a busy machine may exceed
            if "timed out during startup" not in str(error) or attempt == 4:
                raise
            ray.shutdown()


def join_ray(address):
    """Work on the Ray that `start_ray` started in another process."""
    os.environ.update(ENVIRONMENT)
    _init({"address": address})


def _init(settings):
    import ray

    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import await_children

    install()  # first here: what Python has to compile for it is then there for all workers
    paths = [
        str(HERE),
        str(HERE.parents[1]),
        str(HERE.parent / "distributed"),
        str(HERE.parent / "support"),
        os.environ.get("PYTHONPATH", ""),
    ]
    ray.init(
        **settings,
        log_to_driver=bool(os.environ.get("COACHRL_TEST_LOGS")),
        logging_level="ERROR",
        runtime_env={
            "py_executable": shlex.join(
                [sys.executable, "-I", "-S", forks.__file__, "run", os.environ[FORKS], "forks:script"]
            ),
            "worker_process_setup_hook": "openrlhf_cpu.install",
            "env_vars": {**ENVIRONMENT, **ledger.here(), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        },
    )
    await_children()


class _Cpu(str):
    """Names the device "cpu" to tensors, and is 0 inside of `f"cuda:{device}"`, which then names a device that may be
    constructed without CUDA."""

    def __format__(self, spec):
        return "0"


class GlooCommunicator:
    """Has the one method of vLLM's PyNcclCommunicator that weights are sent with."""

    def __init__(self, group):
        self._group = group

    def broadcast(self, tensor, src, stream=None):
        from torch.distributed import BroadcastOptions

        options = BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([tensor], options).wait()


def gloo_group(master_address, master_port, rank, world_size, device=None):
    """In place of `stateless_init_process_group`, with the same arguments."""
    from vllm.distributed.utils import stateless_init_torch_distributed_process_group as make

    return GlooCommunicator(make(master_address, master_port, rank, world_size, backend="gloo"))


def install():
    """Idempotent, for this process."""
    import torch

    if sys.modules.get("ray") is not None:
        book_gpus()
    if torch.cuda.current_device is _name_cpu:
        return
    torch.cuda.current_device = _name_cpu
    for name in ("set_device", "synchronize", "current_stream"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    torch.cuda.empty_cache = ledger.note_empty_cache
    _import_openrlhf()
    _keep_books()
    _use_gloo()
    _gather_in_order()
    _compile_nothing()
    _fork_engine_cores()


def book_gpus():
    """Let vLLM's executor count GPUs in Ray, for which its CPU platform has no name. The process that others are forked
    from knows no Ray, so what vLLM found out about it there is found out again."""
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.executor import ray_utils

    CpuPlatform.ray_device_key = "GPU"
    if ray_utils.ray is None:
        importlib.reload(ray_utils)


def _name_cpu():
    return _Cpu("cpu")


def _import_openrlhf():
    """As `bindings` does, which the process that others are forked from cannot import: it has no Ray."""
    from coachrl.trainers.backends.openrlhf.training import flash_attention

    with flash_attention.supplied():
        import_module("openrlhf.utils.deepspeed.deepspeed")


def _keep_books():
    """Of what a forward pass leaves in a process, and of optimizers on their way: DeepSpeed moves none but its own."""
    import openrlhf.utils.deepspeed.deepspeed_utils as states
    from deepspeed.runtime.engine import DeepSpeedEngine
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    DeepSpeedEngine.forward = ledger.noting("cache", DeepSpeedEngine.forward)
    DeepspeedStrategy._ds_init_train_model = ledger.noting("optimizer here", DeepspeedStrategy._ds_init_train_model)
    for module in (states, sys.modules.get("openrlhf.trainer.ray.ppo_actor")):
        if module is not None:
            module.offload_deepspeed_states = lambda *args, **kwargs: ledger.note("optimizer away")
            module.reload_deepspeed_states = lambda *args, **kwargs: ledger.note("optimizer here")


def _use_gloo():
    import openrlhf.utils.deepspeed.deepspeed as strategy_module
    import openrlhf.utils.distributed_util as groups

    groups.stateless_init_process_group = gloo_group
    make_mesh = strategy_module.init_device_mesh
    strategy_module.init_device_mesh = lambda device, *args, **kwargs: make_mesh("cpu", *args, **kwargs)
    set_up = strategy_module.DeepspeedStrategy.setup_distributed

    def setup_distributed(self, *args, **kwargs):
        self.args.vllm.sync_backend = "gloo"  # else colocated weights go by CUDA IPC
        set_up(self, *args, **kwargs)

    strategy_module.DeepspeedStrategy.setup_distributed = setup_distributed


def _gather_in_order():
    """DeepSpeed's ZeRO-3 gathers many parameters at once and waits for the last of them. NCCL works through them one
    after another; gloo has two threads, and an earlier one was now and then still memory that nobody had filled."""
    backend = import_module("deepspeed.comm.torch").TorchBackend
    launch = backend.all_gather_into_tensor

    def all_gather_into_tensor(self, *args, **kwargs):
        if (work := launch(self, *args, **kwargs)) is not None:
            work.wait()
        return work

    backend.all_gather_into_tensor = all_gather_into_tensor


def _compile_nothing():
    """DeepSpeed would build its own Adam and its collectives over shared memory."""
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # as an attribute, that name is torch itself
    make = DeepspeedStrategy.get_ds_train_config

    def get_ds_train_config(self, optim_dict=None, **kwargs):
        if optim_dict is not None:
            optim_dict["params"]["torch_adam"] = True
        return make(self, optim_dict, **kwargs)

    DeepspeedStrategy.get_ds_train_config = get_ds_train_config


def _fork_engine_cores():
    """vLLM would start them as new interpreters, which import everything again: a fork lacks the threads of the Ray
    actor that it comes from. What an engine core runs needs none of those."""
    import_module("vllm.utils.system_utils").get_mp_context = _context


def _context():
    """A core whose workers are Ray's connects to Ray, which a fork of an actor cannot."""
    return multiprocessing.get_context("spawn" if os.environ.get(SPAWN) else "fork")


def serve_ray(folder, gpus, address):
    """Start Ray, write its address to the file `address`, and wait to be killed."""
    start_ray(folder, int(gpus))
    import ray

    written = Path(address).with_suffix(".aside")
    written.write_text(ray.get_runtime_context().gcs_address)
    written.rename(address)
    signal.pause()
