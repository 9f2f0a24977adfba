"""The nearest known name to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """', did you mean …?' where a known word is close, else an empty string."""
    matches = difflib.get_close_matches(word[:100], list(known), n=1, cutoff=0.5)
    return f", did you mean '{matches[0]}'?" if matches else ""
