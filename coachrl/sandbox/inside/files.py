"""Looks into a workspace that hostile code has written to: no link is followed, nothing but regular files is opened."""

# ruff: noqa: PTH101, PTH102, PTH115, PTH118, PTH211

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

MAX_DEPTH = 16
MAX_NAME_CHARS = 255
MAX_LISTED_BYTES = 48 * 1024 * 1024  # of all names as JSON: an answer that holds them all is short enough to be taken
MAX_REPORTED_BYTES = 512 * 1024  # of names in one report of them, which a run keeps with each action
_PATH_MAX = 4096  # bytes, with the one that ends it
_CHUNK_BYTES = 1024 * 1024
Stamp = tuple[int, int, int, int]


def parts_of(name: str) -> tuple[str, ...]:
    """Components of a plain relative name. Raises ValueError for an absolute name, `..`, or an empty one."""
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name or name.startswith("/") or ".." in parts:
        raise ValueError(f"{name!r} is not a plain relative file name")
    return parts


def snapshot(root: str, max_files: int) -> dict[str, Stamp]:
    """Regular files under `root`: relative name -> (inode, size, mtime, ctime in ns).

    At most `max_files` names, of MAX_LISTED_BYTES together; names that are not printable text, longer than
    MAX_NAME_CHARS or deeper than MAX_DEPTH folders are left out, so that a report stays small whatever the code made.
    Code may run meanwhile: a link that it puts in the place of a folder leads nowhere.
    """
    found: dict[str, Stamp] = {}
    folders, listed = [("", 0)], 0
    while folders:
        folder, depth = folders.pop()
        for name, entry in _inside(root, folder):
            if entry.is_dir(follow_symlinks=False):
                if depth + 1 < MAX_DEPTH:
                    folders.append((name, depth + 1))
            elif entry.is_file(follow_symlinks=False) and (stamp := _stamp(entry)):
                listed += _json_bytes(name)
                if len(found) == max_files or listed > MAX_LISTED_BYTES:
                    return found
                found[name] = stamp
    return found


def _json_bytes(name: str) -> int:
    """At most what a printable name takes in a list: two bytes a character, or twelve for two escaped surrogates."""
    return len(name) * (2 if name.isascii() else 12) + 4


def changed(before: dict[str, Stamp], after: dict[str, Stamp]) -> list[str]:
    """Names of the files that are new in the second snapshot, or other than in the first; sorted."""
    return sorted(name for name, stamp in after.items() if before.get(name) != stamp)


def reported(names: Iterable[str]) -> list[str]:
    """`names`, sorted; of those that take more than MAX_REPORTED_BYTES as JSON, the shortest. Those that a team works
    with are short: no number of long ones hides them, or makes each action's record megabytes long."""
    shortest = sorted(names, key=lambda name: (_json_bytes(name), name))
    sizes = itertools.accumulate(map(_json_bytes, shortest))
    return sorted(name for name, size in zip(shortest, sizes, strict=True) if size <= MAX_REPORTED_BYTES)


def folders_and_links(root: str, most: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Folders under `root`, parents first, and symbolic links with their targets, with the limits of `snapshot`."""
    folders: list[str] = []
    links: list[tuple[str, str]] = []
    level = [""]
    for _ in range(MAX_DEPTH):
        entries = [
            (f"{folder}/{entry.name}" if folder else entry.name, entry)
            for folder in level
            for entry in _entries(os.path.join(root, folder))
        ]
        entries = [(name, entry) for name, entry in entries if name.isprintable() and len(name) <= MAX_NAME_CHARS]
        links += [(name, os.readlink(entry.path)) for name, entry in entries if entry.is_symlink()]
        level = [name for name, entry in entries if entry.is_dir(follow_symlinks=False)]
        folders += level
    return folders[:most], links[:most]


def _stamp(entry: os.DirEntry[str]) -> Stamp | None:
    try:
        info = entry.stat(follow_symlinks=False)
    except (FileNotFoundError, PermissionError):  # removed since it was listed, or in a folder that lets nobody in
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _inside(root: str, folder: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What is in a folder under `root`, which stays open meanwhile: nothing where it, or a folder on the way to it, is
    none any more. Names as in `snapshot`."""
    try:
        opened = _open_folder(root, PurePosixPath(folder).parts)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        for entry in _entries(opened):
            name = f"{folder}/{entry.name}" if folder else entry.name
            if name.isprintable() and len(name) <= MAX_NAME_CHARS:
                yield name, entry
    finally:
        os.close(opened)


def _entries(folder: str | int) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _open_folder(root: str, parts: tuple[str, ...], create: bool = False, owner: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(root, flags)
    for part in parts:
        try:
            if create:
                _make_folder(part, folder, owner)
            inner = os.open(part, flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def _make_folder(name: str, dir_fd: int, owner: int | None) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=dir_fd)
    except FileExistsError:
        return
    if owner is not None:
        os.chown(name, owner, owner, dir_fd=dir_fd, follow_symlinks=False)


def read(root: str, name: str, max_bytes: int) -> bytes:
    """Contents of one regular file under `root`. Raises FileNotFoundError for anything that is not one (a link or a
    link on the way to it, a folder, a pipe, a name that leaves the folder), ValueError where it exceeds `max_bytes`."""
    missing = FileNotFoundError(f"no regular file {name!r} in the workspace")
    try:
        *folders, last = parts_of(name)
        folder = _open_folder(root, tuple(folders))
    except (ValueError, OSError) as error:
        raise missing from error
    try:
        # O_NONBLOCK: a pipe that nobody writes to must not hold the reader.
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise missing from error
    finally:
        os.close(folder)
    info = os.fstat(file)
    if not stat.S_ISREG(info.st_mode):
        os.close(file)
        raise missing
    with os.fdopen(file, "rb") as stream:
        # By its size first: files that are all holes cost nothing to make, and much to read.
        data = stream.read(max_bytes + 1) if info.st_size <= max_bytes else None
    if data is None or len(data) > max_bytes:
        raise ValueError(f"{name!r} is larger than {max_bytes} bytes")
    return data


def write(root: str, name: str, data: bytes, owner: int | None = None) -> None:
    """Create `name` under `root` with its folders. Raises ValueError for a name that leaves the folder, OSError."""
    *folders, last = parts_of(name)
    folder = _open_folder(root, tuple(folders), create=True, owner=owner)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(last, flags, 0o644, dir_fd=folder), "wb") as stream:
            stream.write(data)
            if owner is not None:
                os.fchown(stream.fileno(), owner, owner)
    finally:
        os.close(folder)


def copy(source: str, target: str, owner: int | None = None) -> None:
    """Copy folders, regular files and links from `source` into the empty folder `target`, with their permissions and
    times of change; no link is followed. The copy takes as much room: holes stay holes, and what has several names,
    files and links alike, stays one. What lies deeper than MAX_DEPTH folders, has a path that is too long for the
    system, or may not be read, is left out. Nothing may run in either meanwhile. Raises OSError."""
    _copy(source, target, owner, 0, {})


def _copy(source: str, target: str, owner: int | None, depth: int, copied: dict[int, str]) -> None:
    """copied: inode -> the copy of what has several names."""
    for entry in _entries(source):
        made = os.path.join(target, entry.name)
        if max(len(os.fsencode(path)) for path in (entry.path, made)) >= _PATH_MAX or not _may_read(entry):
            continue
        info = entry.stat(follow_symlinks=False)
        if info.st_ino in copied:
            os.link(copied[info.st_ino], made, follow_symlinks=False)
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), made)
        elif entry.is_dir(follow_symlinks=False) and depth + 1 < MAX_DEPTH:
            os.mkdir(made, 0o700)
            _copy(entry.path, made, owner, depth + 1, copied)
        elif entry.is_file(follow_symlinks=False):
            _copy_data(entry.path, made)
        else:
            continue
        if info.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
            copied[info.st_ino] = made
        if owner is not None:
            os.chown(made, owner, owner, follow_symlinks=False)
        if not entry.is_symlink():
            os.chmod(made, stat.S_IMODE(info.st_mode))
        os.utime(made, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def _may_read(entry: os.DirEntry[str]) -> bool:
    """Not so for what the code has locked, where its own user looks, and not the sandbox's."""
    is_file = entry.is_file(follow_symlinks=False)
    # By what this process may do, and not its user alone: the sandbox's own has rights that its user has not.
    return _stamp(entry) is not None and (not is_file or os.access(entry.path, os.R_OK, effective_ids=True))


def _copy_data(source: str, target: str) -> None:
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(reading).st_size
        os.ftruncate(writing, size)
        done = 0
        while done < size and (stored := _next_data(reading, done)):
            begin, end = stored
            while begin < end and (data := os.pread(reading, min(_CHUNK_BYTES, end - begin), begin)):
                begin += os.pwrite(writing, data, begin)
            done = end
    finally:
        os.close(reading)
        os.close(writing)


def _next_data(file: int, start: int) -> tuple[int, int] | None:
    """Where the next bytes of `file` that are stored begin and end; None where only a hole follows."""
    try:
        begin = os.lseek(file, start, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    return begin, os.lseek(file, begin, os.SEEK_HOLE)
