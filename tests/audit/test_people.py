"""People's scores against a coach's: the coefficients, the section of the audit, a coach put on people's scale."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from audit_runs import fair, write_rescore, write_run
from saved_runs import save_run
from sklearn.metrics import cohen_kappa_score
from typer.testing import CliRunner

from coachrl.audit.audit import audit_runs
from coachrl.audit.data.frame import read_audit_data
from coachrl.audit.report.page import as_html, as_json, lines
from coachrl.audit.stats.people import _curve, _rows, fit_calibration, quadratic_kappa
from coachrl.cli.main import app
from coachrl.coach import make_coach
from coachrl.coach.kinds.calibrated import read_calibration
from coachrl.config import CoachConfig, parse_config
from coachrl.errors import ConfigError
from coachrl.rescore.store import read_rescores
from coachrl.runs.labels import Label, add_labels
from coachrl.runs.reading import training_episodes


def label(run, rater, score, share=1.0, seed=0):
    """Have a person score a share of the run's scored actions by `score`, of the coach's score."""
    rng = np.random.default_rng(seed)
    made = []
    for episode, scores in training_episodes(run):
        for action in episode.actions:
            given = scores.get(action.id)
            if given is not None and given.process_0_10 is not None and rng.random() < share:
                said = float(np.clip(score(given.process_0_10, rng), 0, 10))
                made.append(Label(action.id, rater, said, "", "2026-01-31T12:00:00"))
    add_labels(run, made)
    return made


def test_kappa_is_scikit_learns_on_whole_numbers_and_defined_on_others():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 11, 200)
    y = np.clip(x + rng.integers(-3, 5, 200), 0, 10)
    sums = np.array([[200, x.sum(), y.sum(), (x**2 + y**2).sum(), (x * y).sum()]], float)
    expected = cohen_kappa_score(x, y, weights="quadratic", labels=list(range(11)))
    assert quadratic_kappa(sums)[0] == pytest.approx(expected)
    half = np.array([[4, 10.5, 10.5, 2 * 30.25, 30.25]])
    assert quadratic_kappa(half)[0] == pytest.approx(1.0)


def test_an_audit_without_labels_has_no_section_of_people(tmp_path):
    found = audit_runs([write_run(tmp_path, tasks=4, steps=1).folder], resamples=100)
    assert found.people is None and "people do" not in as_html(found)


def test_a_coach_is_measured_against_people_and_people_against_each_other(tmp_path):
    run = write_run(tmp_path, tasks=12)
    write_rescore(run, "other", fair)
    label(run, "Ann", lambda given, rng: round(given + rng.normal(0, 0.5)))
    label(run, "Ben", lambda given, rng: given - 2, share=0.5)
    found = audit_runs([run.folder], resamples=200)
    assert found.people.raters == ["Ann", "Ben"]
    by_coach = {one.second: one for one in found.people.coaches}
    own, other = by_coach["made-up"], by_coach["other"]
    assert [row.role for row in own.rows] == ["", "code_executor", "problem_solver", "verifier"]
    assert own.rows[0].kappa.value > 0.85 and own.rows[0].kappa.low < own.rows[0].kappa.value < own.rows[0].kappa.high
    assert other.rows[0].kappa.high < own.rows[0].kappa.low  # it scores on its own, people go by the first
    assert own.rows[0].kappa.tasks == 12 and own.rows[0].icc.value == pytest.approx(own.rows[0].kappa.value, abs=0.02)
    [pair] = found.people.persons
    assert (pair.first, pair.second) == ("Ann", "Ben") and pair.rows[0].shift.value == pytest.approx(-2, abs=0.2)
    page, data = as_html(found), json.loads(as_json(found))
    assert "made-up against people, mathchat" in page and "People among themselves" in page
    assert data["people"]["coaches"][0]["rows"][0]["kappa"]["n"] == own.rows[0].kappa.n
    assert any(line.startswith("people        made-up against people in mathchat: kappa 0.") for line in lines(found))


def test_of_a_crowd_those_who_scored_most_are_compared_with_each_other_and_all_with_the_coach(tmp_path):
    run = write_run(tmp_path, tasks=4, steps=1)
    ids = [action.id for action in next(iter(training_episodes(run))).episode.actions]
    add_labels(run, [Label(ids[0], f"p{person:02}", 5.0) for person in range(30)])
    add_labels(run, [Label(ids[1], f"p{person:02}", 7.0) for person in range(24, 30)])
    people = audit_runs([run.folder], resamples=50).people
    assert {name for pair in people.persons for name in (pair.first, pair.second)} == {
        f"p{n:02}" for n in range(24, 30)
    }
    assert len(people.persons) == 15 and len(people.raters) == 30
    assert any(note.startswith("of 30 people the 6 who scored most") for note in people.notes)


def test_one_action_in_common_gives_no_coefficient(tmp_path):
    run = write_run(tmp_path, tasks=4, steps=1)
    action = next(iter(training_episodes(run))).episode.actions[0].id
    add_labels(run, [Label(action, "Ann", 5.0), Label(action, "Ben", 7.0)])
    found = audit_runs([run.folder], resamples=100)
    for one in (*found.people.coaches, *found.people.persons):
        assert one.rows[0].kappa is None and one.rows[0].icc is None
    assert found.people.persons[0].rows[0].shift.value == 2
    assert "kappa not defined" in "\n".join(lines(found)) and ">nan" not in as_html(found)


def test_labels_of_actions_that_no_coach_scored_are_said(tmp_path):
    run = write_run(tmp_path, tasks=4, steps=1)
    add_labels(run, [Label("elsewhere/1", "Ann", 5.0)])
    found = audit_runs([run.folder], resamples=100)
    assert found.people.coaches == [] and "cannot be measured" in found.people.notes[0]
    assert found.people.notes[1] == "1 score of actions that no coach was asked about, or that were not read"


def test_people_are_compared_with_each_other_where_the_coach_gave_no_score_too(tmp_path):
    run = write_run(tmp_path, lambda episode, action, rng: None if action.role == "verifier" else 5.0, tasks=6, steps=1)
    ids = [action.id for episode, _ in training_episodes(run) for action in episode.actions]
    for rater in ("Ann", "Ben"):
        add_labels(
            run, [Label(key, rater, float(place % 7), "", "2026-01-31T12:00:00") for place, key in enumerate(ids)]
        )
    found = audit_runs([run.folder], resamples=100).people
    [pair], [coach] = found.persons, found.coaches
    assert pair.rows[0].shift.n == len(ids) == 36 and coach.rows[0].shift.n == 24


def test_labels_of_replies_that_are_gone_are_left_out_and_said(tmp_path):
    run = write_run(tmp_path, tasks=4, steps=1)
    actions = [action for episode, _ in training_episodes(run) for action in episode.actions]
    digests = (actions[0].digest, "0" * 12, "")  # the last of a file of before there were any
    made = [Label(one.id, "Ann", 5.0, "", "", said) for one, said in zip(actions, digests, strict=False)]
    add_labels(run, [replace(label, time="2026-01-31T12:00:00") for label in made])
    found = audit_runs([run.folder], resamples=100).people
    assert found.labels == found.actions == found.coaches[0].rows[0].shift.n == 2
    assert found.notes[0].startswith("1 score left out, of replies that the run no longer holds")


@pytest.fixture(scope="module")
def rules_run(tmp_path_factory):
    overrides = ["tasks.train_count=10", "pipeline.roles.code_executor.max_turns=1"]
    return asyncio.run(save_run(tmp_path_factory.mktemp("people"), overrides=overrides, samples_per_task=4))


def test_a_coach_is_put_on_peoples_scale_and_rescores_on_it(rules_run, tmp_path):
    run, place = rules_run, tmp_path / "curve.json"
    audit = ["audit", str(run.folder), "--resamples", "100", "--html", str(tmp_path / "audit.html")]
    refused = CliRunner().invoke(app, [*audit, "--calibrate", str(place)])
    assert "that people scored; a curve needs 30 of 5 tasks for every role" in str(refused.exception)
    assert not place.exists()

    label(run, "Ann", lambda given, rng: 10 * (given / 10) ** 3 + rng.normal(0, 0.2))
    done = CliRunner().invoke(app, [*audit, "--calibrate", str(place)])
    assert done.exit_code == 0, done.exception
    fitted = read_calibration(place, "rules")
    assert sorted(fitted.roles) == ["code_executor", "problem_solver", "verifier"] and fitted.raters == ("Ann",)
    for curve in fitted.roles.values():
        assert curve.actions == 40 and curve.tasks == 10
        assert curve.error_calibrated < 0.5 < curve.error_as_given
    assert "points as given" in done.output and "on tasks left out (40 actions, 10 tasks)" in done.output

    again = CliRunner().invoke(app, ["rescore", str(run.folder), f"coach.calibration={place}"])
    assert again.exit_code == 0, again.exception
    [rescore] = read_rescores(run.folder)
    own = {key: score for _, scores in training_episodes(run) for key, score in scores.items()}
    roles = {action.id: action.role for episode, _ in training_episodes(run) for action in episode.actions}
    assert len(rescore.scores) == 120
    for key, score in rescore.scores.items():
        assert score.process_0_10 == pytest.approx(fitted.roles[roles[key]].at(own[key].process_0_10))
        assert "on people's scale, where the coach gave" in score.rationale and score.model == "rules (calibrated)"


@pytest.mark.parametrize(("tasks", "draws", "has"), [(7, 2, "28 actions of 7 tasks"), (4, 4, "32 actions of 4 tasks")])
def test_a_curve_needs_labels_enough_and_of_enough_tasks(tmp_path, tasks, draws, has):
    run = write_run(tmp_path, tasks=tasks, draws=draws)
    label(run, "Ann", lambda given, rng: given)
    with pytest.raises(ConfigError, match=f"has {has} that people scored; a curve needs 30 of 5 tasks"):
        fit_calibration(run, read_audit_data([run.folder]))


def test_a_flat_curve_is_said(tmp_path):
    run = write_run(tmp_path, tasks=12)
    label(run, "Ann", lambda given, rng: 10 - given)
    done = CliRunner().invoke(app, ["audit", str(run.folder), "--calibrate", str(tmp_path / "people.json")])
    assert done.exit_code == 0 and done.output.count("; flat: every action would get ") == 3


def test_a_curve_says_how_far_the_coach_was_from_people_before_and_on_tasks_left_out():
    """Five tasks of six scores; people give two points less throughout, and nobody less than 0 or more than 10."""
    given = np.tile([3.0, 4, 5, 6, 7, 8], 5)
    tasks = np.repeat(list("tuvwx"), 6)
    found = _curve(pd.DataFrame({"score": given, "people": given - 2, "task": tasks}))
    assert (found.given, found.people) == ((3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 5, 6))
    assert (found.actions, found.tasks, found.error_as_given, found.error_calibrated) == (30, 5, 2.0, pytest.approx(0))
    lucky = np.where(tasks == "t", 10.0, 0.0)
    assert _curve(pd.DataFrame({"score": given, "people": lucky, "task": tasks})).error_calibrated == pytest.approx(
        (10 * 6 + 2.5 * 24) / 30
    ), "each task is told by the other four"


def test_two_raters_of_four_actions():
    """Scores 2, 4, 6, 8 against 3, 4, 7, 10: variances 5 and 7.5, covariance 6, means a point apart."""
    both = pd.DataFrame(
        {"first": [2.0, 4, 6, 8], "second": [3.0, 4, 7, 10], "role": list("aabb"), "task": list("tuvw")}
    )
    whole, first, second = _rows(both, 20, 0)
    assert whole.kappa.value == pytest.approx(1 - 1.5 / (5 + 7.5 + 1)) and (whole.kappa.n, whole.kappa.tasks) == (4, 4)
    assert (whole.shift.value, whole.mean_change.value) == (1.0, 1.0)
    assert (first.role, first.shift.value, second.role, second.shift.value) == ("a", 0.5, "b", 1.5)
    [alone] = _rows(both.assign(role="a", second=both["first"]), 20, 0)
    assert (alone.role, alone.kappa.value) == ("", 1.0) and alone.mean_change.low == 0.0, "the least that it can be"


def curve_file(tmp_path, **changed):
    curve = {"given": [0, 5], "people": [1, 9], "actions": 40, "tasks": 8, "error_as_given": 2, "error_calibrated": 1}
    file = {"version": 1, "coach": "rules", "raters": ["Ann"], "roles": {"solver": {**curve, **changed}}}
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(file))
    return path


def test_a_calibration_that_is_none_or_anothers_is_refused_before_anything_runs(tmp_path):
    for changed, said in [
        ({"given": [5, 0]}, "given must rise"),
        ({"people": [9, 1]}, "people must not fall"),
        ({"people": [1, 11]}, "roles.solver.people.1: Input should be less than or equal to 10"),
        ({"people": [1]}, "must be of one length"),
        ({"given": [], "people": []}, "at least 1 item"),
        ({"mood": 1}, "roles.solver.mood: Extra inputs are not permitted"),
    ]:
        with pytest.raises(ConfigError, match=said):
            make_coach(CoachConfig(calibration=curve_file(tmp_path, **changed)))
    config = parse_config({"coach": {"calibration": str(curve_file(tmp_path))}}, "")
    assert make_coach(config.coach).name == "rules"
    with pytest.raises(ConfigError, match="it was fitted to coach 'rules', not 'my_mod:coach'"):
        read_calibration(curve_file(tmp_path), "my_mod:coach")
    with pytest.raises(ConfigError, match=r"coach.calibration .*nowhere.json"):
        make_coach(CoachConfig(calibration=tmp_path / "nowhere.json"))
