"""A pipeline of two agents with scripted parts, and the training loop around it."""

import contextlib

from coachrl.coach.pool import CoachPool
from coachrl.config import load_config
from coachrl.errors import (
    CoachError,
)
from coachrl.pipelines.base import Team
from coachrl.prompts import parse_prompt
from coachrl.runs.folder import Run
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.loop import Trainer
from coachrl.types import Outcome, Role, Task


class TwoStep:
    """A planner writes a plan, a speaker repeats it; success where the speaker says the truth."""

    name = "two-step"
    patience_s = None
    place = contextlib.nullcontext
    roles = (
        Role("planner", "planner", parse_prompt("---\nfields: [question]\n---\n{{question}}", "planner")),
        Role("speaker", "speaker", parse_prompt("---\nfields: [plan]\n---\nSay {{plan}}", "speaker")),
    )

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        plan = await team.planner.act(question=task.prompt)
        said = await team.speaker.act(plan=plan.text)
        right = said.text == task.ground_truth
        return Outcome(right, {"correct": float(right)}, "" if right else "wrong", f"truth was {task.ground_truth}")


class Silent:
    def on_phase(self, phase, total): ...
    def on_episode(self, episode): ...
    def on_metrics(self, metrics): ...


def reply(call):
    return call.prompt.split("<user>")[-1].split("\n")[0].removeprefix("Say ")


def make_tasks(count, split="train"):
    return [
        Task(f"{split}-{i}", "even" if i % 2 == 0 else "odd", f"word{i}", ground_truth=f"word{i}") for i in range(count)
    ]


def make_trainer(tmp_path, coach=None, policy=None, overrides=(), name="run", run=None):
    config = load_config(None, ["train.steps=3", "train.tasks_per_step=4", f"name={name}", *overrides])
    config = config.model_copy(update={"out": tmp_path / "runs"})
    run = run or Run.create(config)
    pool = CoachPool(coach or ScriptedCoach(lambda request: float(request.action.index * 3 + 2)), ledger=run.ledger)
    trainer = Trainer(
        config,
        run,
        pipeline=TwoStep(),
        backend=policy or ScriptedPolicy(reply),
        sandbox=None,
        coach=pool,
        train_tasks=make_tasks(6),
        heldout_tasks=make_tasks(3, "heldout"),
        callback=Silent(),
    )
    return trainer, pool


def failing_coach(steps):
    def score(request):
        if int(request.action.episode_id.split(".")[0].rpartition("-")[2]) in steps:
            raise CoachError("no verdict in the reply")
        return 5.0 + request.action.index

    return ScriptedCoach(score)
