"""`scripts/gpu_acceptance.sh` as its user starts it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def accept(*words, **environment):
    """What it printed, and the rows of its table: (stage, what) -> (found, state)."""
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [ROOT / "scripts" / "gpu_acceptance.sh", *map(str, words)],
        env=environment, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("|")][2:]
    return done, {(stage, what): (found, state) for stage, what, found, _, state in cells}
