"""What hostile code tries, and whether a sandbox holds: the short list of `coachrl doctor --sandbox`.

The attempts are data, in `probes.yaml` beside this file. The project's tests try far more (tests/support/escapes).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.parsing import parse_yaml
from coachrl.sandbox.base import WITHOUT_WORKSPACE, Sandbox, Workspace
from coachrl.storage.files import read_text
from coachrl.text import one_line
from coachrl.types import Execution

PROBE_LIMITS = SandboxConfig(timeout_s=20.0, memory_mb=512, disk_mb=8, max_files=64, max_processes=16, output_kb=16)

_TOO_LATE = "not known: the program did not end in time; try again where less is running"
_OWN_PROCESSES = 8  # of a room: its first process, the program, a shell or two of a server
_COUNT_PROCESSES = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))"
# Calls whose numbers processors do not share, as attempts name them: that of x86_64 and that of aarch64. -1: none.
# Not those of the filter: a wrong number there would be refused, and the call that is meant would not be tried.
CALLS: dict[str, tuple[int, int]] = {
    "bpf": (321, 280), "clone": (56, 220), "exit": (60, 93), "fanotify_init": (300, 262), "get_mempolicy": (239, 236),
    "io_setup": (206, 0), "ioprio_get": (252, 31), "ioprio_set": (251, 30), "kcmp": (312, 272), "keyctl": (250, 219),
    "mincore": (27, 232), "modify_ldt": (154, -1), "name_to_handle_at": (303, 264), "perf_event_open": (298, 241),
    "ptrace": (101, 117), "quotactl": (179, 60), "rt_sigqueueinfo": (129, 138), "sched_setattr": (314, 274),
    "seccomp": (317, 277), "setrlimit": (160, 164), "syslog": (103, 116), "tgkill": (234, 131),
    "timer_create": (222, 107), "userfaultfd": (323, 282), "ustat": (136, -1),
}  # fmt: skip
_PRELUDE = f"""
import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {{name: numbers[os.uname().machine == 'aarch64'] for name, numbers in {CALLS!r}.items()}}

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)

def syscall(which, *arguments):
    if libc.syscall(NUMBERS.get(which, which), *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(which))
"""


@dataclass(frozen=True)
class Probe:
    """One attempt, as `probes.yaml` says at its head."""

    area: str
    tried: str
    code: str
    ends: tuple[str, ...] = ()
    says: str = ""
    timeout_s: float = 20.0
    then: str = ""
    apart: bool = False
    leaves: str = ""


@dataclass(frozen=True)
class Result:
    """One attempt: what was tried, and how the sandbox held. detail: what was refused, or what got through."""

    area: str
    tried: str
    held: bool
    detail: str = ""


@cache
def probes() -> tuple[Probe, ...]:
    """The attempts of `probes.yaml`, in its order."""
    path = Path(__file__).with_name("probes.yaml")
    return TypeAdapter(tuple[Probe, ...]).validate_python(parse_yaml(read_text(path, path.name), path.name))


def refusable(code: str, bait: Mapping[str, object]) -> str:
    """The whole program of an attempt that is refused where `code` raises. bait: names that it may use."""
    values = "\n".join(f"{name} = {value!r}" for name, value in bait.items())
    body = "\n".join(f"    {line}" for line in code.splitlines())
    refused = "(OSError, ImportError, AssertionError, ValueError, subprocess.CalledProcessError)"
    return (
        f"{_PRELUDE}\n{values}\ntry:\n{body}\n    print('ESCAPED')\n"
        f"except {refused} as error:\n    print('refused', repr(error))"
    )


def judge(execution: Execution) -> tuple[bool, str]:
    """Whether the program of `refusable` was refused, and in which words."""
    if _says_nothing(execution):
        return False, _TOO_LATE
    last = (execution.stdout.strip() or execution.stderr.strip()).rpartition("\n")[2]
    detail = last.removeprefix("refused ")
    held = execution.state == "ok" and execution.stdout.startswith("refused")
    return held, "not there" if detail == "AssertionError()" else detail


def _says_nothing(execution: Execution) -> bool:
    return execution.state == "timeout" and "ESCAPED" not in execution.stdout


async def is_alone(sandbox: Sandbox) -> str:
    """Empty where code sees no processes beside its own; else why bombs and signals must not be tried."""
    workspace = await sandbox.open({})
    try:
        seen = await workspace.run(_COUNT_PROCESSES)
    finally:
        await workspace.close()
    count = one_line(seen.stdout)
    if seen.state == "ok" and count in map(str, range(_OWN_PROCESSES + 1)):
        return ""
    return f"not tried: {count or 'nobody can say how many'} processes are in reach"


async def run_probes(sandbox: Sandbox, bait: Mapping[str, object]) -> AsyncIterator[Result]:
    """Every attempt in turn, in `sandbox`, which must have PROBE_LIMITS and have been made after `bait` was set out.

    Where the code sees processes beside its own, bombs and signals would hit those: they are not tried, and count as
    not held. Raises SandboxError where the sandbox cannot be used at all."""
    await sandbox.start()
    others = await is_alone(sandbox)
    for probe in probes():
        if others and probe.ends:
            yield Result(probe.area, probe.tried, False, others)
            continue
        try:
            held, detail = await _try(sandbox, probe, bait)
        except SandboxError as error:
            held, detail = False, f"passes for a fault of the sandbox: {error}"
        yield Result(probe.area, probe.tried, held, detail)


async def _try(sandbox: Sandbox, probe: Probe, bait: Mapping[str, object]) -> tuple[bool, str]:
    """Whether the sandbox held, and in which words."""
    workspace = await sandbox.open({})
    try:
        if not (probe.ends or probe.then or probe.leaves):
            return judge(await workspace.run(refusable(probe.code, bait), probe.timeout_s))
        execution = await workspace.run(f"{_PRELUDE}\n{probe.code}", probe.timeout_s)
        if execution.state == "infrastructure":
            return False, f"passes for a fault of the sandbox: {execution.stderr}"
        if probe.leaves:
            return await _not_read(workspace, probe.leaves)
        if probe.then:
            return await _sees_nothing(sandbox if probe.apart else None, workspace, probe.then)
        return await _ended(workspace, execution, probe)
    finally:
        await workspace.close()


async def _ended(workspace: Workspace, execution: Execution, probe: Probe) -> tuple[bool, str]:
    """Whether the program ended as it must, and a further one runs."""
    if execution.state not in probe.ends or probe.says not in execution.stderr:
        return False, f"ended with {execution.state}: {(execution.stderr or execution.stdout)[-200:]}"
    after = await workspace.run("print('alive')")
    if after.stdout != "alive\n":
        return False, f"the next program ended with {after.state}: {after.stderr}"
    return True, f"ended with {execution.state}"


async def _sees_nothing(sandbox: Sandbox | None, workspace: Workspace, code: str) -> tuple[bool, str]:
    """Whether a second program finds nothing; it runs in a workspace of its own where a sandbox is given."""
    second = workspace if sandbox is None else await sandbox.open({})
    try:
        # It imports what it needs itself; what starts it has no such line.
        execution = await second.run(f"{WITHOUT_WORKSPACE}{_PRELUDE}\n{code}")
    finally:
        if second is not workspace:
            await second.close()
    if _says_nothing(execution):
        return False, _TOO_LATE
    held = execution.state == "ok" and "ESCAPED" not in execution.stdout
    return held, "not there" if held else f"{execution.state}: {execution.stdout or execution.stderr}"


async def _not_read(workspace: Workspace, name: str) -> tuple[bool, str]:
    if name in await workspace.files():
        return False, f"{name} is listed"
    try:
        data = await workspace.read(name, 1024)
    except (FileNotFoundError, ValueError):
        return True, "not read"
    return False, f"{name} was read: {data[:60]!r}"
