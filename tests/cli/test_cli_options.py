"""What the flags of several verbs come to in the configuration."""

import inspect
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coachrl.cli.main import GROUPS, VERBS, app
from coachrl.cli.options import CoachOptions, RunOptions, TeamOptions, takes_groups
from coachrl.config import find_config, load_config

OWN = """
coach:
  name: openai/own
  api_base: http://127.0.0.1:1/v1
  fallbacks: [openai/second]
  prompt: /own.md
"""


@pytest.mark.parametrize(
    ("flags", "name", "prompt", "api_base", "fallbacks"),
    [
        (("openai/x", None, None), "openai/x", "/own.md", None, ()),
        (("rules", None, None), "rules", None, None, ()),
        (("mine:Coach", None, None), "mine:Coach", None, None, ()),
        (("openai/x", Path("mine.md"), "http://127.0.0.1:2/v1"), "openai/x", "mine.md", "http://127.0.0.1:2/v1", ()),
        ((None, None, None), "openai/own", "/own.md", "http://127.0.0.1:1/v1", ("openai/second",)),
        ((None, Path("mine.md"), None), "openai/own", "mine.md", "http://127.0.0.1:1/v1", ("openai/second",)),
    ],
)
def test_another_coach_inherits_the_prompt_alone(flags, name, prompt, api_base, fallbacks, tmp_path):
    own = tmp_path / "config.yaml"
    own.write_text(OWN)
    coach = load_config(own, (), CoachOptions(*flags).of_a_saved_run()).coach
    assert (coach.name, coach.api_base, tuple(coach.fallbacks)) == (name, api_base, fallbacks)
    assert coach.prompt == (Path(prompt) if prompt else None)


def test_flags_stand_for_settings_and_lie_over_the_others():
    options = RunOptions(
        overrides=["train.group_size=4"], config="quickstart", coach="openai/x", coach_prompt=Path("mine.md"), model="m"
    )
    config = options.resolve({"train.steps": 3, "seed": None})
    assert (config.coach.name, config.coach.prompt, config.model) == ("openai/x", Path("mine.md"), "m")
    assert (config.train.steps, config.train.group_size) == (3, 4)
    assert config.seed == load_config(find_config("quickstart")).seed


def test_a_group_becomes_the_options_of_its_fields():
    got = []

    @takes_groups
    def verb(team: TeamOptions, extra: int = 1) -> None:
        got.append((team, extra))

    one = typer.Typer()
    one.command()(verb)
    done = CliRunner().invoke(one, ["a=1", "b=2", "--pipeline", "p", "--extra", "3"])
    assert done.exit_code == 0, done.output
    assert got == [(TeamOptions(overrides=["a=1", "b=2"], pipeline="p"), 3)]


def test_every_option_of_a_run_is_the_setting_of_its_name():
    team = {"pipeline": "debate", "model": "m", "backend": "openrlhf", "ray_address": "head:1"}
    options = RunOptions(**team, coach="openai/x", coach_prompt=Path("strict"), coach_api_base="http://127.0.0.1:2/v1")
    config = options.resolve()
    assert (config.pipeline.name, config.model, config.backend) == ("debate", "m", "openrlhf")
    assert config.openrlhf.ray_address == "head:1"
    assert (config.coach.name, config.coach.prompt) == ("openai/x", Path("strict"))
    assert config.coach.api_base == "http://127.0.0.1:2/v1"


@pytest.mark.parametrize("given", [{"coach": "rules"}, {"coach_prompt": Path("a.md")}, {"coach_api_base": "http://a"}])
def test_any_option_about_the_coach_asks_for_another_one(given):
    assert CoachOptions(**given).given and not CoachOptions().given


def test_a_calibration_goes_with_the_coach_and_the_prompt_that_it_was_made_for():
    kept = CoachOptions(coach_api_base="http://127.0.0.1:2/v1").of_a_saved_run()
    assert kept == {"coach.api_base": "http://127.0.0.1:2/v1"}
    for changed in (CoachOptions(coach="openai/x"), CoachOptions(coach_prompt=Path("a.md"))):
        assert changed.of_a_saved_run()["coach.calibration"] is None


def test_a_path_of_any_command_may_begin_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "train.csv").write_text("id,x,y\n" + "".join(f"{n},{n % 7},{n % 2}\n" for n in range(40)))
    words = ["tasks", "make", "~/table", "--target", "y", "--out=~/tasks"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "tasks" / "train.jsonl").exists()
    verbs = [*VERBS.values(), *(one.callback for group in GROUPS.values() for one in group.registered_commands)]
    hints = [
        parameter.annotation
        for verb in verbs
        for parameter in inspect.signature(verb, eval_str=True).parameters.values()
    ]
    paths = [hint.__metadata__[0] for hint in hints if "Path" in str(hint)]
    assert len(paths) > 20 and all(taken.parser("~/x") == tmp_path / "x" for taken in paths)


@pytest.mark.parametrize(
    "words", [("report", ""), ("checkpoints", "list", ""), ("train", "--resume", ""), ("report", "run", "--html", "")]
)
def test_an_empty_path_is_not_the_current_folder(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("train: {steps: 1}")  # as a run's folder has one
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and "the path is empty" in done.output, done.output
    assert [place.name for place in tmp_path.iterdir()] == ["config.yaml"]
