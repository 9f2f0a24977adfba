"""The runs of a folder, a line each: what they are, how far they came, and what held-out tasks say of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.jsonl import readable_jsonl
from coachrl.runs.folder import LOCK, Run, run_folders
from coachrl.runs.locks import in_use_by

_SUCCESS = "eval/success"


@dataclass(frozen=True)
class ListedRun:
    """begun: local time, ISO 8601. step: of `steps`, how many are done. before, after: success on held-out tasks, from
    0 to 1, in the first and the last evaluation; None where there is none, and `after` where there is one only. state:
    finished, running, stopped, or what cannot be read."""

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
        found = sorted(((_begun(path), path) for path in run_folders(folder)), reverse=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    return [_listed(path, datetime.fromtimestamp(begun).isoformat(" ", "minutes")) for begun, path in found]


def _begun(run: Path) -> float:
    """In seconds. Nothing writes `versions.json` later; --resume may write the configuration."""
    versions = run / "versions.json"
    return (versions if versions.exists() else run).stat().st_mtime


def _listed(path: Path, begun: str) -> ListedRun:
    try:
        config = Run(path).config()
    except ConfigError as error:
        return ListedRun(path.name, begun, state=str(error))
    lines = list(readable_jsonl(path / "metrics.jsonl", _with_step, []))
    held_out = [line[_SUCCESS] for line in sorted(lines, key=lambda line: line["step"]) if _SUCCESS in line]
    step = max((line["step"] for line in lines), default=0)
    return ListedRun(
        path.name,
        begun,
        f"{config.pipeline.name} on {config.tasks.source}",
        _models(config),
        config.algorithm.name,
        ", ".join(member.name for member in config.coach.ensemble) or config.coach.name,
        config.seed,
        step,
        config.train.steps,
        held_out[0] if held_out else None,
        held_out[-1] if len(held_out) > 1 else None,
        _state(path, step >= config.train.steps),
    )


def _with_step(record: Any) -> dict[str, Any]:
    return {"step": int(record["step"]), **{key: float(record[key]) for key in (_SUCCESS,) if key in record}}


def _models(config: RunConfig) -> str:
    own = dict.fromkeys(policy.model or config.model for policy in config.policies.values())
    return ", ".join(own or [config.model])


def _state(path: Path, is_done: bool) -> str:
    if in_use_by(path / LOCK):
        return "running"
    return "finished" if is_done else "stopped"
