"""What tests of the pipeline `gateway` say as an app, and how they play its episodes."""

import asyncio

from coachrl.config import PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Task

LOOK_UP = {
    "type": "function",
    "function": {
        "name": "height_of",
        "description": "The height of a mountain.",
        "parameters": {"type": "object", "properties": {"mountain": {"type": "string"}}},
    },
}


def user(text):
    return {"role": "user", "content": text}


def said(client, role, *messages, **more):
    return client.chat.completions.create(model=role, messages=list(messages), **more).choices[0].message


async def play(pipeline, policy, count=1, **context):
    specs = [EpisodeSpec(f"e{n}", Task(f"t{n}", "k", f"task {n}", ground_truth=f"truth {n}"), n) for n in range(count)]
    return await rollout(specs, RolloutContext(pipeline, policy, sandbox=None, **context))


async def wait_until(condition, seconds=60.0):
    for _ in range(int(seconds * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


SEEN = {}
"""What apps gave back, by task."""


def ask(client, text, **more):
    return client.chat.completions.create(model="planner", messages=[user(text)], **more).choices[0].message.content


def pipeline_of(module, run=None, **options):
    """The pipeline of an app with one role; run: its function in `module`, or another path."""
    chosen = {"run": run if ":" in run else f"{module}:{run}"} if run else {}
    settings = {**chosen, "grade": f"{__name__}:kept", "roles": {"planner": {}}, **options}
    return make_pipeline(PipelineConfig(name="gateway", options=settings))


def kept(task, result):
    SEEN[task.id] = result
    return result == "fine"
