"""Debate: n agents answer one math problem, read each other's answers and answer again; a vote or a judge decides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.pipelines.base import AgentTrajectory, Team
from coachrl.pipelines.math.answers import AnswerEnvironment, AnswerOptions, TalkPipeline
from coachrl.sandbox.base import Workspace
from coachrl.types import Outcome, Role, Task

DEBATER = Role(
    name="debater",
    policy="debater",
    description="Argues for an answer inside \\boxed{}, reads the others' arguments, and keeps or changes its own.",
)
JUDGE = Role(
    name="judge", policy="judge", description="Reads the last arguments and states the team's answer inside \\boxed{}."
)


class Debate(TalkPipeline):
    """One agent alone, the single-agent variant, revises its answer."""

    name = "debate"

    class Options(AnswerOptions):
        agents: int = Field(3, ge=1, description="Debaters.")
        rounds: int = Field(2, ge=1, description="Rounds; from the second one on they read each other's answers.")
        decide: Literal["vote", "judge"] = Field(
            "vote", description="Who decides: the most frequent answer, or a judge."
        )

    options: Options

    def members(self) -> list[tuple[Role, int]]:
        return [(DEBATER, self.options.agents), (JUDGE, int(self.options.decide == "judge"))]

    @property
    def rounds(self) -> int:
        return self.options.rounds

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        names = [role.name for role in self.roles if role.name != JUDGE.name]
        judge = JUDGE.name if self.options.decide == "judge" else None
        self.begin(task, team, names, judge)
        parts: dict[str, AgentTrajectory] = {}
        for _ in range(self.rounds):
            parts = await self.answers(task, team, names, parts)
        if judge is not None:
            await self.answer(task, team, judge, parts)
        return await team.environment_as(AnswerEnvironment).outcome()
