"""Who may see a run that is served at loopback, which every user of the machine can reach."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import threading

import pytest
from users import ANN, BOB, GROUP, as_user, shared_folder

from coachrl.config import RunConfig
from coachrl.report import readers
from coachrl.report.readers import may_read, user_of
from coachrl.report.view import make_server
from coachrl.runs.folder import Run


@pytest.fixture
def folder():
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def served(folder):
    run = Run.create(RunConfig(name="private", out=folder / "runs"))
    with make_server(run) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield run.folder, server.server_address
        server.shutdown()
        thread.join()


def status_of(address, path, family=socket.AF_INET, mapped=""):
    connection = http.client.HTTPConnection(*address)
    connection.sock = socket.socket(family)
    connection.sock.connect((mapped + address[0], address[1]))
    connection.request("GET", path)
    return connection.getresponse().status


@pytest.mark.parametrize("path", ["/", "/rate", "/episodes/step-000001"])
def test_a_run_that_another_user_may_not_read_is_not_shown_to_that_one(served, path):
    folder, address = served
    folder.chmod(0o700)
    assert as_user(BOB, status_of, address, path) == 403
    assert status_of(address, path) == (404 if path.startswith("/episodes") else 200)


def test_a_run_that_others_may_read_is_shown_to_them_and_no_kind_of_socket_leads_around_that(served):
    folder, address = served
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    assert as_user(BOB, status_of, address, "/") == 200
    folder.parent.chmod(0o700)
    for family, mapped in ((socket.AF_INET, ""), (socket.AF_INET6, "::ffff:")):
        assert as_user(BOB, status_of, address, "/", family, mapped) == 403


def test_a_connection_is_known_by_its_user():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            assert user_of(client.getsockname(), server.getsockname()) == os.getuid()
        assert user_of(("127.0.0.1", 1), server.getsockname()) is None


@pytest.mark.parametrize(
    ("owner", "mode", "readers"),
    [(ANN, 0o700, {ANN}), (ANN, 0o705, {ANN, BOB}), (BOB, 0o750, {BOB}), (BOB, 0o075, {ANN}), (ANN, 0o754, {ANN})],
)
def test_permissions_say_who_may_read(folder, owner, mode, readers):
    place = folder / "run"
    place.mkdir()
    os.chown(place, owner, GROUP)  # whose members are named nowhere
    place.chmod(mode)
    assert may_read(0, place)
    assert {user for user in (ANN, BOB) if may_read(user, place)} == readers


@pytest.mark.parametrize(
    ("entries", "mask", "others"),
    [
        ([(0x02, 5, ANN)], 5, 0),
        ([(0x02, 5, ANN)], 4, 5),
        ([(0x02, 0, ANN)], 7, 5),
        ([(0x02, 5, BOB)], 5, 0),
        ([(0x02, 1, ANN), (0x02, 7, BOB)], 7, 5),
        ([(0x08, 5, GROUP)], 5, 0),
    ],
)
def test_who_is_let_in_by_a_list_may_read_as_the_kernel_has_it(folder, monkeypatch, entries, mask, others):
    monkeypatch.setattr(readers, "_groups", lambda user: [user, GROUP])
    place = folder / "run"
    place.mkdir()
    plain = [(0x01, 7, 2**32 - 1), (0x04, 0, 2**32 - 1), (0x10, mask, 2**32 - 1), (0x20, others, 2**32 - 1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(plain + entries))
    try:
        os.setxattr(place, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("this file system has no lists of who may read")
    for user in (ANN, BOB):
        assert may_read(user, place) == as_user(user, os.access, place, os.R_OK | os.X_OK)


def test_who_became_root_to_show_a_run_sees_it(folder, monkeypatch):
    folder.chmod(0o700)
    assert not may_read(ANN, folder)
    monkeypatch.setenv("SUDO_UID", str(ANN))
    assert may_read(ANN, folder) and not may_read(BOB, folder)
