"""One execution on a server that knows nothing of workspaces: unpacks one, runs the code in it, packs it up again.

Runs where `coachrl.sandbox.fusion` sends it, on any Python from 3.10. Order and report are frames of wire.py.
The code runs as the same user and could forge the report; it says nothing but what that code did, and is read with that
in mind.
"""

# ruff: noqa: PTH100, PTH101, PTH103, PTH105, PTH108, PTH118, PTH120, PTH123, PTH211, T201

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from . import files, jail, keeper, plain, wire
from .jail import Limits
from .supervisor import Report

ROOT = "workspace"


def main(order: str, report: str, begun: str) -> None:
    """Carry out the order in the file `order`, and leave its report in the file `report`. Prints `begun` once all that
    can fail without the code's doing has gone well, and which report is its own once that lies there."""
    jail.set_dumpable(False)  # the server's environment is not the code's to read
    with contextlib.suppress(OSError):  # where that is not allowed, `keeper` says what it could not end
        jail.see_own_processes()  # SandboxFusion's mode `lite` shows its own: the code's could not be found
    keeper.adopt_orphans()  # what the code leaves behind stays in reach
    report = os.path.abspath(report)
    root = os.path.abspath(ROOT)
    with open(order, "rb") as file:
        stream = cast(BinaryIO, file)
        request = wire.receive(stream)
        _unpack(stream, request, root)
    os.unlink(order)  # it holds the code, which may hold the tests of a program that it runs
    limits = Limits(**request["limits"])
    print(begun, flush=True)
    before = files.snapshot(root, limits.max_files)
    ended = _run(request["code"], root, limits, _environment(request["environment"], root))
    with contextlib.suppress(OSError):  # the code may have locked it
        os.chmod(root, 0o755)
    header, payload = _describe(ended, root, before, limits)
    try:
        left = _leave(report, header, payload)
    except OSError as error:  # no room is left, or something else lies in this place
        shutil.rmtree(root, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(report + ".part")
        ended.state = "error"
        ended.stderr += f"\n{error.strerror}: the workspace is as it was before".encode()
        left = _leave(report, ended.header([]), ended.streams)
    print(said_of_report(begun, left), flush=True)


def said_of_report(begun: str, digest: str) -> str:
    """The line that is printed of a report."""
    return f"{begun} left {digest}"


def digest_of(*parts: bytes) -> str:
    """Of a report."""
    found = hashlib.blake2b(digest_size=32)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def _leave(report: str, header: dict[str, Any], payload: list[bytes]) -> str:
    """The digest of what was written. Raises OSError."""
    parts = [wire.pack(header), *payload]
    if len(parts[0]) > wire.MAX_REQUEST_BYTES // 2:  # thousands of the longest names, which the next order has to hold
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    # Exclusive: a pipe that the code has left in this place would hold the writer.
    with open(report + ".part", "xb") as file:
        file.writelines(parts)
    os.replace(report + ".part", report)
    return digest_of(*parts)


def _unpack(stream: BinaryIO, request: dict[str, Any], root: str) -> None:
    os.makedirs(root)
    for folder in request["folders"]:
        os.makedirs(os.path.join(root, *files.parts_of(folder)), exist_ok=True)
    for name, size in request["files"]:
        files.write(root, name, wire.read_exactly(stream, size))
    for name, mode in request["modes"]:
        os.chmod(os.path.join(root, *files.parts_of(name)), mode)
    for name, target in request["links"]:
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)  # one of more folders than were listed
        os.symlink(target, os.path.join(root, *files.parts_of(name)))


def _environment(given: dict[str, str], root: str) -> dict[str, str]:
    """Of the server's own environment, where its packages lie; nothing else."""
    found = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**given, **found, "HOME": root}


def _run(code: str, root: str, limits: Limits, environment: dict[str, str]) -> Report:
    """Where it leaves processes that cannot be ended, this one ends, and leaves no report that they could change."""
    host, _kept = socket.socketpair()
    try:
        return plain.execute(code, root, limits, environment, host)
    finally:
        if not keeper.end_below(os.getpid()):
            sys.exit("processes of the code could not be ended")


def _describe(
    ended: Report, root: str, before: dict[str, files.Stamp], limits: Limits
) -> tuple[dict[str, Any], list[bytes]]:
    after = files.snapshot(root, limits.max_files + 1)
    # Sizes first: files with holes in them may be a thousand times as large as what they take.
    if len(after) > limits.max_files or sum(size for _, size, _, _ in after.values()) > limits.disk_mb * 1024 * 1024:
        ended.state = "error"
        ended.stderr += f"\nNo space left on device: a workspace holds {limits.max_files} files".encode()
        ended.stderr += f" of {limits.disk_mb} MiB; it is as it was before".encode()
        return ended.header([]), ended.streams
    packed = dict(_pack(root, after))
    header = ended.header(files.changed(before, after))
    header["files"] = [[name, len(data)] for name, data in packed.items()]
    header["modes"] = [[name, os.lstat(os.path.join(root, name)).st_mode & 0o777] for name in packed]
    header["folders"], header["links"] = files.folders_and_links(root, limits.max_files)
    return header, [*ended.streams, *packed.values()]


def _pack(root: str, names: dict[str, files.Stamp]) -> Iterator[tuple[str, bytes]]:
    for name, (_, size, _, _) in names.items():
        with contextlib.suppress(OSError, ValueError):  # not readable by its own writer: it is left behind
            yield name, files.read(root, name, size)
