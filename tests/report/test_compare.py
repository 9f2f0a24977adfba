"""Runs compared with each other, through the function and through the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from report_runs import add_evaluation, make_episode
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.report.compare import RunComparison, compare
from coachrl.report.page import headline, render
from coachrl.runs.folder import Run


def evaluated(out, name: str, skill: float, tasks: int = 24, seed: int = 0) -> Run:
    run = Run.create(RunConfig(name=name, out=out))
    rng = np.random.default_rng(seed)
    run.append_metrics({"step": 0, **add_evaluation(run, 0, tasks, 0.2, rng)})
    run.append_metrics({"step": 4, **add_evaluation(run, 4, tasks, skill, rng)})
    return run


def test_the_better_run_is_called_better_by_its_last_evaluation(tmp_path):
    weak, strong = evaluated(tmp_path, "weak", 0.2), evaluated(tmp_path, "strong", 0.95, seed=1)
    (found,) = compare([weak, strong])
    (everything, *by_category) = found.rows
    assert (found.baseline, found.name, found.shared, found.draws) == ("weak", "strong", 24, 24)
    assert everything.difference is not None and everything.difference.low is not None
    assert everything.difference.low > 0 and found.conclusion.startswith("Better")
    assert [row.name for row in by_category] == ["1-step", "2-step"]
    (back,) = compare([strong, weak])
    assert back.rows[0].difference.value == -everything.difference.value


def test_only_what_both_hold_is_compared(tmp_path):
    few, many = evaluated(tmp_path, "few", 0.5, tasks=10), evaluated(tmp_path, "many", 0.5, tasks=24)
    (found,) = compare([few, many])
    assert (found.shared, found.draws) == (10, 24)
    assert found.rows[0].before.tasks == found.rows[0].after.tasks == 10


def test_another_problem_of_the_same_id_is_not_the_same_draw(tmp_path):
    one, other = evaluated(tmp_path, "one", 0.5), evaluated(tmp_path, "other", 0.5)
    episodes, _ = other.read_episodes("eval-000004")
    edited = [replace(e, task_prompt="Another problem.") if n < 5 else e for n, e in enumerate(episodes)]
    other.write_episodes("eval-000004", edited, {})
    (found,) = compare([one, other])
    assert (found.shared, found.draws) == (19, 29)
    said = "24 tasks after step 0, 24 after step 4, 19 of them both times"
    assert not any(said in line for line in headline(one)) and any(said in line for line in headline(other))
    assert said in render(other) and "Not of the same held-out tasks" not in render(one)


def test_a_run_equals_itself(tmp_path):
    run = evaluated(tmp_path, "one", 0.5)
    (found,) = compare([run, run])
    assert found.rows[0].difference.value == 0 and "No held-out task was solved more or less often" in found.conclusion


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    here, there = evaluated(tmp_path / "here", "run", 0.5), evaluated(tmp_path / "there", "run", 0.5)
    (found,) = compare([here, there])
    assert (found.baseline, found.name) == (str(here.folder), str(there.folder))


def test_runs_that_cannot_be_compared(tmp_path):
    run, other = evaluated(tmp_path, "one", 0.5), Run.create(RunConfig(name="empty", out=tmp_path))
    with pytest.raises(ConfigError, match="two runs or more"):
        compare([run])
    with pytest.raises(ConfigError, match="run empty: it has no evaluation"):
        compare([run, other])
    made, _ = make_episode("eval-000000.heldout-000.0", "heldout-000", "1-step", 0.5, np.random.default_rng(0))
    other.write_episodes("eval-000000", [replace(made, infra_error="sandbox: it is gone")], {})
    with pytest.raises(ConfigError, match=r"run empty: nothing was measured: .* the last by 'sandbox: it is gone'"):
        compare([run, other])
    foreign = Run.create(RunConfig(name="foreign", out=tmp_path))
    text = (run.folder / "episodes" / "eval-000004.jsonl").read_text().replace("heldout-", "other-")
    (foreign.folder / "episodes" / "eval-000004.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=r"share no held-out draw.*heldout-000, heldout-001, .* against other-000"):
        compare([run, foreign])


def test_the_command_prints_a_table_and_json(tmp_path):
    runs = [evaluated(tmp_path, name, skill) for name, skill in (("a", 0.2), ("b", 0.9), ("c", 0.5))]
    folders = [str(run.folder) for run in runs]
    shown = CliRunner().invoke(app, ["compare", *folders])
    assert shown.exit_code == 0 and "b against a: Better" in shown.output and "c against a:" in shown.output
    data = json.loads(CliRunner().invoke(app, ["compare", *folders, "--json"]).output)
    assert [found["name"] for found in data] == ["b", "c"] and data[0]["rows"][0]["difference"]["value"] > 0


def other_run(out, name: str, **settings) -> Run:
    run = Run.create(RunConfig.model_validate({"name": name, "out": out, **settings}))
    run.append_metrics({"step": 4, **add_evaluation(run, 4, 8, 0.5, np.random.default_rng(0))})
    return run


def test_what_was_set_otherwise_is_said_before_the_figures(tmp_path):
    plain = other_run(tmp_path, "plain")
    longer = other_run(tmp_path, "longer", train={"steps": 7}, seed=3)
    other = other_run(
        tmp_path, "other", model="big/one", pipeline={"name": "math_duo"}, tasks={"source": "math"}, train={"steps": 7}
    )
    assert [found.settings for found in compare([plain, longer, plain])] == [
        "Settings that differ, plain against longer: seed: 0 against 3; train.steps: 100 against 7",
        "",
    ]
    (found,) = compare([plain, other])
    assert found.settings == (
        "Not the same pipeline and model and tasks: more than training makes the difference. "
        "Settings that differ, plain against other: "
        "pipeline.name: mathchat against math_duo; model: smollm2-135m against big/one; tasks.source: word-problems "
        "against math; train.steps: 100 against 7"
    )
    page = tmp_path / "both.html"
    done = CliRunner().invoke(app, ["compare", str(plain.folder), str(other.folder), "--html", str(page)])
    assert done.stdout.startswith("Not the same pipeline and model and tasks")
    assert "pipeline.name: mathchat against math_duo" in page.read_text()


def test_evaluations_after_different_steps_are_told_apart_before_the_figures(tmp_path):
    whole, begun = evaluated(tmp_path, "whole", 0.5), evaluated(tmp_path, "begun", 0.5)
    (begun.folder / "episodes" / "eval-000004.jsonl").unlink()
    shown = CliRunner().invoke(app, ["compare", str(whole.folder), str(begun.folder)], catch_exceptions=False)
    assert shown.stdout.startswith("Measured after step 4 of whole, 0 of begun.\n")
    assert compare([whole, begun])[0].steps == (4, 0)


def test_runs_without_a_shared_draw_say_what_was_set_otherwise(tmp_path):
    plain, other = other_run(tmp_path, "plain"), other_run(tmp_path, "other", seed=5)
    episodes = other.folder / "episodes" / "eval-000004.jsonl"
    episodes.write_text(episodes.read_text().replace("heldout-", "other-"))
    with pytest.raises(
        ConfigError,
        match=r"share no held-out draw.*; settings: seed: 0 against 5; each seed holds out tasks of its own$",
    ):
        compare([plain, other])


@pytest.mark.parametrize(
    ("tasks", "hint"),
    [
        ({}, "; each seed holds out tasks of its own, unless tasks.heldout names them"),
        ({"heldout": "gone.jsonl"}, ""),  # it is not the seed that makes them others
    ],
)
def test_a_setting_is_named_only_where_it_would_help(tmp_path, tasks, hint):
    files = {"source": "math", "train": "problems.jsonl", **tasks}
    plain, other = other_run(tmp_path, "plain", tasks=files), other_run(tmp_path, "other", seed=5, tasks=files)
    episodes = other.folder / "episodes" / "eval-000004.jsonl"
    episodes.write_text(episodes.read_text().replace("heldout-", "other-"))
    with pytest.raises(ConfigError, match=f"settings: seed: 0 against 5{hint}$"):
        compare([plain, other])


def test_a_run_whose_settings_cannot_be_read_is_compared_by_its_episodes(tmp_path, caplog):
    plain, other = other_run(tmp_path, "plain"), other_run(tmp_path, "other", seed=4)
    (other.folder / "config.yaml").write_text("seed: [")
    (found,) = compare([plain, other])
    assert found.settings == "" and found.shared == 8
    assert "other: settings are not compared: config file" in caplog.text


def test_what_of_the_evaluations_cannot_be_read_is_told_and_of_training_is_not(tmp_path, caplog):
    runs = [evaluated(tmp_path, name, 0.5, tasks=4) for name in ("one", "two")]
    for run in runs:
        (run.folder / "episodes" / "step-000001.jsonl").write_text("{}\n")
    with (runs[1].folder / "episodes" / "eval-000004.jsonl").open("a") as file:
        file.write("{}\n")
    (found,) = compare(runs)
    assert found.shared == 4
    [told] = [record.getMessage() for record in caplog.records]
    assert "two: eval-000004.jsonl" in told


def test_a_run_that_was_evaluated_once_is_compared_by_that(tmp_path):
    once = Run.create(RunConfig(name="once", out=tmp_path))
    add_evaluation(once, 0, 8, 0.2, np.random.default_rng(0))
    (found,) = compare([once, evaluated(tmp_path, "twice", 1.0, tasks=8)])
    assert found.shared == 8 and found.rows[0].before.value < found.rows[0].after.value == 1.0


def test_of_settings_that_differ_twelve_are_shown_and_of_tasks_two(tmp_path):
    keys = [f"train.k{number}: 1 against 2" for number in range(13)]
    said = [RunComparison("a", "b", (), 1, 1, tuple(keys[:count])).settings for count in (12, 13)]
    assert (
        said[0] == f"Settings that differ, a against b: {'; '.join(keys[:12])}" and said[1] == f"{said[0]}; and 1 more"
    )
    two, three = evaluated(tmp_path, "two", 0.5, tasks=2), evaluated(tmp_path, "three", 0.5, tasks=3)
    path = three.folder / "episodes" / "eval-000004.jsonl"
    path.write_text(path.read_text().replace("heldout-", "other-"))
    words = r"\(heldout-000, heldout-001 against other-000, other-001, \.\.\.\)$"
    with pytest.raises(ConfigError, match=words):
        compare([two, three])
