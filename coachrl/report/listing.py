"""The runs of a folder, a line each: what they are, how far they came, and what held-out tasks say of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coachrl.errors import ConfigError
from coachrl.report.contents import asks_coach
from coachrl.runs.folder import LOCK, Run
from coachrl.runs.locks import in_use_by
from coachrl.runs.lost import lost_steps, newest_step, read_steps
from coachrl.runs.places import run_folders
from coachrl.types import policy_names

_SUCCESS = "eval/success"


@dataclass(frozen=True)
class ListedRun:
    """begun: local time, ISO 8601. step: of `steps`, how many are done. before, after: success on held-out tasks, from
    0 to 1, in the first and the last evaluation; None where there is none, and `after` where there is one only. state:
    finished (with its last evaluation), stopped, or what a process is doing with it (training), and which metrics are
    gone; or why it cannot be read."""

    name: str
    begun: str
    team: str = ""
    model: str = ""
    algorithm: str = ""
    coach: str = ""
    seed: int | None = None
    step: int = 0
    steps: int | None = None
    before: float | None = None
    after: float | None = None
    state: str = ""


def listed_runs(folder: Path) -> list[ListedRun]:
    """The newest first. Raises ConfigError where the folder cannot be read."""
    try:
        found = [path for path in run_folders(folder) if path.name != "latest"]
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    listed = [_listed(path, begun) for path in found if (begun := _begun(path)) is not None]
    return sorted(listed, key=lambda run: (run.begun, run.name), reverse=True)


def _begun(run: Path) -> datetime | None:
    """None where it is gone by now. Nothing writes `versions.json` later; --resume may write the configuration."""
    for path in (run / "versions.json", run):
        with suppress(OSError):
            return datetime.fromtimestamp(path.stat().st_mtime)
    return None


def _listed(path: Path, began: datetime) -> ListedRun:
    begun = began.isoformat(" ", "seconds")
    run = Run(path)
    try:
        config, roles = run.config(), run.roles()
    except ConfigError as error:
        return ListedRun(path.name, begun, state=str(error))
    newest = newest_step(run)
    steps = read_steps(run, [])
    held_out = [metrics[_SUCCESS] for metrics in steps.values() if _SUCCESS in metrics]
    is_done = any(step >= config.train.steps and any(key.startswith("eval/") for key in steps[step]) for step in steps)
    return ListedRun(
        path.name,
        begun,
        f"{config.pipeline.name} on {config.tasks.source}",
        ", ".join(config.initial_models(policy_names(roles or ()) or config.policies)),
        config.algorithm.name,
        config.coach.label if asks_coach(config) else "none",
        config.seed,
        max(steps, default=0),
        config.train.steps,
        held_out[0] if held_out else None,
        held_out[-1] if len(held_out) > 1 else None,
        "; ".join([_state(path, is_done), *lost_steps(steps, newest)]),
    )


def _state(path: Path, is_done: bool) -> str:
    if (owner := in_use_by(path / LOCK)) is not None:
        return owner.doing if owner.is_here else f"{owner.doing} on {owner.host}, as far as its lock tells"
    return "finished" if is_done else "stopped"
