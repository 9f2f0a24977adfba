"""A run's folder: create it, append to it, read it back. JSONL is the interface; reading it needs no coachrl.

runs/<name>/  config.yaml  roles.json  versions.json  metrics.jsonl  log.txt  episodes/  coach/ledger.jsonl
              checkpoints/  rescores/  tensorboard/  trackers.json
runs/latest -> <name>
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coachrl import __version__, checkpoints
from coachrl.config import RunConfig, dump_config, load_config, with_absolute_paths
from coachrl.errors import CheckpointError, ConfigError
from coachrl.prompts import Prompt
from coachrl.settings import CALL_SETTINGS
from coachrl.types import Action, CoachScore, Episode, Example, Execution, Outcome, Reward, Role

log = logging.getLogger(__name__)

_PACKAGES = ("numpy", "pandas", "scikit-learn", "torch", "transformers", "litellm", "google-genai", "math-verify")


class Run:
    """One run's folder. Every write is whole: a line is appended in one call, a file is written aside and renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._latest_before: Path | None = None

    @classmethod
    def create(cls, config: RunConfig) -> Run:
        """A new folder under `config.out`. Raises ConfigError where it exists or cannot be written."""
        name = config.name or f"{config.pipeline.name.rpartition(':')[2].lower()}-{time.strftime('%Y%m%d-%H%M%S')}"
        if Path(name).name != name or name == "..":
            raise ConfigError(f"name '{name}' must be a plain folder name; out=… says which folder holds it")
        folder = config.out / name
        if folder.exists():
            raise ConfigError(f"run folder {folder} exists; choose another name=…, or --resume {folder}")
        aside = folder.with_name(f".{name}.{os.getpid()}")
        try:
            for sub in ("episodes", "coach", "checkpoints"):
                (aside / sub).mkdir(parents=True)
            (aside / "config.yaml").write_text(dump_config(with_absolute_paths(config)), encoding="utf-8")
            (aside / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
            aside.rename(folder)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from error
        run = cls(folder)
        run._point_latest()
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing run. Raises ConfigError where `folder` is none."""
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder} is not a run folder: it has no config.yaml")
        return cls(folder.resolve())

    @property
    def ledger(self) -> Path:
        return self.folder / "coach" / "ledger.jsonl"

    def config(self) -> RunConfig:
        return load_config(self.folder / "config.yaml")

    def reconfigure(self, overrides: Iterable[str]) -> RunConfig:
        """Change how the coach is called from now on. Raises ConfigError for settings that shape what a run learns."""
        overrides = list(overrides)
        for key in (override.partition("=")[0] for override in overrides):
            if key not in CALL_SETTINGS:
                raise ConfigError(
                    f"--resume continues a run as it was configured: '{key}' cannot change now, only "
                    f"{', '.join(CALL_SETTINGS)}"
                )
        config = load_config(self.folder / "config.yaml", overrides)
        if overrides:
            write_aside(self.folder / "config.yaml", dump_config(config))
        return config

    def write_roles(self, roles: Iterable[Role]) -> None:
        """`roles.json`: the team as it was, whatever becomes of its prompt files later."""
        write_aside(
            self.folder / "roles.json",
            json.dumps([_role_record(role) for role in roles], indent=2, default=list) + "\n",
        )

    def roles(self) -> tuple[Role, ...] | None:
        """The team of `roles.json`; None where the run has none. Raises ConfigError where it cannot be read."""
        path = self.folder / "roles.json"
        if not path.is_file():
            return None
        try:
            return tuple(_role(record) for record in json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}: not the roles of a run: {error}") from error

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        append_jsonl(self.folder / "metrics.jsonl", [record])

    def metrics(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.folder / "metrics.jsonl"))

    def write_episodes(self, label: str, episodes: Iterable[Episode], scores: Mapping[str, CoachScore]) -> Path:
        """`episodes/<label>.jsonl`: one line an episode, each action with its score. Enough to rescore and to audit."""
        path = self.folder / "episodes" / f"{label}.jsonl"
        write_aside(path, "".join(episode_line(episode, scores) for episode in episodes))
        return path

    def read_episodes(self, label: str) -> tuple[list[Episode], dict[str, CoachScore]]:
        """What `write_episodes` wrote under `label`; nothing where there is no such file."""
        pairs = [episode_from_record(record) for record in read_jsonl(self.folder / "episodes" / f"{label}.jsonl")]
        return [episode for episode, _ in pairs], {key: score for _, found in pairs for key, score in found.items()}

    def episode_files(self) -> list[Path]:
        return sorted((self.folder / "episodes").glob("*.jsonl"))

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that failed before its first line of metrics: nothing half-written stays, and
        `latest` points where it did."""
        if (self.folder / "metrics.jsonl").exists() or self.checkpoints():
            return
        latest = self.folder.parent / "latest"
        if latest.is_symlink() and latest.readlink() == Path(self.folder.name):
            latest.unlink()
            if self._latest_before is not None:
                latest.symlink_to(self._latest_before)
        shutil.rmtree(self.folder)

    def drop_after(self, step: int) -> None:
        """Forget metrics and episodes of later steps: a resumed run makes them again."""
        drop_torn_line(self.folder / "metrics.jsonl")
        kept = [record for record in self.metrics() if record["step"] <= step]
        write_aside(self.folder / "metrics.jsonl", "".join(json_line(record) for record in kept))
        drop_torn_line(self.ledger)
        for path in self.episode_files():
            number = path.stem.rpartition("-")[2]
            if number.isdecimal() and int(number) > step:  # another name is a stray file, and not this run's to remove
                path.unlink()

    @contextmanager
    def checkpoint(self, step: int, keep: int) -> Iterator[Path]:
        """A folder to fill; it becomes `checkpoints/step-<n>` when the block ends well, and older ones are removed."""
        root = self.folder / "checkpoints"
        final, aside = root / f"step-{step:06d}", root / f".step-{step:06d}.{os.getpid()}"
        for left in root.glob(".step-*"):  # by a process that was killed while it wrote
            shutil.rmtree(left)
        aside.mkdir(parents=True)
        try:
            yield aside
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        if final.exists():
            checkpoints.remove(final)
        aside.rename(final)
        for old in self.checkpoints()[:-keep]:
            checkpoints.remove(old)

    def checkpoints(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return checkpoints.listed(self.folder / "checkpoints")

    def last_checkpoint(self) -> Path:
        """Raises CheckpointError where the run has none."""
        found = self.checkpoints()
        if not found:
            raise CheckpointError(f"{self.folder} has no checkpoint to load")
        return found[-1]

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Copies the program's log records to `log.txt` while the block runs. Raises ConfigError where it cannot."""
        try:
            handler = logging.FileHandler(self.folder / "log.txt", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"run folder {self.folder} cannot be written: {error.strerror}") from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger("coachrl")
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            handler.close()

    def _point_latest(self) -> None:
        latest = self.folder.parent / "latest"
        aside = self.folder.parent / f".latest.{os.getpid()}"
        self._latest_before = latest.readlink() if latest.is_symlink() else None
        try:
            aside.unlink(missing_ok=True)
            aside.symlink_to(self.folder.name)
            aside.replace(latest)
        except OSError as error:
            log.warning("runs/latest was not moved: %s", error)


def versions() -> dict[str, Any]:
    """Packages, git commit and hardware: what a reader needs to repeat the run."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "coachrl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": _git_commit(),
        "packages": packages,
    }


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def append_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append whole lines in one write, flushed to disk."""
    data = "".join(json_line(record) for record in records).encode()
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def drop_torn_line(path: Path) -> None:
    """Cut off a last line that a kill left without its end."""
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text and not text.endswith("\n"):
            write_aside(path, text[: text.rfind("\n") + 1])


def read_jsonl(path: Path, skip_torn: bool = False) -> Iterator[dict[str, Any]]:
    """Records of a JSONL file; nothing where there is none. Raises ConfigError naming file and line.

    skip_torn: leave out a last line that has no end, as another process or a kill leaves it.
    """
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                if skip_torn and not line.endswith("\n"):
                    return
                raise ConfigError(f"{path}, line {number}: not JSON: {error.msg}") from error


def episode_record(episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, Any]:
    """Plain data of an episode; each action carries its coach score under "score", or null."""
    record = dataclasses.asdict(episode)
    for action in (*record["actions"], *record["alternatives"]):
        score = scores.get(action["id"])
        action["score"] = dataclasses.asdict(score) if score is not None else None
    return record


def episode_line(episode: Episode, scores: Mapping[str, CoachScore]) -> str:
    """`episode_record` as one line of JSON, with its line end."""
    return json_line(episode_record(episode, scores))


def episode_from_record(record: Mapping[str, Any]) -> tuple[Episode, dict[str, CoachScore]]:
    """The inverse of `episode_record`."""
    scores: dict[str, CoachScore] = {}
    actions = tuple(_action(raw, scores) for raw in record["actions"])
    alternatives = tuple(_action(raw, scores) for raw in record.get("alternatives", ()))
    rest = {key: value for key, value in record.items() if key not in ("actions", "alternatives", "outcome")}
    return Episode(actions=actions, alternatives=alternatives, outcome=Outcome(**record["outcome"]), **rest), scores


def _action(raw: Mapping[str, Any], scores: dict[str, CoachScore]) -> Action:
    """One action; its score goes into `scores`."""
    fields = dict(raw)
    score = fields.pop("score", None)
    if score is not None:
        scores[fields["id"]] = CoachScore(**score)
    if fields["execution"] is not None:
        execution = dict(fields["execution"])
        fields["execution"] = Execution(**{**execution, "files_written": tuple(execution["files_written"])})
    if fields.get("reward") is not None:
        fields["reward"] = Reward(**fields["reward"])
    for key in ("prompt_ids", "response_ids", "logprobs", "files_before", "files_after"):
        fields[key] = tuple(fields[key])
    return Action(**fields)


def _role_record(role: Role) -> dict[str, Any]:
    """Plain data of a role. Headers of prompt files may hold anything; what they mean is in the role already."""
    record = dataclasses.asdict(role)
    for key in ("prompt", "feedback"):
        record[key]["header"] = {}
    return record


def _role(record: Mapping[str, Any]) -> Role:
    """The inverse of `_role_record`, through JSON."""
    fields = dict(record)
    for key in ("prompt", "feedback"):
        fields[key] = Prompt(**{**fields[key], "fields": frozenset(fields[key]["fields"])})
    fields["examples"] = tuple(Example(**example) for example in fields["examples"])
    for key in ("required_files", "needed_files"):
        fields[key] = tuple(fields[key])
    return Role(**fields)


def json_line(record: Mapping[str, Any]) -> str:
    """`record` as one line of JSON, with its line end. Raises ValueError for a number that JSON does not have."""
    line = json.dumps(record, ensure_ascii=False, default=_plain, allow_nan=False) + "\n"
    # A reply that was cut may end in half a character, which UTF-8 has no place for; JSON writes it as an escape.
    return line.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        number = value.item()
        return None if isinstance(number, float) and not math.isfinite(number) else number
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def write_aside(path: Path, text: str) -> None:
    """Replace `path` whole: the text is written beside it, then renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
