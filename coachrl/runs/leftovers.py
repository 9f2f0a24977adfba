"""What is left beside the runs where a process was killed while it made one, or discarded one that never began."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from pathlib import Path

from coachrl.resources import process_runs
from coachrl.storage.atomic import place_aside

PARTS = ("episodes", "coach", "checkpoints")
FILES = ("config.yaml", "versions.json")
_NAME = re.compile(r"\.(?P<run>.+)\.[0-9a-f]{8}\.(?P<pid>\d{1,10})(?P<discarded>\.discarded)?")
_OLD_S = 60.0  # on a disk that machines or containers share, a process of another one may be making it


def aside(folder: Path, discarded: bool = False) -> Path:
    """Where this process makes the run `folder`, or puts it to be removed: a name that no other has, since processes of
    two containers have the same numbers."""
    return folder.with_name(f"{place_aside(folder).name}{'.discarded' if discarded else ''}")


def drop(out: Path) -> None:
    """Remove what is left in `out`. What cannot be removed, or may be somebody else's, stays."""
    with contextlib.suppress(OSError):
        for left in list(out.glob(".*")):
            match = _NAME.fullmatch(left.name)
            if match is not None and _is_over(left, match):
                with contextlib.suppress(OSError):
                    _remove(left, match)


def _is_over(left: Path, match: re.Match[str]) -> bool:
    pid = int(match["pid"])
    runs = pid != os.getpid() and process_runs(pid)  # a container gives its processes the same numbers each time
    return not runs and time.time() - left.lstat().st_mtime > _OLD_S


def _remove(left: Path, match: re.Match[str]) -> None:
    """Raises OSError where it is not what a run leaves."""
    if left.is_symlink():
        if match["run"] == "latest":
            left.unlink()
    elif match["discarded"]:
        shutil.rmtree(left)
    elif {path.name for path in left.iterdir()} <= {*PARTS, *FILES}:
        for part in PARTS:  # first: one that is not empty is a run's
            with contextlib.suppress(FileNotFoundError):
                (left / part).rmdir()
        for name in FILES:
            (left / name).unlink(missing_ok=True)
        left.rmdir()
