"""Temporary folders that a killed process cannot leave behind for good: each is locked for as long as its process
lives, however that ends, and whoever makes the next one of its kind removes those that are not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Self

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LockedFolder:
    """A new folder, empty, that this user alone may enter. As a context manager it removes itself, and at the latest as
    the program ends.

    path: where it is. What is in it may change its mode or put something else in its place; the lock stays.
    """

    def __init__(self, prefix: str, parent: str | None = None) -> None:
        """prefix: what names of its kind begin with. parent: the folder that it lies in, the system's for temporary
        files where None. Raises OSError."""
        self.path, lock = _locked(prefix, parent)
        self._end = weakref.finalize(self, _end, self.path, lock, os.getpid())

    def remove(self) -> None:
        """The folder and what is in it."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()


def _end(path: str, lock: int, maker: int) -> None:
    if os.getpid() != maker:  # a process that it has forked ends, and has no part in it
        return
    try:
        _remove(path)
    finally:
        os.close(lock)


def _locked(prefix: str, parent: str | None) -> tuple[str, int]:
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
        with contextlib.suppress(FileNotFoundError):  # another process took it for one that was left, and removed it
            lock = os.open(folder, _FOLDER)
            with contextlib.suppress(OSError):  # on a file system without locks nobody takes it for left
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.lexists(folder):
                return folder, lock
            os.close(lock)


def drop_left(prefix: str, parent: str | None = None) -> None:
    """Remove the `LockedFolder`s of a kind that processes of this user were killed before they could."""
    for left in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # it is in use, or somebody else's
            lock = os.open(left, _FOLDER)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    _remove(str(left))
            finally:
                os.close(lock)


def _remove(root: str) -> None:
    """With folders that code has locked, or nested more deeply than Python's own removal goes."""
    try:
        subprocess.run(["rm", "-rf", "--", root], stderr=subprocess.DEVNULL)
        if os.path.lexists(root):
            subprocess.run(["chmod", "-R", "u+rwx", "--", root], stderr=subprocess.DEVNULL)
            subprocess.run(["rm", "-rf", "--", root], stderr=subprocess.DEVNULL)
    except OSError:  # there is no such program on the path
        shutil.rmtree(root, ignore_errors=True)
