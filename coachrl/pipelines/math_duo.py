"""Reasoners and tool users on one maths problem (Stronger-MAS, Sec. 5.1, 5.2): each answers, sees the others' work and
answers again, until all agree or the turns are over; a judge may have the last word."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from coachrl.config import PipelineConfig
from coachrl.pipelines.answers import AnswerEnvironment, answers_of, math_truth, told
from coachrl.pipelines.base import AgentTrajectory, Team, together
from coachrl.pipelines.options import PipelineOptions, read_options
from coachrl.pipelines.roles import check_fields, fill, load_team, load_text, take_part
from coachrl.sandbox.base import Workspace
from coachrl.types import Outcome, Role, Task

REASONER = Role(
    name="reasoner",
    policy="reasoner",
    description="Solves the problem by reasoning and answers inside \\boxed{}; later it weighs the others' work.",
)
TOOL_USER = Role(
    name="tool_user",
    policy="tool_user",
    description="Writes a Python program that computes the answer and prints it last; later it corrects its program.",
    python=True,
    stop_when="ran",
)
JUDGE = Role(
    name="judge",
    policy="judge",
    description="Reads what all others found and states the team's final answer inside \\boxed{}.",
)
_FIELDS = {"problem", "history", "token_limit"}


class MathDuo:
    """N reasoners and M tool users, on tasks whose ground truth is a `MathTruth`. One of them alone is the single-agent
    variant, which answers once."""

    name = "math_duo"
    task_sources = ("word-problems", "math")
    small_model = PipelineConfig(max_new_tokens=64)
    environment = AnswerEnvironment

    class Options(PipelineOptions):
        reasoners: int = Field(1, ge=0, description="Agents that reason.")
        tool_users: int = Field(1, ge=0, description="Agents that compute with a program.")
        judge: bool = Field(
            False, description="An agent that reads all and answers last; else the most frequent answer."
        )
        turns: int = Field(4, ge=1, description="Turns of talk at most; agreement ends it before.")
        rewards: Literal["shaped", "outcome"] = Field(
            "shaped", description="outcome: success for the team, the form for the agent, nothing in between."
        )

        @model_validator(mode="after")
        def _someone_answers(self) -> MathDuo.Options:
            if self.reasoners + self.tool_users < 1:
                raise ValueError("reasoners and tool_users are both 0: nobody would answer")
            return self

    def __init__(self, settings: PipelineConfig) -> None:
        """Raises ConfigError for wrong options, and where a prompt declares a field that its role does not get."""
        self.options = read_options(self.Options, settings, self.name)
        counts = [(REASONER, self.options.reasoners), (TOOL_USER, self.options.tool_users), (JUDGE, self.options.judge)]
        self.roles = load_team([(role, int(count)) for role, count in counts], settings, self.name)
        self.rounds = self.options.turns if self.options.reasoners + self.options.tool_users > 1 else 1
        for role in self.roles:
            check_fields(role.prompt, _FIELDS)
        self._earlier = load_text("earlier", {"work"}, settings, self.name)

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. Raises TaskError for a task without a `MathTruth`."""
        truth, options = math_truth(task, self.name), self.options
        talking = [role for role in self.roles if role.name != JUDGE.name]
        by_trust = sorted(talking, key=lambda role: not role.python)  # of equally many, a computed answer first
        names = [role.name for role in by_trust]
        decider = JUDGE.name if options.judge else None
        team.environment = AnswerEnvironment(truth, names, decider, options.rewards == "shaped")
        parts: dict[str, AgentTrajectory] = {}
        turns, agreed = 0, False
        while not agreed and turns < self.rounds:
            parts = await self._turn(task, team, talking, parts)
            turns, agreed = turns + 1, await answers_of(team).agreed(names)
        if options.judge:
            await self._act(task, team, self.roles[-1], parts)
        outcome = await answers_of(team).outcome()
        return Outcome(
            outcome.success, {**outcome.metrics, "agreed": float(agreed), "turns": float(turns)}, outcome.reason,
            outcome.summary,
        )  # fmt: skip

    async def _turn(
        self, task: Task, team: Team, roles: list[Role], parts: dict[str, AgentTrajectory]
    ) -> dict[str, AgentTrajectory]:
        """All act on what was written in the turns before. Those that run code share a workspace: one by one."""
        reasoners = [role for role in roles if not role.python]
        written = await together(self._act(task, team, role, parts) for role in reasoners)
        new = {role.name: part for role, part in zip(reasoners, written, strict=True)}
        for role in roles:
            if role.python:
                new[role.name] = await self._act(task, team, role, parts)
        return new

    async def _act(self, task: Task, team: Team, role: Role, parts: dict[str, AgentTrajectory]) -> AgentTrajectory:
        history = fill(self._earlier, {"work": told(parts, reader=role.name)}) if parts else ""
        return await take_part(team, role, {"problem": task.prompt, "history": history})
