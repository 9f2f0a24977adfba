"""Reasoners and tool users on one math problem (Stronger-MAS, Sec. 5.1, 5.2): each answers, sees the others' work and
answers again, until all agree or the turns are over; a judge may have the last word."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, model_validator

from coachrl.pipelines.base import AgentTrajectory, Team
from coachrl.pipelines.math.answers import AnswerEnvironment, AnswerOptions, TalkPipeline
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


class MathDuo(TalkPipeline):
    """N reasoners and M tool users. One of them alone is the single-agent variant, which answers once."""

    name = "math_duo"

    class Options(AnswerOptions):
        reasoners: int = Field(1, ge=0, description="Agents that reason.")
        tool_users: int = Field(1, ge=0, description="Agents that compute with a program.")
        judge: bool = Field(
            False, description="An agent that reads all and answers last; else the most frequent answer."
        )
        turns: int = Field(4, ge=1, description="Turns of talk at most; agreement ends it before.")

        @model_validator(mode="after")
        def _someone_answers(self) -> MathDuo.Options:
            if self.reasoners + self.tool_users < 1:
                raise ValueError("reasoners and tool_users are both 0: nobody would answer")
            return self

    options: Options

    def members(self) -> list[tuple[Role, int]]:
        options = self.options
        return [(REASONER, options.reasoners), (TOOL_USER, options.tool_users), (JUDGE, int(options.judge))]

    @property
    def rounds(self) -> int:
        talks = self.options.reasoners + self.options.tool_users > 1
        return self.options.turns if talks else 1

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        talking = [role for role in self.roles if role.name != JUDGE.name]
        by_trust = sorted(talking, key=lambda role: not role.python)  # of equally many, a computed answer first
        names = [role.name for role in by_trust]
        self.begin(task, team, names, JUDGE.name if self.options.judge else None)
        parts: dict[str, AgentTrajectory] = {}
        turns, agreed = 0, False
        while not agreed and turns < self.rounds:
            parts = await self._turn(task, team, talking, parts)
            turns, agreed = turns + 1, await team.environment_as(AnswerEnvironment).agreed(names)
        if self.options.judge:
            await self.answer(task, team, JUDGE.name, parts)
        outcome = await team.environment_as(AnswerEnvironment).outcome()
        talk = {"agreed": float(agreed), "turns": float(turns)}
        return replace(outcome, metrics={**outcome.metrics, **talk})

    async def _turn(
        self, task: Task, team: Team, roles: list[Role], parts: dict[str, AgentTrajectory]
    ) -> dict[str, AgentTrajectory]:
        """All act on what was written in the turns before. Those that run code share a workspace: one by one."""
        new = await self.answers(task, team, [role.name for role in roles if not role.python], parts)
        for role in roles:
            if role.python:
                new[role.name] = await self.answer(task, team, role.name, parts)
        return new
