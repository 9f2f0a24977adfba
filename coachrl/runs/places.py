"""How a run's folder comes to its place among others: it is made aside, gets its name, and `latest` points to it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
from pathlib import Path

from coachrl.storage.atomic import place_aside

log = logging.getLogger(__name__)

TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
"""What renaming a folder to a name fails with that another one has."""
_TRIES = 20


def make(folder: Path) -> None:
    """Make the folder and those above it, which a run that is discarded meanwhile may remove once more."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return
    folder.mkdir()


def renamed(aside: Path, folder: Path, numbered: bool) -> Path:
    """Where `aside` now is: at `folder`, or at folder-2, folder-3, … where that is taken. Raises OSError."""
    for number in itertools.count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            aside.rename(place)
        except OSError as error:
            if not numbered or error.errno not in TAKEN:
                raise
        else:
            break
    return place


def point_latest(folder: Path) -> Path | None:
    """From now on `latest`, beside the run, points to it. Returns where it did before."""
    latest = folder.parent / "latest"
    before = latest.readlink() if latest.is_symlink() else None
    _link(latest, Path(folder.name))
    return before


def point_back(folder: Path, before: Path | None) -> None:
    """`latest` points where it did before, if it points to the run."""
    latest = folder.parent / "latest"
    is_ours = latest.is_symlink() and latest.readlink() == Path(folder.name)
    if is_ours and (before is None or not _link(latest, before)):
        latest.unlink()


def _link(latest: Path, run: Path) -> bool:
    """Whether `latest` could be made to point to the run: it is moved at once, whoever else moves it."""
    aside = place_aside(latest)
    try:
        if os.path.lexists(latest) and not latest.is_symlink():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(latest))
        aside.symlink_to(run)
        aside.replace(latest)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        log.warning("runs/latest was not moved: %s", error)
        return False
    return True


def run_folders(folder: Path) -> list[Path]:
    """The runs in `folder` that this user may look into; `latest` is one of them by another name. Raises OSError."""
    return [path for path in folder.iterdir() if os.path.isfile(path / "config.yaml")]  # noqa: PTH113  raises nothing


def names_in(folder: Path) -> list[str]:
    """The newest first."""
    with contextlib.suppress(OSError):
        return sorted((path.name for path in run_folders(folder)), reverse=True)
    return []
