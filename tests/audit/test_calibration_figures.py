"""Which episodes, roles and categories a prediction is of, and the resampled figures against libraries."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from audit_tables import sample, table
from scipy import stats
from sklearn.metrics import roc_auc_score

from coachrl.audit.data.frame import Scorer
from coachrl.audit.findings import CrossRater
from coachrl.audit.reference_set import reference_set_drift
from coachrl.audit.stats.agreement import agree
from coachrl.audit.stats.calibration import _auc_and_tau, calibrate
from coachrl.audit.stats.drift import drift
from coachrl.audit.stats.strata import with_bins
from coachrl.audit.verdicts import verdicts
from coachrl.stats import SHARE, estimate
from coachrl.storage.jsonl import append_jsonl

NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def episodes(*given: tuple[str, float, float], **more) -> list[dict]:
    """One action for each (category, score, outcome), of a task and an episode of its own."""
    return [
        {"task": f"t{n}", "episode": f"e{n}", "category": category, "score": score, "outcome": outcome, **more}
        for n, (category, score, outcome) in enumerate(given)
    ]


def test_resampled_auc_and_tau_are_those_of_libraries():
    """Counts of failures and successes at three scores, as episodes one by one."""
    counts_RUY = np.array([[[3.0, 1.0], [2.0, 2.0], [1.0, 4.0]], [[0.0, 2.0], [5.0, 0.0], [1.0, 1.0]]])
    auc_R, tau_R = _auc_and_tau(counts_RUY)
    for counts_UY, auc, tau in zip(counts_RUY, auc_R, tau_R, strict=True):
        scores = np.repeat([0, 0, 1, 1, 2, 2], counts_UY.ravel().astype(int))
        outcomes = np.repeat([0, 1] * 3, counts_UY.ravel().astype(int))
        assert auc == pytest.approx(roc_auc_score(outcomes, scores))
        assert tau == pytest.approx(stats.kendalltau(scores, outcomes).statistic)
    without_failures = _auc_and_tau(np.array([[[0.0, 1.0], [0.0, 2.0]]]))
    assert all(math.isnan(figure[0]) for figure in without_failures)


def test_an_auc_is_as_sure_as_the_fewer_of_failures_and_successes_let_it_be():
    """Two successes against four failures: one degree of freedom, on the scale of a share, against 0.5."""
    rows = episodes(
        *(("k", score, outcome) for score, outcome in zip((1, 5, 3, 6, 4, 9), (0, 0, 0, 0, 1, 1), strict=True))
    )
    found = sample(*rows)
    auc = calibrate(found).predictions[0].auc
    counts = found.sums(np.array([0, 6, 2, 8, 5, 11]), 12)[1:, :, 0].reshape(-1, 6, 2)
    expected = estimate(6 / 8, _auc_and_tau(counts)[0], 6, 6, of="episodes", null=0.5, limits=SHARE, clusters=2)
    assert (auc.value, auc.n, auc.tasks) == (6 / 8, 6, 6)
    assert (auc.low, auc.high, auc.p) == pytest.approx((expected.low, expected.high, expected.p))


def test_an_auc_has_no_interval_where_one_task_holds_all_successes():
    """Eight successes of one task say how that task is scored, and not how success is."""
    rows = [
        {"task": f"t{n}", "episode": f"e{n}.{draw}", "score": 3.0 + (n + draw) % 5, "outcome": float(n == 4)}
        for n in range(20)
        for draw in range(8)
    ]
    prediction = calibrate(sample(*rows)).predictions[0]
    assert prediction.successes == 8 and prediction.auc.tasks == 20
    assert all((figure.low, figure.p) == (None, None) for figure in (prediction.auc, prediction.tau))


def test_each_category_is_predicted_by_itself_where_there_are_several():
    rows = episodes(("a", 2.0, 0.0), ("a", 8.0, 1.0), ("b", 7.0, 0.0), ("b", 3.0, 1.0), ("c", 3.0, 1.0))
    found = calibrate(sample(*rows))
    assert [(p.of, p.category, p.auc.value, p.auc.n) for p in found.predictions] == [
        ("last action", "", pytest.approx(4 / 6), 5),
        ("last action", "a", 1.0, 2),
        ("last action", "b", 0.0, 2),
        ("solver", "", pytest.approx(4 / 6), 5),
    ]
    assert found.notes == ["last action, c: the only episode succeeded, so no score can tell them apart"]
    failures = calibrate(sample(*(row | {"outcome": 0.0} for row in rows)))
    assert failures.notes == ["last action: all 5 episodes failed, so no score can tell them apart"]
    alone = calibrate(sample(*rows[:2]))
    assert [(p.of, p.category) for p in alone.predictions] == [("last action", ""), ("solver", "")]


@pytest.mark.parametrize(
    ("shown", "told"),
    [("none", set()), ("last", {"last action", "critic"}), ("all", {"last action", "critic", "solver"})],
)
def test_what_was_shown_with_an_outcome_is_circular(shown, told):
    rows = [
        {
            "task": str(n),
            "episode": str(n),
            "role": role,
            "outcome": float(n),
            "score": 5.0 + n,
            "last": role == "critic",
        }
        for n in (0, 1)
        for role in ("solver", "critic")
    ]
    found = calibrate(sample(*rows), shown)
    assert {p.of for p in found.predictions} == {"last action", "critic", "solver"}
    assert {p.of for p in found.predictions if p.circular} == told and found.circular == bool(told)


def test_without_outcomes_or_last_actions_the_reason_is_said_and_ties_are_counted_all_the_same():
    unmeasured = calibrate(sample(*episodes(("k", 5.0, math.nan), ("k", 5.0, math.nan))))
    assert unmeasured.notes == [
        "no scored action belongs to an episode whose outcome was measured: calibration cannot be measured"
    ]
    assert (unmeasured.predictions, unmeasured.reliability) == ([], []) and unmeasured.saturation[
        0
    ].modal_share.value == 1
    early = calibrate(sample(*episodes(("k", 2.0, 0.0), ("k", 5.0, 1.0), last=False)))
    assert early.notes == ["no episode's last action has a score: calibration of the last action cannot be measured"]
    assert [p.of for p in early.predictions] == ["solver"] and early.reliability == []


def test_groups_are_of_one_run_step_task_and_turn():
    """Scores of 5 and 5 are tied in one group; the others stand alone, or differ."""
    rows = [
        {"score": 5.0},
        {"score": 5.0},
        {"score": 5.0, "step": 2},
        {"score": 5.0, "turn": 1},
        {"run": "s", "score": 5.0},
    ]
    assert calibrate(sample(*rows)).saturation[0].tied_groups.n == 1
    rows += [{"task": "u", "score": 5.0}, {"task": "u", "score": 5.5}, {"task": "v", "score": 1.0}]
    groups = calibrate(sample(*rows)).saturation[0].tied_groups
    assert (groups.value, groups.n, groups.tasks, groups.of) == (0.5, 2, 2, "groups")
    assert calibrate(sample(*rows[2:5])).saturation[0].tied_groups is None


def test_equal_scores_have_no_entropy_and_each_role_its_own_mode():
    rows = [{"role": "b", "score": s} for s in (3.0, 3.0, 3.004, 8.0)] + [{"role": "a", "score": 6.0}]
    first, second = calibrate(sample(*rows)).saturation
    assert (first.role, first.modal_score, first.entropy_bits.value) == ("a", 6.0, 0.0)
    assert (second.role, second.modal_score, second.modal_share.value) == ("b", 3.0, 0.75), "to a hundredth of a point"


def steps(*given: tuple[int, float, float]):
    """A role's actions, (step, score, outcome) each, with tokens that fall by ten a step and code from step 2 on."""
    rows = [
        {
            "task": f"t{n}",
            "episode": f"e{n}",
            "step": s,
            "score": score,
            "outcome": o,
            "tokens": 100 - 10 * s,
            "has_code": s > 1,
        }
        for n, (s, score, o) in enumerate(given)
    ]
    return with_bins(sample(*rows))


def test_one_step_has_no_drift_and_says_so():
    found = drift(steps((1, 3.0, 1.0), (1, 5.0, 0.0)), NO_EVALUATIONS)
    assert found.notes == ["scores of 1 training step only: drift over training cannot be measured"]
    assert (found.curves, found.score_change, found.outcome_change) == ({}, None, None)


def test_change_over_training_is_late_minus_early():
    found = drift(steps((1, 3.0, 1.0), (1, 5.0, 1.0), (2, 9.0, 0.0), (2, 8.0, 1.0)), NO_EVALUATIONS)
    assert (found.score_change.value, found.length_change.value, found.tool_change.value) == (4.5, -10.0, 1.0)
    assert (found.outcome_change.value, found.outcome_source) == (-0.5, "training")
    assert found.notes == [
        "fewer than two held-out evaluations: the outcome over training is that of the training episodes"
    ]
    assert {name: [mean.value for _, mean in curves[0].points] for name, curves in found.curves.items()} == {
        "score": [4.0, 8.5],
        "response tokens": [90.0, 80.0],
        "code": [0.0, 1.0],
        "outcome": [1.0, 0.5],
    }
    for curve in ("code", "outcome"):  # none of two tasks, and all of them: the exact interval of a share
        first = found.curves[curve][0].points[0][1]
        assert first.high - first.low == pytest.approx(1 - 0.025**0.5) and first.tasks == 2
    assert found.curves["outcome"][0].points[0][1].of == found.outcome_change.of == "episodes"


def test_a_change_stays_inside_of_what_a_change_can_be():
    found = drift(steps((1, 0.0, 1.0), (1, 4.0, 1.0), (2, 10.0, 0.0), (2, 9.0, 0.0), (2, 10.0, 1.0)), NO_EVALUATIONS)
    assert -10 <= found.score_change.low < found.score_change.value == pytest.approx(7 + 2 / 3)
    assert 7 + 2 / 3 < found.score_change.high <= 10
    assert -1 <= found.outcome_change.low < found.outcome_change.value < found.outcome_change.high <= 1


def test_an_episode_counts_once_and_a_broken_one_not_at_all():
    rows = [{"task": "t", "episode": "e", "step": 1, "outcome": 1.0}] * 3
    rows += [{"task": "t", "episode": "f", "step": 1, "outcome": 0.0}, {"task": "u", "episode": "g", "step": 2}]
    rows += [{"task": "u", "episode": "h", "step": 2, "outcome": math.nan}]
    found = drift(with_bins(sample(*rows)), NO_EVALUATIONS)
    assert (found.outcome_change.value, found.outcome_change.n) == (0.5, 3)


def test_a_frozen_sets_shift_is_over_the_actions_that_a_step_and_the_first_one_scored(tmp_path):
    """Action c was scored once, d failed at first, e is not of this run, and f's reply is another one now. At step 9
    only c has a score again."""
    (tmp_path / "coach").mkdir()
    given = {
        1: {"a": 5.0, "b": 3.0, "c": 1.0, "d": None, "e": 9.0},
        4: {"a": 6.0, "b": 6.0, "d": 4.0, "e": 0.0},
        9: {"c": 4.0},
    }
    lines = [{"step": s, "action_id": a, "process_0_10": x} for s, by in given.items() for a, x in by.items()]
    lines[0]["action_digest"] = "da"  # older files have none
    lines += [{"step": s, "action_id": "f", "process_0_10": s, "action_digest": "old"} for s in (1, 4, 9)]
    append_jsonl(tmp_path / "coach" / "reference_set.jsonl", lines)
    tasks = {"a": "t", "b": "u", "c": "u", "d": "v", "f": "v"}
    rows = [(action, task, f"d{action}") for action, task in tasks.items()]
    actions = pd.DataFrame(rows, columns=["action", "task", "action_digest"])
    found = reference_set_drift("r", tmp_path, actions, 20)
    assert [(step, one.value, one.n, one.tasks) for step, one in found.shifts.points] == [
        (1, 0, 3, 2),
        (4, 2, 2, 2),
        (9, 3, 1, 1),
    ]
    assert reference_set_drift("r", tmp_path / "elsewhere", actions, 20) is None


def rated(**scores: list[float]) -> pd.DataFrame:
    return table(
        *(
            {"action": f"a{n}", "task": f"t{n}", "rater": rater, "score": score}
            for rater, given in scores.items()
            for n, score in enumerate(given)
        )
    )


def test_three_raters_agree_over_what_all_of_them_scored():
    found = agree(rated(x=[1.0, 4.0, 7.0, 9.0], y=[2.0, 4.0, 8.0, math.nan], z=[3.0, 4.0, 6.0, 9.0]), {}, 20)
    assert [(pair.first, pair.second, pair.shift.n) for pair in found.pairs] == [
        ("x", "y", 3),
        ("x", "z", 4),
        ("y", "z", 3),
    ]
    squares = np.var([[1, 2, 3], [4, 4, 4], [7, 8, 6]], axis=1, ddof=1).mean()
    assert found.alpha.value == pytest.approx(1 - squares / np.var([1, 2, 3, 4, 4, 4, 7, 8, 6], ddof=1))
    assert found.icc.n == 3 and found.raters == ["x", "y", "z"]


def test_scores_that_do_not_differ_leave_nothing_to_agree_on():
    scorers = {"x": Scorer("", "m", "p"), "y": Scorer("again", "m", "p", 1)}
    found = agree(rated(x=[7.0, 7.0], y=[7.0, 7.0]), scorers, 20)
    assert (found.pairs[0].icc, found.pairs[0].alpha, found.pairs[0].shift.value) == (None, None, 0.0)
    [verdict] = verdicts([], [CrossRater("p", found, [])])
    assert (verdict.grade, verdict.value) == ("unknown", None)
    assert "may not agree (no spread to agree on) with itself: ICC not defined" in verdict.text


def test_raters_without_an_action_in_common_and_one_that_is_constant():
    apart = agree(rated(x=[1.0, math.nan], y=[math.nan, 2.0]), {}, 20)
    assert apart.pairs == [] and apart.notes == [
        "x and y scored no action in common: their agreement cannot be measured"
    ]
    [flat] = agree(rated(x=[1.0, 2.0], y=[5.0, 5.0]), {}, 20).pairs
    assert math.isnan(flat.spearman) and flat.shift.value == 3.5
    assert agree(rated(x=[1.0, 2.0]), {}, 20).notes == ["one rater: agreement needs a rescore (coachrl rescore)"]


def test_the_three_actions_that_are_seen_most_differently_are_shown():
    [pair] = agree(rated(x=[1.0, 2.0, 3.0, 4.0, 5.0], y=[1.0, 4.0, 2.0, 9.0, 1.0]), {}, 20).pairs
    assert [(one.action, one.first, one.second) for one in pair.examples] == [("a3", 4, 9), ("a4", 5, 1), ("a1", 2, 4)]
