"""Answers that are one plain number: how people and LaTeX write it, and what reads like one and is none."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from itertools import pairwise, takewhile
from math import prod

from coachrl.tasks.math.judge import MAX_ANSWER_CHARS

TOLERANCE = Fraction(1, 10**6)

_SEPARATOR = r"(?:\{,\}|,(?:\\!)?|\\[,:;\x20]|[~\x20\xa0\u2009\u202f])"  # between thousands
_CURRENCY = r"(?:(?:US)?\\?\$|[€£¥₹]|\\text\{(?:\\?\$|[€£¥₹])\}|USD)"
_NUMBER = re.compile(
    rf"""
    {_CURRENCY}?\s*
    (?P<value>[-+−]?(?:\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{{1,3}})?)\.?
    (?:
        (?:\s|~|\\[ ,])*\\(?:text|mathrm)\{{\s*(?P<marked_words>[^{{}}\d]*)\}}
        |\s+(?P<words>[A-Za-z]{{3,}}(?:[ ][A-Za-z]+){{0,2}})
    )?
    \s*\$?""",
    re.VERBOSE,
)
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = ("half", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth")
# Words behind a number that are no units: what they multiply it by.
_MULTIPLIERS = {
    name: scale
    for word, scale in (
        *((word, Fraction(scale)) for word, scale in _SCALES.items()),
        *((f"{word}th", Fraction(1, scale)) for word, scale in _SCALES.items() if word != "dozen"),
        *((word, Fraction(1, number)) for number, word in enumerate(_PARTS, start=2)),
    )
    for name in (word, f"{word}s")
} | {"halves": Fraction(1, 2)}
_MARKED_WORDS = re.compile(r"\\(?:text|mathrm|textbf|textit)\{([^{}]*)\}")
_NO_UNITS = frozenset({"plus", "minus", "times", "over", "point", "squared", "cubed", "factorial"})
_CHANGED_BY_WORDS = re.compile(  # "7\\text{ times}" may be how often
    r"(?:(?<=[\d)}])|(?<=\\pi))(?:\s|~|\\[ ,;!])*\\(?:text|math|mbox)[a-z]*"
    r"\{[\s~]*(?:plus|minus|point|squared|cubed|factorial)\b"
)
_UNIT_WITH_PARTS = (
    r"(?:days?|weeks?|years?|h|hrs?|hours?|min|mins|minutes?|ft|feet|foot|yards?|lbs?|pounds?|km|m|kg|dollars?)"
)
_NUMBER_WORD = (
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"
)
_LEFT_OPEN = re.compile(
    r"(?i)\b(?:n?or|not|n?either)\b|!=|\\(?:neq?|not|lor|vee|leq?|geq?|[lg]t)(?![A-Za-z])|[≠<>≤≥]|(?<=\d)\s?_|(?<!\\)\$.*(?<!\\)\$"
    r"|(?<=[\d}])\s?\.(?:\s|~|\\[ ,;!])+[-+−]?[\d.]|\.\d*\\(?:overline|bar|dot)(?![A-Za-z])"
    r"|(?:[-+−*/^=×·÷]|\\(?:cdot|times|div|pm|mp))\Z"
    r"|(?<=[\d}])(?:\s|~|\\[ ,;!])*\\(?:boxed|fbox|(?:text|math)[a-z]*\{(?:[^{}]*[^{}A-Za-z^_\d./])?[-+−]?[\d.]*\d)"
    # "3 h 20 min", "7 and a half": what follows the words belongs to the value.
    rf"|(?<=[\d}}])(?:\s|~|\\[ ,;!])*\\(?:text|math|mbox)[a-z]*"
    rf"\{{(?:[^{{}}]*\b(?:and|plus)|[\s~]*{_UNIT_WITH_PARTS})[\s~]*\}}"
    r"(?:[\s~(]|\\[ ,;!]|\\left)*[-+−]?(?:\.?\d|\\[dt]?frac\s*\{?\d|\\sqrt)"
    rf"|\band (?:an? (?:half|third|quarter)\b|{_NUMBER_WORD}(?=\x20[a-z]|\Z))"
)
_PERCENT_SIGN = r"(?:\\?%|per\x20?cent|pct)"
_PERCENT = re.compile(
    rf"(?i)(?:\s|~|\\[ ,;!])*(?:{_PERCENT_SIGN}|\\(?:text|mathrm)\{{\s*{_PERCENT_SIGN}\s*\}})\.?\s*\$?\s*\Z"
)
_MODULUS = re.compile(
    r"(?:\s|~|\\[ ,;!])*(?:\\text\{\s*)?(?:\\pmod|\((?:\\(?:text|mathrm)\{)?\\?b?mod)(?:[{}()\s~\d]|\\[ ,;!])*\.?\s*\Z"
)
_LEAD = re.compile(
    r"(?i)\A\s*(?:(?:\\text\{\s*)?(?:the\s+)?(?:final\s+)?answer(?:\s+is\b\s*:?|\s*:)\s*\}?"
    r"|\\approx(?![a-z])|\\text\{\s*(?:about|approximately)\s*\})(?:\s|~|\\[ ,;!])*"
)
_LABEL = re.compile(r"\s*(?:\\(?:text|math)[a-z]*\{\s*)?\(([A-J])\)(?:\s|~|\\[ ,;:!]|\})*(?=[^\s)}])")
# Signs in the place of those that math-verify reads: the wide forms of Chinese and Japanese, dashes, slashes and dots.
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_SIGNS: dict[int, int | str] = {
    **_WIDE,
    **str.maketrans("\u2010\u2011\u2012\u2013\ufe63\u207b\u2044\u2236\u2019\u3001\u3002", "------/:',."),
    ord("\N{INFINITY}"): r"\infty ",
}
_TIMES = re.compile(r"(?<=[\d)}])\s*[\u00b7\u2022\u2715\u2716\u2a2f]\s*(?=[\d\\(])")
_SPACE = r"(?:\s|~|\\[ ,;!])"
_ROOT = re.compile(r"\u221a(\d+)")
_WHOLLY_TEXT = re.compile(r"\s*\\(?:(?:text|math)[a-z]*|underline)\{([^{}]*\d[^{}]*)\}\s*")
_LAST_POINT = re.compile(r"(?<=[^\s.,])(?<!\\right)\s*\.\s*\Z")
_MIXED = re.compile(rf"(?<![\d.,/^}}])(\d+){_SPACE}+(\d+)\s*/\s*(\d+)(?![\d./])|(?<=\d)~+(?=\\[dt]?frac)")
_GAP = rf"(?:{_SPACE}|\\q?quad(?![a-z]))*"
_CONNECTED = re.compile(
    rf"(?:(?<=[\d)}}])|(?<=\\pi)){_GAP}(?:\\(?:text|mathrm|mbox)[a-z]*\{{[\s~]*(or|and)[\s~]*\}}|(?<=\s)(or|and)(?=\s)|\\(?:lor|vee)(?![a-z]))"
    rf"{_GAP}(?=[-+\d\\(]|[A-Za-z]\w*\s*=)"
)
_OTHER_VALUE = re.compile(
    rf"(?:(?<=[\d)}}])|(?<=\\pi)){_GAP}\\(?:text|mathrm|mbox)[a-z]*\{{(?![\s~]*(?:or|and)[\s~]*\}})[^{{}}]*[A-Za-z]{{2}}[^{{}}]*\}}{_GAP}"
    r"[-+−]?(?:\d|\\[dt]?frac\s*\{?\d|\\sqrt|\\pi)"
)
# Behind a number. math-verify takes "2i" for an unknown, "2 i" for a complex number, and "2\mathrm{i}" for 2.
_IMAGINARY = re.compile(
    rf"(?<=\d)(?:{_SPACE}|\\cdot)*(?:\\?i(?:math)?|\\(?:mathrm|text)\{{\s*i\s*\}})(?![A-Za-z{{])"
    r"|(?<![A-Za-z\\_{])i(?=\d)"  # "i2"
)
_POWER_OF_TEN = re.compile(r"(?<=\d)[eE]([-+]?\d{1,3})(?![\d.])")
_REPEATING = re.compile(r"(?<![\d.,}])(\d*)\.(\d*)\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))(?![\d\\])")
# Beside letters and spaces, what is not ASCII and read for what it is: minus, times, over, root, units and relations.
_READ_SIGNS = frozenset(
    "\u2212\u00d7\u00f7\u2215\u22c5\u2219\u2217\u221a\u00b0\u2032\u2033\u20ac\u00a3\u00a5\u2248\u2260\u2264\u2265"
)
_NUMERALS = frozenset("\u5341\u767e\u5343\u4e07\u842c\u4ebf\u5104\u5146")  # ten, a hundred, a thousand, ... in Chinese


def read_number(text: str) -> Fraction | None:
    """The value of a plain number, which may have thousands separators, and a scale or a unit in words behind it."""
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= MAX_ANSWER_CHARS else None
    if match is None:
        return None
    words = (match["words"] or match["marked_words"] or "").lower().split()
    if is_left_open(" ".join(words)) or _NO_UNITS.intersection(words):
        return None
    value = Fraction(re.sub(_SEPARATOR, "", match["value"]).replace("−", "-"))
    return prod((_MULTIPLIERS[word] for word in takewhile(_MULTIPLIERS.__contains__, words)), start=value)


def read_share(text: str) -> Fraction | None:
    """As `read_number`; of a percentage its hundredth part."""
    if len(text) > MAX_ANSWER_CHARS or (sign := _PERCENT.search(text)) is None:
        return read_number(text)
    percent = read_number(text[: sign.start()])
    return None if percent is None else percent / 100


def plainly_written(text: str) -> str:
    """`text` with the signs that math-verify knows ("5\N{FULLWIDTH SOLIDUS}6" as "5/6", where it would read 5);
    repeating decimals as fractions; mixed numbers, roots, complex numbers and connected equations in LaTeX."""
    text = _TIMES.sub(r"\\cdot ", text.translate(_SIGNS).replace("{.}", ".").replace(r"{\,}", r"\,"))
    if len(text) > MAX_ANSWER_CHARS:
        return text
    text = _WHOLLY_TEXT.sub(r"\1", text) if _WHOLLY_TEXT.fullmatch(text) else text
    text = _LAST_POINT.sub("", text.replace(r"\varnothing", r"\emptyset"))
    text = _CONNECTED.sub(lambda word: rf"\text{{ {word[1] or word[2] or 'or'} }}", _ROOT.sub(r"\\sqrt{\1}", text))
    return _IMAGINARY.sub(" i ", _MIXED.sub(_as_mixed, _REPEATING.sub(_as_fraction, text)))


def for_the_judge(reference: str, text: str) -> str:
    """`text` with the percent sign and the power of ten that math-verify reads. "2e-1" is one only where the reference
    has one: it may be Euler's number."""
    text = _POWER_OF_TEN.sub(r"\\times 10^{\1}", text) if "10^" in reference else text
    return _PERCENT.sub(r"\\%", text)


def _as_mixed(number: re.Match[str]) -> str:
    whole, part, of = number.groups()
    if whole is None:
        return ""
    return rf"{whole}\frac{{{part}}}{{{of}}}" if int(part) < int(of) else number[0]


def _as_fraction(decimal: re.Match[str]) -> str:
    whole, once, period = decimal[1], decimal[2], decimal[3] or decimal[4]
    scale = 10 ** len(once)
    value = Fraction(int(f"0{whole}{once}"), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def without_modulus(answer: str) -> str:
    """`7\\pmod{10}` as `7`: of a class of numbers its representative."""
    return _MODULUS.sub("", answer)


def without_lead(answer: str) -> str:
    """`The answer is 7` as `7`."""
    return _LEAD.sub("", answer)


def without_label(answer: str) -> str:
    """`\\textbf{(C)}\\ 7` as `7`."""
    value = _LABEL.sub("", answer, count=1) if _LABEL.match(answer) else answer
    return answer if re.search(r"\([A-J]\)", value) else value  # a list of choices


def is_left_open(answer: str) -> bool:
    """Whether an answer names several values, a bound or a number of another base, says what the value is not, breaks
    off behind an operator, goes on in a smaller unit (`3\\text{ h }20\\text{ min}`), or holds signs that nobody reads
    ("5\u00bd"), where one number is asked for. math-verify reads past such signs, and takes one value of several
    formulas ("8$, or $7") or sentences ("6. 5").
    """
    return _LEFT_OPEN.search(answer.strip("$ ")) is not None or _holds_unread(answer)


def _holds_unread(answer: str) -> bool:
    """Whether a sign that is not ASCII is read past. Behind a letter it is part of a unit or a name ("cm\u00b2")."""
    signs = [sign for before, sign in pairwise(f" {answer}") if not before.isalpha() and not sign.isascii()]
    return not _NUMERALS.isdisjoint(answer) or any(
        sign not in _READ_SIGNS and unicodedata.category(sign)[0] not in "LZ" for sign in signs
    )


def names_multiplier(text: str) -> bool:
    """Whether a word in the LaTeX multiplies or changes what stands before it ("\\frac12\\text{ million}",
    "7\\text{ squared}"): math-verify reads past it."""
    marked = " ".join(_MARKED_WORDS.findall(text)).lower().split()
    return not _MULTIPLIERS.keys().isdisjoint(marked) or _CHANGED_BY_WORDS.search(text) is not None


def goes_on_in_words(text: str) -> bool:
    """Whether words stand between values ("\\frac12\\text{ or rather }\\frac13"): math-verify reads the first."""
    return _OTHER_VALUE.search(text) is not None


def same_number(given: Fraction, right: Fraction) -> bool:
    """Whole numbers are not rounded relative to their size: 1234567 is not 1234568."""
    return abs(given - right) <= TOLERANCE * (1 if right.denominator == 1 else abs(right))
