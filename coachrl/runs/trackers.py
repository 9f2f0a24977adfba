"""Copies of a run's metrics for the trackers that people already use. `metrics.jsonl` is the record; these are views.

Each tracker is an optional package. A run that is resumed goes on under the same name. Those that may have a server are
called in threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from coachrl.config import RunConfig
from coachrl.config.choices import check_plain, check_takes, import_by_path, is_own_doing, raised_in
from coachrl.errors import ConfigError, Preempted, lacking
from coachrl.parsing import read_json
from coachrl.resources import ask_this_machine_directly
from coachrl.runs.folder import Run
from coachrl.runs.tracker_thread import Ending, InThread
from coachrl.storage.atomic import write_aside
from coachrl.text import brief, one_line, said
from coachrl.types import Episode

log = logging.getLogger(__name__)

PROJECT = "coachrl"
_IDS = "trackers.json"
_LONGEST_MLFLOW_NAME = 250
_PACKAGES = {"tensorboard": "tensorboardX"}  # where it is not called as the tracker is


class Tracker(Protocol):
    """One place that metrics are copied to, made with the run, its configuration and the first step to come."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's folder: `tensorboard --logdir runs`. Steps that a resumed run makes again replace the
    earlier ones."""

    def __init__(self, run: Run, config: RunConfig, first_step: int) -> None:
        _package("tensorboard")
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event, self._summary = Event, summary
        folder = run.folder / "tensorboard"
        folder.mkdir(exist_ok=True)
        # The package's SummaryWriter hands everything to a thread of its own: where that ends, as the disk is full or
        # the clock was set back by weeks, the run would wait for it for ever.
        self._writer = EventsWriter(str(folder / "events"))
        if first_step == 0:
            text = f"```\n{json.dumps(_plain(config), indent=2)}\n```"
            self._write(0, summary=summary.text("config", text))
        else:
            self._write(first_step, session_log=SessionLog(status=SessionLog.START))
        self._writer.flush()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._write(step, summary=self._summary.scalar(name, value))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        self._writer.write_event(self._event(wall_time=time.time(), step=step, **what))


class WandB:
    """Weights & Biases; files of it stay in the run's folder. `WANDB_MODE=offline` keeps them there for good."""

    def __init__(self, run: Run, config: RunConfig, first_step: int) -> None:
        package = _package("wandb")
        name, run_id = run.folder.name, _noted_id(run, "wandb")
        # Where another run of this process is open, as a notebook's own, the package would write into that one.
        other = package.run is not None and package.run.id != run_id
        settings = package.Settings(silent=True, **({"reinit": "create_new"} if other else {}))
        self._run = package.init(
            project=PROJECT, name=name, id=run_id, resume="allow", dir=str(run.folder), config=_plain(config),
            settings=settings,
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=int(ending != "finished"))


class MLflow:
    """MLflow, at MLFLOW_TRACKING_URI or in its default store, `mlflow.db` in the current folder."""

    def __init__(self, run: Run, config: RunConfig, first_step: int) -> None:
        self._mlflow = _package("mlflow")
        self._mlflow.set_experiment(PROJECT)
        self._run_id = _read_ids(run).get("mlflow")
        if self._run_id is None:
            started = self._mlflow.start_run(run_name=run.folder.name)
            self._run_id = started.info.run_id
            _note_id(run, "mlflow", self._run_id)
            self._mlflow.log_dict(_plain(config), "config.json")
        else:
            self._mlflow.start_run(run_id=self._run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({mlflow_name(name): value for name, value in metrics.items()}, step=step)

    def close(self, ending: Ending) -> None:
        self._mlflow.end_run({"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}[ending])


def mlflow_name(name: str) -> str:
    """The name of a metric as MLflow takes it: letters, digits and some signs, as a path that leads to itself. It
    refuses a whole step for one name, as of a kind of task that is called "Counting & Probability". Of names that
    differ in other signs alone it shows one; metrics.jsonl has all."""
    parts = re.sub(r"[^\w./ -]", "_", name).split("/")
    return "/".join(part for part in parts if part.strip("."))[:_LONGEST_MLFLOW_NAME].rstrip("/.")


class Trackio:
    """Trackio: local, or on the Space of TRACKIO_SPACE_ID."""

    def __init__(self, run: Run, config: RunConfig, first_step: int) -> None:
        self._trackio = _package("trackio")
        self._trackio.init(
            project=PROJECT, name=run.folder.name, config=_plain(config), resume="allow", embed=False
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._trackio.log(dict(metrics), step=step)

    def close(self, ending: Ending) -> None:
        self._trackio.finish()


MakeTracker = Callable[[Run, RunConfig, int], Any]
"""Of a `Tracker`; the `close` of those that may have a server takes how the run ended."""

TRACKERS: dict[str, MakeTracker] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
_WITH_SERVERS = ("wandb", "mlflow", "trackio")


class Trackers:
    """All trackers of a run, as a `Callback` that is told of every line of metrics. One that breaks is left out from
    then on, with a warning: a run never dies of its views."""

    def __init__(self) -> None:
        self._trackers: dict[str, Tracker] = {}
        self._left_out: list[Tracker] = []

    def add(self, name: str, tracker: Tracker) -> None:
        """Tell `tracker` too, from now on."""
        self._trackers[name] = tracker

    def on_phase(self, phase: str, total: int) -> None:
        pass

    def on_episode(self, episode: Episode) -> None:
        pass

    def on_metrics(self, record: dict[str, Any]) -> None:
        """record: one line of metrics.jsonl. What is not a number stays there alone."""
        numbers = {
            name: float(value)
            for name, value in record.items()
            if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
        }
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.log(record["step"], dict(numbers)))

    def end(self, ending: Ending) -> None:
        """How the run ended, unless it was said before. Those that have servers then take their last lines, all at
        once, so that those that hang are waited for once."""
        for tracker in self._trackers.values():
            if isinstance(tracker, InThread):
                tracker.end(ending)

    def close(self) -> None:
        self.end("finished")
        for tracker in self._left_out:  # MLflow starts no other run in this process while one is open
            with contextlib.suppress(Exception):
                tracker.close()
        for name in list(self._trackers):
            self._guarded(name, lambda tracker: tracker.close())
        self._left_out.clear()

    def _guarded(self, name: str, act: Callable[[Tracker], None]) -> None:
        try:
            act(self._trackers[name])
        except BaseException as error:  # the boundary to others' code, which may raise anything
            if not is_own_doing(error):
                raise
            log.warning("tracker %s is left out from now on: %s", name, _said(name, error))
            self._left_out.append(self._trackers.pop(name))


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError where the package of one is missing, or one of the user's own is no tracker."""
    for name in names:
        if name in TRACKERS:
            _package(name)
        else:
            _own(name)


@contextmanager
def open_trackers(names: Sequence[str], run: Run, config: RunConfig, first_step: int) -> Iterator[Trackers]:
    """The trackers of these names; `first_step` is the next step that will be logged, more than 0 in a resumed run.

    Raises ConfigError where a package is missing, or the tracker cannot start (no login, no server).
    """
    trackers = Trackers()
    try:
        for name in names:
            trackers.add(name, _start(name, run, config, first_step))
        yield trackers
    except (Preempted, KeyboardInterrupt, asyncio.CancelledError):
        trackers.end("interrupted")
        raise
    except BaseException:
        trackers.end("failed")
        raise
    finally:
        trackers.close()


def _start(name: str, run: Run, config: RunConfig, first_step: int) -> Tracker:
    make = TRACKERS[name] if name in TRACKERS else _own(name)
    ask_this_machine_directly()
    try:
        if name in _WITH_SERVERS:
            return InThread(name, partial(make, run, config, first_step))
        return make(run, config, first_step)
    except ConfigError:
        raise
    except BaseException as error:  # as above, but before the run begins, when the user can still mend it
        if not is_own_doing(error):
            raise
        raise ConfigError(f"track: {name} cannot start: {_said(name, error)}") from error


def _said(name: str, error: BaseException) -> str:
    """Of one's own tracker also where in its file: a KeyError says no more than the key."""
    if name not in TRACKERS:
        return raised_in(error)
    return " ".join(said(error).split()) or type(error).__name__


def _own(path: str) -> MakeTracker:
    found: MakeTracker = import_by_path(path, "tracker")
    if not isinstance(found, type) or not all(callable(getattr(found, what, None)) for what in ("log", "close")):
        raise ConfigError(
            f"tracker '{one_line(path)}' is no tracker: it must be a class, made with (run, config, first_step), that "
            "has log(step, metrics) and close()"
        )
    shown = f"tracker '{one_line(path)}'"
    check_takes(found, ["run", "config", "first_step"], shown)
    for name, arguments in {"log": ["step", "metrics"], "close": []}.items():
        check_plain(getattr(found, name), f"{shown}: its {name}")
        check_takes(getattr(found, name), ["self", *arguments], f"{shown}: its {name}")
    return found


def _package(tracker: str) -> ModuleType:
    name = _PACKAGES.get(tracker, tracker)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"track: {tracker} needs {lacking(error)}: pip install 'coachrl[{tracker}]'") from error


def _plain(config: RunConfig) -> dict[str, Any]:
    plain: dict[str, Any] = config.model_dump(mode="json")
    return plain


def _noted_id(run: Run, tracker: str) -> str:
    """The id that this run has at `tracker`; made and kept on first use."""
    known = _read_ids(run).get(tracker)
    if known is None:
        known = secrets.token_hex(4)
        _note_id(run, tracker, known)
    return known


def _read_ids(run: Run) -> dict[str, str]:
    path = run.folder / _IDS
    ids = read_json(path, str(path)) if path.is_file() else {}
    if not isinstance(ids, dict) or not all(isinstance(one, str) for one in ids.values()):
        raise ConfigError(f"{path}: {brief(ids)} does not say what the run is called at its trackers: remove the file")
    return ids


def _note_id(run: Run, tracker: str, run_id: str) -> None:
    write_aside(run.folder / _IDS, json.dumps({**_read_ids(run), tracker: run_id}) + "\n")
