"""The figures of an audit against references: published examples, libraries, brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from coachrl.audit.data.sample import Sample
from coachrl.audit.selftest.synthetic import Noise, PlantedBias, synthetic_scores
from coachrl.audit.stats.agreement import icc_2_1, krippendorff_alpha
from coachrl.audit.stats.calibration import calibrate
from coachrl.audit.stats.drift import drift
from coachrl.audit.stats.strata import Contrast, contrasts, stratum_means, table3, task_spread, with_bins, with_holm
from coachrl.audit.stats.style import style_effects
from coachrl.stats import Estimate

NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def sums_of(table: list[list[float]]) -> np.ndarray:
    scores = np.array(table, float)
    return np.array([[len(scores), (scores**2).sum(), (scores.sum(axis=1) ** 2).sum(), *scores.sum(axis=0)]])


def test_icc_is_that_of_shrout_and_fleiss():
    table = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]  # 1979, Table 2
    assert icc_2_1(sums_of(table), 4)[0] == pytest.approx(0.29, abs=0.005)


def test_alpha_follows_its_definition_by_pairs():
    table = np.random.default_rng(0).integers(0, 11, (20, 3)).astype(float)
    inside = np.mean([(a - b) ** 2 for row in table for i, a in enumerate(row) for j, b in enumerate(row) if i != j])
    pooled = table.ravel()
    overall = np.mean([(a - b) ** 2 for i, a in enumerate(pooled) for j, b in enumerate(pooled) if i != j])
    assert krippendorff_alpha(sums_of(table.tolist()), 3)[0] == pytest.approx(1 - inside / overall)


def test_half_of_the_error_rate_is_for_the_gap_over_all_roles():
    family = contrasts(Sample.of(synthetic_scores(PlantedBias(category_shift=0.3))), "category")
    inside = contrasts(Sample.of(synthetic_scores()), "category", within=("role",))
    found = with_holm([*family, *inside])
    assert len(found) == 4 and found[0].adjusted.p == min(c.adjusted.p for c in found)
    assert found[0].p_holm == pytest.approx(2 * found[0].adjusted.p)


def test_mean_interval_is_the_clusters_not_the_actions():
    noise = Noise(task=2.0, episode=0.0, action=0.1, merit=0.0)
    sample = Sample.of(synthetic_scores(tasks=20, rollouts=50, noise=noise))
    mean = sample.mean(sample.scores)
    by_task = sample.frame.groupby("task", observed=True)["score"].mean()
    assert mean.high - mean.value == pytest.approx(2.093 * by_task.sem(), rel=0.1)


def test_adjusted_gap_is_the_regression_coefficient():
    sample = Sample.of(synthetic_scores(PlantedBias(category_shift=0.8), tasks=16))
    frame = sample.frame
    cells = pd.get_dummies(frame["role"].astype(str) + frame["result"].astype(str), dtype=float)
    design = cells.assign(category=(frame["category"] == "regression").astype(float))
    expected = LinearRegression(fit_intercept=False).fit(design.to_numpy(), frame["score"]).coef_[-1]
    (gap,) = contrasts(sample, "category")
    assert (gap.level, gap.versus) == ("regression", "classification")
    assert gap.adjusted.value == pytest.approx(expected)
    by_category = frame.groupby("category", observed=True)["score"].mean()
    assert gap.raw.value == pytest.approx(by_category["regression"] - by_category["classification"])


def test_a_gap_that_is_merit_alone_goes_away_at_equal_outcome():
    frame = synthetic_scores(tasks=64)
    easy = (frame["category"] == "regression") & (np.random.default_rng(0).random(len(frame)) < 0.6)
    frame = frame[(frame["outcome"] == 1) | ~easy]
    (gap,) = contrasts(Sample.of(frame), "category")
    assert gap.raw.low > 0.2
    assert gap.adjusted.low < 0 < gap.adjusted.high


def test_a_name_that_ends_in_a_nul_is_a_name_of_its_own():
    frame = synthetic_scores(PlantedBias(category_shift=0.8), tasks=16)
    (gap,) = contrasts(Sample.of(frame), "category")
    renamed = {"classification": "a", "regression": "a\0"}  # from which NumPy takes the NUL
    (same,) = contrasts(Sample.of(frame.assign(category=frame["category"].cat.rename_categories(renamed))), "category")
    assert (same.level, same.raw) == ("a\0", gap.raw)


def test_table3_finds_the_gap_in_every_role_and_part_of_training():
    gaps = table3(with_bins(Sample.of(synthetic_scores(PlantedBias(category_shift=3.0), steps=4))))
    assert {gap.within for gap in gaps} == {(r, s) for r in ("analyst", "engineer", "modeler") for s in "1234"}
    assert all(gap.raw.low > 0 and gap.raw.n == 128 for gap in gaps)


def test_several_kinds_are_compared_with_the_others():
    frame = synthetic_scores(tasks=30)
    thirds = frame["task"].cat.codes % 3
    frame["category"] = pd.Categorical(thirds.map({0: "a", 1: "b", 2: "c"}))
    frame["score"] = (frame["score"] + 2.0 * (thirds == 2)).clip(0, 10)
    gaps = {gap.level: gap for gap in contrasts(Sample.of(frame), "category")}
    assert gaps["c"].versus == "other categories" and gaps["c"].adjusted.low > 1
    assert gaps["a"].adjusted.high < 0


def test_task_spread_finds_the_share_between_tasks():
    noise = Noise(task=1.0, episode=0.0, action=1.0, merit=0.0)
    sample = Sample.of(synthetic_scores(tasks=200, noise=noise))
    spread = task_spread(sample)
    assert spread.share.low < 0.5 < spread.share.high
    assert spread.lowest[0].mean.value < spread.highest[-1].mean.value


def test_task_spread_is_the_intraclass_correlation_of_unequal_tasks():
    """By hand: mean squares 10.8 between and 4 / 3 inside of tasks, whose size counts as 5 - 13 / 5 = 2.4."""
    frame = synthetic_scores(tasks=2, rollouts=3)
    frame = frame[frame["role"] == "engineer"].sort_values("task")[1:].assign(score=[4.0, 6.0, 7.0, 8.0, 9.0])
    share = task_spread(Sample.of(frame)).share
    assert share.value == pytest.approx((10.8 - 4 / 3) / (10.8 + 1.4 * 4 / 3))
    assert (share.n, share.tasks) == (5, 2)


def test_levels_count_actions_and_tasks():
    found = stratum_means(Sample.of(synthetic_scores(tasks=10, rollouts=3)), "category")
    assert [(level.name, level.mean.n, level.mean.tasks) for level in found] == [
        ("classification", 45, 5),
        ("regression", 45, 5),
    ]


def test_length_preference_and_its_slope():
    effects = style_effects(Sample.of(synthetic_scores(PlantedBias(length_slope=0.4))))
    found = next(effect for effect in effects if effect.feature == "tokens" and not effect.role)
    assert found.rho.low > 0.1 and found.p_holm < 0.001
    assert found.slope.low < 0.4 * found.span / 100 < found.slope.high
    assert 150 < found.span < 250 and found.per == f"{found.span:.0f} tokens more"  # lognormal of 0.4 about 200
    others = [effect for effect in effects if effect.feature != "tokens" and not effect.role]
    assert all(abs(effect.rho.value) < 0.15 for effect in others)


def test_no_slope_leaves_the_scale_of_scores():
    """Lengths that hardly vary and scores that do: for 100 tokens a line would give hundreds of points."""
    frame, found = synthetic_scores(tasks=16), {}
    for scale in (1, 50):
        frame["tokens"] = (200 + (frame["score"] > 5.5) * scale).astype("int32")
        found[scale] = next(e for e in style_effects(Sample.of(frame)) if e.feature == "tokens" and not e.role)
        assert 0.5 * scale < found[scale].span <= scale and found[scale].per.endswith(" more")
        assert 0 < found[scale].slope.low < found[scale].slope.value < found[scale].slope.high < 10
    assert found[1].slope.value == pytest.approx(found[50].slope.value)
    assert found[1].slope.value / found[1].span * 100 > 100


def test_length_that_only_follows_the_outcome_is_no_preference():
    frame = synthetic_scores()
    frame["tokens"] = frame["tokens"] + 400 * (frame["outcome"] == 1)
    found = next(e for e in style_effects(Sample.of(frame)) if e.feature == "tokens" and not e.role)
    assert abs(found.rho.value) < 0.1


def test_prediction_intervals_come_from_the_same_statistic_as_the_value():
    sample = Sample.of(synthetic_scores())
    prediction = calibrate(sample).predictions[0]
    last = sample.where(sample.frame["last"])
    for figure in (prediction.auc, prediction.tau, prediction.brier):
        assert figure.low < figure.value < figure.high and figure.n == len(last.frame)
    assert prediction.auc.low > 0.7
    assert prediction.auc.value == pytest.approx((prediction.auc.low + prediction.auc.high) / 2, abs=0.01)


def test_inverted_role_and_flat_scores_show_in_calibration():
    inverted = calibrate(Sample.of(synthetic_scores(PlantedBias(inverted=True))))
    by_role = {p.of: p.auc for p in inverted.predictions}
    assert by_role["analyst"].high < 0.5 < by_role["engineer"].low
    flat = calibrate(Sample.of(synthetic_scores(PlantedBias(flat=0.9)))).saturation[0]
    assert flat.modal_score == 7.0 and flat.modal_share.low > 0.8
    assert flat.tied_groups.value > 0.5 and flat.entropy_bits.value < 1.5


def test_reliability_rises_with_the_score_and_counts_its_episodes():
    sample = Sample.of(synthetic_scores(tasks=200))
    bins = calibrate(sample).reliability
    assert sum(part.success.n for part in bins) == 1600
    assert bins[0].success.value < 0.2 < 0.8 < bins[-1].success.value


def test_gaming_is_score_up_and_outcome_down():
    gamed = drift(with_bins(Sample.of(synthetic_scores(PlantedBias(reward_hacking=3.0)))), NO_EVALUATIONS)
    assert gamed.score_change.low > 0 > gamed.outcome_change.high


@pytest.mark.parametrize("tested", [1, 2])
def test_a_question_over_all_weighs_as_much_as_all_questions_inside_of_parts_together(tested):
    """One of p = 0.02 over all: it has half of the error rate however few are asked inside of parts."""
    alone = Estimate(1.0, 0.1, 1.9, 9, 9, p=0.02)
    untested = Contrast("category", "b", "a", ("x",), alone, None, None)
    overall = replace(untested, within=(), adjusted=alone)
    inside = [replace(untested, adjusted=replace(alone, p=0.03 + number / 100)) for number in range(tested)]
    found = with_holm([overall, *inside, untested])
    assert found[0].p_holm == pytest.approx(0.04) and found[-1].p_holm is None
    assert found[1].p_holm == pytest.approx({1: 0.04, 2: 0.06}[tested])
