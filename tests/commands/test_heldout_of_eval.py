"""Held-out tasks that `eval --run` is given in place of the run's own."""

import asyncio
import io
import json
from contextlib import nullcontext

import pytest
from rich.console import Console

from coachrl.commands import run as commands
from coachrl.commands.run import _warn_where_cut_short, evaluate_run
from coachrl.config import parse_config
from coachrl.runs.folder import Run


@pytest.mark.parametrize(
    ("overrides", "measured", "warned"),
    [
        (["tasks.heldout=unseen.jsonl"], 16, True),
        (["tasks.heldout=unseen.jsonl"], 5, False),
        (["tasks.heldout=unseen.jsonl", "tasks.heldout_count=null"], 40, False),
        (["tasks.heldout=unseen.jsonl", "tasks.heldout_count=20"], 20, False),
        ([], 16, False),
    ],
)
def test_it_is_said_where_the_runs_count_cuts_them_short(tmp_path, caplog, overrides, measured, warned):
    tasks = {"source": "math", "train": "mine.jsonl", "heldout_count": 16}
    run = Run.create(parse_config({"name": "run", "out": str(tmp_path), "tasks": tasks}, ""))
    _warn_where_cut_short(run.config(overrides), run, measured)
    assert ("unseen.jsonl the first 16 tasks" in caplog.text) == warned == bool(caplog.records)


def test_nothing_is_said_of_tasks_that_are_held_out_of_the_runs_own(tmp_path, caplog):
    tasks = {"source": "math", "train": "mine.jsonl", "heldout": "others.jsonl", "heldout_count": 16}
    run = Run.create(parse_config({"name": "run", "out": str(tmp_path), "tasks": tasks}, ""))
    for overrides in ([], ["tasks.heldout=null"]):
        _warn_where_cut_short(run.config(overrides), run, 16)
    assert not caplog.records


def test_an_evaluation_of_a_run_says_it(tmp_path, caplog, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    for name, terms in (("mine", 1), ("unseen", 7)):
        problems = [{"problem": f"{terms} + {n}?", "answer": str(terms + n)} for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    tasks = {"source": "math", "train": str(tmp_path / "mine.jsonl"), "heldout_count": 1}
    pipeline = {"name": "debate", "prompt_style": "short", "max_new_tokens": 8, "options": {"agents": 2, "rounds": 1}}
    settings = {"name": "run", "out": str(tmp_path), "model": "tiny-random", "tasks": tasks, "pipeline": pipeline}
    run = Run.create(parse_config(settings, ""))
    monkeypatch.setattr(commands, "checkpoint_kept", lambda run, which: nullcontext())
    others = run.config([f"tasks.heldout={tmp_path / 'unseen.jsonl'}"])
    metrics = asyncio.run(evaluate_run(others, run, None, Console(file=io.StringIO())))
    assert metrics["eval/episodes"] == 1 and "unseen.jsonl the first 1 tasks are measured at most" in caplog.text
