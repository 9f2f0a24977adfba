"""Mixture of agents: n proposers answer one math problem side by side, one aggregator makes the answer of it."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from coachrl.pipelines.base import Team, together
from coachrl.pipelines.math.answers import AnswerEnvironment, AnswerOptions, AnswerPipeline, told
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


class Mixture(AnswerPipeline):
    """Without proposers it is the single-agent variant."""

    name = "mixture"

    class Options(AnswerOptions):
        proposers: int = Field(3, ge=0, description="Proposers; 0 leaves the aggregator alone.")

    options: Options

    def members(self) -> list[tuple[Role, int]]:
        return [(PROPOSER, self.options.proposers), (AGGREGATOR, 1)]

    def prompt_fields(self, kind: str) -> Collection[str]:
        return _FIELDS[kind]

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        names = [role.name for role in self.roles[:-1]]
        self.begin(task, team, names, AGGREGATOR.name)
        known = {"problem": task.prompt}
        written = await together(team[name].act_on(known) for name in names)
        known["proposals"] = told(dict(zip(names, written, strict=True))) or "(none)"
        await team.aggregator.act_on(known)
        return await team.environment_as(AnswerEnvironment).outcome()
