"""Evaluation: every episode has draws of its own, and the same ones at every step."""

import pytest

from coachrl.errors import TaskError
from coachrl.pipelines.base import Team
from coachrl.prompts import parse_prompt
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.evaluate import evaluate
from coachrl.trainers.rollout.rollout import RolloutContext
from coachrl.types import Outcome, Role, Task

TASKS = [Task(f"t{number}", "k", f"word{number}") for number in range(3)]


class Speaker:
    """One agent that says its draw's seed; success where that is even."""

    name = "speaker"
    roles = (Role("speaker", "speaker", parse_prompt("---\nfields: [question]\n---\n{{question}}", "speaker")),)

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        said = await team.speaker.act(question=task.prompt)
        return Outcome(int(said.text) % 2 == 0)


async def draws(seed: int, label: str, tasks=TASKS, samples: int = 4) -> dict[tuple[str, str], str]:
    """(task, number of the episode) -> what its agent said."""
    context = RolloutContext(Speaker(), ScriptedPolicy(lambda call: str(call.sampling.seed)), None)
    episodes = await evaluate(tasks, context, samples, seed, label)
    assert [episode.task_id for episode in episodes] == [task.id for task in tasks for _ in range(samples)]
    return {(e.task_id, e.id.rpartition(".")[2]): e.actions[0].text for e in episodes}


async def test_no_two_episodes_of_an_evaluation_share_a_draw():
    said = await draws(0, "eval-000000")
    assert len(said) == len(set(said.values())) == len(TASKS) * 4


async def test_evaluations_before_and_after_training_are_paired():
    before = await draws(0, "eval-000000")
    assert await draws(0, "eval-000009") == before
    fewer = await draws(0, "eval-000009", list(reversed(TASKS[:2])), samples=2)
    assert fewer.items() <= before.items(), "a task's draws depend on no other task, and on no number of episodes"
    assert not set((await draws(1, "eval-000000")).values()) & set(before.values())


async def test_an_empty_task_set_is_refused():
    with pytest.raises(TaskError, match="held-out task set is empty"):
        await draws(0, "eval-000000", [])
