"""The waiting process. Takes a socket for each request on the control socket, and forks a supervisor to serve it.

It is small, since it is forked several times for an execution; the packages are imported in the warm interpreter, see
warm.py.

The control socket is file 0. Agents' code never runs in this process or in one that holds the control socket.
"""

# ruff: noqa: PTH101, PTH118

from __future__ import annotations

import gc
import mmap
import os
import selectors
import signal
import socket
import sys
from typing import Any, BinaryIO, NoReturn, cast

from . import files, jail, supervisor, warm, wire

Warm = tuple[socket.socket, list[str]]


def main(preload: list[str]) -> None:
    """Start the warm interpreter with `preload` imported, say so, and serve until the host hangs up."""
    jail.hold_signals()
    jail.bound_open_files()
    warm.preload_library()
    interpreter = warm.start(preload)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    control = socket.socket(fileno=0)
    control.send(warm.READY)
    packages = sorted({name.partition(".")[0] for name in preload})
    with selectors.DefaultSelector() as selector:
        for end in (control, interpreter):
            selector.register(end, selectors.EVENT_READ)
        while True:
            if any(key.fileobj is interpreter for key, _ in selector.select()):
                return  # it has ended, and nothing can be run as promised
            message, fds, _, _ = socket.recv_fds(control, 1, 3)
            if not message:
                return
            if jail.fork() == 0:
                _serve(control, fds, (interpreter, packages))
            for fd in fds:
                os.close(fd)


def _serve(control: socket.socket, fds: list[int], interpreter: Warm) -> NoReturn:
    """fds: the host's end of the request; then the two files of its cgroup, where it has one."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.detach()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        host = socket.socket(fileno=fds[0])
        cgroup = (fds[1], fds[2]) if len(fds) == 3 else None
        with host.makefile("rwb") as stream:
            _answer(cast(BinaryIO, stream), host, interpreter, cgroup)
        status = 0
    except (wire.Disconnected, supervisor.Cancelled, BrokenPipeError):
        status = 0
    finally:
        if status:
            sys.excepthook(*sys.exc_info())
        os._exit(status)


def _answer(stream: BinaryIO, host: socket.socket, interpreter: Warm, cgroup: tuple[int, int] | None) -> None:
    request = wire.receive(stream)
    try:
        if request["op"] == "run":
            header, payload = _run(request, stream, host, interpreter, cgroup)
        else:
            if cgroup is not None:  # from now on what is copied is charged to it
                os.write(cgroup[0], b"0")
            header, payload = _carry_out(request, stream)
    except (OSError, ValueError) as error:
        kind = next(kind for kind, errors in _ERRORS.items() if isinstance(error, errors))
        header, payload = {"error": kind, "message": str(error)}, []
    wire.send(stream, header, payload)


_ERRORS = {"missing": FileNotFoundError, "refused": ValueError, "failed": OSError}
Answer = tuple[dict[str, Any], list[bytes]]


class _BrokenByCode(Exception):
    """What watches over a program failed once its code ran: the supervisor ends without an answer, which says so."""


def _carry_out(request: dict[str, Any], stream: BinaryIO) -> Answer:
    """Everything but running a program. Raises OSError and ValueError, also for an operation that there is not."""
    name, root = request.get("workspace", ""), os.path.join(jail.WORKSPACES, request.get("workspace", ""))
    match request["op"]:
        case "ping":
            return {}, []
        case "open":
            _make(request, _size_mb(request["files"]))
            for file, size in request["files"]:
                files.write(root, file, wire.read_exactly(stream, size), owner=jail.CODE_UID)
            return {}, []
        case "copy":
            source = os.path.join(jail.WORKSPACES, request["source"])
            with jail.alone_in(source):
                _make(request, jail.held_mb(request["source"]))
                files.copy(source, root, owner=jail.CODE_UID)
            return {}, []
        case "files":
            return {"files": sorted(files.snapshot(root, request["max_files"]))}, []
        case "read":
            data = files.read(root, request["name"], request["max_bytes"])
            return {"sizes": [len(data)]}, [data]
        case "close":
            jail.drop_workspace(name)
            return {}, []
        case unknown:
            raise ValueError(f"there is no operation {unknown!r}")


def _make(request: dict[str, Any], size_mb: int) -> None:
    size_mb = max(1, min(size_mb, request["disk_mb"]))
    jail.make_workspace(request["workspace"], size_mb, request["max_files"], request["all_files_mb"])


def _size_mb(files: list[tuple[str, int]]) -> int:
    """What files of these names and sizes take, in whole pages."""
    pages = sum(-(-size // mmap.PAGESIZE) for _, size in files)
    return -(-pages * mmap.PAGESIZE >> 20)


def _run(
    request: dict[str, Any],
    stream: BinaryIO,
    host: socket.socket,
    interpreter: Warm,
    cgroup: tuple[int, int] | None,
) -> Answer:
    limits = jail.Limits(**request["limits"])
    root = os.path.join(jail.WORKSPACES, request["workspace"])
    has_begun = False

    def begun() -> None:
        nonlocal has_begun
        has_begun = True
        wire.send(stream, wire.BEGUN)

    with jail.alone_in(root):
        os.chmod(root, 0o755)  # an earlier execution may have locked it, and the next one could not enter
        jail.fit_workspace(request["workspace"], limits.disk_mb, request["all_files_mb"], request["at_once"])
        try:
            before = files.snapshot(root, limits.max_files)
            report = supervisor.execute(request["workspace"], request["code"], limits, host, interpreter, begun, cgroup)
            after = files.snapshot(root, limits.max_files)
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            if has_begun:
                raise _BrokenByCode from error
            raise
        finally:
            jail.shrink_workspace(request["workspace"])
    return report.header(files.changed(before, after)), report.streams
