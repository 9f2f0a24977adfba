"""Held-out tasks that `eval --run` is given in place of the run's own."""

import pytest

from coachrl.commands.run import _warn_where_cut_short
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
