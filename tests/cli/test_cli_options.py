"""What the flags of several verbs come to in the configuration."""

from pathlib import Path

import pytest

from coachrl.cli.options import CoachOptions
from coachrl.config.load import load_config

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
