"""Evaluation: every episode has draws of its own, the same ones at every step; pass@k is unbiased, by task, and only
where there are episodes enough."""

import contextlib
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.errors import TaskError
from coachrl.pipelines.base import Team
from coachrl.prompts import parse_prompt
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.evaluate import evaluate, evaluation_metrics, pass_at, speed_metrics
from coachrl.trainers.rollout.rollout import RolloutContext
from coachrl.types import Episode, Outcome, Role, Task

TASKS = [Task(f"t{number}", "k", f"word{number}") for number in range(3)]


class Speaker:
    """One agent that says its draw's seed; success where that is even."""

    name = "speaker"
    patience_s = None
    place = contextlib.nullcontext
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


def episodes(*tasks, infra_error=None):
    """tasks: for each task the successes of its episodes, such as "110"."""
    return [
        Episode(f"e{t}.{i}", f"t{t}", "k", "p", (), Outcome(mark == "1"), infra_error=infra_error)
        for t, marks in enumerate(tasks)
        for i, mark in enumerate(marks)
    ]


def test_golden_values():
    """n = 5, c = 2: pass@1 2/5, pass@3 1 - C(3,3)/C(5,3) = 9/10, pass@5 1; the other task never succeeds."""
    assert pass_at(episodes("11000"), (1, 3, 5)) == pytest.approx({1: 0.4, 3: 0.9, 5: 1.0})
    assert pass_at(episodes("11000", "00000"), (1, 3, 5)) == pytest.approx({1: 0.2, 3: 0.45, 5: 0.5})


@given(st.text("01", min_size=2, max_size=7), st.integers(1, 7))
def test_it_is_the_share_of_draws_with_a_success(marks, k):
    draws = [any(mark == "1" for mark in drawn) for drawn in combinations(marks, k)]
    expected = {k: pytest.approx(sum(draws) / len(draws))} if draws else {}
    assert pass_at(episodes(marks), (k,)) == expected


def test_where_it_is_left_out():
    assert pass_at(episodes("1", "0"), (1, 3)) == {}, "one episode each: that is success, no pass@k"
    assert set(pass_at(episodes("1100", "10"), (1, 2, 3))) == {1, 2}, "a task with too few episodes"
    assert pass_at(episodes("10", "1"), (1, 2)) == {1: 0.75}, "one task of two episodes is enough for it"
    broken = [*episodes("10"), *episodes("11", infra_error="sandbox")]
    assert pass_at(broken, (1, 2, 3)) == {1: 0.5, 2: 1.0}, "broken episodes do not count"


def test_it_is_among_the_metrics_of_an_evaluation():
    metrics = evaluation_metrics([], episodes("1000000000", "0000000000"))
    assert [metrics[f"eval/pass@{k}"] for k in (1, 3, 5, 10)] == pytest.approx([0.05, 0.15, 0.25, 0.5])


def test_a_broken_episode_of_a_table_is_no_failed_one():
    truth = TabularTruth("classification", "accuracy", "id", ("y",), Path("answers.csv"), ("a", "b"))
    tasks = [Task("t0", "classification", "?", ground_truth=truth)]
    measured = Episode("e", "t0", "classification", "p", (), Outcome(True, {"accuracy": 0.75}))
    broken = replace(measured, id="b", outcome=Outcome(False), infra_error="sandbox")
    failed = replace(broken, infra_error=None)
    alone, beside, failing = (evaluation_metrics(tasks, [measured, *more]) for more in ((), (broken,), (failed,)))
    assert beside == alone | {"eval/faulty_fraction": 0.5}
    assert (alone["eval/accuracy_fair"], failing["eval/accuracy_fair"]) == (0.75, 0.625)


def test_speed_is_all_generated_tokens_over_the_seconds_that_passed():
    actions = tuple(make_action(index=index, response_ids=(2,) * size) for index, size in enumerate((3, 7)))
    played = Episode("e", "t", "k", "p", actions, Outcome(True))
    assert speed_metrics([played, *episodes("1")], 4.0) == {"time/eval_s": 4.0, "time/eval_tokens_per_s": 2.5}
