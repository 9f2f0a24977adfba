"""Finds what coachrl ships (prompts, configs), in a checkout and in an installed wheel alike, and what it keeps."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(*parts: str) -> Path:
    """Path of a shipped file or folder, e.g. ``resource("prompts", "agents")``. It may not exist."""
    for root in (_PACKAGE / "_resources", _PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    return _PACKAGE.parent.joinpath(*parts)


def cache_folder() -> Path:
    """Where made data sets and converted models are kept: $COACHRL_CACHE, or ~/.cache/coachrl. It may not exist."""
    named = os.environ.get("COACHRL_CACHE")
    # Path.expanduser() raises for a user that does not exist.
    return Path(os.path.expanduser(named)) if named else Path.home() / ".cache" / "coachrl"  # noqa: PTH111


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Keeps back the lines that the hub's library logs of each attempt; the error that it ends with says enough."""
    logger = logging.getLogger("huggingface_hub")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
