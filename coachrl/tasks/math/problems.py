"""Mathematics problems with a short answer: made of the entries of files and data sets, and graded.

A reply is right when its last \\boxed{...} equals the reference answer: plain numbers, with or without a unit, are
compared here; everything else is put to math-verify (`tasks/math/judge.py`).
"""

from __future__ import annotations

import atexit
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import isfinite
from string import ascii_uppercase
from typing import Any

import numpy as np

from coachrl.config.choices import import_function, user_code
from coachrl.config.tasks import ProblemFields
from coachrl.errors import TaskError
from coachrl.tasks.math.judge import MAX_ANSWER_CHARS, MathJudge
from coachrl.tasks.math.plain_numbers import (
    for_the_judge,
    goes_on_in_words,
    is_left_open,
    names_multiplier,
    plainly_written,
    read_number,
    read_share,
    same_number,
    without_label,
    without_lead,
    without_modulus,
)
from coachrl.tasks.records import Entry, Source
from coachrl.tasks.split import normalised, of_own_id
from coachrl.text import brief, nearest, one_line, visible
from coachrl.types import Outcome, Task

log = logging.getLogger(__name__)

_PROBLEM_KEYS = ("prompt", "problem", "question")
_ANSWER_KEYS = ("answer", "solution")
_CATEGORY_KEYS = ("category", "source")
_SHOWN_KEYS = 8  # of an entry, in an error
# An escaped brace is a set's, not the box's; a box that is escaped, as in JSON, is one all the same.
_BRACE = re.compile(r"\\boxed\s*\{|\\(?!\\boxed\s*\{).|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$]+)")
_SEVERAL_ACCEPTED = re.compile(r"\s*\([^()]*\baccepted\b[^()]*\)$")

_PERCENT = re.compile("(?i)%|per ?cent")  # in a problem
# What no name of an unknown begins with: "\frac{AB}{CD}" does.
_VALUE = re.compile(r"\s*[-+−]?\s*(?:[\d.]|\\[dt]?frac(?!\s*\{\s*[A-Za-z\[])|\\sqrt|\\pi)")
_SEVERAL = re.compile(r"[,;]|\\(?:lor|vee|pm|quad)(?![a-z])|\b(?:or|and)\b")  # between values
_ORDERED = re.compile(r"\s*(?:\\left)?\s*[(\[]")
_SET = re.compile(r"\s*(?:\\left)?\s*\\[{]")
_NAMED = re.compile(r"((?:[^=()]|\([^()]*\))+)(?<!!)=([^=]+)")
_ARGUMENTS = re.compile(r"(?<=[A-Za-z})])\s*(?:\([^()]*\)|\[[^\[\]]*\])")
_UNKNOWN = re.compile(r"(?:\A|(?<=[\s,;}\\]))([A-Za-z]+(?:_\{?\w+\}?)?)\s*=")
_BOUND = re.compile(r"[<>≤≥]|\\[lg](?:e|eq|eqslant|t)(?![a-z])")
_INTERVAL = re.compile(r"[(\[\]]|\\(?:mathbb|emptyset|cup|infty)")
_RANKED = 3  # letters, at least
_AROUND_CHOICE = re.compile(r"\\(?:text|math)[a-z]*|\\underline|\\(?=[ ,;:!])|[{}*~$]")
_CHOICE = re.compile(
    r"\s*(?:(?i:(?:the )?(?:correct )?(?:answer|option|choice)(?: is)?):?\s*)?"
    r"(?:\(\s*([A-J])\s*\)|([A-J])(?=\s*(?:[.):]|\Z)))(.*)",
    re.DOTALL,
)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z])(?:[A-J]|[IVX]+)(?![A-Za-z])")
_AROUND_LETTERS = re.compile(r"\\(?:text|math|boxed|left|right|to|cdot|quad)[a-z]*|\\[ ,;!]|->|[-\s~{}()\[\].,;$]")

_judge = MathJudge()
atexit.register(_judge.close)


@dataclass(frozen=True)
class MathTruth:
    """The reference answer, LaTeX or plain. solution: how it comes about, where the task set says so. grader: the
    import path of a function of (answer, reference) that compares them in place of math-verify. in_percent: whether the
    problem asks for a percentage: then "5%" is an answer of 5."""

    answer: str
    solution: str = ""
    grader: str = ""
    in_percent: bool = False


def math_tasks(source: Source, entries: Sequence[Entry], fields: ProblemFields, limit: int | None = None) -> list[Task]:
    """The first `limit` entries of a source as tasks.

    A task's id is "<file stem>-<id, or position from 1>". Its category is `category`, or `source`, or the file stem,
    with "-level-<level>" where there is one. Other fields are ignored. Raises TaskError that names source and entry.
    """
    places = [(f"{source.where}, {where}", _with_inner(entry)) for where, entry in entries[:limit]]
    if source.is_table and places:
        _check_columns(places[0][1], source.where, fields)
    tasks = of_own_id(
        (place, _task(entry, source.stem, place, position, fields))
        for position, (place, entry) in enumerate(places, start=1)
    )
    if not tasks:
        raise TaskError(f"{source.where}: it holds no problems")
    return tasks


def check_disjoint(train: Iterable[Task], heldout: Iterable[Task]) -> None:
    """Raises TaskError naming the training tasks whose problem, but for case and white space, is held out."""
    shared = _overlap(train, heldout)
    if shared:
        named = ", ".join(task.id for task in shared[:5]) + (", …" if len(shared) > 5 else "")
        raise TaskError(f"{len(shared)} training problems are held-out problems too: {named}")


def without_overlap(train: Sequence[Task], heldout: Iterable[Task]) -> list[Task]:
    """`train` without the problems that are held out, with a warning of how many were dropped. Some benchmarks hold
    their evaluation set inside the whole one. Raises TaskError where nothing is left to train on."""
    shared = {task.id for task in _overlap(train, heldout)}
    kept = [task for task in train if task.id not in shared]
    if shared:
        log.warning("dropped %d of %d training problems that are held-out problems too", len(shared), len(train))
    if not kept:
        raise TaskError(f"all {len(train)} training problems are held-out problems too; nothing is left to train on")
    return kept


def final_answer(text: str) -> str | None:
    """Contents of the last \\boxed{...} with balanced braces in the visible reply; None where there is none or it is
    blank."""
    return last_box(visible(text)) or None


def last_box(text: str) -> str | None:
    """The contents of the closed ``\\boxed{...}`` that ends last; None where there is none."""
    spans = boxed_spans(text)
    return text[slice(*spans[-1])].strip() if spans else None


def boxed_spans(text: str) -> list[tuple[int, int]]:
    """Begin and end of the contents of every closed ``\\boxed{...}``, braces balanced, in the order in which they
    end. One pass, however many never close, or stand in each other."""
    spans: list[tuple[int, int]] = []
    open_braces: list[int | None] = []  # where the contents begin for a box's brace, None for any other
    for match in _BRACE.finditer(text):
        if match.group() == "}":
            begin = open_braces.pop() if open_braces else None
            if begin is not None:
                spans.append((begin, match.start()))
        elif match.group().endswith("{") and match.group() != r"\{":
            open_braces.append(match.end() if match.group() != "{" else None)
    return spans


def grade_math(text: str, truth: MathTruth) -> Outcome:
    """The outcome of an episode whose last reply is `text`. It may take seconds: call it in a thread from async code.

    metrics: correct and boxed, 0 or 1.
    """
    answer = final_answer(text)
    reference = f"{truth.answer} ({truth.solution})" if truth.solution else truth.answer
    if answer is None:
        return Outcome(
            success=False,
            metrics={"correct": 0.0, "boxed": 0.0},
            reason="no \\boxed answer",
            summary=f"Reference answer: {reference}. The final reply holds no \\boxed answer, so it is not correct.",
        )
    if truth.grader:
        equal = _own_verdict(truth.grader, answer, truth.answer)
    else:
        equal = any(same_answer(right, answer, truth.in_percent) for right in _right_answers(truth.answer))
    brief = answer if len(answer) <= 200 else f"{answer[:200]} ..."  # the agent's own words: nothing stands after them
    return Outcome(
        success=equal,
        metrics={"correct": float(equal), "boxed": 1.0},
        reason="" if equal else "wrong answer",
        summary=f"Reference answer: {reference}. The final answer is {'correct' if equal else 'not correct'}. "
        f"It reads: {brief}",
    )


def with_grader(tasks: Sequence[Task], path: str) -> list[Task]:
    """The tasks, graded by the function at `path`. Raises ConfigError where there is none."""
    find_grader(path)
    return [replace(task, ground_truth=replace(task.ground_truth, grader=path)) for task in tasks]


def find_grader(path: str) -> Callable[[str, str], Any]:
    """The function of (answer, reference) at `path`. Raises ConfigError where there is none."""
    return import_function(path, "grader", ("answer", "reference"))


def _own_verdict(path: str, answer: str, reference: str) -> bool:
    """Raises TaskError where the user's function fails, or gives neither True nor False."""
    with user_code(f"grader {path} failed", TaskError):
        equal = find_grader(path)(answer, reference)
    if not isinstance(equal, (bool, np.bool_)):
        raise TaskError(f"grader {path} gave {brief(equal)}, neither True nor False")
    return bool(equal)


def _task(entry: Any, stem: str, place: str, position: int, fields: ProblemFields) -> Task:
    if not isinstance(entry, Mapping):
        raise TaskError(f"{place}: it must be an object with a problem and its answer, not {type(entry).__name__}")
    problem_key = _key(entry, "problem", fields.problem, _PROBLEM_KEYS, place)
    problem = _asked(entry[problem_key])
    if not isinstance(problem, str) or not problem.strip():
        messages = ", or one message of a user's" if isinstance(problem, list) else ""
        raise TaskError(
            f"{place}: '{one_line(problem_key)}' must hold the problem's text{messages}, not {brief(problem)}"
        )
    kinds = [entry.get(key) for key in ([fields.category] if fields.category else _CATEGORY_KEYS)]
    category = next((str(kind) for kind in kinds if kind not in (None, "")), stem)  # kinds may be numbered from 0
    level = entry.get(fields.level or "level")
    if level not in (None, ""):
        category += f"-level-{str(level).lower().removeprefix('level').strip()}"
    name = entry.get(fields.id or "id")
    return Task(
        id=f"{stem}-{position if name in (None, '') else name}",
        category=category,
        prompt=problem.strip(),
        ground_truth=MathTruth(
            _reference(entry, _key(entry, "answer", fields.answer, _ANSWER_KEYS, place), place),
            in_percent=_PERCENT.search(problem) is not None,
        ),
    )


def _with_inner(entry: Any) -> Any:
    """The entry with what its objects hold as fields of its own: the answer of verl's data is
    `reward_model.ground_truth`."""
    if not isinstance(entry, Mapping):
        return entry
    objects = [(name, held) for name, held in entry.items() if isinstance(held, Mapping)]
    inner = {f"{name}.{key}": value for name, held in objects for key, value in held.items()}
    return {**entry, **inner, **entry} if inner else entry


def _asked(problem: Any) -> Any:
    """The problem as text, where it is one message of a user's, as in TRL's and verl's data."""
    if isinstance(problem, list) and len(problem) == 1 and isinstance(problem[0], Mapping):
        return problem[0].get("content") if problem[0].get("role") == "user" else problem
    return problem


def _check_columns(columns: Mapping[str, Any], where: str, fields: ProblemFields) -> None:
    """What a table lacks, it lacks in its header and not in its first row. Raises TaskError."""
    _key(columns, "problem", fields.problem, _PROBLEM_KEYS, where, "column")
    _key(columns, "answer", fields.answer, _ANSWER_KEYS, where, "column")
    for what in ("category", "level", "id"):
        if (wanted := getattr(fields, what)) is not None:
            _key(columns, what, wanted, (), where, "column")


def _key(
    entry: Mapping[str, Any], what: str, wanted: str | None, usual: Sequence[str], place: str, noun: str = "field"
) -> str:
    """The field of the entry that holds `what`: the wanted one, or the first of the usual ones. noun: what messages
    call a field. Raises TaskError."""
    found = next((key for key in ([wanted] if wanted else usual) if key in entry), None)
    if found is not None:
        return found
    has = f"it has {', '.join(one_line(str(key), 40) for key in list(entry)[:_SHOWN_KEYS]) or f'no {noun}s'}"
    if wanted:
        raise TaskError(
            f"{place}: no {noun} '{one_line(wanted)}' (tasks.fields.{what}){nearest(wanted, entry)} ({has})"
        )
    raise TaskError(f"{place}: no {noun} {' or '.join(usual)}; {has}: set tasks.fields.{what}=NAME")


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _reference(entry: Mapping[str, Any], key: str, place: str) -> str:
    """The answer as text: 142.0 is "142", ["2"] is "2". Of a solution it is what stands in the last \\boxed{...}, or
    behind ####, or the whole where that is a number."""
    answer = entry[key]
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, float | Decimal) and isfinite(answer):
        answer = int(answer) if answer == int(answer) else format(Decimal(str(answer)), "f")
    text = "" if isinstance(answer, bool) or not isinstance(answer, str | int) else str(answer).strip()
    if not text or text.casefold() == "nan":
        raise TaskError(f"{place}: '{one_line(key)}' must be a number or text, not {brief(answer)}")
    if "\\boxed" in text or "\\fbox" in text or (key == "solution" and "####" not in text and not _is_number(text)):
        text = _boxed_of_solution(text)
        if not text:
            raise TaskError(f"{place}: '{one_line(key)}' is no number, and has no answer in \\boxed{{…}} or after ####")
    elif "####" in text:
        text = text.rpartition("####")[2].strip()
        if not text:
            raise TaskError(f"{place}: '{one_line(key)}' has no answer behind ####")
    if len(text) > MAX_ANSWER_CHARS:
        raise TaskError(f"{place}: an answer of {len(text)} characters cannot be graded; at most {MAX_ANSWER_CHARS}")
    return text


def _boxed_of_solution(text: str) -> str:
    """The contents of the last box, which in MATH may also be `\\fbox{5}` or `\\boxed 5`; empty where there is none."""
    text = text.replace("\\fbox", "\\boxed")
    bare = _BARE_BOX.findall(text)
    return final_answer(text) or (bare[-1].rstrip(".,") if bare else "")


def _overlap(train: Iterable[Task], heldout: Iterable[Task]) -> list[Task]:
    held = {normalised(task.prompt) for task in heldout}
    return [task for task in train if normalised(task.prompt) in held]


def _right_answers(reference: str) -> list[str]:
    """AIME lists give a few answers as "080 or 081 (both were accepted)"."""
    answers, several = _SEVERAL_ACCEPTED.subn("", reference)
    return answers.split(" or ") if several else [reference]


def same_answer(reference: str, answer: str, in_percent: bool = True) -> bool:
    """Whether an answer equals the reference by the rules that grade it. It may take seconds, as `grade_math`.

    in_percent: whether a percentage may stand for its number ("5%" for 5), and not for its hundredth part alone."""
    reference, answer = plainly_written(reference), plainly_written(answer)
    if reference.split() == answer.split():
        return True
    if len(answer) > MAX_ANSWER_CHARS:  # no judge takes it, and to look for a modulus in 64 KiB of blanks takes an hour
        return False
    right_choice, words = _choice(reference)
    choice, _ = _choice(answer)
    if choice and right_choice and not words:  # "E. coli" is no choice
        return choice == right_choice
    answer = without_lead(answer)
    if not right_choice:
        answer = without_label(answer)
    if "mod" not in reference:
        answer = without_modulus(answer)
    if "=" not in reference:
        answer = _without_name(answer)
    read = read_number if in_percent else read_share
    right, given = read_number(reference), read(answer)
    if right is not None and given is not None:
        return same_number(given, right)
    if right is not None and is_left_open(answer):
        return False
    if any(changed(answer) and not changed(reference) for changed in (names_multiplier, goes_on_in_words)):
        return False
    if _ORDERED.match(reference) and _SET.match(answer):
        return False
    if _BOUND.search(reference) and not (_BOUND.search(answer) or _INTERVAL.search(answer)):
        return False  # math-verify takes the ends of an interval for the interval
    if _is_ranking(reference):
        return _AROUND_LETTERS.sub("", answer) == reference
    if right is None:
        reference, answer = for_the_judge(reference, reference), for_the_judge(reference, answer)
    # The whole answer first, which must be short: each side of a chain is a question more.
    return _judge.equal(reference, answer) is True and all(
        _side_equal(reference, right, side, read(side)) for side in _claimed(reference, right, answer)
    )


def _is_ranking(reference: str) -> bool:
    """Whether A, B, C, … stand in it once each, in an order of its own: math-verify would take letters for factors.
    In the order of the alphabet they may be a choice of several, or a triangle."""
    letters = sorted(reference)
    return len(letters) >= _RANKED and list(reference) != letters == list(ascii_uppercase[: len(letters)])


def _choice(text: str) -> tuple[str, str]:
    """The letter of a choice that a text is, or begins with ("(B)", "\\textbf{B.} 7"), and no other one, and what
    stands behind it. Empty where there is none."""
    match = _CHOICE.fullmatch(_AROUND_CHOICE.sub(" ", text))
    if match is None or is_left_open(match[3]) or _OTHER_CHOICE.search(match[3]):
        return "", ""
    return match[1] or match[2], match[3].strip(" .):")


def _without_name(answer: str) -> str:
    """`P(A\\mid B)=7` as `7`, what the name of the value may be: math-verify would have to make sense of it."""
    if (match := _NAMED.fullmatch(answer)) is None:
        return answer
    name, value = _ARGUMENTS.sub("", match[1]), match[2]
    if "=" in name or name.count("{") != name.count("}") or is_left_open(name):
        return answer
    return answer if _VALUE.match(name) or _SEVERAL.search(name) else value


def _claimed(reference: str, right: Fraction | None, answer: str) -> list[str]:
    """The sides of a chain of equations that are values: of several, math-verify reads one. One equation that answers
    another, and an equation for each of several values, are compared as a whole."""
    sides = answer.split("=")
    if len(sides) == 2 and "=" in reference:
        return []
    if len(sides) > 2 and right is None and _SEVERAL.search(reference) and all(map(_SEVERAL.search, sides[1:-1])):
        names = _UNKNOWN.findall(answer)
        if len(names) == len(sides) - 1 and (names == sorted(set(names)) or not _ORDERED.match(reference)):
            return []
    return [side for side in sides if len(sides) > 1 and _VALUE.match(side)]


def _side_equal(reference: str, right: Fraction | None, side: str, given: Fraction | None) -> bool:
    if right is not None and given is not None:
        return same_number(given, right)
    return _judge.equal(reference, side) is True
