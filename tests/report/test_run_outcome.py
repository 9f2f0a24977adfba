"""What a run came to: before and after, draw by draw, on unequal evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coachrl.config import load_config
from coachrl.report.contents import Contents, EpisodeFile, draw_key
from coachrl.report.episodes import Shown, artifacts
from coachrl.report.outcome import (
    BEHAVIOR,
    behavior_rows,
    best_evaluation,
    changed_draws,
    conclusion,
    ends,
    nothing_learned,
    success_by_step,
    success_rows,
    table2_rows,
)
from coachrl.stats import Estimate
from coachrl.testing.actions import make_action
from coachrl.types import GIVEN_UP, CoachScore, Episode, Outcome


def episode(name, success, category="k", actions=(), broken=None, **metrics):
    """name: "<task>.<draw>"."""
    task = name.partition(".")[0]
    return Episode(f"eval.{name}", task, category, "p", actions, Outcome(success, metrics), infra_error=broken)


def evaluation(step, *episodes):
    return EpisodeFile(f"episodes/eval-{step:06d}.jsonl", step, tuple(episodes), {})


def contents(*evaluations):
    return Contents("run", None, {}, {}, evaluations, (), ())


FIRST = evaluation(
    0, episode("a.0", False), episode("b.0", True), episode("b.1", False), episode("c.0", False, "other")
)
LAST = evaluation(
    9,
    episode("c.0", False, "other"),
    episode("b.1", True),
    episode("a.0", True),
    episode("b.0", False),
    episode("d.0", True),
    episode("e.0", True, broken="sandbox: gone"),
)


def test_the_best_evaluation_is_that_of_the_metrics_and_is_told_while_its_episodes_are_there():
    success = {0: 0.5, 1: 0.9, 2: 0.5, 3: 0.4}
    steps = {step: {"eval/success": value} for step, value in success.items()}
    files = [evaluation(step, episode("a.0", True), episode("b.0", False)) for step in success]
    config = load_config(None, ["train.keep_best=true", "eval.every=1"])
    found = replace(contents(*files), config=config, steps=steps)
    said = best_evaluation(found)
    assert "after step 1 (--checkpoint best). The highest of 3 evaluations" in said
    assert "no better than before training" in best_evaluation(replace(found, steps=steps | {1: steps[3]}))
    assert best_evaluation(replace(found, evaluations=[files[0], *files[2:]])) == "", "and not the second best"
    assert best_evaluation(replace(found, config=load_config(None, ["eval.every=1"]))) == ""
    assert best_evaluation(replace(found, steps={0: steps[0], 1: steps[1]})) == "", "one is none of several"


def test_a_draw_is_known_by_its_task_and_the_end_of_its_id():
    assert draw_key(episode("a.12", True)) == ("a", "12 ")
    assert draw_key(replace(episode("a.12", True), task_prompt="Why?")) == ("a", "12 Why?")


def test_success_before_and_after_is_of_all_and_the_difference_of_shared_draws():
    everything, other, kind = success_rows(FIRST, LAST)
    assert (everything.before.value, everything.before.n, everything.before.tasks) == (0.25, 4, 3)
    assert (everything.after.value, everything.after.n) == (0.6, 5)
    assert (everything.difference.value, everything.difference.n, everything.difference.tasks) == (0.25, 4, 3)
    assert [row.name for row in (other, kind)] == ["k", "other"] and kind.difference.value == 0.0
    assert len(success_rows(evaluation(0, episode("a.0", True)), None)) == 1, "one category is all tasks"
    assert success_rows(FIRST, None)[0].difference is None


def test_the_ends_are_evaluations_that_measured_something():
    broken = evaluation(3, episode("a.0", True, broken="gone"))
    assert ends(contents(broken, FIRST, LAST, broken)) == (FIRST, LAST)
    assert ends(contents(broken, FIRST)) == (FIRST, None) and ends(contents(broken)) == (None, None)
    by_step = success_by_step(contents(FIRST, broken, LAST))
    assert {step: found.value for step, found in by_step.items()} == {0: 0.25, 9: 0.6}


def test_of_each_sort_of_draw_the_first_in_the_file_is_shown():
    shown = changed_draws(FIRST, LAST)
    assert [(why, draw_key(before), draw_key(after)) for why, before, after in shown] == [
        ("solved only after training", ("a", "0 "), ("a", "0 ")),
        ("solved only before training", ("b", "0 "), ("b", "0 ")),
        ("failed before and after", ("c", "0 "), ("c", "0 ")),
    ]
    [(why, before, _), *_] = changed_draws(FIRST, LAST, lambda before, after: before.id.endswith(".1"))
    assert (why, draw_key(before)) == ("solved only after training", ("b", "1 "))
    same = changed_draws(FIRST, FIRST)
    assert [why for why, *_ in same] == ["failed before and after", "solved before and after"]
    assert changed_draws(FIRST, None) == []


def test_fair_figures_count_failures_and_raw_ones_have_no_paired_difference():
    category = "regression"
    first = evaluation(0, episode("a.0", True, category, mae_pct_range=10.0), episode("b.0", False, category))
    last = evaluation(1, *(episode(f"{task}.0", True, category, mae_pct_range=20.0) for task in "ab"))
    raw, fair = table2_rows(first, last)[:2]
    assert (raw.before.value, raw.after.value, raw.difference) == (10.0, 20.0, None) and raw.name.endswith(", raw")
    assert (fair.before.value, fair.after.value, fair.difference.value) == (30.0, 20.0, -10.0)


def test_behavior_stands_beside_how_many_actions_it_is_of():
    def acted(name, *sizes):
        actions = tuple(make_action("a", index=n, response_ids=(2,) * size) for n, size in enumerate(sizes))
        return episode(name, True, actions=actions)

    rows = behavior_rows(evaluation(0, acted("x.0", 2, 4)), evaluation(1, acted("x.0", 5, 6, 7)))["a"]
    length = rows[0]
    assert {row.name for row in rows} == {BEHAVIOR[what] for what in ("response_tokens", "finish_rate", "turns")}, (
        "of code nothing is known"
    )
    assert (length.before, length.after, length.n_before, length.n_after) == (3.0, 6.0, 2, 3)
    alone = behavior_rows(evaluation(0, acted("x.0", 2)), None)["a"][0]
    assert (alone.after, alone.n_after) == (None, 0)
    left = make_action("a", index=1, response_ids=(), finish_reason="length", result=GIVEN_UP)
    replied = make_action("a", response_ids=(2,) * 4)
    [length, *_] = behavior_rows(evaluation(0, episode("x.0", True, actions=(replied, left))), None)["a"]
    assert (length.before, length.n_before) == (4.0, 1), "a call that its app left is no reply"


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "begins"),
    [
        (0.1, 0.01, 0.2, 0.04, "Better"),
        (-0.1, -0.2, -0.01, 0.04, "Worse"),
        (0.1, -0.1, 0.3, 0.3, "Not told apart"),
        (0.1, 0.0, 0.2, 0.05, "Not told apart"),
        (0.0, None, None, None, "No held-out task was solved more or less often"),
        (0.1, None, None, None, "Too few tasks"),
        (0.5, None, None, 0.0625, "Too few tasks"),
        (0.5, None, None, 0.03125, "Better: every task gained the same"),
        (-0.5, None, None, 0.03125, "Worse: every task lost the same"),
    ],
)
def test_a_conclusion_claims_no_more_than_the_interval(value, low, high, p, begins):
    assert conclusion(Estimate(value, low, high, 9, 3, p=p)).startswith(begins)
    assert conclusion(None) == "There is no second evaluation of these tasks to compare with."


def test_a_mean_score_counts_a_score_of_0_and_none_that_is_not_there():
    scores = {"e/0": CoachScore("e/0", "scored", 0.0), "e/1": CoachScore("e/1", "scored", 3.0)}
    scores["e/2"] = CoachScore("e/2", "failed")
    shown = Shown("e", "episodes/step-000001.jsonl", episode("a.0", True), scores)
    assert shown.mean_score == 1.5
    assert Shown("e", "episodes/step-000001.jsonl", episode("a.0", True), {}).mean_score is None


def test_users_of_a_file_come_after_it_was_made():
    read = "open('n.txt')"
    before, maker, user, other = (
        make_action(role, index=index, turn=turn, code=code)
        for index, (role, turn, code) in enumerate([("r", 0, read), ("w", 0, read), ("r", 1, read), ("r", 2, "1")])
    )
    maker = make_action("w", index=1, code=read, files_before=("old.txt",), files_after=("old.txt", "n.txt"))
    [found] = artifacts(episode("a.0", True, actions=(before, maker, user, other)), maker)
    assert (found.name, list(found.users)) == ("n.txt", ["r turn 2"])


def of_steps(*steps):
    return replace(contents(), steps=dict(enumerate(steps)))


def test_a_run_in_which_no_step_had_an_advantage_learned_nothing():
    evaluated, flat = {"eval/success": 0.0}, {"train/trained_actions": 48.0}
    masked = {"train/trained_actions": 0.0, "train/masked/truncated": 48.0}
    assert "in 2 steps every advantage was 0. The w" in nothing_learned(of_steps(evaluated, flat, flat))
    both = nothing_learned(of_steps(evaluated, masked, flat))
    assert "in 1 step every advantage was 0, and in 1 step no action was trained on" in both
    alone = nothing_learned(of_steps(evaluated, masked, masked))
    assert alone.startswith(
        "Nothing was trained in 2 steps, and the weights are what they were: 96 actions left out: cut"
    )
    for moved in ("train/loss/team", "train/skipped/team"):
        assert nothing_learned(of_steps(evaluated, flat, {**flat, moved: 0.1}, flat)) == ""


def test_a_run_without_training_or_with_frozen_policies_alone_was_not_to_learn():
    frozen = {"train/trained_actions": 0.0, "train/masked/frozen": 48.0}
    older = {"train/success": 0.5}
    for steps in ((), ({"eval/success": 0.0},), (frozen, frozen), (older,)):
        assert nothing_learned(of_steps(*steps)) == ""
