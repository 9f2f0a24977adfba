"""What the flags of several verbs come to in the configuration."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

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

    app = typer.Typer()
    app.command()(verb)
    done = CliRunner().invoke(app, ["a=1", "b=2", "--pipeline", "p", "--extra", "3"])
    assert done.exit_code == 0, done.output
    assert got == [(TeamOptions(overrides=["a=1", "b=2"], pipeline="p"), 3)]
