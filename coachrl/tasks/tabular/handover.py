"""Whether the files that agents hand on can be used: features that can be fitted (numbers, without gaps, alike for
training and test), and a model that others can load and predict with.

Agents' files are unpickled in the sandbox alone, in a copy of the workspace, and into arrays and tables alone: a file
that was made to run code as it is read cannot speak for itself here. It is unreadable, which is a fault like another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from coachrl.sandbox.base import Workspace
from coachrl.text import counted
from coachrl.types import Execution

FEATURES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")
MODEL = "model.pkl"
NO_MODEL = "cannot predict"
SYMPTOMS = {
    "unreadable": re.compile(
        r"pickl|UnpicklingError|EOFError|ModuleNotFoundError|Can't get attribute|Expected (?:2D array|a 2-dim)"
    ),
    "not numbers": re.compile(
        r"could not convert|float\(\) argument|not supported between instances of '?str|Complex data not supported"
    ),
    "gaps": re.compile(r"NaN|infinity"),
    "rows": re.compile(r"inconsistent numbers? of samples|[Ll]ength"),
    "columns": re.compile(r"[Ff]eature names|expecting \d+ features"),
    NO_MODEL: re.compile(r"no attribute '(?:predict|score)"),
    "nothing to learn": re.compile(r"\b(?:one|1|2) class(?:es)?\b|greater than one|\b0 feature"),
}
"""What may be wrong with a file -> the errors by which it shows in the code that uses it."""

_FILE, _KIND = "|".join(map(re.escape, (*FEATURES, MODEL))), "|".join(SYMPTOMS)
_FAULT = re.compile(rf"^(?P<file>{_FILE}): (?P<category>{_KIND}): (?P<detail>.+)$")
_MOST_FAULTS = 10


@dataclass(frozen=True)
class FileFault:
    """What is wrong with one file. category: a key of SYMPTOMS. detail: which columns, or how many rows."""

    file: str
    category: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.category}: {self.detail}"

    def explains(self, error: str) -> bool:
        """Whether code that ended with this error may have failed on the fault."""
        return SYMPTOMS[self.category].search(error) is not None


async def inspect_features(workspace: Workspace, test_rows: int) -> str:
    """What is wrong with the features in the workspace, a line each, as `read_faults` takes it; one line where nothing
    is; empty where infrastructure kept them from being looked at. test_rows: those of the task's test.csv. Raises
    SandboxError."""
    execution = await _look(workspace, f"look_at_features({test_rows})")
    if execution.state == "infrastructure":
        return ""
    faults = read_faults(execution.stdout)
    if "DONE" not in execution.stdout.splitlines():
        faults = (*faults, _ended_by(execution))
    if not faults:
        return f"{', '.join(FEATURES)}: looked at, nothing wrong"
    lines = [str(fault) for fault in faults[:_MOST_FAULTS]]
    left_out = len(faults) - len(lines)
    return "\n".join([*lines, f"and {counted(left_out, 'further fault')}"] if left_out else lines)


async def inspect_model(workspace: Workspace) -> str:
    """Why no other program can use the model in the workspace, as `read_faults` takes it; one line where nothing is
    known against it; empty where infrastructure kept it from being looked at. Raises SandboxError."""
    execution = await _look(workspace, "look_at_model()")
    if execution.state == "infrastructure":
        return ""
    faults = [str(fault) for fault in read_faults(execution.stdout) if fault.file == MODEL]
    return "\n".join(faults) or f"{MODEL}: looked at, nothing known against it"


async def _look(workspace: Workspace, call: str) -> Execution:
    program = files("coachrl.tasks.tabular").joinpath("handover_program.py").read_text(encoding="utf-8")
    copied = await workspace.copy()
    try:
        return await copied.run(f"{program}\n\n{call}\n")
    finally:
        await copied.close()


def _ended_by(execution: Execution) -> FileFault:
    """The fault of the file that ended the look at it: too large for the sandbox's limits, or worse."""
    looked_at = [line.removeprefix("AT ") for line in execution.stdout.splitlines() if line.startswith("AT ")]
    return FileFault(
        looked_at[-1] if looked_at else FEATURES[0], "unreadable", f"reading it ended with {execution.state}"
    )


def read_faults(text: str) -> tuple[FileFault, ...]:
    """The faults among the lines of `text`."""
    found = (_FAULT.match(line) for line in text.splitlines())
    return tuple(FileFault(**match.groupdict()) for match in found if match)
