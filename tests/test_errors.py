"""Whose doing an error is decides whether an episode is trained on, left out, or ends the run."""

import importlib
import inspect
import re

import pytest

from coachrl import errors
from coachrl.errors import CoachrlError, lacking

# All others end the run. Scripts go by the exit code: 2 for what can be mended before a run, 1 for a run that failed.
AGENTS_DOING = {"ContextOverflow": "context overflow", "ToolError": "tool", "AppFailed": "app"}
NOBODYS_DOING = {
    "SandboxError": "sandbox", "AppBroken": "app", "GraderFailed": "grader", "ProviderFailed": "provider",
    "EpisodeTimeout": "timeout", "ReplayDiverged": "not reproduced", "WorkerLost": "worker",
}  # fmt: skip
MENDABLE = {
    *("ConfigError", "TaskError", "SandboxUnavailable", "CoachUnavailable", "KeyMissing"),
    *("PolicyError", "PackageMissing"),
    "CheckpointError",
}


def test_every_error_says_whose_doing_it_is_and_how_the_command_ends():
    found = {
        name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, CoachrlError)
    }
    blamed = {
        blame: {n: e.label for n, e in found.items() if e.blame == blame} for blame in ("agent", "infrastructure")
    }
    assert blamed == {"agent": AGENTS_DOING, "infrastructure": NOBODYS_DOING}
    codes = {code: {name for name, each in found.items() if each.exit_code == code} for code in (1, 2, 143)}
    assert codes[2] == MENDABLE and codes[143] == {"Preempted"}
    assert codes[1] == found.keys() - MENDABLE - {"Preempted"}


def test_a_class_has_what_it_does_not_name_from_the_one_that_it_descends_from():
    class Mine(errors.ToolError, exit_code=3):
        pass

    assert (Mine.exit_code, Mine.blame, Mine.label) == (3, "agent", "tool")
    assert (errors.SandboxUnavailable.blame, errors.SandboxUnavailable.label) == ("run", "sandbox")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("import there_is_no_such_package", "there_is_no_such_package"),
        (
            "raise ImportError('libcudart.so.12: cannot open shared object file')",
            r"a package that is installed here .* \(libcudart.so.12: cannot open shared object file\)",
        ),
    ],
)
def test_a_package_that_does_not_load_is_not_said_to_be_missing(written, told, tmp_path, monkeypatch):
    (tmp_path / "package_that_fails.py").write_text(written)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        importlib.import_module("package_that_fails")
    assert re.fullmatch(told, lacking(caught.value))
