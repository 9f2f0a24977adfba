"""The escape suite: what hostile code tries, and whether a sandbox holds. `coachrl doctor --sandbox` prints it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from coachrl.config import SandboxConfig
from coachrl.doctor.escapes.attempts import ATTEMPTS, program
from coachrl.doctor.escapes.bait import set_out
from coachrl.doctor.escapes.bombs import BOMBS
from coachrl.errors import SandboxError
from coachrl.sandbox.base import Sandbox
from coachrl.types import Execution

__all__ = ["ATTEMPTS", "BOMBS", "SUITE_LIMITS", "Result", "judge", "run_suite", "set_out"]

SUITE_LIMITS = SandboxConfig(timeout_s=20.0, memory_mb=512, disk_mb=8, max_files=64, max_processes=16, output_kb=16)


_OWN_PROCESSES = 8  # of a room: its first process, the program, a shell or two of a server


@dataclass(frozen=True)
class Result:
    """One attempt: what was tried, and how the sandbox held. detail: what was refused, or what got through."""

    area: str
    tried: str
    held: bool
    detail: str = ""


def judge(state: str, stdout: str, stderr: str) -> tuple[bool, str]:
    """Whether an attempt's program was refused, and in which words."""
    last = (stdout.strip() or stderr.strip()).rpartition("\n")[2]
    detail = last.removeprefix("refused ")
    return state == "ok" and stdout.startswith("refused"), "not there" if detail == "AssertionError()" else detail


async def run_suite(sandbox: Sandbox, bait: dict[str, object]) -> AsyncIterator[Result]:
    """Every attempt in turn, in `sandbox`, which must have SUITE_LIMITS and have been made after `bait` was set out.

    Where the code sees processes beside its own, bombs and signals would hit those: they are not tried, and count as
    not held. Raises SandboxError where the sandbox cannot be used at all."""
    await sandbox.start()
    for attempt in ATTEMPTS:
        execution = await _run(sandbox, program(attempt, bait))
        held, detail = judge(execution.state, execution.stdout, execution.stderr)
        yield Result(attempt.area, attempt.name, held, detail)
    seen = await _run(sandbox, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))")
    alone = seen.state == "ok" and int(seen.stdout) <= _OWN_PROCESSES
    for (area, name), bomb in BOMBS.items():
        if not alone and area in ("bombs", "signals"):
            yield Result(area, name, False, f"not tried: {seen.stdout.strip()} processes are in reach")
            continue
        try:
            problem = await bomb(sandbox)
        except SandboxError as error:
            problem = f"passes for a fault of the sandbox: {error}"
        yield Result(area, name, not problem, problem)


async def _run(sandbox: Sandbox, code: str) -> Execution:
    workspace = await sandbox.open({})
    try:
        return await workspace.run(code)
    finally:
        await workspace.close()
