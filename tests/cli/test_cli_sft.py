"""`coachrl sft --help` names the defaults that its settings have."""

import inspect
import typing
from pathlib import Path

import pytest

from coachrl.cli.sft import sft
from coachrl.config import SftConfig
from coachrl.errors import PolicyError
from coachrl.pipelines.defaults import BUNDLED_MODEL


def test_help_shows_the_defaults_of_the_settings():
    hints = typing.get_type_hints(sft, include_extras=True)
    shown = {name: hint.__metadata__[0].show_default for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    settings = SftConfig()
    assert shown.pop("model") == BUNDLED_MODEL
    optional = [name for name, parameter in inspect.signature(sft).parameters.items() if parameter.default is None]
    for name in optional:
        if name != "model":
            assert shown[name] == str(getattr(settings, name)), name


def test_a_model_without_a_name_is_not_the_default(tmp_path, monkeypatch):
    """As of a variable of the shell that is not set."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError):
        sft(data=Path("demos.jsonl"), out_folder=Path("out"), model="")
