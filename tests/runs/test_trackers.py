"""Trackers with their real packages; those that are not installed are skipped."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import time
import urllib.request
from pathlib import Path
from typing import ClassVar

import pytest
from full_disk import room_for

from coachrl.config import RunConfig, load_config
from coachrl.errors import ConfigError, Preempted
from coachrl.runs.folder import Run
from coachrl.runs.trackers import TRACKERS, _note_id, _noted_id, _read_ids, check_trackers, mlflow_name, open_trackers

LINES = [
    {"step": 0, "eval/success": 0.25, "note": "not a number"},
    {"step": 1, "train/success": 0.5, "coach/score/verifier": 7},
    {"step": 2, "train/success": 0.75},
]


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(RunConfig(name="tracked", out=tmp_path / "runs"))


def follow(run: Run, name: str, lines=LINES) -> None:
    with open_trackers([name], run, run.config(), lines[0]["step"]) as trackers:
        for line in lines:
            trackers.on_metrics(line)


def written(folder: Path) -> list:
    """The events in a folder's files, in the order in which they were written."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        data = file.read_bytes()
        while data:  # a length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def events(folder: Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of the scalars among them."""
    return [
        (event.step, value.tag, value.simple_value)
        for event in written(folder)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def test_tensorboard_gets_every_number(run):
    pytest.importorskip("tensorboardX")
    follow(run, "tensorboard")
    assert events(run.folder / "tensorboard") == [
        (0, "eval/success", 0.25),
        (1, "train/success", 0.5),
        (1, "coach/score/verifier", 7.0),
        (2, "train/success", 0.75),
    ]


def test_a_resumed_run_begins_its_charts_again_at_its_first_step_and_tells_its_configuration_once(run, monkeypatch):
    pytest.importorskip("tensorboardX")
    follow(run, "tensorboard", LINES)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)  # the package calls its files by the second
    follow(run, "tensorboard", LINES[2:])
    found = written(run.folder / "tensorboard")
    assert [event.step for event in found if event.HasField("session_log")] == [2]
    texts = [
        value.tensor.string_val[0].decode()
        for event in found
        for value in event.summary.value
        if value.HasField("tensor")
    ]
    assert len(texts) == 1 and '"name": "tracked"' in texts[0]


def test_a_full_disk_costs_the_charts_and_not_the_run(run, caplog):
    pytest.importorskip("tensorboardX")
    lines = [{"step": step, **{f"train/{name}": 0.5 for name in range(40)}} for step in range(20)]
    with open_trackers(["tensorboard"], run, run.config(), 0) as trackers, room_for(40_000):
        for line in lines:
            trackers.on_metrics(line)
    assert "tracker tensorboard is left out from now on: [Errno 27] File too large" in caplog.text


def test_a_clock_that_is_set_back_by_years_does_not_stop_the_charts(run, monkeypatch):
    pytest.importorskip("tensorboardX")
    now = time.time()
    with open_trackers(["tensorboard"], run, run.config(), 0) as trackers:
        trackers.on_metrics(LINES[0])
        monkeypatch.setattr(time, "time", lambda: now - 1e9)
        for line in LINES[1:] * 20:
            trackers.on_metrics(line)
    assert len(events(run.folder / "tensorboard")) == 1 + 3 * 20


def test_wandb_offline_goes_on_in_the_same_run(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    follow(run, "wandb", LINES[:2])
    follow(run, "wandb", LINES[2:])
    folders = list((run.folder / "wandb").glob("offline-run-*"))
    assert folders and all(_read_ids(run)["wandb"] in folder.name for folder in folders)  # of one second: -1 at the end


def test_wandb_writes_into_no_other_run_of_the_process(run, monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(project="own", dir=str(tmp_path), settings=wandb.Settings(silent=True)) as own:
        follow(run, "wandb")
        own.log({"mine": 1.0})  # it is still open
        assert dict(own.summary)["mine"] == 1.0 and "train/success" not in dict(own.summary)
    (written,) = run.folder.rglob("*.wandb")
    assert _read_ids(run)["wandb"] in written.name


def test_mlflow_goes_on_in_the_same_run(run, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}" if _has_sqlalchemy() else str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    follow(run, "mlflow", LINES[:2])
    follow(run, "mlflow", LINES[2:])
    experiment = mlflow.get_experiment_by_name("coachrl")
    (found,) = mlflow.MlflowClient().search_runs([experiment.experiment_id])
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "train/success")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.75)]


def test_mlflow_says_that_a_run_was_interrupted_until_it_goes_on(run, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}" if _has_sqlalchemy() else str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    said = []
    for end in (Preempted("the process was asked to end"), OSError(28, "full"), None):
        with contextlib.suppress(Preempted, OSError), open_trackers(["mlflow"], run, run.config(), 0) as trackers:
            trackers.on_metrics(LINES[0])
            if end is not None:
                raise end
        said.append(mlflow.get_run(_read_ids(run)["mlflow"]).info.status)
    assert said == ["KILLED", "FAILED", "FINISHED"]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("train/success/Counting & Probability", "train/success/Counting _ Probability"),
        ("coach/score/solver", "coach/score/solver"),
        ("eval/success/数学-level-3", "eval/success/数学-level-3"),
        ("/behavior//../<b>", "behavior/_b_"),
        ("train/" + "x" * 300, "train/" + "x" * 244),
    ],
)
def test_a_name_that_mlflow_refuses_is_written_as_one_that_it_takes(name, taken):
    assert mlflow_name(name) == taken


def test_one_kind_of_task_does_not_end_the_copy_at_mlflow(run, monkeypatch, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}" if _has_sqlalchemy() else str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    follow(run, "mlflow", [{"step": 1, "train/success/Counting & Probability": 0.5, "train/success": 0.5}])
    (found,) = mlflow.MlflowClient().search_runs([mlflow.get_experiment_by_name("coachrl").experiment_id])
    assert found.data.metrics == {"train/success/Counting _ Probability": 0.5, "train/success": 0.5}


class Frail:
    """A tracker that takes no metrics, and must be closed all the same."""

    closed: ClassVar[int] = 0

    def __init__(self, run, config, first_step):
        pass

    def log(self, step, metrics):
        raise RuntimeError("no such experiment")

    def close(self):
        Frail.closed += 1


def test_a_tracker_that_is_left_out_is_closed_once_when_the_run_ends(run):
    Frail.closed = 0
    follow(run, f"{__name__}:Frail")
    assert Frail.closed == 1


def test_each_tracker_keeps_the_id_that_the_run_has_there(run):
    first = _noted_id(run, "wandb")
    _note_id(run, "mlflow", "m1")
    assert _read_ids(Run(run.folder)) == {"wandb": first, "mlflow": "m1"}
    assert _noted_id(run, "wandb") == first


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"wandb": 3}', '{"wandb": null}', "\x80"])
def test_names_at_trackers_that_cannot_be_read_are_named_by_their_file(run, text):
    (run.folder / "trackers.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"trackers\.json: "):
        _noted_id(run, "wandb")


def test_what_is_no_number_stays_in_the_metrics_alone(run):
    path = f"{__name__}:Kept"
    Kept.lines.clear()
    follow(run, path, [{"step": 2, "n": 3, "share": 0.5, "flag": True, "note": "7", "none": None, "list": [1]}])
    assert Kept.lines[1] == (2, {"n": 3.0, "share": 0.5})


def test_trackio_gets_every_number(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    follow(run, "trackio")
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs("coachrl", "tracked")
    assert [(line["step"], line.get("train/success")) for line in logs] == [(0, None), (1, 0.5), (2, 0.75)]


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_the_run(run, name, monkeypatch):
    import sys

    package = {"tensorboard": "tensorboardX"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"track: {name} needs {package}: pip install 'coachrl\[{name}\]'"):
        follow(run, name)


@pytest.mark.parametrize(
    ("error", "said"), [(ConnectionError("no route to host"), "no route to host"), (TimeoutError(), "TimeoutError")]
)
def test_a_tracker_that_breaks_is_left_out_and_the_others_go_on(run, monkeypatch, caplog, error, said):
    pytest.importorskip("tensorboardX")

    class Broken:
        def __init__(self, *_: object) -> None:
            self.calls = 0

        def log(self, step, metrics):
            raise error

        def close(self):
            raise AssertionError("a tracker that was left out is not touched again")

    monkeypatch.setitem(TRACKERS, "broken", Broken)
    with (
        caplog.at_level(logging.WARNING),
        open_trackers(["broken", "tensorboard"], run, run.config(), 0) as trackers,
    ):
        for line in LINES:
            trackers.on_metrics(line)
    assert [record.message for record in caplog.records] == [f"tracker broken is left out from now on: {said}"]
    assert len(events(run.folder / "tensorboard")) == 4


def _has_sqlalchemy() -> bool:
    try:
        import sqlalchemy  # noqa: F401
    except ImportError:
        return False
    return True


class Kept:
    """A tracker of these tests' own."""

    lines: ClassVar[list] = []

    def __init__(self, run, config, first_step):
        self.lines.append((run.folder.name, config.seed, first_step))

    def log(self, step, metrics):
        self.lines.append((step, dict(metrics)))

    def close(self):
        self.lines.append("closed")


def test_a_trackers_server_on_this_machine_is_asked_without_a_proxy(run, monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    follow(run, f"{__name__}:Kept")
    assert urllib.request.proxy_bypass("localhost") and not urllib.request.proxy_bypass("mlflow.example")


def no_tracker(run, config, first_step):
    return None


def test_a_tracker_of_ones_own_gets_every_line(run):
    path = f"{__name__}:Kept"
    Kept.lines.clear()
    assert load_config(None, [f"track=[{path}]"]).track == (path,)
    check_trackers([path])
    follow(run, path, [{"step": 3, "eval/success": 0.5}])
    assert Kept.lines == [("tracked", 0, 3), (3, {"eval/success": 0.5}), "closed"]


class Unmade:
    def log(self, step, metrics): ...

    def close(self): ...


class Awaited(Kept):
    async def log(self, step, metrics): ...


class Forgetful(Kept):
    def log(self, metrics): ...


class Exiting(Kept):
    def log(self, step, metrics):
        raise SystemExit("no network")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_tracker", "is no tracker: it must be a class"),
        ("Kpt", "'Kept'"),
        ("Unmade", r"Unmade' must take \(run, config, first_step\)"),
        ("Awaited", "Awaited': its log is async"),
        ("Forgetful", r"Forgetful': its log must take \(self, step, metrics\)"),
    ],
)
def test_what_is_no_tracker_is_refused_before_the_run(name, words):
    with pytest.raises(ConfigError, match=words):
        check_trackers([f"{__name__}:{name}"])


def test_a_tracker_that_ends_the_program_is_left_out(run, caplog):
    follow(run, f"{__name__}:Exiting")
    [record] = caplog.records
    shown = (
        rf"tracker {__name__}:Exiting is left out from now on: SystemExit: no network \(test_trackers.py, line \d+\)"
    )
    assert re.fullmatch(shown, record.message)


class Offline(Kept):
    def __init__(self, run, config, first_step):
        raise ConnectionError("no server")


def test_where_a_tracker_cannot_start_those_before_it_are_closed(run):
    Kept.lines.clear()
    names = [f"{__name__}:{name}" for name in ("Kept", "Offline")]
    with (
        pytest.raises(ConfigError, match=r"Offline cannot start: ConnectionError: no server \(test_trackers.py"),
        open_trackers(names, run, run.config(), 0),
    ):
        pass
    assert Kept.lines == [("tracked", 0, 0), "closed"]


def test_a_mistyped_tracker_names_the_nearest():
    with pytest.raises(ConfigError, match=r"no tracker 'tensorbord', did you mean 'tensorboard'\?"):
        load_config(None, ["track=[tensorbord]"])
