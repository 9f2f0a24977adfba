"""Whether a run goes on with the settings, the team and the tasks that it began with."""

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coachrl.config import RunConfig, load_config, resumable_settings
from coachrl.errors import CheckpointError, ConfigError
from coachrl.prompts import parse_prompt
from coachrl.runs.beginning import (
    changed_settings,
    changed_tasks,
    check_settings,
    check_tasks,
    check_team,
    keep_settings,
    keep_tasks,
    tasks_measured_on,
)
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


def test_held_out_tasks_are_known_again_whatever_they_are_called(run):
    again, other = replace(HELDOUT[0], id="x"), replace(HELDOUT[0], prompt="What is 6 + 2?")
    assert tasks_measured_on(run, [again, other, TRAIN[0]]) == 1
    for damaged in ("[]", "{", '{"training": {}, "held-out": {"h-0": []}}'):
        (run.folder / "tasks.json").write_text(damaged)
        assert tasks_measured_on(run, HELDOUT) == 0
    (run.folder / "tasks.json").unlink()
    assert tasks_measured_on(run, HELDOUT) == 0


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


def with_settings(folder, *overrides):
    config = load_config(None, [f"out={folder}", "name=two", *overrides])
    run = Run.create(config)
    keep_settings(run, config)
    return run


def test_what_a_run_was_configured_with_is_read_back_as_the_same(tmp_path):
    (tmp_path / "file").touch()
    run = with_settings(
        tmp_path, "train.learning_rate=1e-7", "coach.cache=file", "track=[tensorboard]", "tasks.levels=[1, 2]",
        'pipeline.options={a: "1e-6", b: 1e22, c: .nan, d: "yes", e: "a\\x85b", f: [{g: 1}], h: null, i: 2026-01-01}',
        "coach.ensemble=[{name: rules}, {name: gemini-2.5-pro, prompt: strict}]", "policies.p.trainable=false",
    )  # fmt: skip
    check_settings(run, run.config())
    run.reconfigure(["coach.concurrency=3"])
    check_settings(run, run.config())


def test_a_setting_that_no_resume_may_change_is_told_with_what_it_was(tmp_path):
    run = with_settings(tmp_path, "pipeline.options.a=1", "coach.ensemble=[{name: rules}, {name: rules}]")
    config = run.config(
        [
            "pipeline.options={a: 2, b: 1}",
            "seed=1",
            "policies.p.trainable=false",
            "coach.ensemble=[{name: rules}, {name: x/y}]",
        ]
    )
    assert changed_settings(run, config) == (
        "not the settings that the run began with: seed: 0 -> 1; pipeline.options.a: 1 -> 2; "
        'coach.ensemble.2.name: "rules" -> "x/y"; policies.p.trainable: not set -> false; '
        "pipeline.options.b: not set -> 1"
    )
    with pytest.raises(CheckpointError, match=r"and 1 more: put them back in its config\.yaml\. To go on with"):
        check_settings(run, run.config([*(f"train.{key}=7" for key in ("steps", "tasks_per_step", "weight_decay")),
            "train.clip_range=7", "train.ppo_epochs=7", "train.group_size=7"]))  # fmt: skip


def test_what_a_resume_may_change_a_hand_may_change(tmp_path):
    run = with_settings(tmp_path, "eval.every=1")  # which train.keep_best needs

    def changed(key):
        for value in ("2", "true", "0.5", "[1, 2]", "x", "host:1"):
            with contextlib.suppress(ConfigError):
                if (config := run.config([f"{key}={value}"])) != run.config():
                    return config
        raise AssertionError(f"no value for {key}")

    for key in resumable_settings():
        assert changed_settings(run, changed(key)) == "", key


def test_addresses_of_servers_and_of_the_machine_are_free_to_change(tmp_path):
    def settings(host):
        return [
            f"coach.ensemble=[{{name: openai/judge, api_base: 'http://{host}/v1'}}, {{name: rules}}]",
            f"coach.retrospective.api_base=http://{host}/v1",
            f"pipeline.options={{host: {host}, port: {len(host)}, roles: {{critic: {{api_base: 'http://{host}'}}}}}}",
        ]

    run = with_settings(tmp_path, *settings("one"))
    assert changed_settings(run, run.config(settings("another"))) == ""
    path = run.folder / "settings.json"  # of a version that held a run to more
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "coach.concurrency": 3, "coach.ensemble.1.api_base": ""})
    )
    check_settings(run, run.config())


def test_a_run_that_was_moved_has_the_same_settings(tmp_path):
    (tmp_path / "there").mkdir()
    for folder in (tmp_path, tmp_path / "there"):
        (folder / "problems.json").touch()
    math = f"tasks={{source: math, train: {tmp_path}/problems.json}}"
    run = with_settings(tmp_path, math, f"coach.calibration={tmp_path}/c.json")
    path, there = run.folder / "config.yaml", f"{tmp_path}/there"
    for was, now in (
        (f"{tmp_path}/problems.json", f"{there}/problems.json"),
        (f"{tmp_path}/c.json", "/else/where/c.json"),
        ("model: smollm2-135m", "model: /m"),
    ):
        assert was in path.read_text()
        path.write_text(path.read_text().replace(was, now))
    check_settings(run, run.config(["name=other", f"out={there}"]))
    other = run.config([f"tasks.train={tmp_path}/others.json"])
    assert 'tasks.train: "problems.json" -> "others.json"' in changed_settings(run, other)


def test_a_setting_that_a_later_version_adds_changes_nothing_while_it_has_its_default(tmp_path):
    members = "coach.ensemble=[{name: rules}, {name: rules}]"
    run = with_settings(tmp_path, "pipeline.roles.verifier.max_new_tokens=3", members)
    path = run.folder / "settings.json"
    kept = json.loads(path.read_text())
    for later in ("train.ppo_epochs", "pipeline.roles.verifier.tools", "coach.ensemble.1.prompt", "backend"):
        kept.pop(later)
    path.write_text(json.dumps(kept))
    check_settings(run, run.config())
    with pytest.raises(CheckpointError, match=r"began with: train\.ppo_epochs: not set -> 2:"):
        check_settings(run, run.config(["train.ppo_epochs=2"]))


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"a": "\\ud800"}', "null", "[" * 10**5])
def test_a_damaged_record_of_settings_is_named(run, text):
    (run.folder / "settings.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"settings\.json") as told:
        check_settings(run, run.config())
    assert "\n" not in str(told.value)


def test_a_run_of_before_keeps_its_settings_from_then_on(run):
    check_settings(run, run.config(["seed=1"]))
    keep_settings(run, run.config(["seed=1"]))
    keep_settings(run, run.config(["seed=2"]))
    assert "seed: 1 -> 2" in changed_settings(run, run.config(["seed=2"]))
