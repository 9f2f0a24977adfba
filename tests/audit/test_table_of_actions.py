"""The table of an audit, cell by cell, from a run of two episodes and a rescore."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from coachrl.audit.data.frame import CRITERION, Scorer, read_audit_data, style_of
from coachrl.audit.data.lookup import find_texts
from coachrl.config import parse_config
from coachrl.runs.folder import Run
from coachrl.testing.actions import make_action
from coachrl.types import CoachScore, CriterionScore, Episode, Execution, Outcome

POLICIES = {"small": {"model": "org/small"}}


def make_run(out: Path, name: str = "run", shown: str = "last") -> Run:
    settings = {"name": name, "out": str(out), "model": "org/base", "coach": {"evidence": {"ground_truth": shown}}}
    return Run.create(parse_config(settings, ""))


def episode(name: str, *actions, success: bool = True, task: str = "t", **more) -> Episode:
    return Episode(name, task, "sums", "p", actions, Outcome(success), **more)


def scores(*given: CoachScore) -> dict[str, CoachScore]:
    return {score.action_id: score for score in given}


def rescore(run: Run, label: str, given: list[CoachScore], **about) -> None:
    folder = run.folder / "rescores" / label
    folder.mkdir(parents=True)
    (folder / "scores.jsonl").write_text("".join(json.dumps(asdict(score)) + "\n" for score in given))
    (folder / "coach.json").write_text(json.dumps({"coach": label, "prompt_hash": "", "repeat": 0, **about}))


def column(run: Run, name: str, **steps) -> list:
    return read_audit_data([run.folder], **steps).actions[name].tolist()


def test_each_scored_action_is_a_row_with_its_own_figures(tmp_path):
    run = make_run(tmp_path)
    ran = Execution("error", "", "Boom", 1)
    acts = (
        make_action("coder", "```python\nx\n```", index=0, turn=1, code="x\n", execution=ran, response_ids=(5,) * 7),
        make_action("checker", "Maybe.", index=1, finish_reason="length", prompt_text="Is it?"),
    )
    run.write_episodes("step-000004", [episode("e", *acts)], scores(CoachScore("e/0", "scored", 0.0, model="m")))
    [row] = read_audit_data([run.folder]).actions.to_dict("records")
    expected = {"run": "run", "pipeline": "p", "step": 4, "episode": "e", "task": "t", "category": "sums"}
    expected |= {"action": "e/0", "role": "coder", "turn": 1, "last": False, "rater": "m", "coach": "m", "prompt": ""}
    expected |= {"status": "scored", "score": 0.0, "outcome": 1.0, "tokens": 7, "has_code": True, "state": "error"}
    assert {key: row[key] for key in expected} == expected and row["code_share"] == 2 / 15
    data = read_audit_data([run.folder])
    assert dict(data.texts) == {"t": acts[0].prompt_text} and list(data.actions["policy"]) == ["org/base"]


def test_the_last_action_is_that_of_the_highest_place_and_a_candidate_that_was_not_followed_has_no_outcome(tmp_path):
    run = make_run(tmp_path)
    first, last = make_action("a", index=0), make_action("b", index=1, finish_reason="length")
    other = replace(last, id="e/1.1", candidate=1, finish_reason="stop")
    both = episode("e", last, first, rejected_candidates=(other,))
    run.write_episodes("step-000001", [both], scores(*(CoachScore(i, "scored", 5.0) for i in ("e/0", "e/1", "e/1.1"))))
    rows = {row["action"]: row for row in read_audit_data([run.folder]).actions.to_dict("records")}
    assert {key: row["last"] for key, row in rows.items()} == {"e/0": False, "e/1": True, "e/1.1": False}
    assert (rows["e/0"]["outcome"], rows["e/1"]["outcome"]) == (1.0, 1.0) and math.isnan(rows["e/1.1"]["outcome"])
    assert [rows[key]["state"] for key in ("e/0", "e/1", "e/1.1")] == ["no code", "no code, cut", "no code"]


def test_a_broken_episode_has_no_outcome_and_is_no_evaluation(tmp_path):
    run = make_run(tmp_path)
    fine, broken = (
        episode("e", make_action(), success=False),
        episode("f", make_action(episode="f"), infra_error="gone"),
    )
    run.write_episodes("step-000001", [fine, broken], scores(*(CoachScore(f"{e}/0", "scored", 5.0) for e in "ef")))
    run.write_episodes("eval-000007", [fine, broken], {})
    data = read_audit_data([run.folder])
    outcomes = dict(zip(data.actions["episode"], data.actions["outcome"], strict=True))
    assert outcomes["e"] == 0.0 and math.isnan(outcomes["f"])
    assert data.heldout.to_dict("records") == [
        {"run": "run", "pipeline": "p", "step": 7, "task": "t", "category": "sums", "outcome": 0.0}
    ]


@pytest.mark.parametrize(
    ("status", "value", "seen", "score"),
    [
        ("scored", 10.0, "scored", 10.0),
        ("scored", 0.0, "scored", 0.0),
        ("scored", None, "failed", None),
        ("abstained", None, "abstained", None),
        ("abstained", 5.0, "abstained", None),
        ("failed", 5.0, "failed", None),
    ],
)
def test_a_score_is_a_number_from_0_to_10_or_none(tmp_path, status, value, seen, score):
    run = make_run(tmp_path)
    run.write_episodes("step-000001", [episode("e", make_action())], scores(CoachScore("e/0", status, value)))
    [row] = read_audit_data([run.folder]).actions.to_dict("records")
    assert row["status"] == seen and (math.isnan(row["score"]) if score is None else row["score"] == score)


def test_only_the_steps_that_are_asked_for_are_read_and_every_evaluation(tmp_path):
    run = make_run(tmp_path)
    for step in (1, 2, 3):
        name = f"e{step}"
        made, given = episode(name, make_action(episode=name)), CoachScore(f"{name}/0", "scored", float(step))
        run.write_episodes(f"step-{step:06d}", [made], scores(given))
        run.write_episodes(f"eval-{step:06d}", [made], {})
    assert column(run, "score", steps=range(2, 4)) == [2.0, 3.0] and column(run, "score") == [1.0, 2.0, 3.0]
    assert list(read_audit_data([run.folder], steps=range(2, 3)).heldout["step"]) == [1, 2, 3]


def test_a_run_is_called_by_the_coach_that_most_of_its_scores_name_and_each_row_by_its_own(tmp_path):
    run = make_run(tmp_path)
    acts = [make_action(index=n) for n in range(6)]
    given = [
        CoachScore("e/0", "scored", 1.0, model="second", prompt_hash="q"),
        CoachScore("e/1", "scored", 2.0, model="first", prompt_hash="p"),
        CoachScore("e/2", "scored", 3.0, model="first", prompt_hash="p"),
        *(CoachScore(f"e/{n}", "failed", model="first") for n in (3, 4, 5)),
    ]
    run.write_episodes("step-000001", [episode("e", *acts)], scores(*given))
    data = read_audit_data([run.folder])
    assert list(data.scorers) == ["first"] and set(data.actions["rater"]) == {"first"}
    assert list(data.actions["coach"]) == ["second"] + ["first"] * 5
    assert list(data.actions["prompt"]) == ["q"] + ["p"] * 5, "a failed call names no prompt"
    assert (data.scorers["first"].prompt, data.scorers["first"].outcome_to, data.scorers["first"].label) == (
        "p",
        "last",
        "",
    )


def test_a_rescore_is_another_rater_of_the_actions_that_the_run_holds(tmp_path):
    run = make_run(tmp_path)
    run.write_episodes(
        "step-000001", [episode("e", make_action())], scores(CoachScore("e/0", "scored", 1.0, model="own"))
    )
    given = [CoachScore("e/0", "scored", 9.0, model="judge"), CoachScore("nowhere/0", "scored", 2.0)]
    settings = {"coach.evidence.ground_truth": "none", "coach.evidence.files": 3, "coach.suggest": True}
    rescore(run, "again", given, coach="org/judge", prompt_hash="ab", repeat=2, settings=settings)
    data = read_audit_data([run.folder])
    assert list(zip(data.actions["rater"], data.actions["score"], strict=True)) == [("own", 1.0), ("again", 9.0)]
    assert data.scorers["again"] == Scorer("again", "org/judge", "ab", 2, "none", {
        "coach.evidence.ground_truth": "none", "coach.evidence.files": "3"
    })  # fmt: skip
    assert data.notes == [
        "run run: rescore again: 1 scores of actions that were not read, or that have other replies now"
    ]
    rescore(run, "gone", [CoachScore("e/0", "scored", 9.0, action_digest="0" * 12)])
    assert "gone" not in read_audit_data([run.folder]).scorers, "what it scored is no longer there"
    rescore(run, "plain", given[:1])
    assert read_audit_data([run.folder]).scorers["plain"].outcome_to == "last", "as the run showed"
    texts = find_texts({"run": run.folder}, [("run", "e/0"), ("other", "e/0"), ("run", "nowhere/0")])
    assert list(texts) == [("run", "e/0")] and set(texts["run", "e/0"].rationales) == {"", "again", "plain"}


def test_equal_coaches_of_several_runs_are_one_rater_and_unlike_ones_of_one_name_are_two(tmp_path):
    runs = [make_run(tmp_path, name, shown) for name, shown in (("a", "last"), ("b", "last"), ("c", "none"))]
    for run in runs:
        run.write_episodes(
            "step-000001", [episode("e", make_action())], scores(CoachScore("e/0", "scored", 1.0, model="m"))
        )
    data = read_audit_data([run.folder for run in runs])
    assert list(data.actions["rater"]) == ["m", "m", "m (m, prompt none, repeat 0, outcome shown: none)"]
    assert list(data.actions["run"]) == ["a", "b", "c"]


def test_another_problem_under_the_id_of_one_is_another_task_in_whatever_run(tmp_path):
    runs = [make_run(tmp_path, name) for name in "abcd"]
    for run, problem in zip(runs, ("", "2 + 2?", "3 + 3?", ""), strict=True):
        given = scores(CoachScore("e/0", "scored", 1.0))
        run.write_episodes("step-000001", [episode("e", make_action(), task_prompt=problem)], given)
        run.write_episodes("eval-000001", [episode("v", make_action(), task_prompt=problem)], {})
    data = read_audit_data([run.folder for run in runs])
    before, first, other, unkept = tasks = list(data.actions["task"])
    assert before == first == unkept == "t" and other.startswith("t ") and list(data.heldout["task"]) == tasks
    assert set(data.texts) == {first, other}


def test_scores_by_criteria_are_columns_and_one_that_is_no_score_is_missing(tmp_path):
    run = make_run(tmp_path)
    by = (CriterionScore("right", 1.0, 7.0), CriterionScore("clear", 1.0, 11.0))
    given = scores(CoachScore("e/0", "scored", 5.0, criteria=by), CoachScore("e/1", "scored", 4.0))
    run.write_episodes("step-000001", [episode("e", make_action(), make_action(index=1))], given)
    table = read_audit_data([run.folder]).actions
    assert table[CRITERION + "right"].tolist() == [7.0, pytest.approx(math.nan, nan_ok=True)]
    assert table[CRITERION + "clear"].isna().all()


SHOWN = {"coach.evidence.files": "True", "coach.evidence.stdout": "9"}


@pytest.mark.parametrize(
    ("other", "model", "differing"),
    [
        (Scorer("x", "A/Judge", "p", 3, "last", SHOWN), True, []),
        (Scorer("x", "judge", "p", 0, "none", SHOWN), True, ["coach.evidence.ground_truth"]),
        (Scorer("x", "judge", "p", 0, "last", {}), True, []),
        (Scorer("x", "judge", "p", 0, "last", SHOWN | {"coach.evidence.stdout": "8"}), True, ["coach.evidence.stdout"]),
        (Scorer("x", "judge", "q", 0, "last", SHOWN), False, []),
        (Scorer("x", "jury", "p", 0, "last", SHOWN), False, []),
    ],
)
def test_one_coach_is_one_model_with_one_prompt_that_was_shown_the_same(other, model, differing):
    own = Scorer("", "judge", "p", 0, "last", SHOWN)
    assert (own.is_same_model(other), own.differences(other)) == (model, differing)
    assert own.is_same_coach(other) == other.is_same_coach(own) == (model and not differing)


def test_style_is_counted_in_prose_alone():
    """Thirty characters of prose without its code: two marks, and one hedging word of five."""
    text = "# Sum\n**It** is maybe 4\n```python\n# maybe\n- x\n```"
    prose = "# Sum\n**It** is maybe 4\n "
    share, marks, hedges = style_of(text, "- x\n")
    assert share == 4 / len(text) and marks == pytest.approx(2000 / len(prose)) and hedges == pytest.approx(100 / 6)
    assert style_of("```\nopen", None) == (0.0, 0.0, 0.0), "a block that was cut is code to its end"
    assert style_of("abc", "abcdef")[0] == 1.0
