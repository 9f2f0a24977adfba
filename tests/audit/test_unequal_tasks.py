"""Fair coaches where tasks, halves of training, runs or coaches are unequal: a few of them are not taken for many."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from audit_tables import sample, table

from coachrl.audit.data.frame import Scorer, category
from coachrl.audit.data.sample import Sample
from coachrl.audit.findings import examine_rater
from coachrl.audit.stats.drift import drift
from coachrl.audit.stats.strata import with_bins
from coachrl.audit.stats.style import style_effect
from coachrl.audit.stats.within import first_over_second, over_tasks
from coachrl.audit.topics.effect import Effect, alone
from coachrl.audit.topics.halo import copying
from coachrl.audit.topics.leniency import leniency
from coachrl.audit.topics.subjects import _p_of_all_topics
from coachrl.audit.topics.turn_order import turn_order, with_places
from coachrl.audit.verdicts import verdicts
from coachrl.stats import Estimate

NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def rows_of(scores: np.ndarray, **columns) -> list[dict]:
    """A row for each score, each an episode of its own; columns: a value for each, or for all."""
    spread = {name: np.broadcast_to(np.asarray(values), scores.shape) for name, values in columns.items()}
    return [
        {"episode": f"e{n}", "score": float(score), **{name: values[n].item() for name, values in spread.items()}}
        for n, score in enumerate(scores)
    ]


def test_a_length_that_one_task_pays_is_no_preference_of_the_coach():
    """One task with 90 % of the draws has longer replies scored higher; in the 19 others nothing goes with length."""
    rng = np.random.default_rng(0)
    task = np.r_[np.zeros(180, int), 1 + np.arange(20) % 19]
    tokens = rng.integers(50, 400, 200)
    scores = 5 + (task == 0) * (tokens - 225) / 150 + rng.normal(0, 0.7, 200)
    effect = style_effect(sample(*rows_of(scores, task=[f"t{t}" for t in task], tokens=tokens)), "tokens", "")
    assert effect.rho.clusters < 1.5 and effect.rho.p > 0.05 and effect.slope.p > 0.05


def test_a_figure_that_one_of_many_tasks_holds_is_not_that_of_many():
    """One task weighs 90 of 134 and is 2 above nothing; what 44 others hold is noise."""
    noise = np.random.default_rng(1).normal(0, 1, 44)
    sums_TV = np.column_stack([np.r_[180.0, noise], np.r_[90.0, np.ones(44)]])
    found = over_tasks(sums_TV, first_over_second, 134)
    assert found.clusters == pytest.approx(134**2 / (90**2 + 44), rel=1e-6)
    assert found.p >= 0.5, "turned round, that one task is as often as far below"


def test_runs_of_unlike_length_have_halves_of_their_own_and_are_no_drift():
    """A weak team's run of two steps and a strong one's of eight, audited together."""
    rng = np.random.default_rng(2)
    step, run = np.tile(np.r_[1:3, 1:9], 20), np.tile(np.r_[["weak"] * 2, ["strong"] * 8], 20)
    task = [f"t{t}" for t in np.repeat(np.arange(20), 10)]
    scores = 4 + 2.0 * (run == "strong") + rng.normal(0, 1, 200)
    together = sample(*rows_of(scores, step=step, run=run, task=task))
    late = together.frame.groupby("run", observed=True)["period"].apply(lambda halves: (halves == "late").mean())
    assert late.to_dict() == {"strong": 0.5, "weak": 0.5}
    [effect] = leniency(together).effects
    assert abs(effect.estimate.value) < 0.5 and effect.estimate.p > 0.05
    change = drift(with_bins(together), NO_EVALUATIONS).score_change
    assert abs(change.value) < 0.5 and change.low < 0 < change.high


def test_another_coach_in_the_second_half_is_no_coach_that_becomes_lenient():
    step, task = np.tile([1, 2, 3, 4], 20), [f"t{t}" for t in np.repeat(np.arange(20), 4)]
    coach = np.where(step > 2, "generous", "strict")
    scores = 5 + 2.0 * (step > 2) + np.random.default_rng(3).normal(0, 1, 80)
    found = leniency(sample(*rows_of(scores, step=step, task=task, coach=coach)))
    assert (found.effects, found.unmeasured) == ([], "no task was scored by one coach in both halves of training")


def test_a_change_that_two_late_tasks_carry_is_that_of_two_tasks():
    """A curriculum: thirty tasks in the first half, two in the second, one of them with most draws."""
    early = rows_of(np.tile([4.0, 6.0], 30), step=1, task=[f"t{n // 2}" for n in range(60)])
    late = rows_of(np.tile([7.0, 8.0], 8), step=2, task=["x"] * 12 + ["y"] * 4, outcome=0.0)
    numbered = [row | {"episode": f"l{n}"} for n, row in enumerate(late)]
    found = drift(with_bins(sample(*early, *numbered)), NO_EVALUATIONS)
    assert found.score_change.tasks == 32
    assert found.score_change.clusters == found.outcome_change.clusters == pytest.approx(16**2 / (12**2 + 4**2))


def test_roles_that_act_in_different_halves_have_no_change_and_nothing_is_said_of_one():
    rows = [
        {"task": f"t{t}", "episode": f"{t}{s}", "step": s, "role": "ab"[s - 1], "score": 4.0 + t % 3, "outcome": t % 2}
        for t in range(6)
        for s in (1, 2)
    ]
    found = examine_rater(table(*rows), "p", Scorer("", "own", ""), NO_EVALUATIONS, 20)
    assert found.drift.score_change is None
    said = [verdict.text for verdict in verdicts([found], [])]
    assert any("no role was scored in both halves of a run's training" in text for text in said)
    assert not any("nan" in text for text in said)


def test_a_topic_of_few_actions_is_not_apart_for_its_noise():
    """Six tasks with one action each, 42 with 16 each; no topic is scored unlike the other."""
    draws = np.where(np.arange(48) < 6, 1, 16)
    task = np.repeat(np.arange(48), draws)
    p_values = []
    for seed in range(8):
        scores = 5 + np.random.default_rng([4, seed]).normal(0, 1.2, len(task))
        rows = table(*rows_of(scores, task=[f"t{t}" for t in task]))
        topics = category((task >= 6).astype(int), ["few", "many"])
        p_values.append(_p_of_all_topics(Sample.of(rows.assign(topic=topics), 1)))
        apart = _p_of_all_topics(Sample.of(rows.assign(topic=topics, score=scores + 3.0 * (task < 6)), 1))
        assert apart < 0.05
    assert sum(p < 0.05 for p in p_values) <= 1


def test_what_would_have_been_seen_is_that_of_the_tasks_that_carry_it():
    """Student's t of one degree of freedom, as of the interval, and not of 39."""
    few, many = (Estimate(0.1, -2.0, 2.2, 80, 40, p=0.5, clusters=clusters) for clusters in (2.0, None))
    assert alone(Effect("", "", few)).visible == pytest.approx(2.1 + 2.1 * 6.3138 / 12.7062, rel=1e-3)
    assert alone(Effect("", "", many)).visible < alone(Effect("", "", few)).visible * 1.3


def test_a_last_turn_that_ended_its_part_for_being_good_is_not_paid_for_its_place():
    """An agent of up to four turns stops after the first that is scored 6 or more; scores are quality and no more."""
    rng, rows = np.random.default_rng(5), []
    for episode in range(160):
        for turn, score in enumerate(rng.normal(5, 1.5, 4)):
            row = {"task": f"t{episode // 8}", "episode": f"e{episode}", "turn": turn, "score": float(score)}
            rows.append(row)
            if score >= 6:
                break
    placed = with_places(table(*rows))
    assert placed.loc[placed["picked"], "turn"].tolist() == placed.groupby("episode", sort=False)["turn"].max().tolist()
    [effect] = turn_order(Sample.of(placed, 20)).effects
    assert abs(effect.estimate.value) < 0.25 and effect.estimate.p > 0.05
    two_at_most = turn_order(Sample.of(placed[placed["turn"] < 2].assign(picked=True), 20))
    assert two_at_most.effects == [] and "no agent that may stop early has two turns" in two_at_most.unmeasured


def test_a_role_that_acts_in_failures_alone_hides_no_outcome_that_is_copied():
    rng = np.random.default_rng(6)
    rows = [
        {"task": f"t{n % 20}", "episode": f"e{n}", "role": role, "outcome": n % 2, "score": 2 + 6 * (n % 2) + noise}
        for n in range(80)
        for role in ("solver", "critic", *(["fixer"] if n % 2 == 0 else []))
        for noise in [float(rng.normal(0, 0.5))]
    ]
    [effect] = copying(sample(*rows)).effects
    assert effect.estimate.value > 0.9 and effect.estimate.p < 0.001


def test_hard_tasks_and_late_steps_whose_replies_are_longer_make_no_preference_for_length():
    """Scores follow task and step, and so do tokens; of two replies to one task at one step neither is favored."""
    rng = np.random.default_rng(7)
    task, step = np.repeat(np.arange(40), 8), np.tile(np.repeat([1, 2], 4), 40)
    hardness = rng.normal(0, 1, 40)[task]
    scores = 5 - hardness + 1.0 * step + rng.normal(0, 1, 320)
    tokens = (200 * np.exp(0.3 * hardness + 0.5 * step + rng.normal(0, 0.3, 320))).astype(int)
    names = [f"t{t}" for t in task]
    repeated = style_effect(sample(*rows_of(scores, task=names, step=step, tokens=tokens)), "tokens", "")
    assert abs(repeated.rho.value) < 0.1 and repeated.rho.p > 0.05
    once = [f"t{n}" for n in range(320)]
    apart = style_effect(sample(*rows_of(scores, task=once, step=step, tokens=tokens)), "tokens", "")
    assert apart.rho.value < -0.2, "of tasks that were played once nobody knows how hard they are"
