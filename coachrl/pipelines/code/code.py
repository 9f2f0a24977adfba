"""A coder writes a program, a tester writes tests for it, and both refine theirs until program and tests agree
(Stronger-MAS, Sec. 5.1). Agreement ends the episode; the task's own tests alone decide success."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config import PipelineConfig
from coachrl.pipelines.base import PipelineOptions, Team
from coachrl.pipelines.code.base import CodePipeline
from coachrl.pipelines.code.environment import CODER, TESTER, CodeEnvironment
from coachrl.pipelines.team.roles import fill, load_text
from coachrl.sandbox.base import Workspace
from coachrl.tasks.code.examples import examples_in
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import SuiteResult
from coachrl.text import clip_middle
from coachrl.types import Outcome, Role, Task

ROLES = (
    Role(
        name=CODER,
        policy=CODER,
        description="Writes the function that the task asks for; later it corrects what the tester's tests find.",
    ),
    Role(
        name=TESTER,
        policy=TESTER,
        description="Writes assertions that a correct function passes and a wrong one fails, without seeing "
        "the task's own tests; later it corrects those that ask for the wrong thing.",
    ),
)


class Code(CodePipeline):
    """The coder alone is the single-agent variant, which answers once."""

    name = "code"
    environment = CodeEnvironment

    class Options(PipelineOptions):
        tester: bool = Field(True, description="False leaves the coder alone, for one turn.")
        turns: int = Field(4, ge=1, description="Turns at most; agreement of program and tests ends them before.")
        test_timeout_s: float = Field(10.0, gt=0, description="Of one run of tests.")
        rewards: Literal["shaped", "outcome"] = Field(
            "shaped", description="outcome: success for the team, the form for the agent, nothing in between."
        )

    options: Options

    def __init__(self, settings: PipelineConfig) -> None:
        super().__init__(settings)
        self._mismatch = load_text("mismatch", {"program", "tests", "findings"}, settings, self.name)

    def members(self) -> list[tuple[Role, int]]:
        return [(role, 1) for role in (ROLES if self.options.tester else ROLES[:1])]

    @property
    def rounds(self) -> int:
        return self.options.turns if self.options.tester else 1

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        truth, options = self.truth(task, CodeTruth), self.options
        workspace = self.require_workspace(workspace)
        shaped, examples = options.rewards == "shaped", examples_in(task.prompt)
        team.environment = CodeEnvironment(truth, options.test_timeout_s, shaped, examples)
        known = {"problem": task.prompt, "entry_point": truth.entry_point, "history": ""}
        turns, agreed = 0, False
        while not agreed and turns < self.rounds:
            turns += 1
            for role in self.roles:  # neither sees what the other wrote in this turn
                await team[role.name].act_on(known)
            written = team.environment_as(CodeEnvironment)
            found = await written.compare(workspace)
            agreed = found is not None and found.all_passed
            known["history"] = self._history(written, found)
        return _outcome(team.environment_as(CodeEnvironment), agreed, turns)

    def _history(self, environment: CodeEnvironment, found: SuiteResult | None) -> str:
        findings = found.summary if found is not None else "They could not be run: program or tests are missing."
        values = {
            "program": environment.program.strip() or "(none)",
            "tests": environment.tests.source.strip() if environment.tests is not None else "(none that can be run)",
            "findings": clip_middle(findings) or "All tests pass.",
        }
        return fill(self._mismatch, values)


def _outcome(environment: CodeEnvironment, agreed: bool, turns: int) -> Outcome:
    share = environment.graded.share if environment.graded is not None else 0.0
    metrics = {"tests_passed": share, "agreed": float(agreed), "turns": float(turns)}
    if environment.tests_right is not None:
        metrics["tester_right"] = environment.tests_right
    told = environment.graded.summary if environment.graded is not None else "no program that parses"
    return Outcome(
        success=environment.solved,
        metrics=metrics,
        reason="" if environment.solved else "the program fails the task's tests",
        summary=f"The program passes {share:.0%} of the task's own tests.\n{clip_middle(told)}".strip(),
    )
