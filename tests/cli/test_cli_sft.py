"""`coachrl sft --help` names the defaults that its settings have."""

import inspect
import typing

from coachrl.cli.sft import sft
from coachrl.config import SftConfig
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
