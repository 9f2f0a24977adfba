"""Faults of benchmarks/crash_points.py: what dies at a file operation is gone on with to the same end."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import crash_points

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "enospc"])
def test_a_command_whose_file_operations_fail_ends_as_one_that_they_do_not(tmp_path, fault):
    for module in ("torch", "aiohttp"):
        pytest.importorskip(module)
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    words = ["sft", "--points", "4", "--fault", fault, "--folder", tmp_path]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "crash_points.py", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    name, operations, points, equal = done.stdout.splitlines()[-1].strip("| ").split(" | ")
    assert name == "sft" and int(operations) > 20 and points == equal == "4"


def test_every_kind_of_operation_is_tried_before_one_is_tried_twice():
    operations = [f"write runs/.a.{n:08x}.{n}" for n in range(50)] + ["rename runs/a"]
    chosen = crash_points.chosen(operations, 3, random.Random(0))
    assert 51 in chosen and len(set(chosen)) == 3
    assert crash_points.chosen(operations, 99, random.Random(0)) == list(range(1, 52))


def test_what_is_lost_left_over_half_written_or_other_would_be_seen(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder, wall_s in ((whole, 1.0), (cut, 2.0)):
        (folder / "runs").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, "wall_s": wall_s, "time/step_s": wall_s}) + "\n")
        (folder / "model.safetensors").write_bytes(b"weights")
    assert crash_points.differences(whole, cut) == []
    (cut / "model.safetensors").write_bytes(b"other")
    (cut / "metrics.jsonl").write_text('{"step": 0}\n{"st')
    (cut / "runs" / ".one.1").mkdir()
    (cut / "runs" / ".one.1" / "config.yaml").touch()
    (whole / "report.html").touch()
    assert [line.partition(":")[0] for line in crash_points.differences(whole, cut)] == [
        "report.html is missing",
        "runs/.one.1 is left over",
        "metrics.jsonl cannot be read",
        "model.safetensors differs",
    ]
