"""Mixture of agents: n proposers answer one maths problem side by side, one aggregator makes the answer of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config import PipelineConfig
from coachrl.pipelines.answers import AnswerEnvironment, answers_of, math_truth, told
from coachrl.pipelines.base import Team, together
from coachrl.pipelines.options import PipelineOptions, read_options
from coachrl.pipelines.roles import check_fields, load_team, take_part
from coachrl.sandbox.base import Workspace
from coachrl.types import Outcome, Role, Task

PROPOSER = Role(
    name="proposer",
    policy="proposer",
    description="Proposes a solution, without seeing the others', with its answer inside \\boxed{}.",
)
AGGREGATOR = Role(
    name="aggregator",
    policy="aggregator",
    description="Weighs the proposals and states the team's answer inside \\boxed{}.",
)
_FIELDS = {"proposer": {"problem", "token_limit"}, "aggregator": {"problem", "proposals", "token_limit"}}


class Mixture:
    """On tasks whose ground truth is a `MathTruth`. Without proposers it is the single-agent variant."""

    name = "mixture"
    task_sources = ("word-problems", "math")
    small_model = PipelineConfig(max_new_tokens=64)
    environment = AnswerEnvironment

    class Options(PipelineOptions):
        proposers: int = Field(3, ge=0, description="Proposers; 0 leaves the aggregator alone.")
        rewards: Literal["shaped", "outcome"] = Field(
            "shaped", description="outcome: success for the team, the form for the agent, nothing in between."
        )

    def __init__(self, settings: PipelineConfig) -> None:
        """Raises ConfigError for wrong options, and where a prompt declares a field that its role does not get."""
        self.options = read_options(self.Options, settings, self.name)
        self.roles = load_team([(PROPOSER, self.options.proposers), (AGGREGATOR, 1)], settings, self.name)
        for role in self.roles:
            check_fields(role.prompt, _FIELDS["aggregator" if role is self.roles[-1] else "proposer"])

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. Raises TaskError for a task without a `MathTruth`."""
        truth, proposers = math_truth(task, self.name), self.roles[:-1]
        names = [role.name for role in proposers]
        team.environment = AnswerEnvironment(truth, names, AGGREGATOR.name, self.options.rewards == "shaped")
        known = {"problem": task.prompt}
        written = await together(take_part(team, role, known) for role in proposers)
        known["proposals"] = told(dict(zip(names, written, strict=True))) or "(none)"
        await take_part(team, self.roles[-1], known)
        return await answers_of(team).outcome()
