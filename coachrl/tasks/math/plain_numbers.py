"""Answers that are one plain number: how people and LaTeX write it, and what reads like one and is none."""

from __future__ import annotations

import re
from fractions import Fraction

from coachrl.tasks.math.judge import MAX_ANSWER_CHARS

TOLERANCE = Fraction(1, 10**6)

_SEPARATOR = r"(?:\{,\}|,(?:\\!)?|\\[,\x20]|[~\x20\xa0\u2009\u202f])"  # between thousands
_NUMBER = re.compile(
    rf"""
    (?:\\?\$|[€£¥])?\s*
    (?P<value>[-+−]?(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{{1,3}})?)\.?
    (?:
        (?:\s|~|\\[ ,])*\\(?:text|mathrm)\{{\s*(?P<marked_words>[^{{}}\d]*)\}}
        |\s+(?P<words>[A-Za-z]{{3,}}(?:[ ][A-Za-z]+){{0,2}})
    )?
    \s*\$?""",
    re.VERBOSE,
)
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = ("half", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
# Words behind a number that are no units: what they multiply it by.
_MULTIPLIERS = {
    name: scale
    for word, scale in (
        *((word, Fraction(scale)) for word, scale in _SCALES.items()),
        *((word, Fraction(1, number)) for number, word in enumerate(_PARTS, start=2)),
    )
    for name in (word, f"{word}s")
} | {"halves": Fraction(1, 2)}
_MARKED_WORDS = re.compile(r"\\(?:text|mathrm|textbf|textit)\{([^{}]*)\}")
_NO_UNITS = frozenset({"plus", "minus", "times", "over", "point", "squared", "cubed", "factorial"})
_LEFT_OPEN = re.compile(
    r"(?i)\b(?:n?or|not|n?either)\b|\\(?:neq?|not|lor|vee|leq?|geq?|[lg]t)(?![A-Za-z])|[≠<>≤≥]|(?<=\d)_|(?<!\\)\$.*(?<!\\)\$"
    r"|(?<=[\d}])\s?\.(?:\s|~|\\[ ,;!])+[-+−]?[\d.]|(?:[-+−*/^=×·÷]|\\(?:cdot|times|div|pm|mp))\Z"
)
_PERCENT = re.compile(
    r"(?i)(?:\s|~|\\[ ,;!])*(?:\\?%|percent|\\(?:text|mathrm)\{\s*(?:\\?%|percent)\s*\})\.?\s*\$?\s*\Z"
)


def read_number(text: str) -> Fraction | None:
    """The value of a plain number, which may have thousands separators, and a scale or a unit in words behind it."""
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= MAX_ANSWER_CHARS else None
    if match is None:
        return None
    words = (match["words"] or match["marked_words"] or "").lower().split()
    if is_left_open(" ".join(words)) or _NO_UNITS.intersection(words):
        return None
    value = Fraction(re.sub(_SEPARATOR, "", match["value"]).replace("−", "-"))
    return value * _MULTIPLIERS.get(words[0], 1) if words else value


def read_share(text: str) -> Fraction | None:
    """As `read_number`; of a percentage its hundredth part."""
    if len(text) > MAX_ANSWER_CHARS or (sign := _PERCENT.search(text)) is None:
        return read_number(text)
    percent = read_number(text[: sign.start()])
    return None if percent is None else percent / 100


def is_left_open(answer: str) -> bool:
    """Whether an answer names several values, a bound or a number of another base, says what the value is not, or
    breaks off behind an operator, where one number is asked for. math-verify reads past such signs, and takes one value
    of several formulas ("8$, or $7") or sentences ("6. 5").
    """
    return _LEFT_OPEN.search(answer.strip("$ ")) is not None


def names_multiplier(text: str) -> bool:
    """Whether a word in the LaTeX multiplies what stands before it ("\\frac12\\text{ million}"): math-verify reads past
    it."""
    marked = " ".join(_MARKED_WORDS.findall(text)).lower().split()
    return not _MULTIPLIERS.keys().isdisjoint(marked)


def same_number(given: Fraction, right: Fraction) -> bool:
    """Whole numbers are not rounded relative to their size: 1234567 is not 1234568."""
    return abs(given - right) <= TOLERANCE * (1 if right.denominator == 1 else abs(right))
