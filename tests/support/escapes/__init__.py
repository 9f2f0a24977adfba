"""The escape suite: what hostile code tries, and whether a sandbox holds. Each sandbox that isolates is held to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from coachrl.doctor.bait import set_out
from coachrl.doctor.sandbox import PROBE_LIMITS, Result, is_alone, judge
from coachrl.errors import SandboxError
from coachrl.sandbox.base import Sandbox
from coachrl.types import Execution
from escapes.attempts import ATTEMPTS, program
from escapes.bombs import BOMBS

__all__ = ["ATTEMPTS", "BOMBS", "SUITE_LIMITS", "Result", "judge", "program", "run_suite", "set_out"]

SUITE_LIMITS = PROBE_LIMITS


async def run_suite(sandbox: Sandbox, bait: dict[str, object]) -> AsyncIterator[Result]:
    """Every attempt in turn, in `sandbox`, which must have SUITE_LIMITS and have been made after `bait` was set out.

    Where the code sees processes beside its own, bombs and signals would hit those: they are not tried, and count as
    not held. Raises SandboxError where the sandbox cannot be used at all."""
    await sandbox.start()
    for attempt in ATTEMPTS:
        held, detail = judge(await _run(sandbox, program(attempt, bait)))
        yield Result(attempt.area, attempt.name, held, detail)
    others = await is_alone(sandbox)
    for (area, name), bomb in BOMBS.items():
        if others and area in ("bombs", "signals"):
            yield Result(area, name, False, others)
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
