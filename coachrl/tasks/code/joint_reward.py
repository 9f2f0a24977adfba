"""The joint reward of two agents that write one program: levels, each counted only where the one before it is full.

MAGRPO, Sec. 5.1: structure, syntax, tests, cooperation. The paper states no weights; the defaults are its released
code's, 4 points at most. There a call of `aux` earns its points in full as soon as one test passes, more than the
tests themselves: here they are multiplied by the share of tests passed. All but the tests is read from the syntax tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from coachrl.config import Section
from coachrl.sandbox.base import Workspace
from coachrl.tasks.code.cooperation import AUX, NO_COOPERATION, Cooperation, defines, find_cooperation, parse_code
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import SuiteResult, run_suite


class JointWeights(Section):
    """What each part of the joint reward is worth."""

    aux: float = Field(0.4, ge=0, description="The helper defines aux with a return.")
    main: float = Field(0.6, ge=0, description="The main agent defines the entry function.")
    syntax: float = Field(0.5, ge=0, description="Both parts are Python.")
    tests: float = Field(1.0, ge=0, description="Times the share of tests passed.")
    calls_aux: float = Field(0.5, ge=0, description="The entry function calls aux.")
    beyond_wrapper: float = Field(1.0, ge=0, description="It uses what aux returns, and does more than pass it on.")
    ignores_aux: float = Field(0.5, ge=0, description="Taken off where it calls aux and ignores what comes back.")


LEVELS = ("structure", "syntax", "tests", "cooperation")


@dataclass(frozen=True)
class JointReward:
    """levels: points by level of `LEVELS`, 0 for those that were not reached. result: None where nothing could run."""

    levels: Mapping[str, float]
    cooperation: Cooperation
    result: SuiteResult | None

    @property
    def total(self) -> float:
        return sum(self.levels.values())

    @property
    def solved(self) -> bool:
        return self.result is not None and self.result.all_passed

    @property
    def tests_passed(self) -> float:
        """Share of tests passed, 0 to 1."""
        return self.result.share if self.result is not None else 0.0


def join_code(truth: CodeTruth, helper: str | None, main: str) -> str:
    """One program: what the task gives, the helper's code, the main agent's code."""
    return "\n\n\n".join(part.strip() for part in (truth.preamble, helper or "", main) if part.strip()) + "\n"


async def judge_together(
    workspace: Workspace,
    truth: CodeTruth,
    helper: str | None,
    main: str,
    weights: JointWeights,
    timeout_s: float | None = None,
) -> JointReward:
    """Run what the two agents wrote as one program, and weigh it. helper: None for a single agent, which gets the
    helper's points for structure with its own, and none for cooperation. Raises SandboxError."""
    program = join_code(truth, helper, main)
    has_main = defines(main, truth.entry_point)
    parses = all(parse_code(part) is not None for part in (helper or "", main))
    runnable = has_main and parses
    result = None
    if runnable:
        result = await run_suite(workspace, program, truth.suite, truth.entry_point, timeout_s, truth.preamble)
    found = find_cooperation(main, truth.entry_point) if helper is not None else NO_COOPERATION
    has_aux = defines(helper, AUX, needs_return=True) if helper is not None else has_main
    share = result.share if result is not None else 0.0
    reached = [
        ("structure", weights.aux * has_aux + weights.main * has_main, has_aux and has_main),
        ("syntax", weights.syntax * parses, parses),
        ("tests", weights.tests * share, share > 0),
        ("cooperation", share * _cooperation(found, weights), True),
    ]
    levels, still = dict.fromkeys(LEVELS, 0.0), True
    for name, points, full in reached:
        levels[name] = points if still else 0.0
        still = still and full
    return JointReward(levels, found if has_aux else NO_COOPERATION, result)


def _cooperation(found: Cooperation, weights: JointWeights) -> float:
    if not found.called:
        return 0.0
    if not found.used:
        return weights.calls_aux - weights.ignores_aux
    return weights.calls_aux + (0.0 if found.wrapper else weights.beyond_wrapper)
