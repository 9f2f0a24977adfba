"""Asks math-verify whether two answers are equal, in a child process that a hostile answer can hang or fill, not harm.

math-verify bounds its time with `signal.alarm` handlers, which work in the main thread only and never interrupt a big
integer power. Here a timer's signal keeps its default action, so that the kernel ends the child; the next question
starts a new one. The timer counts what the child computes: an answer is no less right on a machine that has much else
to do. A child that waits and computes nothing is ended by the clock, after `PATIENCE_S`. The child runs this file as a
plain script: it imports nothing of coachrl, nor the caller's `__main__`.
"""

from __future__ import annotations

import json
import logging
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 3  # of computing
PATIENCE_S = 120  # by the clock
MEMORY_BYTES = 1024**3
_MOST_HELD = MEMORY_BYTES // 4  # of what was computed much is kept; a child that holds more ends, and leaves none short
MAX_ANSWER_CHARS = 300  # a closed-form answer is short; parsing time grows steeply with length

_SMALL, _DIGITS = 1e-5, 20  # numbers that six decimals say little of, and how exactly these are compared

_READY = "ready"
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:\s*/\s*\d+)?")


class MathJudge:
    """One warm child, asked by one thread at a time. It starts at the first question and ends with this process."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def equal(self, reference: str, answer: str) -> bool | None:
        """Whether math-verify finds `answer` equal to `reference`, both LaTeX without delimiters.

        None where it could not tell: the answer is too long, or comparing it took too much time or memory.
        Raises RuntimeError where math-verify cannot be started.
        """
        if max(len(reference), len(answer)) > MAX_ANSWER_CHARS:
            return None
        with self._lock:
            is_fresh = self._child is None
            verdict = self._verdict(reference, answer)
            if verdict is None and not is_fresh:  # it may have ended, or have been filled, with the answers before
                verdict = self._verdict(reference, answer)
            return verdict

    def _verdict(self, reference: str, answer: str) -> bool | None:
        questions, verdicts = self._pipes()
        try:
            questions.write(json.dumps([reference, answer]) + "\n")
            questions.flush()
            said = verdicts.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            self._stop()
            return None
        equal: bool = json.loads(said)
        return equal

    def close(self) -> None:
        """End the child. A later question starts a new one."""
        with self._lock:
            self._stop()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        """The child's standard input and output; the child is started where there is none."""
        if self._child is None:
            # -P: the script's own folder holds a math.py, which must not hide the standard one.
            command = [sys.executable, "-P", __file__]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
            assert self._child.stdout is not None
            if self._child.stdout.readline().strip() != _READY:
                self._stop()
                raise RuntimeError("math-verify did not start; standard error says why")
        assert self._child.stdin is not None and self._child.stdout is not None
        return self._child.stdin, self._child.stdout

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()  # closes both pipes and reaps the child


def limit_time(computing_s: float, by_the_clock_s: float) -> None:
    """End this process once it has computed for so long from now, or so much time has passed; 0 takes a limit away."""
    signal.setitimer(signal.ITIMER_PROF, computing_s)
    signal.setitimer(signal.ITIMER_REAL, by_the_clock_s)


def _serve() -> None:
    """The child: one JSON line [reference, answer] in, one JSON boolean out, until its input ends."""
    logging.disable()
    from math_verify import verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(_READY, flush=True)  # noqa: T201
    for line in sys.stdin:
        limit_time(TIMEOUT_S, PATIENCE_S)
        reference, answer = (_parsed(text) for text in json.loads(line))
        equal = verify(reference, answer, timeout_seconds=None) and not _alike_in_nothing(reference, answer)
        limit_time(0, 0)
        print(json.dumps(bool(equal)), flush=True)  # noqa: T201
        if _held_bytes() > _MOST_HELD:
            return


def _held_bytes() -> int:
    """The memory that this process has, 0 where the system does not tell. `ru_maxrss` would say that of the process
    that started it, which may hold a model."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _parsed(text: str) -> list[Any]:
    """What math-verify reads. It may pick a number out of the text only where that is no formula ("=7") and holds one
    number: of "5 \\iff 7" it would take the last."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    read: list[Any] = parse(f"${text}$", (LatexExtractionConfig(),), parsing_timeout=None)
    if all(isinstance(found, str) for found in read) and len(_NUMBER.findall(text)) == 1:
        read = parse(f"${text}$", (LatexExtractionConfig(), ExprExtractionConfig()), parsing_timeout=None)
    return read


def _alike_in_nothing(reference: list[Any], answer: list[Any]) -> bool:
    """Whether two that math-verify takes for equal share no more than that nothing is left of either: it rounds numbers
    to six decimals, and compares equations by their real solutions, of which both may have none."""
    right, given = (next((found for found in read if not isinstance(found, str)), None) for read in (reference, answer))
    try:
        return _both_vanish(right, given) or _both_unsolvable(right, given)
    except Exception:  # noqa: BLE001  sympy raises anything at what it cannot make out: then math-verify has the last word
        return False


def _both_unsolvable(right: Any, given: Any) -> bool:
    """Whether the right one is an equation without a real solution, and the other is no multiple of it."""
    from sympy import Eq, Poly, Set, cancel

    if not isinstance(right, Eq) or not isinstance(given, Eq | Set) or len(right.free_symbols) != 1:
        return False
    if isinstance(given, Eq):
        ratio = cancel((given.lhs - given.rhs) / (right.lhs - right.rhs))
        if ratio.is_number and ratio != 0:
            return False
    return bool(Poly(right.lhs - right.rhs).count_roots() == 0)  # raises where it is no polynomial of rational numbers


def _both_vanish(right: Any, given: Any) -> bool:
    """Of numbers that rounding leaves next to nothing of, whether they differ: by a hundredth of the right one."""
    from sympy import Eq

    if isinstance(right, Eq) and isinstance(given, Eq) and right.lhs == given.lhs:
        right, given = right.rhs, given.rhs
    if not (getattr(right, "is_number", False) and getattr(given, "is_number", False)):
        return False
    right, given = right.evalf(_DIGITS, strict=True), given.evalf(_DIGITS)  # strict: a sum that may be 0 is not small
    small = right != 0 and max(abs(right), abs(given)) < _SMALL
    return bool(small and abs(right - given) > abs(right) / 100)


if __name__ == "__main__":
    _serve()
