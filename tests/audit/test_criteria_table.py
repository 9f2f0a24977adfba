"""Scores by criterion, as they stand in a run's records."""

from dataclasses import replace

import pytest
from audit_runs import write_run

from coachrl.audit.data.criteria import agreement_of_criteria, criteria_table
from coachrl.runs.records import read_episodes
from coachrl.types import CoachScore, CriterionScore


def with_criteria(score: CoachScore) -> CoachScore:
    """`right` is the score itself, `halo` says the same in other numbers, `length` has nothing to do with it."""
    assert score.process_0_10 is not None
    given = {"right": score.process_0_10, "halo": 2 + score.process_0_10 / 2, "length": len(score.action_id) * 7 % 11}
    return replace(score, criteria=tuple(CriterionScore(name, 1.0, value, "so") for name, value in given.items()))


def test_scores_by_criterion_are_read_from_the_runs_records_and_show_what_goes_together(tmp_path):
    run = write_run(tmp_path, steps=1)
    (file,) = [path for path in run.episode_files() if path.stem.startswith("step-")]
    episodes = list(read_episodes(file, []))
    scores = {key: with_criteria(score) for _, own in episodes for key, score in own.items()}
    run.write_episodes(file.stem, [episode for episode, _ in episodes], scores)
    table = criteria_table([run.folder])
    assert len(table) == 3 * len(scores) and set(table["criterion"]) == {"right", "halo", "length"}
    agreement = agreement_of_criteria(table)
    assert agreement.loc["right", "halo"] == pytest.approx(1.0) and agreement.loc["right", "length"] < 0.9


def test_scores_without_criteria_have_no_row(tmp_path):
    assert criteria_table([write_run(tmp_path, steps=1).folder]).empty
