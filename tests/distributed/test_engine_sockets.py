"""An engine's sockets lie in a folder of its own, which the next engine removes where it was killed."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coachrl.trainers.backends.openrlhf.engines.sockets import place_of_sockets

PLACE = "VLLM_RPC_BASE_PATH"


@pytest.fixture
def temporary(monkeypatch):
    """A short one, as a socket's path must be."""
    monkeypatch.delenv(PLACE, raising=False)
    with tempfile.TemporaryDirectory(prefix="orl", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        os.environ.pop(PLACE, None)


def test_an_engine_binds_its_sockets_in_a_folder_of_its_own(start, ray_cluster):
    def bound(_):
        place = Path(os.environ[PLACE])
        return place.name, place.parent == Path(tempfile.gettempdir()), [path.is_socket() for path in place.iterdir()]

    backend = start("solver", gpus=1, colocate=True)
    [handle] = [handle for group in backend.processes.engines.values() for handle in group.handles]
    name, is_temporary, are_sockets = ray_cluster.get(handle.__ray_call__.remote(bound))
    assert name.startswith("coachrl-engine-") and is_temporary and are_sockets and all(are_sockets)


def test_the_next_engine_removes_what_a_killed_one_left_and_none_that_is_in_use(temporary):
    module = "coachrl.trainers.backends.openrlhf.engines.sockets"
    engine = (
        f"from {module} import place_of_sockets\nfolder = place_of_sockets()\nprint(folder.path, flush=True); input()"
    )
    command = [sys.executable, "-c", engine]
    with subprocess.Popen(
        command, stdin=-1, stdout=-1, text=True, env={**os.environ, "TMPDIR": str(temporary)}
    ) as other:
        first = other.stdout.readline().strip()
        own = place_of_sockets()
        assert os.environ[PLACE] == own.path and {str(path) for path in temporary.iterdir()} == {first, own.path}
        other.kill()
    os.environ.pop(PLACE)
    next_one = place_of_sockets()
    assert {str(path) for path in temporary.iterdir()} == {own.path, next_one.path}


def test_a_users_own_place_for_sockets_stays(temporary, monkeypatch):
    monkeypatch.setenv(PLACE, "/mine")
    assert place_of_sockets() is None and os.environ[PLACE] == "/mine" and not list(temporary.iterdir())


def test_a_temporary_folder_with_a_long_path_is_left_to_vllm(temporary, monkeypatch):
    long = temporary / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert place_of_sockets() is None and PLACE not in os.environ and not list(long.iterdir())
