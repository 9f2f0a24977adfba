"""Two users of one machine: what another one does, with the rights of that one alone."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
ANN, BOB, GROUP = 54321, 54322, 54320


def as_user(user: int, act: Callable[..., T], *arguments: object, umask: int = 0o022) -> T:
    """What `act` gives, or raises, in a process of `user`, who is of GROUP, too, and has no home."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _become, (user, umask)) as pool:
        return pool.submit(act, *arguments).result()


def _become(user: int, umask: int) -> None:
    os.environ.pop("HOME", None)
    os.setgroups([GROUP])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.umask(umask)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder in which all of GROUP may write. Skips the test where nobody else can be become."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    folder = Path(tempfile.mkdtemp(prefix="coachrl-users-"))  # pytest's own folders let nobody else in
    try:
        os.chown(folder, -1, GROUP)
        folder.chmod(0o2775)
        yield folder
    finally:
        shutil.rmtree(folder)
