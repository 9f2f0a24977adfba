"""MathChat (MAPPA, Sec. 3.1 and App. B): one agent drafts, one computes with code, the last states the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import TaskError
from coachrl.pipelines.base import Agent, AgentTrajectory, Team
from coachrl.pipelines.roles import check_fields, load_roles
from coachrl.sandbox.base import Workspace
from coachrl.tasks.math.problems import MathTruth, grade_math
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


class MathChat:
    """Three agents in a row, on tasks whose ground truth is a `MathTruth`."""

    name = "mathchat"
    task_sources = ("word-problems", "math")
    small_model = PipelineConfig(
        max_new_tokens=32,
        roles={
            "problem_solver": RoleConfig(max_new_tokens=16),
            "code_executor": RoleConfig(max_turns=1, max_new_tokens=40),
        },
    )

    def __init__(self, settings: PipelineConfig) -> None:
        """Raises ConfigError where a prompt declares a field that its role does not get."""
        self.roles = load_roles(ROLES, settings, self.name)
        for role in self.roles:
            check_fields(role.prompt, (_PARTIAL if settings.partial_information else _FULL)[role.name])

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. Raises TaskError for a task without a `MathTruth`."""
        truth = task.ground_truth
        if not isinstance(truth, MathTruth):
            raise TaskError(f"task {task.id}: pipeline {self.name} takes mathematics tasks (math, word-problems) only")
        known = {"problem": task.prompt}
        known["draft"] = (await _act(team.problem_solver, known)).text or "(nothing)"
        checked = await _act(team.code_executor, known)
        known |= {"execution": checked.transcript or "(nothing)", "output": checked.output or "(no output)"}
        answer = await _act(team.verifier, known)
        return await asyncio.to_thread(grade_math, answer.text, truth)


async def _act(agent: Agent, known: Mapping[str, str]) -> AgentTrajectory:
    values = {**known, "token_limit": str(agent.role.max_new_tokens)}
    return await agent.act(**{name: values[name] for name in agent.role.prompt.fields})
