"""A pipeline whose episodes are of different length, and two of whose policies write at the same time."""

from __future__ import annotations

from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.types import Outcome, Role

ASK = parse_prompt("---\nfields: [problem, before]\n---\n{{problem}} {{before}}", "ask")


class Uneven(Pipeline):
    name = "uneven"
    roles = (Role("left", "left", ASK), Role("right", "right", ASK))

    async def run(self, task, team, workspace):
        said, size = "", len(task.prompt)
        for turn in range(1 + size % 4):
            agent = team.left if (turn + size) % 2 else team.right
            said = (await agent.act(problem=task.prompt, before=said)).text
        return Outcome(len(said) % 2 == 0)
