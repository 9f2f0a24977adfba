"""Scores by criterion in an audit: each by itself, and whether the coach tells them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_runs import change_scores, write_run

from coachrl.audit.audit import Audit, audit_runs
from coachrl.audit.report.page import as_html, as_json
from coachrl.audit.thresholds import crossed
from coachrl.types import CriterionScore


def audited(tmp_path: Path, told_apart: bool) -> Audit:
    """`right` is the score, `clear` has nothing to do with it or is the same in other numbers, `sums` favors them."""
    run, rng = write_run(tmp_path, tasks=24, draws=2), np.random.default_rng(1)

    def by_criteria(score: dict[str, Any]) -> Mapping[str, Any]:
        right = score["process_0_10"]
        apart = rng.uniform(0, 8, size=2) if told_apart else np.full(2, right)
        given = {"right": right, "clear": apart[0] / 2, "sums": apart[1]}
        if told_apart:
            is_sum = int(score["action_id"].split(".")[1]) % 2 == 1
            given["sums"] += 2.0 * is_sum
        return score | {"criteria": [asdict(CriterionScore(name, 1.0, float(x), "so")) for name, x in given.items()]}

    change_scores(run, by_criteria)
    return audit_runs([run.folder], resamples=200)


def test_criteria_that_are_told_apart_are_shown_each_by_itself(tmp_path: Path) -> None:
    audit = audited(tmp_path, told_apart=True)
    (verdict,) = [one for one in audit.verdicts if one.topic == "criteria"]
    assert verdict.grade == "ok" and verdict.text.startswith("its criteria get scores of their own")
    criteria = audit.findings[0].criteria
    assert criteria is not None
    clear, right, sums = criteria.each
    assert (clear.name, right.name, sums.name) == ("clear", "right", "sums")
    (gap,) = sums.category
    assert gap.adjusted is not None and gap.adjusted.low is not None
    assert gap.adjusted.low < 2.0 < gap.adjusted.high and gap.adjusted.low > 1.0
    (success,) = right.outcome
    assert success.adjusted is not None and success.adjusted.value == pytest.approx(3.0, abs=0.5)
    assert "<h3>Criteria</h3>" in as_html(audit) and "right, sums" in as_html(audit)
    told = json.loads(as_json(audit))["findings"][0]["criteria"]
    assert [one["name"] for one in told["each"]] == ["clear", "right", "sums"] and len(told["pairs"]) == 3
    assert not crossed(audit.verdicts, [("criteria", None)])


def test_one_impression_under_three_names_is_named_and_stops_a_gate(tmp_path: Path) -> None:
    audit = audited(tmp_path, told_apart=False)
    (verdict,) = [one for one in audit.verdicts if one.topic == "criteria"]
    assert verdict.grade == "warning" and "gives its 3 criteria one score" in verdict.text
    assert len(crossed(audit.verdicts, [("criteria", None)])) == 1


def test_a_coach_without_criteria_is_not_asked_about_them(tmp_path: Path) -> None:
    audit = audit_runs([write_run(tmp_path, tasks=4).folder], resamples=20)
    assert audit.findings[0].criteria is None and not [one for one in audit.verdicts if one.topic == "criteria"]
    assert "<h3>Criteria</h3>" not in as_html(audit)
