"""A run's folder: create it, append to it, read it back. JSONL is the interface; reading it needs no coachrl.

runs/<name>/  config.yaml  roles.json  tasks.json  settings.json  models.json  versions.json
              metrics.jsonl  log.txt  episodes/
              coach/ledger.jsonl  checkpoints/  rescores/  tensorboard/  trackers.json
              while it is trained: train.lock (by whom)  replies.jsonl (since the last checkpoint)
runs/latest -> <name>
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from coachrl.config import RunConfig, TrainConfig, check_read, dump_config, kept_config, load_config, resumable_settings
from coachrl.config.explain import described
from coachrl.errors import CheckpointError, ConfigError
from coachrl.parsing import read_json
from coachrl.runs import checkpoints, leftovers, log_file, places
from coachrl.runs.frames import RunFrames, summary_html
from coachrl.runs.locks import locked
from coachrl.runs.records import episode_line, read_episodes, role_from_record, roles_text, step_name, step_of
from coachrl.runs.versions import versions
from coachrl.storage.atomic import drop_asides, follow_umask, fsync, put_on_disk, write_aside
from coachrl.storage.files import at_home, named_path
from coachrl.storage.jsonl import append_jsonl, drop_torn_line, json_line, read_jsonl
from coachrl.text import brief, nearest
from coachrl.types import CoachScore, Episode, Role

log = logging.getLogger(__name__)

LOCK = "train.lock"
MOST_STEPS = 10**9  # no run has more, and charts are drawn in floats
_EPISODE_FILE = re.compile(r"(step|eval)-[0-9]{1,10}")
# Of the threads of one process each sees what the one before has made. A run that cannot be made is discarded.
_making = threading.RLock()


class Run:
    """One run's folder. Every write is whole: a line is appended in one call, a file is written aside and renamed."""

    def __init__(self, folder: Path) -> None:
        if isinstance(folder, str):
            raise ConfigError(f"a saved run is opened by Run.open({brief(folder)}), which looks whether it is one")
        self.folder = folder
        self._latest_before: Path | None = None
        self._made_for_it: list[Path] = []
        self._told: set[str] = set()
        self._lock_is_there: Callable[[], bool] | None = None  # while it is held
        self._may_be_discarded = False  # one that is opened holds what others made

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        return summary_html(self)

    @property
    def frames(self) -> RunFrames:
        """Pandas tables of what the run holds: `.episodes`, `.actions`, `.scores` and `.metrics`."""
        return RunFrames(self)

    @classmethod
    def create(cls, config: RunConfig) -> Run:
        """A new folder under `config.out`; one that is named by the time alone gets a number where that is taken.

        Raises ConfigError where it exists or cannot be written."""
        with _making:
            return cls._create(config)

    @classmethod
    def _create(cls, config: RunConfig) -> Run:
        folder = cls.new_folder(config)
        leftovers.drop(folder.parent)
        aside = leftovers.aside(folder)
        missing = [above for above in folder.parents if not above.exists()]
        try:
            places.make(aside)
            for sub in leftovers.PARTS:
                (aside / sub).mkdir()
            (aside / "config.yaml").write_text(dump_config(kept_config(config)), encoding="utf-8")
            (aside / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
            folder = places.renamed(aside, folder, numbered=config.name is None)
        except BaseException as error:  # Ctrl-C, too, leaves nothing
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in places.TAKEN:  # another process has just made it
                raise ConfigError(_exists(folder)) from error
            if isinstance(error, OSError):
                raise ConfigError(f"run folder {folder} cannot be written: {error.strerror}") from error
            raise
        run = cls(folder)
        run._may_be_discarded = True
        run._made_for_it = missing
        run._latest_before = places.point_latest(folder)
        return run

    @staticmethod
    def new_folder(config: RunConfig) -> Path:
        """The folder that `create` would make. Raises ConfigError where it exists, its name cannot be one, or nothing
        can be written there."""
        name = config.name or f"{config.pipeline.name.rpartition(':')[2].lower()}-{time.strftime('%Y%m%d-%H%M%S')}"
        if name == "latest":
            raise ConfigError("name 'latest' is taken: out/latest points to the newest run")
        if Path(name).name != name or name == ".." or name != name.strip():
            raise ConfigError(f"name '{name}' must be a plain folder name; out=… says which folder holds it")
        folder = named_path(config.out / name, "run folder")
        if config.name is not None and folder.exists():
            raise ConfigError(_exists(folder))
        above = next(place for place in folder.parents if os.path.lexists(place))
        if not above.is_dir():
            raise ConfigError(f"run folder {folder} cannot be written: {above} is no folder")
        if not os.access(above, os.W_OK | os.X_OK):
            raise ConfigError(f"run folder {folder} cannot be written: no permission to write in {above}")
        try:
            str(folder.absolute()).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"run folder {folder.absolute()}: its path must be UTF-8 text, to load models from"
            ) from error
        kept_config(config)
        return folder

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run, also one with parts missing. Raises ConfigError where `folder` is none."""
        if not isinstance(folder, str | os.PathLike):
            raise ConfigError(f"a run is named by its folder, as 'runs/latest', and not by {brief(folder)}")
        folder = named_path(at_home(folder), "run folder")
        parts = ("config.yaml", "metrics.jsonl", "episodes")
        if not any((folder / part).exists() for part in parts):
            for above in folder.parents:
                if all((above / part).exists() for part in ("config.yaml", "episodes")):
                    raise ConfigError(f"{folder} is not a run folder, but a part of one: name {above}")
            near = nearest(folder.name, places.names_in(folder.parent)).replace("'", f"'{folder.parent}/", 1)
            for meant in (Path("runs") / folder, folder / "latest"):  # a run by its name, or the folder that holds it
                if (meant / "config.yaml").exists():
                    near = f", did you mean '{meant}'?"
            raise ConfigError(f"{folder} is not a run folder{near or ': it has none of ' + ', '.join(parts)}")
        return cls(folder.resolve())

    @property
    def ledger(self) -> Path:
        return self.folder / "coach" / "ledger.jsonl"

    @contextmanager
    def locked(self, doing: str) -> Iterator[None]:
        """Let no other process write to the run while the block runs: none trains, resumes or prunes it. Reading needs
        no lock. A block within a block of the same `Run` is the same lock. Raises ConfigError that names who holds it.
        """
        if self._lock_is_there is not None:
            yield
            return
        with locked(self.folder / LOCK, doing) as self._lock_is_there:
            try:
                yield
            finally:
                self._lock_is_there = None

    @property
    def is_lost(self) -> bool:
        """Whether its lock, alone or with the folder, was moved or removed since this object took it."""
        return self._lock_is_there is not None and not self._lock_is_there()

    def _check_there(self) -> None:
        """Raises FileNotFoundError: a run that was moved away is not gone on with in its old place."""
        if self.is_lost:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder / LOCK))

    def config(self, overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None) -> RunConfig:
        """What the run was configured with. Raises ConfigError that names file and key where it cannot be read, where
        it was cut short, and for wrong overrides."""
        path = self.folder / "config.yaml"
        config = load_config(path, overrides, flags, saved=True)
        # `create` writes every section: with defaults in the place of some, it would be another run's configuration.
        if lost := [name for name in RunConfig.model_fields if name not in config.model_fields_set]:
            raise ConfigError(
                f"{path}: cut short: it has no {', '.join(lost)}, and a run's configuration has every key"
            )
        return config

    def warn(self, problem: str) -> None:
        """Log what could not be read, once."""
        if problem not in self._told:
            self._told.add(problem)
            log.warning("%s: %s", self.folder.name, problem)

    def check_has_had_none(self, settings: TrainConfig, keep_best: bool) -> None:
        """Raises CheckpointError where a run without checkpoints must have had one, by its metrics and `settings`.
        keep_best: whether it has kept the best one all along. Raises ConfigError as `last_step` does."""
        steps = {self._step_of(line): line for line in self.metrics(skip_torn=True)}
        if (last := max(steps, default=0)) > checkpoints.first_due(settings, steps, keep_best):
            raise CheckpointError(
                f"{self.folder} has metrics of step {last}, and no checkpoint any more: put the folder of its "
                "checkpoints back, or start a new run"
            )

    def reconfigure(self, overrides: Iterable[str], keep: bool = True) -> RunConfig:
        """Change how the coach is called from now on, or where servers and clusters are. keep: write it down too.

        Raises ConfigError for settings that shape what a run learns."""
        overrides, changeable = list(overrides), resumable_settings()
        for key in (override.partition("=")[0] for override in overrides):
            if key not in changeable:
                if not described(self.config(), key):
                    self.config(overrides)  # which says what is mistyped
                raise ConfigError(
                    f"--resume continues a run as it was configured: '{key}' cannot change now (docs/configuration.md "
                    "marks with ↻ what can). To train on with others, or for more steps, begin a new run from its "
                    f"checkpoint: coachrl train --config {quote(str(self.folder / 'config.yaml'))} --name NEW "
                    f"{'' if key == 'name' else f'{key}=… '}policies.NAME.model=CHECKPOINT/NAME"
                )
        config = self.config(overrides)
        check_read(config, overrides)
        if overrides and keep:
            write_aside(self.folder / "config.yaml", dump_config(config))
        return config

    def write_roles(self, roles: Iterable[Role]) -> None:
        """`roles.json`: the team as it was, whatever becomes of its prompt files later."""
        write_aside(self.folder / "roles.json", roles_text(roles))

    def roles(self) -> tuple[Role, ...] | None:
        """The team of `roles.json`; None where the run has none. Raises ConfigError where it cannot be read."""
        path = self.folder / "roles.json"
        if not path.exists():
            return None
        records = read_json(path, str(path), half_characters=True)
        try:
            return tuple(role_from_record(record) for record in records)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}: not the roles of a run: {error}") from error

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Raises OSError, also where the run was moved away while this object holds its lock."""
        self._check_there()
        append_jsonl(self.folder / "metrics.jsonl", [record])

    def add_to_metrics(self, step: int, more: Mapping[str, Any]) -> None:
        """Put `more` into the line of `step`, the last, or into one of its own where that is gone. Raises OSError as
        `append_metrics` does."""
        self._check_there()
        earlier = self.metrics()
        last = earlier.pop() if earlier and earlier[-1]["step"] == step else {"step": step}
        self._write_metrics([*earlier, {**last, **more}])

    def _write_metrics(self, lines: Iterable[Mapping[str, Any]]) -> None:
        write_aside(self.folder / "metrics.jsonl", "".join(map(json_line, lines)))

    def metrics(self, skip_torn: bool = False) -> list[dict[str, Any]]:
        """skip_torn: as of `read_jsonl`, which says what is raised."""
        return list(read_jsonl(self.folder / "metrics.jsonl", skip_torn=skip_torn))

    def last_step(self) -> int:
        """The last step that has metrics, 0 where none has. Raises ConfigError for a line that no run has written."""
        return max(map(self._step_of, self.metrics(skip_torn=True)), default=0)

    def lacks_evaluation(self, step: int) -> bool:
        """Of a step that is done: whether it has no metrics of an evaluation. Where it was due, it was given up, or the
        step's line is gone. Raises ConfigError as `last_step` does."""
        own = [line for line in self.metrics(skip_torn=True) if self._step_of(line) == step]
        return bool(own or step) and not any(key.startswith("eval/") for line in own for key in line)

    def _step_of(self, record: Any) -> int:
        fields = record if isinstance(record, Mapping) else {}
        wrong = {key: n for key, n in fields.items() if not (isinstance(n, (int, float)) and abs(n) < math.inf)}
        step = fields.get("step")
        if wrong or type(step) is not int or not 0 <= step <= MOST_STEPS:
            where, shown = self.folder / "metrics.jsonl", brief(wrong or record)
            raise ConfigError(f"{where}: {shown} is no step with its numbers: take that line out")
        return step

    def write_episodes(self, label: str, episodes: Iterable[Episode], scores: Mapping[str, CoachScore]) -> Path:
        """`episodes/<label>.jsonl`: one line an episode, each action with its score. Enough to rescore and to audit.
        Raises OSError as `append_metrics` does."""
        self._check_there()
        path = self.folder / "episodes" / f"{label}.jsonl"
        path.parent.mkdir(exist_ok=True)  # who needed its room may have removed it
        write_aside(path, (episode_line(episode, scores) for episode in episodes))
        return path

    def read_episodes(self, label: str) -> tuple[list[Episode], dict[str, CoachScore]]:
        """What `write_episodes` wrote under `label`; nothing where there is no such file. Raises ConfigError where a
        line of it is no episode."""
        episodes: list[Episode] = []
        scores: dict[str, CoachScore] = {}
        problems: list[str] = []
        for episode, its_scores in read_episodes(self.folder / "episodes" / f"{label}.jsonl", problems):
            episodes.append(episode)
            scores |= its_scores
        if problems:
            raise ConfigError(f"{self.folder}: {problems[0]}")
        return episodes, scores

    def episode_files(self, kind: Literal["step", "eval", "*"] = "*") -> list[Path]:
        """Those of training steps ("step"), of evaluations ("eval"), or of both, evaluations first, by step. A file of
        another name is not the run's."""
        found = (self.folder / "episodes").glob(f"{kind}-*.jsonl")
        named = (path for path in found if _EPISODE_FILE.fullmatch(path.stem))
        return sorted(named, key=lambda path: (path.stem[:4], step_of(path), path.stem))

    def discard_if_empty(self) -> None:
        """Remove the folder of a run that was made here and failed before its first line of metrics, and those that
        were made to hold it: nothing half-written stays, and `latest` points where it did. Once it is gone nothing is
        done, nor where it was moved away and something else has its name. A disk that does not let it go is warned of:
        what ended the run is told all the same."""
        try:
            with _making:
                self._discard_if_empty()
        except (OSError, CheckpointError) as error:
            log.warning("%s stays, since it cannot be removed: %s", self.folder, getattr(error, "strerror", error))

    def _discard_if_empty(self) -> None:
        if not self._may_be_discarded or (self.folder / "metrics.jsonl").exists() or self.checkpoints():
            return
        self._may_be_discarded = False  # from now on the name may be another run's
        if self.is_lost:
            return
        places.point_back(self.folder, self._latest_before)
        aside = leftovers.aside(self.folder, discarded=True)
        with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
            self.folder.rename(aside)  # first: another run could be renamed to a folder that is just being emptied
            shutil.rmtree(aside)
        with contextlib.suppress(OSError):  # another run may be in it by now
            for above in self._made_for_it:
                above.rmdir()

    def drop_after(self, step: int) -> None:
        """Forget metrics and episodes of later steps: a resumed run makes them again. Raises ConfigError, with nothing
        changed, where the run cannot be written to."""
        for part in ("", "episodes", "coach", "checkpoints"):
            if os.path.lexists(place := self.folder / part) and not os.access(place / ".", os.W_OK | os.X_OK):
                raise ConfigError(f"{place} is no folder that this user may write to")
        self.drop_left()
        drop_torn_line(self.folder / "metrics.jsonl")
        found = self.metrics()
        kept = [record for record in found if self._step_of(record) <= step]
        if (last := max((record["step"] for record in found), default=0)) > step:
            log.warning(
                "%s goes on after step %d: what it holds of later steps, up to step %d, is dropped, and made again as "
                "far as the run goes",
                self.folder.name, step, last,
            )  # fmt: skip
        self._write_metrics(kept)
        drop_torn_line(self.ledger)
        for path in self.episode_files():
            if step_of(path) > step:
                path.unlink()

    @contextmanager
    def checkpoint(self, step: int, keep: int, keep_best: bool = False) -> Iterator[Path]:
        """A folder to fill; it becomes `checkpoints/step-<n>` when the block ends well, and older ones are removed, as
        `tidy_checkpoints` does. Raises OSError as `append_metrics` does."""
        self._check_there()
        root = self.folder / "checkpoints"
        final, aside = root / step_name(step), root / f".{step_name(step)}.{os.getpid()}"
        self.tidy_checkpoints(keep, keep_best)
        root.mkdir(exist_ok=True)
        aside.mkdir()
        try:
            yield aside
            follow_umask(aside)
            put_on_disk(aside)
            self._check_there()  # libraries make the old place of a run anew, and there it would be a part of one
        except BaseException as error:
            shutil.rmtree(aside, ignore_errors=True)
            # A write that fails for lack of room names no file.
            if isinstance(error, OSError) and error.errno and not error.filename:
                error.filename = str(final)
            raise
        if os.path.lexists(final):
            checkpoints.remove(final)
        aside.rename(final)
        fsync(root)  # its name, too, before older ones go
        self.tidy_checkpoints(keep, keep_best)

    def tidy_checkpoints(self, keep: int, keep_best: bool = False) -> None:
        """Remove all but the newest `keep`, and with `keep_best` the best of those that are there, and what a process
        left that was killed while it wrote or removed one. What cannot be removed costs its room on the disk, not the
        run; what somebody reads is removed the next time."""
        self.drop_left_checkpoints()
        best = self.best_checkpoint() if keep_best else None
        for old in self.checkpoints()[:-keep]:
            if step_of(old) != best:
                with self._staying():
                    checkpoints.remove_unread(old)

    def best_checkpoint(self, more: Iterable[int] = ()) -> int | None:
        """The step of the best checkpoint that is there, or of `more`, as `checkpoints.best_step` has it."""
        by_step = {line["step"]: line for line in self.metrics(skip_torn=True)}
        return checkpoints.best_step(by_step, {*map(step_of, self.checkpoints()), *more})

    def drop_left(self) -> None:
        """Remove what a kill left half-made in the run and beside it. What cannot be removed stays."""
        leftovers.drop(self.folder.parent)
        for written_to in (self.folder, self.folder / "episodes", self.folder / "coach"):
            drop_asides(written_to)
        self.drop_left_checkpoints()

    def drop_left_checkpoints(self) -> None:
        """`checkpoints.drop_asides`, where what cannot be removed is warned of once."""
        with self._staying():
            checkpoints.drop_asides(self.folder / "checkpoints")

    @contextmanager
    def _staying(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.warn(f"an old checkpoint stays, since it cannot be removed: {error.filename}: {error.strerror}")

    def checkpoints(self) -> list[Path]:
        """Finished checkpoints, oldest first."""
        return checkpoints.listed(self.folder / "checkpoints")

    def last_checkpoint(self) -> Path:
        """Raises CheckpointError where the run has none."""
        found = self.checkpoints()
        if not found:
            kept = "; it kept none: train.keep_checkpoints=0" if self.config().train.keep_checkpoints == 0 else ""
            raise CheckpointError(f"{self.folder} has no checkpoint to load{kept}")
        return found[-1]

    def checkpoint_to_resume(self) -> Path | None:
        """The last one; None where the run was killed before its first, and begins again. Raises CheckpointError where
        it keeps none, and cannot go on."""
        begins_again = not self.checkpoints() and self.config().train.keep_checkpoints
        return None if begins_again else self.last_checkpoint()

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Copies the program's log records to `log.txt` while the block runs. Raises ConfigError where it cannot."""
        with log_file.kept(self.folder / "log.txt"):
            yield


def _exists(folder: Path) -> str:
    return f"run folder {folder} exists; choose another name=…, or --resume {quote(str(folder))}"
