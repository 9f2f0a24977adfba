"""Files and folders that appear whole or not at all: made beside their place, and renamed once they are on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from coachrl.errors import ConfigError
from coachrl.resources import process_runs

_ASIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<pid>\d{1,7})", re.DOTALL)  # as `place_aside` names
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without them answer


def check_place(path: Path, option: str = "") -> None:
    """Raises ConfigError where no file can stand at `path`, before anything is asked or counted. option: what
    the message begins with."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option}{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{option}{path} is a folder: name a file")
    if path.exists() and not path.is_file():  # a device, such as /dev/stdout, would be replaced
        raise ConfigError(f"{option}{path} is no plain file: name one")
    if path.suffix == ".gz":  # who reads it would unpack it
        raise ConfigError(f"{option}{path}: files are written as they are, not packed: leave out .gz")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}{path} cannot be written: no permission to write in {path.parent}")


def write_aside(path: Path, text: str | Iterable[str], is_new: bool = False) -> None:
    """Replace `path` whole: the text, or one piece after the other, is written beside it, and renamed once it is on the
    disk. is_new: what is there is not replaced. Raises OSError that names `path`, and leaves nothing then. What a
    process left that was killed over the same file is removed."""
    drop_left_of(path)
    aside = place_aside(path)
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
        fsync(aside)
        name_new(aside, path) if is_new else aside.replace(path)
    except BaseException as error:  # Ctrl-C, too, leaves nothing
        with contextlib.suppress(OSError):  # a disk that may not be written to says so of this, too
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def name_new(aside: Path, path: Path) -> None:
    """Rename the file `aside` to `path`, where nothing has that name: of two commands that write one file at once, the
    later one is told. Raises OSError."""
    try:
        os.link(aside, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        aside.rename(path)
    else:
        aside.unlink()


def place_aside(path: Path) -> Path:
    """Where this process makes `path`, to be renamed once it is whole: a name that no other has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}")


def _left_aside(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """What stands at a `place_aside` in `folder`, with the name that it was to have and the process's number."""
    for left in list(folder.iterdir()):
        if match := _ASIDE.fullmatch(left.name):
            yield left, match["name"], int(match["pid"])


def drop_left_of(path: Path) -> None:
    """Remove what stands at a `place_aside` of `path` and was left by a process that was killed: it may be as large as
    a model. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for left, name, pid in _left_aside(path.parent):
            if name != path.name or process_runs(pid):
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def drop_asides(folder: Path) -> None:
    """Remove the files that `write_aside` left in `folder` where its process was killed before it could rename them.
    One that writes now, as a report of a run that is being resumed, keeps what is its own. What cannot be removed
    stays."""
    with contextlib.suppress(OSError):
        for left, _, pid in _left_aside(folder):
            if left.is_file() and (pid == os.getpid() or not process_runs(pid)):
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_aside(folder: Path, may_exist: bool = False) -> Iterator[Path]:
    """A folder to fill. It becomes `folder` when the block ends well and all of it is on the disk, and else is removed.
    may_exist: where another process has made `folder` meanwhile, that one stays. Raises OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not may_exist:  # what processes of several machines may be making at once is not told apart by a number
        drop_left_of(folder)
    aside = place_aside(folder)
    aside.mkdir()
    try:
        yield aside
        follow_umask(aside)
        put_on_disk(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not (may_exist and folder.is_dir()):
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def follow_umask(folder: Path) -> None:
    """Let those read all files in `folder` who may enter it: safetensors writes weights for their owner alone, which
    nobody else could serve or evaluate."""
    mode = folder.stat().st_mode & 0o666
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # file systems without permissions
                Path(place, name).chmod(mode)


def put_on_disk(folder: Path) -> None:
    """Return once all of `folder` would be there after a loss of power. Raises OSError where the disk did not take it,
    which some file systems say no earlier."""
    for place, _, names in os.walk(folder, onerror=reraise):
        for path in (*(Path(place, name) for name in names), Path(place)):
            fsync(path)


def reraise(error: OSError) -> None:
    """For `os.walk`, which else passes over a folder that cannot be read."""
    raise error


def fsync(path: Path) -> None:
    """Return once the file, or the names in the folder, would be there after a loss of power. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot do it for a folder
            error.filename = str(path)
            raise
    finally:
        os.close(descriptor)
