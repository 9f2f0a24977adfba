"""One writer at a time: a file that its owner holds locked, and that says in JSON who that is.

The lock is the operating system's (flock), so that it ends with the process that holds it, however that ends. What the
file says serves people; it decides only where the system cannot: on a file system without locks, and where another
machine, whose locks may not be seen here, left its name.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from coachrl.errors import ConfigError
from coachrl.resources import process_runs
from coachrl.text import one_line

log = logging.getLogger(__name__)

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # what file systems without flock answer
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOMENT_S = 0.05
_held: set[int] = set()  # descriptors of this process


@dataclass(frozen=True)
class Owner:
    """What a lock file says. since: UTC, ISO 8601."""

    pid: int
    user: str
    host: str
    since: str
    doing: str

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}, {self.doing} since {self.since}"


@contextmanager
def locked(path: Path, doing: str, of: Path | None = None) -> Iterator[Callable[[], bool]]:
    """Hold the file `path` locked while the block runs; it is gone afterwards. doing: for others to read. of: what
    is in use meanwhile, by default the folder of `path`. Gives whether the file is still there: who moves its folder
    moves it too.

    Raises ConfigError where another process holds it, or may, or where its folder cannot be written."""
    descriptor = _acquire(path, of or path.parent)
    _held.add(descriptor)
    try:
        _say_who(descriptor, path, doing)
        yield partial(_is_at, descriptor, path)
    finally:
        # Before it is let go of: whoever opened it in between finds that it is no longer the file at `path`.
        with suppress(OSError):
            if _is_at(descriptor, path):
                path.unlink()
        _held.discard(descriptor)
        os.close(descriptor)


def _say_who(descriptor: int, path: Path, doing: str) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(_this_process(doing))).encode() + b"\n", 0)
    except OSError as error:
        if error.errno not in _FULL:  # who wants to free a full disk needs the lock, and can do without the words
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _acquire(path: Path, of: Path) -> int:
    """A locked descriptor of `path`, which keeps others from `of`. Raises ConfigError."""
    while True:
        descriptor, is_ours = _opened(path)
        try:
            _check_plain(descriptor, path)
            _lock(descriptor, path, of)
            if _is_at(descriptor, path):
                if is_ours and os.fstat(descriptor).st_nlink <= 1:
                    return descriptor
                # A copy made of hard links has it, too, or another user's umask keeps it from us: a new one is made.
                _remove_left(path)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
            raise
        os.close(descriptor)  # or its owner removed it while it was being opened


def _remove_left(path: Path) -> None:
    try:
        path.unlink()
    except PermissionError as error:  # as where each removes what is that user's alone
        raise ConfigError(f"{path} was left by another user: have it removed by that one, and try again") from error


def _opened(path: Path) -> tuple[int, bool]:
    """A descriptor of `path`, and whether it may be written to: one that a process of another user left may not, and
    can be replaced where the folder is a group's. Raises ConfigError."""
    # What a link leads to may be anything, and who holds the lock writes into it.
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666), True
    except OSError as error:
        if path.is_symlink():
            raise ConfigError(f"{path} is a link, where a lock is needed: remove it and try again") from error
        if isinstance(error, PermissionError) and os.access(path.parent, os.W_OK | os.X_OK):
            with suppress(OSError):
                return os.open(path, flags | os.O_RDONLY | os.O_NONBLOCK), False
        raise ConfigError(f"{path.parent} cannot be written: {error.strerror}{_held_by(path)}") from error


def _check_plain(descriptor: int, path: Path) -> None:
    """Raises ConfigError for what is no file."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise ConfigError(f"{path} is something else than a lock: move it elsewhere and try again")


def _lock(descriptor: int, path: Path, of: Path) -> None:
    left = _read_owner(descriptor)
    try:
        _take(descriptor)
    except BlockingIOError:
        raise ConfigError(_refusal(path, of, left)) from None
    except OSError as error:
        if error.errno == errno.EBADF:  # over NFS, where only what may be written to is locked
            still = f" by {left}" if left is not None else ""
            raise ConfigError(
                f"{of} may be in use{still}: {path} is another user's, and cannot be locked by this one; where nobody "
                "trains there any longer, remove it and try again"
            ) from error
        if error.errno not in _NO_LOCKS:
            raise ConfigError(f"{path} cannot be locked: {error.strerror}") from error
        log.warning("%s: its file system has no locks: two machines could write to it at once", path)
        if left is not None and left.is_here and _may_hold(left, descriptor):
            raise ConfigError(_refusal(path, of, left)) from None
    if left is not None and not left.is_here:
        raise ConfigError(
            f"{of} may be in use: {left} has not let go of it, and cannot be checked from "
            f"{socket.gethostname()}; where it no longer runs, remove {path} and try again"
        )
    if left is not None:
        log.warning("%s was left by %s, which is gone; going on", path, left)


def _take(descriptor: int) -> None:
    """Raises BlockingIOError where another process holds the lock, and OSError where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_MOMENT_S)  # who only looks whether it is held has it for a moment
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _may_hold(owner: Owner, descriptor: int) -> bool:
    """Whether the owner, on this machine, still runs. A container gives its processes the same numbers each time: an
    owner of our own number is taken for gone, unless a thread of this process holds the file."""
    if owner.pid != os.getpid():
        return process_runs(owner.pid)
    return any(_is_open(held, descriptor) for held in list(_held))


def _is_open(held: int, descriptor: int) -> bool:
    try:
        return os.path.sameopenfile(held, descriptor)
    except OSError:  # another thread has let go of it meanwhile
        return False


def _refusal(path: Path, of: Path, owner: Owner | None) -> str:
    if owner is None:  # it has locked the file, and not yet said who it is
        return f"{of} is in use by another process; wait until it ends"
    if owner.is_here and not process_runs(owner.pid):
        holds = f"a process that it started, or one of another container, still holds {path}"
        return f"{of} is in use: {owner} is not to be seen here, but {holds}; end that, or wait until it ends"
    return f"{of} is in use by {owner}; wait until it ends, or end it"


def in_use_by(path: Path) -> Owner | None:
    """Whose lock the file `path` is, without asking for it: None where nobody's, or that of a process of this machine
    which is gone."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            owner = _read_owner(descriptor)
            return None if owner is None or (owner.is_here and not _is_held(descriptor, owner)) else owner
        finally:
            os.close(descriptor)
    return None


def _is_held(descriptor: int, owner: Owner) -> bool:
    """Whether somebody of this machine holds the lock. Numbers of processes do not tell: in a container another one has
    the owner's after a restart, and the owner in another container has none here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until the descriptor is closed
    except BlockingIOError:
        return True
    except OSError:
        return process_runs(owner.pid)
    return False


def _held_by(path: Path) -> str:
    """'; in use by …' where the lock file can at least be read, and its owner is not known to be gone."""
    owner = in_use_by(path)
    return f"; in use by {owner}" if owner is not None else ""


def _read_owner(descriptor: int) -> Owner | None:
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
        texts = {key: one_line(str(said[key])) for key in ("user", "host", "since", "doing")}
        return Owner(pid=int(said["pid"]), **texts)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # it is empty, half written, or somebody else's file


def _this_process(doing: str) -> Owner:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"user {os.getuid()}"
    return Owner(os.getpid(), user, socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"), doing)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):  # ESTALE: another machine removed it
            raise
        return False


def _let_go_in_child() -> None:
    """A forked child shares its parent's locks: it closes them, or a parent that is killed would leave them held."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
