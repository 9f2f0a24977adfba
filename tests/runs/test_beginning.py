"""Whether a run goes on with the team and the tasks that it began with."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coachrl.config import RunConfig
from coachrl.errors import CheckpointError
from coachrl.prompts import parse_prompt
from coachrl.runs.beginning import changed_tasks, check_tasks, check_team, keep_tasks
from coachrl.runs.folder import Run
from coachrl.tasks.math.problems import MathTruth
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.types import Role, Task

TRAIN = [Task(f"t-{n}", "sums", f"What is {n} + 1?", ground_truth=MathTruth(str(n + 1))) for n in range(3)]
HELDOUT = [Task("h-0", "sums", "What is 7 + 1?", ground_truth=MathTruth("8"))]


@pytest.fixture
def run(tmp_path):
    run = Run.create(RunConfig(name="one", out=tmp_path))
    keep_tasks(run, TRAIN, HELDOUT)
    return run


def test_the_same_tasks_in_any_order_are_the_same(run):
    assert changed_tasks(run, TRAIN[::-1], HELDOUT) == ""
    check_tasks(run, TRAIN, HELDOUT)


def test_what_changed_is_named_by_set_and_kind(run):
    edited = replace(TRAIN[0], ground_truth=MathTruth("2"))
    new = replace(TRAIN[2], id="t-9")
    assert changed_tasks(run, [edited, TRAIN[1], new], HELDOUT) == (
        "not the tasks that the run began with: of 3 training tasks 1 changed (t-0), 1 gone (t-2), 1 new (t-9)"
    )
    with pytest.raises(
        CheckpointError, match=r"of 1 held-out task 1 changed \(h-0\): put the task set back\. To go on"
    ):
        check_tasks(run, TRAIN, [replace(HELDOUT[0], prompt="What is 6 + 2?")])


def test_a_run_of_before_goes_on_and_keeps_its_tasks_from_then_on(run):
    (run.folder / "tasks.json").unlink()
    check_tasks(run, TRAIN[:1], HELDOUT)
    keep_tasks(run, TRAIN[:1], HELDOUT)
    keep_tasks(run, TRAIN, HELDOUT)
    assert "2 new (t-1, t-2)" in changed_tasks(run, TRAIN, HELDOUT)


def test_where_a_table_lies_does_not_count_and_any_truth_is_taken(run, tmp_path):
    circle: list[object] = []
    circle.append(circle)
    truths = (
        [TabularTruth("classification", "accuracy", "id", ("y",), tmp_path / part) for part in ("a", "b")],
        [object(), object()],
        [{3: {0, 8}}, {3: {8, 0}}],  # which are written in another order
        [circle, circle],
        [MathTruth(np.zeros(3)), MathTruth(np.ones(3))],
        [MathTruth(pd.NA), MathTruth(pd.NA)],
        [10**5000, 10**5000],
    )
    for kept, now in truths:
        (run.folder / "tasks.json").unlink()
        keep_tasks(run, [replace(TRAIN[0], ground_truth=kept, files={"a.csv": Path("a")})], HELDOUT)
        assert changed_tasks(run, [replace(TRAIN[0], ground_truth=now)], HELDOUT) == ""


def test_what_is_no_plain_data_hides_no_change_of_what_is(run):
    @dataclass
    class Truth:
        answer: str
        table: np.ndarray

    for answer, change in (("1", ""), ("2", "1 changed (t-0)")):
        if not change:
            (run.folder / "tasks.json").unlink()
            keep_tasks(run, [replace(TRAIN[0], ground_truth=Truth(answer, np.zeros(3)))], HELDOUT)
        assert change in changed_tasks(run, [replace(TRAIN[0], ground_truth=Truth(answer, np.ones(3)))], HELDOUT)


def test_an_id_with_half_a_character_is_read_back(run):
    (run.folder / "tasks.json").unlink()
    keep_tasks(run, half := [replace(TRAIN[0], id="t-\ud800")], HELDOUT)
    check_tasks(run, half, HELDOUT)


def test_a_field_that_a_later_version_adds_changes_no_task(run):
    @dataclass
    class Later:
        answer: str
        unit: str = ""

    later = [replace(task, ground_truth=Later(task.ground_truth.answer)) for task in TRAIN]
    assert changed_tasks(run, later, HELDOUT) == ""
    later[0].ground_truth.unit = "m"
    assert "1 changed (t-0)" in changed_tasks(run, later, HELDOUT)


@pytest.mark.parametrize("text", ["", "[]", '{"training": {}}', '{"training": 1, "held-out": 2}'])
def test_a_damaged_list_is_named(run, text):
    (run.folder / "tasks.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tasks\.json"):
        check_tasks(run, TRAIN, HELDOUT)


def test_a_team_whose_prompts_were_edited_is_named_by_its_roles(run):
    def role(name, body, comment=""):
        prompt = parse_prompt(f"---\n{comment}fields: [problem]\n---\n{body} {{{{problem}}}}", name)
        return Role(name, policy="p", prompt=prompt)

    check_team(run, [role("solver", "Solve.")])  # a run without roles.json
    run.write_roles([role("solver", "Solve."), role("verifier", "Check.")])
    check_team(run, [role("verifier", "Check."), role("solver", "Solve.", "# of mine\n")])
    with pytest.raises(CheckpointError, match=r"not the team .*changed: solver\): put .*roles\.json"):
        check_team(run, [role("solver", "Solve it."), role("verifier", "Check.")])
    with pytest.raises(CheckpointError, match=r"changed: verifier"):
        check_team(run, [role("solver", "Solve.")])


def test_a_role_is_the_same_as_its_file_gives_it_back(run):
    role = Role("solver", policy="p", tool_timeout_s=10, required_files=frozenset("abcdefgh"))  # and not 10.0
    run.write_roles([replace(role, required_files=tuple("hgfedcba"))])
    check_team(run, [role])
