"""`audit.every`: figures in a run's metrics, and a frozen set of actions that is scored again."""

from __future__ import annotations

import asyncio
import json

import pytest
from audit_runs import ROLES, likes_sums, write_run

from coachrl.audit.audit import audit_runs
from coachrl.audit.reference_set import reference_set_metrics
from coachrl.audit.report.page import as_html
from coachrl.audit.training import TrainingAudit, score_audit
from coachrl.coach.kinds.ensemble import EnsembleCoach
from coachrl.coach.kinds.strategic import StrategicCoach
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig, load_config
from coachrl.runs.folder import Run
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import CoachScore, Role, Task

TEAM = tuple(Role(name, name) for name in ROLES)
TASKS = [Task(f"t{number}", "any", "How many?") for number in range(32)]


def settings(run: Run, **audit: int) -> RunConfig:
    return load_config(run.folder / "config.yaml", [f"audit.{key}={value}" for key, value in audit.items()])


def audit_at(run: Run, step: int, score: float, **audit: int) -> dict[str, float]:
    def make_pool() -> CoachPool:
        return CoachPool(ScriptedCoach(lambda request: score))

    trained = TrainingAudit(settings(run, **audit), run, TEAM, TASKS, make_pool)
    assert trained.is_due(step)
    return asyncio.run(trained.metrics(step))


def test_metrics_are_of_the_steps_since_the_last_audit(tmp_path):
    run = write_run(tmp_path, likes_sums, steps=4, tasks=32)
    found = score_audit(run, 3, 4)
    assert (found["audit/n"], found["audit/tasks"]) == (384.0, 32.0)
    assert found["audit/category_gap_low"] > 1 and found["audit/category_gap"] < 3
    assert (
        found["audit/auc_of_shown_outcome"] > 0.8
        and abs(found["audit/length_rho"]) < 0.2
        and found["audit/modal_share"] < 0.5
    )
    assert audit_at(run, 4, 5.0, every=2) == found
    assert score_audit(run, 9, 9) == {}


def test_no_score_no_metrics(tmp_path):
    assert score_audit(write_run(tmp_path, None), 1, 2) == {}
    assert score_audit(write_run(tmp_path, lambda *_: None, name="failed"), 1, 2) == {}


def test_a_reference_set_is_frozen_and_scored_again(tmp_path):
    run = write_run(tmp_path, steps=4, tasks=16)
    first = audit_at(run, 1, 9.0, every=1, reference_set=10)
    assert (first["audit/reference_set/n"], first["audit/reference_set/shift"]) == (
        10.0,
        0.0,
    )  # what was said then, no call
    later = audit_at(run, 3, 9.0, every=1, reference_set=10)
    assert later["audit/reference_set/mean"] == 9.0 and later["audit/reference_set/shift"] > 1
    assert (later["cost/reference_set/calls"], later["cost/reference_set/usd"]) == (10.0, 0.0)
    assert "cost/reference_set/calls" not in first
    again = audit_at(run, 3, 9.0, every=1, reference_set=10)  # a resumed run makes the step once more
    assert again == later
    lines = [json.loads(line) for line in (run.folder / "coach" / "reference_set.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1] * 10 + [3] * 10
    assert {line["action_id"] for line in lines[:10]} == {line["action_id"] for line in lines[10:]}
    digests = {action.id: action.digest for one in run.read_episodes("step-000001")[0] for action in one.actions}
    assert all(line["action_digest"] == digests[line["action_id"]] for line in lines)


@pytest.mark.parametrize("damage", ["twice", "missing", "cut"])
def test_a_reference_set_stays_what_it_was_where_the_episodes_it_was_drawn_from_are_damaged(tmp_path, damage, caplog):
    run = write_run(tmp_path, steps=2, tasks=16)
    audit_at(run, 1, 9.0, every=1, reference_set=10)
    path = run.folder / "coach" / "reference_set.jsonl"
    drawn = [json.loads(line)["action_id"] for line in path.read_text().splitlines()]
    episodes = run.folder / "episodes" / "step-000001.jsonl"
    first, *others = episodes.read_text().splitlines(keepends=True)
    episodes.write_text({"twice": first * 2, "missing": "", "cut": first[:90] + "\n"}[damage] + "".join(others))
    audit_at(run, 2, 9.0, every=1, reference_set=10)
    again = [json.loads(line)["action_id"] for line in path.read_text().splitlines()][10:]
    assert again == [action for action in drawn if damage == "twice" or f'"{action}"' not in first]
    assert ("step-000001.jsonl: line 1 is left out" in caplog.text) == (damage == "cut")


@pytest.mark.parametrize("line", ["{", "null", "{}", '{"step": "1", "action_id": "a", "process_0_10": 1.0}'])
def test_a_line_of_the_reference_set_that_is_none_is_named_and_left_out(tmp_path, line, caplog):
    run = write_run(tmp_path, steps=4, tasks=16)
    audit_at(run, 1, 9.0, every=1, reference_set=10)
    path = run.folder / "coach" / "reference_set.jsonl"
    path.write_text(f"{line}\n{path.read_text()}")
    assert any("line 1 is left out" in note for note in audit_runs([run.folder], 200).notes)
    assert audit_at(run, 2, 9.0, every=1, reference_set=10)["audit/reference_set/n"] == 10.0
    assert "reference_set.jsonl: line 1 is left out" in caplog.text and len(path.read_text().splitlines()) == 20


def test_what_the_set_costs_counts_every_call_of_an_ensemble(tmp_path):
    run = write_run(tmp_path, steps=4, tasks=16)
    audited, both = settings(run, every=1, reference_set=10), [ScriptedCoach(lambda request: 9.0)] * 2
    trained = TrainingAudit(audited, run, TEAM, TASKS, lambda: CoachPool(EnsembleCoach(both, "mean")))
    asyncio.run(trained.metrics(1))
    assert asyncio.run(trained.metrics(3))["cost/reference_set/calls"] == 20.0


def test_a_coach_that_sees_the_run_scores_the_set_by_what_it_has_seen(tmp_path):
    run, shown = write_run(tmp_path, steps=4, tasks=16), set()

    def score(request):
        shown.add(request.statistics.splitlines()[0])
        return 5.0

    def make_pool() -> CoachPool:
        return CoachPool(StrategicCoach(ScriptedCoach(score), window_steps=2))

    trained = TrainingAudit(settings(run, every=1, reference_set=5), run, TEAM, TASKS, make_pool)
    asyncio.run(trained.metrics(3))
    [words] = shown
    assert words.startswith("Steps 2 to 3, ")


def test_the_audit_names_a_coach_that_drifts(tmp_path):
    run = write_run(tmp_path, lambda *_: 5.0, steps=4, tasks=16)
    for step, score in ((1, 5.0), (2, 6.0), (4, 8.0)):
        audit_at(run, step, score, every=1, reference_set=20)
    audit = audit_runs([run.folder], 200)
    (verdict,) = [v for v in audit.verdicts if v.topic == "reference_set"]
    assert verdict.grade == "warning" and verdict.text.startswith("the coach drifts: the same actions get +3.00")
    assert [(step, e.value) for step, e in audit.reference_sets[0].shifts.points] == [(1, 0.0), (2, 1.0), (4, 3.0)]
    assert "Does the coach drift?" in as_html(audit)


def test_a_reference_set_at_one_step_and_a_torn_one(tmp_path):
    run = write_run(tmp_path, steps=2)
    audit_at(run, 1, 5.0, every=1, reference_set=5)
    audit = audit_runs([run.folder], 200)
    assert audit.reference_sets[0].shifts is None and any("at one step only" in note for note in audit.notes)
    (run.folder / "coach" / "reference_set.jsonl").write_text('{"step": 1}\n')
    assert any("reference_set.jsonl" in note for note in audit_runs([run.folder], 200).notes)


def test_an_action_of_the_set_without_a_score_is_left_out():
    said = {"a": CoachScore("a", "scored", 4.0), "b": CoachScore("b", "failed"), "c": CoachScore("c", "scored", 6.0)}
    now = {"a": CoachScore("a", "scored", 5.0), "b": CoachScore("b", "scored", 9.0), "c": CoachScore("c", "failed")}
    assert reference_set_metrics(said, now) == {
        "audit/reference_set/n": 1.0,
        "audit/reference_set/mean": 5.0,
        "audit/reference_set/shift": pytest.approx(1.0),
        "audit/reference_set/change": pytest.approx(1.0),
    }
    assert reference_set_metrics(said, {}) == {}


@pytest.mark.parametrize("wrong", ["every=-1", "reference_set=-1", "evry=2"])
def test_wrong_settings_are_refused(wrong):
    from coachrl.errors import ConfigError

    with pytest.raises(ConfigError, match="audit"):
        load_config(None, [f"audit.{wrong}"])


@pytest.mark.parametrize(("again", "grade"), [(5.0, "note"), (8.0, "warning")])
def test_the_same_actions_scored_again_tell_a_lenient_coach_from_better_work(tmp_path, again, grade):
    def lenient(episode, action, rng):
        return float(min(10, max(0, 4 + rng.integers(0, 3) + 2 * (episode.id >= "step-000003"))))

    run = write_run(tmp_path, lenient, steps=4, tasks=16)
    assert [v.grade for v in audit_runs([run.folder], 200).verdicts if v.topic == "leniency"] == ["warning"]
    first = audit_at(run, 1, 5.0, every=1, reference_set=20)
    audit_at(run, 4, first["audit/reference_set/mean"] if again == 5.0 else 9.0, every=1, reference_set=20)
    (said,) = [v for v in audit_runs([run.folder], 200).verdicts if v.topic == "leniency"]
    assert said.grade == grade
    assert ("it is the work that changed" in said.text) == (grade == "note")
