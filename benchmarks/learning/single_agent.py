"""One agent alone on the quickstart's task, told the form of an answer by examples as the team's verifier is."""

from __future__ import annotations

from coachrl.pipelines.base import Pipeline, Team
from coachrl.pipelines.math.answers import grade_reply
from coachrl.prompts import parse_prompt
from coachrl.sandbox.base import Workspace
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Outcome, Role, Task

PROMPT = parse_prompt(
    r"""---
fields: [problem]
examples:
  - user: Sam has 2 cups and gets 5 more. How many cups does Sam have now?
    assistant: The answer is \boxed{7}
  - user: Zoe packs 3 crates with 6 cups each. How many cups is that in all?
    assistant: The answer is \boxed{18}
---
{{problem}}
""",
    "solver",
)


class SingleAgent(Pipeline):
    """Reads a problem and states its answer."""

    name = "single-agent"
    ground_truth = MathTruth
    roles = (Role("solver", policy="solver", prompt=PROMPT),)

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        action = await team.solver.act(problem=task.prompt)
        return await grade_reply(action.text, self.truth(task, MathTruth))
