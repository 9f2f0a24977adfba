"""What can be chosen is listed, and what a setting means is shown."""

import pytest
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.commands.configure import run_config
from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import SHIPPED
from coachrl.resources import resource


def shown(*arguments):
    done = CliRunner().invoke(app, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


def test_every_pipeline_is_listed_with_its_roles_and_tasks():
    lines = {line.split()[0]: line for line in shown("pipelines", "list").splitlines()}
    assert lines.keys() == {"name", *SHIPPED}
    assert "problem_solver, code_executor, verifier" in lines["mathchat"] and "word-problems, math" in lines["mathchat"]
    assert "planner" in lines["planpath"]


def test_every_shipped_config_is_listed_with_what_it_is_for():
    lines = {line.split()[0]: line for line in shown("configs", "list").splitlines()}
    assert lines.keys() == {"name", *(path.stem for path in resource("configs").glob("*.yaml"))}
    assert "Three small models learn" in lines["quickstart"]


def test_a_setting_is_shown_with_its_value_default_and_meaning():
    assert shown("config", "show", "train.steps", "train.steps=3") == (
        "train.steps=3   (default 100)\n    The number of training steps.\n"
    )
    section = shown("config", "show", "tasks", "tasks.source=math")
    assert "tasks.fields.problem=null   (default null)" in section and 'tasks.train_split="train"' in section


def test_without_a_key_the_whole_configuration_is_shown_with_where_its_values_come_from(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("seed: 7\ntrain: {steps: 4}\npolicies: {modeler: {trainable: false}}\nname: 'a: b'\n")
    given = ["--config", str(own), "--pipeline", "dsbench", "--coach", "gemini-2.5-pro"]
    given += [
        "train.steps=3",
        "coach.evidence={ground_truth: all}",
        "tasks.train_count=9",
        "track=[tensorboard, wandb]",
    ]
    text = shown("config", "show", *given)
    lines = {line.split("#")[0].strip(): line.partition("  # ")[2] for line in text.splitlines()}
    for line, source in {
        "seed: 7": "mine.yaml",
        "steps: 3": "command line",
        "trainable: false": "mine.yaml",
        "name: 'a: b'": "mine.yaml",
        "name: dsbench": "command line",
        "name: gemini-2.5-pro": "command line",
        "ground_truth: all": "command line",
        "prompt_style: short": "pipeline",
        "source: dsbench-lite": "pipeline",
        "track:": "command line",
        "temperature: 1.0": "",
    }.items():
        assert lines[line] == source, text
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert load_config(again) == run_config(str(own), given[6:], {"pipeline.name": "dsbench", "coach.name": given[5]})


def test_settings_are_shown_of_what_train_would_be_given():
    assert 'tasks.source="dsbench-lite"' in shown("config", "show", "tasks.source", "--pipeline", "dsbench")
    both = shown("config", "show", "seed", "train.steps", "seed=3", "-c", "quickstart")
    assert both.startswith("seed=3 ") and "\ntrain.steps=8 " in both


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("trian.steps", "'train'"),
        ("steps", "did you mean 'train.steps'"),
        ("train.stesp", "did you mean 'train.steps'"),
        ("train.steps.steeps", "steeps'$"),
        ("x\x1b[2J", ""),
    ],
)
def test_a_setting_that_is_not_there_is_named_with_the_nearest(key, near):
    with pytest.raises(ConfigError, match=f"no setting '.*{near}") as caught:
        shown("config", "show", key)
    assert "\x1b" not in str(caught.value)


def test_a_shell_can_be_taught_the_commands():
    assert "--install-completion" in shown("--help")
    asked = {"_COACHRL_COMPLETE": "complete_bash", "COMP_WORDS": "coachrl pip", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], env=asked, prog_name="coachrl")
    assert done.stdout.split() == ["pipelines"]


def test_a_mistyped_run_folder_is_named_with_its_neighbours(tmp_path):
    (tmp_path / "mathchat-1").mkdir()
    (tmp_path / "mathchat-1" / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=f"mathcat-1 is not a run folder, did you mean '{tmp_path}/mathchat-1'"):
        shown("report", str(tmp_path / "mathcat-1"))
