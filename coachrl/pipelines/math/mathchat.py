"""MathChat (MAPPA, Sec. 3.1 and App. B): one agent drafts, one computes with code, the last states the answer."""

from __future__ import annotations

from collections.abc import Collection

from coachrl.config import PipelineConfig, RoleConfig
from coachrl.pipelines.base import Pipeline, Team
from coachrl.pipelines.math.answers import grade_reply
from coachrl.sandbox.base import Workspace
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Outcome, Role, Task

ROLES = (
    Role(
        name="problem_solver",
        policy="problem_solver",
        description="Drafts a solution of the problem for the code executor to work from; it runs no code itself.",
    ),
    Role(
        name="code_executor",
        policy="code_executor",
        description="Computes or checks the drafted solution by Python code, which is run for it, and reports "
        "the result to the verifier.",
        python=True,
        max_turns=5,
        stop_when="answered",
    ),
    Role(
        name="verifier",
        policy="verifier",
        description="Weighs what the others found and states the final answer inside \\boxed{}; the team succeeds "
        "only if that answer is correct.",
    ),
)

# What a prompt may ask for; it gets the fields that it declares. `draft`: the solver's reply. `execution`: every reply
# of the executor with what its code printed; `output`: only what its last code printed. `token_limit`: of one reply.
_FULL = {
    "problem_solver": {"token_limit", "problem"},
    "code_executor": {"token_limit", "problem", "draft"},
    "verifier": {"token_limit", "problem", "draft", "execution", "output"},
}
# MAPPA, App. A.1: each agent sees only what the one before it handed on.
_PARTIAL = {
    "problem_solver": {"token_limit", "problem"},
    "code_executor": {"token_limit", "draft"},
    "verifier": {"token_limit", "execution", "output"},
}


class MathChat(Pipeline):
    """Three agents in a row, on tasks whose ground truth is a `MathTruth`."""

    name = "mathchat"
    roles = ROLES
    task_sources = ("word-problems", "math")
    ground_truth = MathTruth
    small_model = PipelineConfig(
        max_new_tokens=32,
        roles={
            "problem_solver": RoleConfig(max_new_tokens=16),
            "code_executor": RoleConfig(max_turns=1, max_new_tokens=40),
        },
    )

    def prompt_fields(self, kind: str) -> Collection[str]:
        return (_PARTIAL if self.settings.partial_information else _FULL)[kind]

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        truth = self.truth(task, MathTruth)
        known = {"problem": task.prompt}
        draft = await team.problem_solver.act_on(known)
        known["draft"] = draft.text or "(nothing)"
        checked = await team.code_executor.act_on(known)
        known["execution"] = checked.transcript or "(nothing)"
        known["output"] = checked.output or "(no output)"
        answer = await team.verifier.act_on(known)
        return await grade_reply(answer.text, truth)
