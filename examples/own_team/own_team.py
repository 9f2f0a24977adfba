"""A team of one's own: a scout that may look things up, and a writer that answers from the scout's notes.

    cd examples/own_team
    coachrl train --pipeline own_team:ScoutAndWriter --coach own_team:coach tasks.source=own_team:load train.steps=2

Everything that the team is made of is in this file: two agents, a tool, a coach and the tasks.
"""

import itertools

from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.types import Outcome, Role, Task

HEIGHTS = {"Ben Nevis": 1345, "Mont Blanc": 4806, "Olympus": 2918, "Snowdon": 1085, "Teide": 3715, "Zugspitze": 2962}

SCOUT = parse_prompt("---\nfields: [question]\n---\nFind out what is needed to answer: {{question}}", "scout")
WRITER = parse_prompt(
    "---\nfields: [question, notes]\n---\n{{question}}\nA colleague's notes: {{notes}}\nAnswer with the name alone.",
    "writer",
)


def height_of(mountain: str) -> int:
    """The height of a mountain in metres.

    mountain: its name, such as "Teide".
    """
    if mountain not in HEIGHTS:
        raise KeyError(f"no mountain called {mountain}; known: {', '.join(HEIGHTS)}")
    return HEIGHTS[mountain]


class ScoutAndWriter(Pipeline):
    """The scout looks up heights, the writer names the higher mountain."""

    name = "scout-and-writer"
    roles = (
        Role(
            "scout",
            policy="scout",
            prompt=SCOUT,
            description="Looks up heights with its tool, and notes them for the writer.",
            tools=(f"{__name__}:height_of",),
            max_turns=3,
            max_new_tokens=96,
        ),
        Role("writer", policy="writer", prompt=WRITER, description="Names the mountain.", max_new_tokens=16),
    )

    async def run(self, task, team, workspace):
        notes = await team.scout.act(question=task.prompt)
        answer = await team.writer.act(question=task.prompt, notes=notes.transcript)
        right = answer.text.strip().strip(".") == self.truth(task, str)
        return Outcome(right, {"correct": float(right)}, reason="" if right else "wrong mountain")


def load(config):
    """A question for each pair of mountains; a part of them is held out."""
    return [
        Task(f"{one}-{other}", "mountains", f"Which is higher, {one} or {other}?", ground_truth=higher(one, other))
        for one, other in itertools.combinations(sorted(HEIGHTS), 2)
    ]


def higher(one, other):
    return max(one, other, key=lambda name: HEIGHTS[name])


def coach(request):
    """Points for one action, from 0 to 10: a scout for calls that worked, a writer for a short answer."""
    if request.role.name == "scout":
        return 8.0 if any(call.ok for call in request.action.tool_calls) else 2.0
    return 7.0 if len(request.action.text) < 20 else 3.0
