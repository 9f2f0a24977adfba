"""Finds what coachrl ships (prompts, configs), in a checkout and in an installed wheel alike, what it keeps, how
many files a process may open, who runs on the machine and in this process, and that it is asked without a proxy."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from coachrl.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent
_OPEN_FILES = 1 << 14
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")

ENGINE_THREAD = "coachrl engine"
"""The name of a thread that an engine lives in. It ends when the engine is closed, unless it hangs."""


def resource(*parts: str) -> Path:
    """Path of a shipped file or folder, e.g. ``resource("prompts", "agents")``. It may not exist."""
    for root in (_PACKAGE / "_resources", _PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    return _PACKAGE.parent.joinpath(*parts)


def allow_open_files() -> None:
    """Raise this process's limit on open files to 16,384, or as far as it may."""
    import resource as limits

    few, most = limits.getrlimit(limits.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == limits.RLIM_INFINITY else min(_OPEN_FILES, most)
    if few != limits.RLIM_INFINITY and few < wanted:
        limits.setrlimit(limits.RLIMIT_NOFILE, (wanted, most))


def past_proxies(environment: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """The variables by which HTTP clients ask these hosts themselves, and not the proxy that the environment names,
    with what they hold in it already."""
    known = ",".join(environment.get(name, "") for name in ("NO_PROXY", "no_proxy"))  # each is read by some clients
    names = dict.fromkeys(filter(None, (*map(str.strip, known.split(",")), *hosts)))
    if "*" in names:  # all hosts, where it stands alone
        names = {"*": None}
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(names))


def ask_this_machine_directly(host: str = "") -> None:
    """Have HTTP clients of this process, those of libraries too, ask servers on this machine without a proxy, to whom
    its loopback address is another machine. host: a further name of this one."""
    import urllib.request

    if urllib.request.getproxies_environment():
        os.environ.update(past_proxies(os.environ, *_THIS_MACHINE, host))


def free_bytes(place: Path) -> int:
    """What is free on the disk that `place` is on, or will be on once it is made."""
    place = place.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def cache_folder() -> Path:
    """Where made data sets and converted models are kept: $COACHRL_CACHE, or ~/.cache/coachrl. It may not exist. Raises
    ConfigError where the user has no home, as a number without a name in a container."""
    named = os.environ.get("COACHRL_CACHE")
    # Path.expanduser() raises for a user that does not exist.
    if named:
        return Path(os.path.expanduser(named))  # noqa: PTH111
    try:
        return Path.home() / ".cache" / "coachrl"
    except RuntimeError as error:
        raise ConfigError(f"user {os.getuid()} has no home: set HOME, or COACHRL_CACHE to a folder") from error


@contextmanager
def quiet(library: str) -> Iterator[None]:
    """Keeps back the lines that a library logs: that of the hub of each attempt, where the error that it ends with says
    enough; transformers with names as a model's files have them, which a terminal would obey."""
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@cache
def say_once(log: Callable[..., None], message: str, *words: object) -> None:
    """Log a line by a method of a logger, unless this process has logged the very same."""
    log(message, *words)


_endless = list[object]()


def never_ends(code: object) -> None:
    """Hold a task that goes on though it was told to end. Python would close it when nothing holds it any more, and
    what takes every exception goes on then, too."""
    _endless.append(code)


def code_goes_on() -> bool:
    """Whether anything is held that does not end: neither does the process then, unless it is ended at once."""
    return bool(_endless)


def engine_hangs() -> bool:
    """Whether an engine of this process was closed, or should have been, and did not end."""
    return any(thread.name == ENGINE_THREAD for thread in threading.enumerate())


def process_runs(pid: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
