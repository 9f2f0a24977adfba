"""A run with checkpoints and no model."""

from pathlib import Path

from coachrl.config import RunConfig
from coachrl.runs import checkpoints
from coachrl.runs.folder import Run


def run_with_checkpoints(folder: Path) -> Run:
    """Of three steps, each with a policy of a thousand bytes."""
    run = Run.create(RunConfig(name="one", out=folder / "runs"))
    for step in (1, 2, 3):
        with run.checkpoint(step, keep=3) as made:
            (made / "policy").mkdir()
            (made / "policy" / "weights").write_bytes(bytes(1000))
            checkpoints.seal(made, step, {"pipeline": "mathchat", "model of policy a": "tiny"})
    return run


def newest(run: Run) -> Path:
    return run.checkpoints()[-1]
