"""A coder's program and a tester's tests, and what each is worth (Stronger-MAS, App. B.2)."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from coachrl.pipelines.team.state import Environment, StepResult
from coachrl.sandbox.base import Workspace
from coachrl.tasks.code.cooperation import parse_code
from coachrl.tasks.code.examples import arguments_in
from coachrl.tasks.code.joint_reward import join_code
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import Suite, SuiteError, SuiteResult, off_by_one, parse_suite, run_suite
from coachrl.tasks.code.tested import by_own_name
from coachrl.text import written_code
from coachrl.types import Action, Reward

CODER, TESTER = "coder", "tester"


@dataclass
class CodeEnvironment(Environment):
    """The latest program and tests. graded: what the task's own tests found; agents are never told.

    The team's reward is the share of the task's own tests that the program passes. The coder's own: 0.1 where its
    program loads and defines the function, 0.1 where the first test runs without an exception, 0.8 times that share.
    The tester's own: 0.2 for tests that can be run and call the function, 0.8 times the share of them that the task's
    reference solution passes, and fails with another result in the place of each; nothing where the task has none. A
    right one that says no more than the task's `examples` is not counted: it could be copied.
    Unless it is shaped (App. B.6), the team's is 1 or 0 and the own one 1 for the form alone.
    """

    truth: CodeTruth
    timeout_s: float | None = None
    shaped: bool = True
    examples: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    graded: SuiteResult | None = None
    tests: Suite | None = None
    tests_right: float | None = None

    @property
    def solved(self) -> bool:
        return self.graded is not None and self.graded.all_passed

    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """Take a program or tests, and judge them in the workspace. Raises SandboxError where that broke."""
        if workspace is None:
            raise ValueError("programs are judged in a workspace")
        written = written_code(action.text)
        checks = await (self._program(written, workspace) if action.role == CODER else self._tests(written, workspace))
        if not self.shaped:
            return StepResult("", Reward(float(self.solved), checks["form"], checks))
        known = action.role == CODER or self.truth.reference is not None
        own = sum(weight * checks[name] for name, weight in _WEIGHTS[action.role].items()) if known else 0.0
        return StepResult("", Reward(self.graded.share if self.graded is not None else 0.0, own, checks))

    async def compare(self, workspace: Workspace) -> SuiteResult | None:
        """What the tester's tests find in the coder's program; None where either is missing."""
        if self.tests is None or not self.program:
            return None
        return await self._run(self.program, self.tests, workspace)

    def copy(self) -> CodeEnvironment:
        return replace(self)

    def render(self) -> str:
        return f"{self.program}\n# tests\n{self.tests.source if self.tests is not None else ''}"

    async def _program(self, program: str, workspace: Workspace) -> dict[str, float]:
        self.program, self.graded = program, None
        if parse_code(program) is None:
            return {"form": 0.0, "smoke": 0.0, "tests": 0.0}
        self.graded = graded = await self._run(program, self.truth.suite, workspace)
        return {"form": float(graded.loaded), "smoke": float(graded.ran[0]), "tests": graded.share}

    async def _tests(self, source: str, workspace: Workspace) -> dict[str, float]:
        self.tests_right = None
        self.tests = await asyncio.to_thread(read_tests, source, self.truth.entry_point)  # 64 KiB take seconds
        form = {"form": float(self.tests is not None)}
        if self.truth.reference is None:  # nobody can say whether they are right
            return form
        if self.tests is None:
            return form | {"passed": 0.0, "right": 0.0}
        passed, self.tests_right = await self._worth(self.tests, self.truth.reference, workspace)
        return form | {"passed": passed, "right": self.tests_right}

    async def _worth(self, tests: Suite, reference: str, workspace: Workspace) -> tuple[float, float]:
        """Share of the tests that the reference passes, and of those that count the share that notice, too, where its
        results are others: a test that every program passes tests nothing. One that notices this only where the
        examples' results are others as well asks for what all have been told, in whatever words."""
        name = self.truth.entry_point
        shown = arguments_in(self.examples, name)
        programs = (reference, off_by_one(reference, name), off_by_one(reference, name, shown))
        passed = {program: (await self._run(program, tests, workspace)).passed for program in dict.fromkeys(programs)}
        verdicts = list(zip(*(passed[program] for program in programs), strict=True))
        counted = sum(verdict != (True, False, True) for verdict in verdicts)
        noticing = sum(verdict == (True, False, False) for verdict in verdicts)
        return sum(passed[reference]) / len(verdicts), noticing / max(1, counted)

    async def _run(self, program: str, suite: Suite, workspace: Workspace) -> SuiteResult:
        joined = join_code(self.truth, None, program)
        return await run_suite(workspace, joined, suite, self.truth.entry_point, self.timeout_s, self.truth.preamble)


_WEIGHTS = {CODER: {"form": 0.1, "smoke": 0.1, "tests": 0.8}, TESTER: {"form": 0.2, "right": 0.8}}


def read_tests(source: str, entry_point: str) -> Suite | None:
    """A tester's suite, or None where it is none: no Python, no assertion, or one that does not name the function."""
    try:
        suite = parse_suite(source)
        named = by_own_name(suite, entry_point)
        asserted = [ast.parse(text, mode="eval") for text in named.assertions]
    except (SuiteError, RecursionError):
        return None
    names = [{node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} for tree in asserted]
    return suite if all(entry_point in found for found in names) else None
