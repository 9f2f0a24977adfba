"""Reads what agents wrote: numbers, arithmetic, boxed answers, code. Executes nothing."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import islice, pairwise

from coachrl.tasks.code.cooperation import parse_code
from coachrl.tasks.math.plain_numbers import TOLERANCE
from coachrl.tasks.math.problems import boxed_spans, last_box

_NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])", re.ASCII)
_SIGNED = re.compile(r"(?<![\w.)])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?", re.ASCII)
_EXPRESSION = re.compile(r"[-(\d][\d\s.+\-*/()]*", re.ASCII)
_NO_END = " \t\r\f\v.+-*/("  # what an expression does not end with
_TIMES = re.compile(r"\\times|\\cdot|×|·|(?<=\d)\s*[xX]\s*(?=[\d(])")
_DIVIDE = re.compile(r"\\div|÷")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_STOP = re.compile(r"\.(?=\s|$)|^[^\S\n]*\d+\)(?=\s)", re.MULTILINE)  # ends of sentences, "1)" and "1." of lists
_STATED = re.compile(r"[\s$]*-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?=\s*(?:$|[;,.$=]|[A-Za-z]))", re.ASCII)
_MAX_EXPRESSION_CHARS = 200
_MAX_POWER = 64
# How many of one unit make another, halves, and what counts and percentages start from.
_USUAL_NUMBERS = frozenset(map(Fraction, (0, 1, 2, 7, 10, 12, 24, 30, 31, 52, 60, 100, 365, 1000)))
_NUMBER_WORDS = re.compile(
    r"%|percent|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|\w+ty|hundred|thousand|half|"
    r"halves|third|thirds|quarters?|fourths?|fifths?|tenths?|once|twice|thrice|double[sd]?|triple[sd]?|dozens?|pair|couple)"
    r"\b",
    re.IGNORECASE,
)
_WORDS_FOR = {
    word: Fraction(value)
    for value, words in (
        (1, "one once"),
        (2, "two twice half halves double doubled doubles pair couple"),
        (3, "three thrice third thirds triple tripled triples"),
        (4, "four quarter quarters fourth fourths"),
        (5, "five fifth fifths"),
        (6, "six"),
        (7, "seven"),
        (8, "eight"),
        (9, "nine"),
        (10, "ten tenth tenths"),
        (11, "eleven"),
        (12, "twelve dozen dozens"),
        (13, "thirteen"),
        (14, "fourteen"),
        (15, "fifteen"),
        (16, "sixteen"),
        (17, "seventeen"),
        (18, "eighteen"),
        (19, "nineteen"),
        (20, "twenty"),
        (30, "thirty"),
        (40, "forty"),
        (50, "fifty"),
        (60, "sixty"),
        (70, "seventy"),
        (80, "eighty"),
        (90, "ninety"),
        (100, "hundred percent %"),
        (1000, "thousand"),
    )
    for word in words.split()
}
"""What is worked with where a problem says so in words: half of it is divided by 2."""
_TENS = frozenset(map(Fraction, range(20, 100, 10)))
_MOST_EQUATIONS = 200  # that are checked: more are no working
_MAX_NUMBER_CHARS = 1000  # nobody means a longer one, and Python reads none of more than 4,300 digits
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
KINDS_OF_ESTIMATORS = {
    "classification": re.compile(
        r"\w+Classifier(CV)?|LogisticRegression(CV)?|\w*SVC|\w+NB|Perceptron|\w+DiscriminantAnalysis"
    ),
    "regression": re.compile(
        r"\w+Regressor|LinearRegression|\w*Ridge(CV)?|\w*Lasso(CV|IC)?|(MultiTask)?ElasticNet(CV)?|\w*SVR|ARDRegression|PLSRegression"
    ),
}
"""Task category -> names of the estimators of scikit-learn, XGBoost, LightGBM and CatBoost that are made for it."""
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}


def numbers_in(text: str) -> tuple[Fraction, ...]:
    """The numbers that stand in `text`, unsigned, in order. "1,200" is one number; digits without end are none."""
    return tuple(map(_fraction, _readable(_NUMBER.findall(text))))


def numbers_given(text: str) -> set[Fraction]:
    """The numbers that a problem gives, in digits or in words."""
    named = [_WORDS_FOR.get(word, Fraction(0)) for word in re.findall(r"[a-z]+|%", text.lower())]
    # "twenty-five" gives 25.
    tens_and_ones = {tens + ones for tens, ones in pairwise(named) if tens in _TENS and 0 < ones < 10}
    return {*numbers_in(text), *filter(None, named), *tens_and_ones}


def last_number(text: str) -> Fraction | None:
    """The last number of `text` with its sign, or None."""
    found = _readable(_SIGNED.findall(text))
    return _fraction(found[-1]) if found else None


def answer_of(text: str) -> Fraction | None:
    """The number that `text` gives as its answer: the last boxed one, else what the arithmetic on its last line comes
    to, else its last number."""
    boxed = last_box(text)
    answer = text if boxed is None else boxed
    lines = answer.strip().splitlines()
    expressions = expressions_in(lines[-1]) if lines else ()
    return evaluate(expressions[-1]) if expressions else last_number(answer)


def stated_result(text: str) -> Fraction | None:
    """The number that `text` plainly ends in: its last boxed one, or what the arithmetic on its last line comes to."""
    lines = text.strip().splitlines()
    return answer_of(text) if boxed_spans(text) or (lines and expressions_in(lines[-1])) else None


def same_number(left: Fraction | None, right: Fraction | None) -> bool:
    """Whether both are there and equal, but for the rounding of floats. Whole numbers have none, however large."""
    if left is None or right is None:
        return False
    if left.denominator == right.denominator == 1:
        return left == right
    return abs(left - right) <= TOLERANCE * max(Fraction(1), abs(right))


def after_last_box(text: str) -> str:
    """What follows the last closed ``\\boxed{...}``; all of `text` where there is none."""
    spans = boxed_spans(text)
    return text[spans[-1][1] + 1 :] if spans else text


def expressions_in(text: str) -> tuple[str, ...]:
    """The arithmetic expressions (at least one operator) of `text` that can be worked out, in order.

    ×, ÷, x between digits and the LaTeX signs are read as * and /.
    """
    plain = _DIVIDE.sub("/", _FRACTION.sub(r"(\1)/(\2)", _TIMES.sub("*", text))).replace("$", " ")
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    plain = _STOP.sub(";", plain)
    return tuple(
        candidate
        for line in plain.splitlines()
        for candidate in (run.rstrip(_NO_END) for run in _EXPRESSION.findall(line))
        if re.search(r"[\d)]\s*[+\-*/]", candidate) and evaluate(candidate) is not None
    )


def first_wrong_equation(text: str) -> str:
    """The first "16 / 8 = 3" whose sides differ, by more than rounding to the digits that are stated; else empty."""
    equations = (sides for line in text.splitlines() for sides in pairwise(line.split("=")))
    for left, right in islice(equations, _MOST_EQUATIONS):
        expressions, stated = expressions_in(left), _STATED.match(right)
        if not expressions or not left.rstrip(" $").endswith(expressions[-1].rstrip()) or stated is None:
            continue
        value, number = evaluate(expressions[-1]), stated.group().strip(" $")
        if value is not None and not _is_stated(value, number):
            return f"{expressions[-1].strip()} = {number}"[:80]
    return ""


def first_invented_number(text: str, problem: str) -> str:
    """The first number in the arithmetic of `text` that neither stands in the problem nor came of arithmetic before it,
    with where it stands; else empty. Of a problem that gives numbers in words, or in percent, nobody can say."""
    given = numbers_in(problem)
    if not given or _NUMBER_WORDS.search(problem):
        return ""
    known = {*given, *_USUAL_NUMBERS}
    for line in text.splitlines()[:_MOST_EQUATIONS]:
        for side in line.split("="):
            expressions = expressions_in(side)
            for expression in expressions:
                strange = next((number for number in numbers_in(expression) if number not in known), None)
                if strange is not None:
                    return f"{strange} in {expression.strip()}"[:80]
                known.add(abs(evaluate(expression) or Fraction(0)))
            if not expressions:  # what a step is said to come to
                known.update(numbers_in(side))
    return ""


def _is_stated(value: Fraction, number: str) -> bool:
    """A whole number must be stated as it is; of a fraction so many digits as are given."""
    if len(number) > _MAX_NUMBER_CHARS:
        return value == _fraction(number[:_MAX_NUMBER_CHARS])
    return abs(value - _fraction(number)) < Fraction(1, 10 ** len(number.partition(".")[2]))


def evaluate(expression: str) -> Fraction | None:
    """The exact value of an arithmetic expression over numbers, or None where it is anything else.

    Only + - * / // % ** (powers up to 64), signs and parentheses are read; the tree is walked, never executed.
    """
    if len(expression) > _MAX_EXPRESSION_CHARS:
        return None
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("not a number")
        case ast.Constant(value=int() | float() as number):
            return Fraction(repr(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _value(left), _value(right)
            if power.denominator != 1 or abs(power) > _MAX_POWER or max(abs(base.numerator), base.denominator) > 10**9:
                raise ValueError("power too large")
            return base ** int(power)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("not arithmetic")


def computes(code: str) -> bool:
    """Whether `code` works something out: an operator, or a call other than ``print`` of what is already a constant."""
    tree = parse_code(code)
    return tree is not None and any(
        isinstance(node, ast.BinOp | ast.AugAssign | ast.Compare | ast.For | ast.While)
        or (isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "print"))
        for node in ast.walk(tree)
    )


def called_in(code: str) -> list[str]:
    """The names of what `code` calls. Comments and strings call nothing; code cut short is read as far as it goes."""
    tree = parse_code(code)
    if tree is None:
        return _CALLED.findall(code)
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = (getattr(function, "attr", getattr(function, "id", "")) for function in called)
    return [name for name in names if name]


def estimators_in(code: str) -> dict[str, tuple[str, ...]]:
    """Task category -> the estimators for it that `code` makes."""
    called = called_in(code)
    return {category: tuple(filter(names.fullmatch, called)) for category, names in KINDS_OF_ESTIMATORS.items()}


def _readable(numbers: list[str]) -> list[str]:
    return [number for number in numbers if len(number) <= _MAX_NUMBER_CHARS]


def _fraction(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))
