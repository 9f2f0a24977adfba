"""Warnings that an outage would repeat for every action: the first of a kind, then counts. The ledger has every one."""

from __future__ import annotations

import logging
import re
from collections import Counter

_WITH_DIGITS = re.compile(r"\w*\d\w*")
_LONGEST_KIND = 300
_PARTS = 3  # "coach: what went wrong: detail"; what follows quotes one reply


class RepeatedWarnings:
    """Logs a trouble when the first of its kind comes, then at the 10th, the 100th and so on, and sums up at the end.

    Troubles are of one kind where their first parts are alike but for numbers.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._counts, self._first = log, Counter[str](), dict[str, str]()

    def warn(self, subject: str, trouble: str) -> None:
        parts = trouble[:_LONGEST_KIND].split(": ")[:_PARTS]
        kind = _WITH_DIGITS.sub("#", ": ".join(parts))
        self._first.setdefault(kind, trouble)
        self._counts[kind] += 1
        count = self._counts[kind]
        if count == 1:
            self._log.warning("%s: %s", subject, trouble)
        elif _power_of_ten(count):
            self._log.warning(
                "%s: %s (%d of this kind by now; the next line comes at %d)", subject, trouble, count, 10 * count
            )

    def sum_up(self) -> None:
        """Log how many there were of each kind, where that has not just been said; and count anew."""
        for kind, count in self._counts.items():
            if not _power_of_ten(count):
                self._log.warning("%d times in all: %s", count, self._first[kind])
        self._counts.clear()
        self._first.clear()


def _power_of_ten(count: int) -> bool:
    return count == 10 ** (len(str(count)) - 1)
