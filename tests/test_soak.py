"""The soak of benchmarks/soak.py, a tiny one: a run that is killed and resumed loses nothing and leaves nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_run_under_load_stays_whole_through_kills(tmp_path):
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    pytest.importorskip("aiohttp")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "soak.py", "--minutes", "0.1", "--episodes", "6", "--kill-every-s", "2",
         "--folder", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith("| as it must be |")]
    assert len(rows) >= 13 and "WRONG" not in done.stdout


@pytest.fixture
def soak():
    specification = importlib.util.spec_from_file_location("soak", ROOT / "benchmarks" / "soak.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules["soak"] = module
    specification.loader.exec_module(module)
    return module


def test_growing_memory_and_missing_steps_would_be_seen(soak):
    rows = [{"pid": 1, "rss_mb": 100.0 + 5 * step, "descriptors": 20 + step} for step in range(8)]
    assert soak._slope_mb(rows) == pytest.approx(5.0)
    assert soak._slope_mb(rows[:4]) is None  # a figure that nobody measured is none
    assert soak._growth(rows) == 6
    assert [soak._odd(steps) for steps in ([0, 1, 2], [0, 2, 3], [0, 1, 1])] == [0, 2, 2]
