"""On few tasks the audit says that it cannot tell, and accuses nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.audit_worlds import Fault, World, play
from coachrl.audit.audit import audit_data
from coachrl.audit.topics.effect import Effect
from coachrl.audit.verdicts import RETEST_ICC, grade_of
from coachrl.stats import Estimate


@pytest.mark.parametrize(("tasks", "draws"), [(4, 2), (8, 2)])
def test_few_tasks_promise_no_effect_that_would_have_been_seen(tasks, draws):
    data = play(World(tasks=tasks, draws=draws, steps=2), Fault("category", 2.0), seed=60000)
    alone = data.actions[data.actions["role"] == "checker"].reset_index(drop=True)
    found = audit_data(replace(data, actions=alone), 100)
    assert not [verdict.line for verdict in found.verdicts if verdict.grade in ("warning", "alarm")]
    too_few = [verdict.text for verdict in found.verdicts if "are needed" in verdict.text]
    assert any("task categories" in text for text in too_few)
    assert not [text for text in too_few if "on it would have been seen" in text]


def test_an_effect_on_too_few_tasks_is_not_visible_however_small_its_error():
    sure = Effect("", "", Estimate(2.0, 1.9, 2.1, 80, 8), visible=0.3)
    assert not sure.is_visible and "however large" in sure.visible_words
    assert replace(sure, estimate=replace(sure.estimate, tasks=64)).is_visible


def test_a_figure_falls_short_only_where_its_whole_interval_does():
    assert grade_of(Estimate(0.8, 0.2, 0.95, 9, 4), RETEST_ICC) == "ok"
    assert grade_of(Estimate(0.6, 0.1, 0.9, 9, 4), RETEST_ICC) == "unknown"
    assert grade_of(Estimate(0.6, None, None, 1, 1), RETEST_ICC) == "unknown"
    assert grade_of(Estimate(0.6, 0.5, 0.7, 900, 64), RETEST_ICC) == "warning"
