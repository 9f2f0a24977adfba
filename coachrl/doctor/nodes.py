"""What the doctor sees of the other machines of a Ray cluster: each is asked for its GPUs, driver, memory, disk and
versions, by a task that runs there."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.doctor import gpu
from coachrl.errors import BackendError
from coachrl.machine import machine_bytes
from coachrl.resources import free_bytes
from coachrl.sandbox.checks import Finding

_ANSWER_S = 120.0  # a worker of Ray has to start there
_DISK_GB = 15.0


@dataclass(frozen=True)
class Node:
    """gpus: their names, as nvidia-smi gives them. driver: "" where none is seen. memory_gb, disk_gb: of main memory,
    and free where the run is written. versions: of the packages that must be alike, "" for one that is missing."""

    gpus: tuple[str, ...]
    driver: str
    memory_gb: float
    disk_gb: float
    versions: Mapping[str, str]


def look_around(out: Path) -> Node:
    """This machine. out: where runs are written."""
    try:
        rows = gpu.asked("name", "driver_version")
    except OSError:
        rows = []
    return Node(
        gpus=tuple(name for name, _ in rows),
        driver=rows[0][1] if rows else "",
        memory_gb=machine_bytes() / 1e9,
        disk_gb=free_bytes(out) / 1e9,
        versions={"python": platform.python_version(), **{name: gpu.installed(name) or "" for name in gpu.PINS}},
    )


def diagnose_nodes(address: str, out: Path) -> list[Finding]:
    """One finding for each machine of the cluster at `address` ("auto": the one that runs here); one that says why
    where there is none."""
    try:
        import ray

        from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect
    except ImportError as error:
        return [Finding("ray cluster", False, f"not looked at: {error}", gpu.INSTALL[-1])]
    try:
        ours = connect(address)
    except BackendError as error:
        return [Finding("ray cluster", False, str(error), "start Ray on each machine, see docs/distributed.md")]
    try:
        alive = [node for node in ray.nodes() if node["Alive"]]
        here = look_around(out)
        return [_judge(node, _ask(ray, node, out), here) for node in alive]
    finally:
        if ours:
            ray.shutdown()


def _ask(ray: Any, node: Mapping[str, Any], out: Path) -> Node | str:
    """What the machine says of itself, or why it says nothing."""
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    asked = ray.remote(look_around).options(num_cpus=0, scheduling_strategy=there).remote(out)
    try:
        found: Node = ray.get(asked, timeout=_ANSWER_S)
    except GetTimeoutError:
        ray.cancel(asked, force=True)
        return f"it did not answer within {_ANSWER_S:g} s"
    except RayError as error:  # coachrl is not installed there, or of another release
        return str(error).strip().splitlines()[-1][:300]
    return found


def _judge(node: Mapping[str, Any], found: Node | str, here: Node) -> Finding:
    """here: the machine of the doctor, whose versions the others must have."""
    name = f"node {node['NodeManagerAddress']}"
    if isinstance(found, str):
        return Finding(name, False, found, "install coachrl there as here")
    claimed = int(node["Resources"].get("GPU", 0))
    cards = f"{claimed} GPUs ({', '.join(sorted(set(found.gpus)))})" if found.gpus else f"{claimed} GPUs in Ray's books"
    detail = (
        f"{cards}, driver {found.driver or 'not seen'}, {found.memory_gb:.0f} GB of memory, "
        f"{found.disk_gb:.0f} GB free on disk, Python {found.versions['python']}"
    )
    problems = [*_other_versions(found, here), *_of_gpus(found, claimed, here)]
    if found.disk_gb < _DISK_GB:
        problems.append(f"less than {_DISK_GB:g} GB are free where runs are written")
    remedy = "all machines must be alike: install there as here"
    return Finding(name, not problems, "; ".join([detail, *problems]), remedy)


def _other_versions(found: Node, here: Node) -> list[str]:
    return [
        f"{package} is {found.versions.get(package) or 'not installed'}, and here {version or 'it is not'}"
        for package, version in here.versions.items()
        if found.versions.get(package) != version
    ]


def _of_gpus(found: Node, claimed: int, here: Node) -> Sequence[str]:
    problems = []
    if found.gpus and len(found.gpus) != claimed:
        problems.append(f"nvidia-smi shows {len(found.gpus)} GPUs")
    if found.driver and here.driver and found.driver != here.driver:
        problems.append(f"the driver here is {here.driver}")
    if found.driver[:1].isdigit() and not gpu.runs_cuda(found.driver):
        problems.append(f"the driver must be {gpu.DRIVER} or later")
    return problems
