"""What a run says at its end."""

import asyncio

import pytest
from saved_runs import save_run

from coachrl.cli.train import _finish


@pytest.mark.parametrize(("algorithm", "asked"), [("reinforce_pp", True), ("outcome", False)])
def test_its_coach_is_offered_for_an_audit_where_there_is_one(tmp_path, capsys, algorithm, asked):
    run = asyncio.run(save_run(tmp_path, overrides=[f"algorithm.name={algorithm}"], samples_per_task=1))
    _finish(run)
    said = capsys.readouterr().out
    assert f"coachrl view {run.folder}" in said and f"coachrl compare {run.folder} OTHER" in said
    assert ("coachrl audit" in said) == asked
