"""Debate: n agents answer one maths problem, read each other's answers and answer again; a vote or a judge decides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config import PipelineConfig
from coachrl.pipelines.answers import AnswerEnvironment, answers_of, math_truth, told
from coachrl.pipelines.base import AgentTrajectory, Team, together
from coachrl.pipelines.options import PipelineOptions, read_options
from coachrl.pipelines.roles import check_fields, fill, load_team, load_text, take_part
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
_FIELDS = {"problem", "history", "token_limit"}


class Debate:
    """On tasks whose ground truth is a `MathTruth`. One agent alone, the single-agent variant, revises its answer."""

    name = "debate"
    task_sources = ("word-problems", "math")
    small_model = PipelineConfig(max_new_tokens=64)
    environment = AnswerEnvironment

    class Options(PipelineOptions):
        agents: int = Field(3, ge=1, description="Debaters.")
        rounds: int = Field(2, ge=1, description="Rounds; from the second one on they read each other's answers.")
        decide: Literal["vote", "judge"] = Field(
            "vote", description="Who decides: the most frequent answer, or a judge."
        )
        rewards: Literal["shaped", "outcome"] = Field(
            "shaped", description="outcome: success for the team, the form for the agent, nothing in between."
        )

    def __init__(self, settings: PipelineConfig) -> None:
        """Raises ConfigError for wrong options, and where a prompt declares a field that its role does not get."""
        self.options = read_options(self.Options, settings, self.name)
        members = [(DEBATER, self.options.agents), (JUDGE, int(self.options.decide == "judge"))]
        self.roles = load_team(members, settings, self.name)
        self.rounds = self.options.rounds
        for role in self.roles:
            check_fields(role.prompt, _FIELDS)
        self._earlier = load_text("earlier", {"work"}, settings, self.name)

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. Raises TaskError for a task without a `MathTruth`."""
        truth, judged = math_truth(task, self.name), self.options.decide == "judge"
        debaters = [role for role in self.roles if role.name != JUDGE.name]
        names = [role.name for role in debaters]
        team.environment = AnswerEnvironment(
            truth, names, JUDGE.name if judged else None, self.options.rewards == "shaped"
        )
        parts: dict[str, AgentTrajectory] = {}
        for _ in range(self.rounds):
            said = await together(self._act(task, team, role, parts) for role in debaters)
            parts = dict(zip(names, said, strict=True))
        if judged:
            await self._act(task, team, self.roles[-1], parts)
        return await answers_of(team).outcome()

    async def _act(self, task: Task, team: Team, role: Role, parts: dict[str, AgentTrajectory]) -> AgentTrajectory:
        history = fill(self._earlier, {"work": told(parts, reader=role.name)}) if parts else ""
        return await take_part(team, role, {"problem": task.prompt, "history": history})
