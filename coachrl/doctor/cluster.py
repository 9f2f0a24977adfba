"""Checks for GPU nodes beside their packages: limits of processes, main memory, the driver, and whether two processes
can sum numbers with each other as trainers do."""

from __future__ import annotations

import importlib
import importlib.util
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coachrl.machine import machine_bytes
from coachrl.sandbox.checks import Finding
from coachrl.text import error_told

_OPEN_FILES, _PROCESSES = 16_384, 16_384  # Ray, engines and trainers hold a connection and a thread or more to each
_COLLECTIVE_S = 120.0  # importing torch included, on a machine that does other things
_INFINIBAND = Path("/sys/class/infiniband")

# What each of two processes does: argv is backend, file to meet at, rank, seconds.
_SUM = """
import datetime, sys
import torch, torch.distributed as dist
backend, place, rank, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
dist.init_process_group(
    backend, init_method=f"file://{place}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=limit)
)
numbers = torch.full((1_000_000,), float(rank + 1), device=device)
dist.all_reduce(numbers)
assert numbers.min() == numbers.max() == 3.0, "the sum is wrong"
dist.destroy_process_group()
"""


def limits() -> list[Finding]:
    """Of what a process may open and start. Ray raises its own limit of open files to the hard one."""
    return [
        _limit("open files", resource.getrlimit(resource.RLIMIT_NOFILE)[1], _OPEN_FILES, "nofile", "ulimit -Hn"),
        _limit("processes", resource.getrlimit(resource.RLIMIT_NPROC)[0], _PROCESSES, "nproc", "ulimit -u"),
        _locked_memory(),
    ]


def _limit(name: str, allowed: int, needed: int, item: str, shown_by: str) -> Finding:
    """The limit `item` of /etc/security/limits.conf, which `shown_by` prints."""
    unlimited = allowed == resource.RLIM_INFINITY
    remedy = f"raise {item} to {needed} or more in /etc/security/limits.conf, or in a container with --ulimit {item}=…"
    detail = f"{'no limit' if unlimited else format(allowed, ',')} ({shown_by})"
    return Finding(name, unlimited or allowed >= needed, detail, remedy)


def _locked_memory() -> Finding:
    """InfiniBand's cards read memory that is locked; others need none."""
    allowed = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    fabric = _INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())
    shown = "no limit" if allowed == resource.RLIM_INFINITY else f"{allowed / 2**20:,.0f} MiB"
    detail = f"{shown}; {'InfiniBand needs no limit' if fabric else 'no InfiniBand here that would need more'}"
    remedy = "set memlock to unlimited in /etc/security/limits.conf, or in a container with --ulimit memlock=-1"
    return Finding("locked memory", not fabric or allowed == resource.RLIM_INFINITY, detail, remedy)


def main_memory(planned_gb: float, gpus: int, gpus_here: int) -> Finding:
    """planned_gb: by the plan of a run, on all machines together. gpus: of the run; gpus_here: of this machine, to tell
    how many machines there will be."""
    has_gb = machine_bytes() / 1e9
    machines = math.ceil(gpus / gpus_here) if gpus_here else 1
    among = f", {planned_gb / machines:.0f} GB on each of {machines} machines" if machines > 1 else ""
    return Finding(
        "main memory",
        planned_gb / machines <= has_gb,
        f"this machine has {has_gb:.0f} GB; the run takes about {planned_gb:.0f} GB{among} for what is not on GPUs",
        "take a machine with more, lower openrlhf.engines or try openrlhf.sleep_level=2; openrlhf.sleep=false keeps "
        "nothing in main memory",
    )


def peers() -> Finding:
    """Whether each GPU can read the memory of each other one: NCCL goes through main memory where it cannot."""
    try:
        cuda = importlib.import_module("torch").cuda
        count = cuda.device_count()
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        apart = [f"{a} to {b}" for a, b in pairs if not cuda.can_device_access_peer(a, b)]
    except (ImportError, AttributeError, RuntimeError) as error:
        return Finding("peer access", False, f"torch cannot say: {error}", "see the other lines", optional=True)
    if not pairs:
        return Finding("peer access", True, f"not tried: torch sees {count} GPUs", optional=True, skipped=True)
    remedy = "weights and gradients then go through main memory, which is slower: see `nvidia-smi topo -m`"
    detail = f"not from {', '.join(apart[:4])}" if apart else f"all {len(pairs)} ways are open"
    return Finding("peer access", not apart, detail, remedy, optional=True)


def collectives() -> list[Finding]:
    """A sum over two processes: by gloo on the CPU, and by NCCL where there are two GPUs."""
    if importlib.util.find_spec("torch") is None:
        return [_not_tried(f"sum by {backend}", "torch is not installed") for backend in ("gloo", "nccl")]
    return [_collective("gloo"), _nccl_collective()]


def _not_tried(name: str, why: str) -> Finding:
    return Finding(name, False, f"not tried: {why}", "see the other lines", optional=True)


def _nccl_collective() -> Finding:
    try:
        count = importlib.import_module("torch").cuda.device_count()
    except (ImportError, RuntimeError) as error:
        return _not_tried("sum by nccl", str(error))
    if count < 2:
        why = f"not tried: it takes two GPUs, and torch sees {count}"
        return Finding("sum by nccl", True, why, optional=True, skipped=True)
    return _collective("nccl")


def _collective(backend: str, limit_s: float = _COLLECTIVE_S) -> Finding:
    variable = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    remedy = f"set {variable} to the network interface that processes may use" + (
        "; NCCL_DEBUG=INFO says more" if backend == "nccl" else ""
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _SUM, backend, f"{folder}/meet"]
        logs = [Path(folder, f"{rank}.txt") for rank in range(2)]
        started = [
            subprocess.Popen([*command, str(rank), str(limit_s)], stderr=log.open("wb"), stdout=subprocess.DEVNULL)
            for rank, log in enumerate(logs)
        ]
        try:
            codes = [process.wait(max(0.0, began + limit_s - time.monotonic())) for process in started]
        except subprocess.TimeoutExpired:
            return Finding(f"sum by {backend}", False, f"two processes did not end within {limit_s:g} s", remedy)
        finally:
            for process in started:
                process.kill()
                process.wait()
        told = [error_told(log.read_text(errors="replace")) for log in logs]
    failed = [error or f"it ended with {code}" for error, code in zip(told, codes, strict=True) if code]
    detail = failed[0][:300] if failed else f"two processes agreed after {time.monotonic() - began:.1f} s"
    return Finding(f"sum by {backend}", not failed, detail, remedy)
