"""An engine's sockets do not stay in the temporary folder, whatever ends the engine."""

import os
import tempfile
from pathlib import Path

import pytest

from coachrl.trainers.backends.openrlhf.rollout.sockets import sockets_aside

PLACE = "VLLM_RPC_BASE_PATH"


@pytest.fixture
def temporary(monkeypatch):
    """A short one, as a socket's path must be."""
    monkeypatch.delenv(PLACE, raising=False)
    with tempfile.TemporaryDirectory(prefix="orl", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_an_engine_that_has_started_leaves_no_socket(start, ray_cluster, tmp_path):
    def left(actor):
        return os.environ.get(PLACE), [str(path) for path in Path(tempfile.gettempdir()).iterdir() if path.is_socket()]

    before = {str(path) for path in Path(tempfile.gettempdir()).iterdir()}
    backend = start("solver", gpus=1, colocate=True)
    [handle] = [handle for group in backend.processes.engines.values() for handle in group.handles]
    place, sockets = ray_cluster.get(handle.__ray_call__.remote(left))
    assert place is None and set(sockets) <= before


def test_sockets_lie_in_a_folder_that_is_removed(temporary):
    with sockets_aside():
        assert Path(os.environ[PLACE]).parent == temporary and Path(os.environ[PLACE]).is_dir()
    assert PLACE not in os.environ and not list(temporary.iterdir())


def test_a_users_own_place_for_sockets_stays(temporary, monkeypatch):
    monkeypatch.setenv(PLACE, "/mine")
    with sockets_aside():
        assert os.environ[PLACE] == "/mine"
    assert os.environ[PLACE] == "/mine"


def test_a_temporary_folder_with_a_long_path_is_left_to_vllm(temporary, monkeypatch):
    long = temporary / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with sockets_aside():
        assert PLACE not in os.environ
