"""Ray: a cluster to work on, GPUs reserved in it, and answers that come or fail, but never hang unsaid."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, NodeDiedError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from coachrl.errors import BackendError, ProcessLost
from coachrl.text import first_line, holds_password, one_line, without_passwords

_WORKER_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "true", "NCCL_DEBUG": "WARN"}
# What workers on all machines get of the driver's environment: how machines talk to each other, and where libraries
# find what they need. Of one machine alone are its addresses and ports; what names a secret stays here, as Ray shows
# the environment of its workers to whoever sees its dashboard.
_HANDED_ON = ("NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_", "VLLM_", "HF_", "TRANSFORMERS_", "PYTORCH_")
_OF_ONE_MACHINE = {"VLLM_HOST_IP", "VLLM_LOOPBACK_IP", "VLLM_PORT", "NCCL_HOSTID"}
_SECRET = re.compile(r"(^|_)(API|AUTH|CREDENTIALS?|KEYS?|PASSWORD|SECRETS?|TOKEN)(_|$)")
# Ray then ends what a dead worker leaves behind: vLLM's core processes, which otherwise keep their GPU memory.
REAP_ORPHANS = {"RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "1"}
DEATHS = (RayActorError, OutOfMemoryError, NodeDiedError)  # of an actor: Ray ends those that fill a node's memory
_DEATH_SHOWS_S = 30.0
_NAMES: dict[str, str] = {}  # of actors, by Ray's ids
AWAIT_CHILDREN = f"{__name__}.await_children"  # what each worker calls when it starts
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b")  # the line of a traceback that says what was raised
_ELSEWHERE = "Engine core initialization failed"  # vLLM's engine is a process of its own, which logs why it ended
_LESS_MEMORY = "lower openrlhf.engine_memory, openrlhf.micro_batch_tokens or openrlhf.max_length"
_MEMORY_WORDS = ("out of memory", "No available memory", "KV cache memory", "Free memory on device", "OutOfMemory")


def connect(address: str | None) -> bool:
    """Join the Ray cluster at `address` ($RAY_ADDRESS where None), or start Ray on this machine where neither is set.

    False where this process is connected already, which is then used as it is. Raises BackendError where no cluster
    answers.
    """
    if ray.is_initialized():
        return False
    if not address or address == "auto":  # Ray takes $RAY_ADDRESS for "auto" too
        address = os.environ.get("RAY_ADDRESS") or address or "local"
    _knock(address)
    for name, value in REAP_ORPHANS.items():  # read by what is started here; a running cluster has its own
        os.environ.setdefault(name, value)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False if address == "local" else None,
            runtime_env={
                "env_vars": handed_on(os.environ),
                "worker_process_setup_hook": AWAIT_CHILDREN,
            },
        )
    except (OSError, RuntimeError, ValueError) as error:
        sockets = "; set RAY_TMPDIR to a short folder, as /tmp" if "AF_UNIX" in str(error) else ""
        raise BackendError(f"Ray at {address}: {first_line(error)}{sockets}") from error
    await_children()
    return True


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What Ray's workers get of the driver's environment, on whatever machine: it comes before the machine's own."""
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_HANDED_ON)
        and name not in _OF_ONE_MACHINE
        and not _SECRET.search(name)
        and not holds_password(value)
    }
    return {**{name: environment.get(name, value) for name, value in _WORKER_ENVIRONMENT.items()}, **found}


def await_children() -> None:
    """Let this process learn again how its children end. With REAP_ORPHANS Ray ignores that signal, in drivers and in
    workers: sandboxes then seem to end with status 255, and a compiler that failed seems to have succeeded."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def free_resources() -> tuple[float, float]:
    """GPUs and processor cores of the cluster that nobody has claimed."""
    free = ray.available_resources()
    return float(free.get("GPU", 0.0)), float(free.get("CPU", 0.0))


class Wanted(NamedTuple):
    """A number of GPUs. together: they must be on one machine; else on as few as may be."""

    gpus: int
    together: bool = False


def reserve(wanted: Sequence[Wanted], timeout_s: float) -> list[PlacementGroup]:
    """For each of them, in this order, a placement group of as many bundles as GPUs.

    Raises BackendError, with nothing reserved, where they are not granted in time.
    """
    groups = [
        placement_group([{"GPU": 1, "CPU": 1}] * gpus, strategy="STRICT_PACK" if together else "PACK")
        for gpus, together in wanted
    ]
    ready = [group.ready() for group in groups]
    _, waiting = ray.wait(ready, num_returns=len(ready), timeout=timeout_s)
    if waiting:
        for group in groups:
            remove_placement_group(group)
        free, sizes = ray.available_resources(), ", ".join(str(gpus) for gpus, _ in wanted)
        raise BackendError(
            f"{len(waiting)} of {len(ready)} reservations ({sizes} GPUs, each with a processor core) were not granted "
            f"within {timeout_s:g} s; free: {free.get('GPU', 0):g} GPUs, {free.get('CPU', 0):g} cores, in pieces that "
            f"may not fit"
        )
    return groups


def release(groups: Sequence[PlacementGroup]) -> None:
    for group in groups:
        with contextlib.suppress(RayError, ValueError):
            remove_placement_group(group)


def named(handle: Any, name: str) -> Any:
    """The same actor, which `answers` calls by this name where it does not answer."""
    _NAMES[handle._actor_id.hex()] = name
    return handle


def answers(references: Sequence[Any], what: str, timeout_s: float) -> list[Any]:
    """Wait for Ray's answers. Raises BackendError that says what was waited for, and why it failed or who did not
    answer in time; ProcessLost where one of them died."""
    try:
        return list(ray.get(list(references), timeout=timeout_s))
    except GetTimeoutError as error:
        raise BackendError(
            f"{what} took longer than {timeout_s:g} s; no answer from {', '.join(_silent(references))}"
        ) from error
    except RayError as error:
        dead, cause = _death_among(references, error)
        if dead:
            raise ProcessLost(f"{what} failed: {dead} died: {reason(cause)}") from cause
        raise BackendError(f"{what} failed: {reason(error)}") from error


def _death_among(references: Sequence[Any], first: RayError) -> tuple[str, RayError]:
    """The actor whose end is why an answer failed, and how it ended; ("", first) where none ended. An actor that works
    with it may tell of a broken connection before Ray has noticed, so those that have not answered get some time."""
    waiting = list(dict.fromkeys(references))
    began, patience_s = time.monotonic(), 0.0 if isinstance(first, DEATHS) else _DEATH_SHOWS_S
    while waiting:
        done, waiting = ray.wait(waiting, timeout=max(0.0, began + patience_s - time.monotonic()))
        if not done:
            break
        try:
            ray.get(done)
        except DEATHS as death:
            return _name_of(done[0]), death
        except RayError:
            continue  # it failed by itself
    return ("a process" if isinstance(first, DEATHS) else ""), first


def _name_of(reference: Any) -> str:
    actor = reference.task_id().actor_id().hex()
    return _NAMES.get(actor, f"Ray's actor {actor}")


def _silent(references: Sequence[Any]) -> list[str]:
    """Names of the actors that have not answered, the first three and how many others there are."""
    unique = list(dict.fromkeys(references))
    _, waiting = ray.wait(unique, num_returns=len(unique), timeout=0)
    names = list(dict.fromkeys(map(_name_of, waiting)))
    return names[:3] + ([f"and {len(names) - 3} others"] if len(names) > 3 else [])


def in_time(began: float, timeout_s: float) -> float:
    """What is left of `timeout_s` since `began` (monotonic), at least one second."""
    return max(1.0, timeout_s - (time.monotonic() - began))


def _knock(address: str) -> None:
    """A wrong address otherwise costs minutes of retries."""
    if "://" in address:
        raise BackendError(
            f"RAY_ADDRESS={one_line(without_passwords(address))} is of Ray's dashboard or of Ray Client: name the "
            "head's host and port, as openrlhf.ray_address=10.0.0.1:6379, or =local to use this machine"
        )
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, UnicodeError, OverflowError) as error:  # the environment may hold anything
        raise BackendError(
            f"no Ray cluster answers at {address} ({getattr(error, 'strerror', None) or error}); start one with "
            f"`ray start --head --port {port}`, or set openrlhf.ray_address=local to use this machine"
        ) from error


def reason(error: RayError) -> str:
    """The cause in one line, and what helps where memory ran out."""
    cause = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(error).__name__]
    named = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    text = " ".join(lines[named[-1] : named[-1] + 3] if named else lines[-1:])[:400]
    if _ELSEWHERE in str(error):
        text += f" It is in Ray's logs, by default /tmp/ray/session_latest/logs; where memory ran out, {_LESS_MEMORY}"
    elif any(word in str(error) for word in _MEMORY_WORDS):
        text += f" ({_LESS_MEMORY})"
    return text
