"""Finds the prompts and configs that coachrl ships, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(*parts: str) -> Path:
    """Path of a shipped file or folder, e.g. ``resource("prompts", "agents")``. It may not exist."""
    for root in (_PACKAGE / "_resources", _PACKAGE.parent):
        path = root.joinpath(*parts)
        if path.exists():
            return path
    return _PACKAGE.parent.joinpath(*parts)
