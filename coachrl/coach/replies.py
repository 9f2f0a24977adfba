"""How the reply of a coach model is read, whatever it must hold: its own words, what they state, and where they end.

A statement is a line of its own, ``KEY: value``, or the key of a JSON object that begins a line. Everything here takes
one pass over the text: a model can write 200 kB, and reading it must not hold up the episodes that go on meanwhile.
What a pattern has taken of blanks and emphasis it never gives back (``*+``), so that no text makes it search twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coachrl.errors import CoachError
from coachrl.parsing import is_number

# Blanks that are none of ASCII's (no-break, thin, ideographic), and marks that nobody sees: zero widths, a BOM, and
# those of the direction in which a script is written.
_BLANKS = " \t\r\f\v\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x2010))) + "\u202f\u205f\u2060\u3000\ufeff"
_EMPHASIS = "*_`"
_PAD = f"[{_BLANKS}{_EMPHASIS}]*+"
_LEAD = f"[{_BLANKS}{_EMPHASIS}#-]*+"
_REMARK = r"(?:\([^()\d]*\))"  # in brackets, without a number, which might be another score
_MINUS = "\u2212\u2011"  # as some models write it: the sign of typesetters, a hyphen at which no line breaks
_NUMBER = re.compile(
    rf"(?P<number>[-+{_MINUS}]?(?:\d+(?:\.\d*)?|\.\d+)){_PAD}"
    rf"(?:/{_PAD}10(?:\.0)?|out of 10)?{_PAD}(?:points?|pts)?{_PAD}"
    rf"{_REMARK}?",
    re.ASCII | re.IGNORECASE,
)
_ABSTAIN = re.compile(rf"ABSTAIN{_PAD}{_REMARK}?", re.IGNORECASE)
_LONGEST_VALUE = 300
# Thoughts that a server left in the reply, as the templates of many models write them: <think>, <seed:think>, [THINK]
# of Mistral, triangles of Kimi, <|channel|> of gpt-oss, <|channel> of Gemma; and what models write of themselves to
# think aloud.
_THOUGHT = "think|thinking|thoughts?"
_ALOUD = "reasoning|analysis|scratchpad|scratch|reflection|internal|(?:inner_)?monologue"
_END_OF_HIDDEN = re.compile(
    rf"</(?:\w{{1,20}}+:)?(?:{_THOUGHT}) ?>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>"
    r"|<\|channel\|>final(?: ?<\|constrain\|> ?\w{1,20})?<\|message\|>|<channel\|>",
    re.IGNORECASE,
)
_END_OF_ASIDE = re.compile(rf"{_END_OF_HIDDEN.pattern}|</(?:{_ALOUD})>", re.IGNORECASE)
_ASIDE = (
    rf"(?:<(?:\w{{1,20}}+:)?(?:{_THOUGHT}|{_ALOUD})(?: [^<>\n]{{0,99}}+)?>|\[THINK\]|\u25c1think\u25b7"
    r"|<\|begin_of_thought\|>|<\|channel\|>(?:analysis|commentary)\b|<\|channel>thought\b)"
)
_BEGIN_OF_ASIDE = (  # it begins its line, or ends it; one pattern of both would be tried at each letter
    re.compile(rf"^{_LEAD}{_ASIDE}", re.MULTILINE | re.IGNORECASE),
    re.compile(rf"{_ASIDE}{_PAD}$", re.MULTILINE | re.IGNORECASE),
)
# What may end a whole reply: a model's own tokens, where the server prints them, and the tag of an answer.
_CLOSING = re.compile(
    rf"(?:<\|\w{{1,30}}\|>|</s>|<(?:eos|end_of_turn|turn\|)>|\[e~\[|</(?:(?:final_)?answer|response)>)[{_BLANKS}\n]{{0,9}}\Z",
    re.I,
)
_LONGEST_CLOSING = 50
_MOST_CLOSINGS = 20  # a model in a loop may write a hundred thousand
_PAIRS = ("[]", "()", "<>", "{}", '""', "''", "$$")  # around a number
_OBJECT = re.compile(rf"^[{_BLANKS}]*+\{{", re.MULTILINE)
_LONGEST_REPLY = 1 << 20  # characters: more than any model's limit of tokens lets it write
# In search of objects. Each failure takes as long as what was read, and one pass to number its line: without bounds the
# reading of a long reply would take hours.
_MOST_PASSES = 2
_MOST_UNREADABLE = 100
_MOST_OBJECTS = 1000
_SHOWN_CHARS = 80


def own_words(reply: str) -> str:
    """The reply without its hidden thoughts. Raises CoachError where nothing is left, where an aside was never closed
    (nobody knows what in it the model would have stood by), and for a reply of more than a megabyte."""
    if len(reply) > _LONGEST_REPLY:
        raise CoachError(f"the reply has {len(reply):,} characters, of which at most {_LONGEST_REPLY:,} are read")
    text = reply.strip(_BLANKS + "\n")
    if _is_object(text):  # a tag in it is one that the coach speaks of, such as an agent's
        return text
    text = text[_last_end(_END_OF_HIDDEN, text) :].strip(_BLANKS + "\n")
    closed = _last_end(_END_OF_ASIDE, text)
    openings = [found.start() for begin in _BEGIN_OF_ASIDE if (found := begin.search(text, closed))]
    if not text or 0 in openings:
        raise CoachError("the reply holds nothing but hidden thoughts" if reply.strip() else "the reply is empty")
    if openings:
        raise CoachError("the reply ends in hidden thoughts: they were never closed")
    end = len(text)
    for _ in range(_MOST_CLOSINGS):
        closing = _CLOSING.search(text, max(0, end - _LONGEST_CLOSING), end)
        if closing is None:
            break
        end = closing.start()
    return text[:end]


@dataclass(frozen=True)
class Statement:
    """What a reply says under `key`, as it was written, and where that stands."""

    key: str
    value: Any
    start: int
    end: int


def statement_lines(*keys: str) -> re.Pattern[str]:
    """A pattern of lines that state one of `keys` (regular expressions): groups "key" and "value"."""
    before = rf"^{_LEAD}(?:<(?:final_)?answer>|\d{{1,2}}[.)] |[\u2022\u2013] )?+[{_EMPHASIS}]*+"
    return re.compile(rf"{before}(?P<key>{'|'.join(keys)}){_PAD}[:=\uff1a](?P<value>.*)$", re.IGNORECASE | re.MULTILINE)


def last_statements(lines: re.Pattern[str], text: str, key: Callable[[re.Match[str]], str]) -> list[Statement]:
    """What `lines` (of `statement_lines`) finds, in order, each under the `key` of its line. Of those that state the
    same the last alone: a model in a loop may say one thing ten thousand times."""
    found = {match.groups(): match for match in lines.finditer(text)}
    return [
        Statement(key(match), match["value"], match.start(), match.end())
        for match in sorted(found.values(), key=re.Match.end)
    ]


def json_objects(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """The JSON objects that begin a line of `text`, outermost ones only, each with where it ends. One that gives a key
    twice comes empty: nobody knows which is meant. Raises CoachError where there are more than a thousand."""
    decoder, position, read, unreadable = json.JSONDecoder(object_pairs_hook=_unique), 0, 0, 0
    characters_left = _MOST_PASSES * len(text)
    for match in _OBJECT.finditer(text):
        start = match.end() - 1
        if start < position:
            continue
        try:
            found, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            read_to = error.pos if isinstance(error, json.JSONDecodeError) else len(text)
            characters_left -= read_to - start
            unreadable += 1
            if characters_left < 0 or unreadable > _MOST_UNREADABLE:
                return
            continue
        read += 1
        if read > _MOST_OBJECTS:
            raise CoachError(f"the reply holds more than {_MOST_OBJECTS:,} JSON objects")
        yield found, position


def check_end(text: str, end: int, what: str) -> None:
    """Raises CoachError where more than emphasis and fences follows `end`: a statement before it may be quoted."""
    if text[end:].strip(_BLANKS + _EMPHASIS + "\n#.~-").lower() not in ("", "json"):
        raise CoachError(f"the reply does not end in its {what}: {shown(text[end:])} follows")


def one_number(stated: Iterable[Statement], key: str, low: float, high: float) -> float | None:
    """The number that is stated under `key`, once or again and again; None where it is ABSTAIN. Raises CoachError for
    none, for several, and for what is no number from `low` to `high`."""
    numbers = {number_within(one.value, key, low, high) for one in stated if one.key == key}
    if not numbers:
        raise CoachError(f"the reply has no line '{key}: n'")
    if len(numbers) > 1:
        said = sorted("ABSTAIN" if number is None else f"{number:g}" for number in numbers)
        raise CoachError(f"the reply contradicts itself: {' and '.join(said)} for {key}")
    return numbers.pop()


def number_within(value: Any, key: str, low: float, high: float) -> float | None:
    """The number that stands as `value` of `key`, or None for ABSTAIN. Raises CoachError for anything else."""
    wanted = f"one number from {low:g} to {high:g}"
    if isinstance(value, str):
        stated = bare(value)
        if _ABSTAIN.fullmatch(stated):
            return None
        match = _NUMBER.fullmatch(stated) if len(stated) <= _LONGEST_VALUE else None
        if match is None:
            raise CoachError(f"{key} is not {wanted}: {shown(value)}")
        value = float(re.sub(f"[{_MINUS}]", "-", match["number"]))
    if not is_number(value):
        raise CoachError(f"{key} is not {wanted}: {shown(repr(value))}")
    if not low <= value <= high:  # NaN fails this too
        raise CoachError(f"{key} is outside {low:g} to {high:g}: {shown(repr(value))}")
    return float(value) + 0.0  # no -0: it would be shown so


def bare(value: str) -> str:
    """`value` without Markdown emphasis, one pair of brackets or quotes, LaTeX's box and a full stop."""
    text = value
    for _ in range(2):  # $\\boxed{8}$
        text = text.strip(_BLANKS + _EMPHASIS).removesuffix(".").strip(_BLANKS + _EMPHASIS).removeprefix(r"\boxed")
        if len(text) < 2 or text[0] + text[-1] not in _PAIRS:
            break
        text = text[1:-1]
    return text.strip(_BLANKS + _EMPHASIS)


def undecorated(text: str) -> str:
    """`text` without the blanks, line ends and emphasis around it."""
    return text.strip(_BLANKS + _EMPHASIS + "\n")


def shown(text: str) -> str:
    """`text` in one line of an error."""
    line = " ".join(text[: 10 * _SHOWN_CHARS].split())
    return repr(line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "...")


def _is_object(text: str) -> bool:
    """Whether `text` is one JSON object and nothing else."""
    try:
        return text.startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _last_end(pattern: re.Pattern[str], text: str) -> int:
    """Where the last match of `pattern` ends; 0 without one."""
    return max((match.end() for match in pattern.finditer(text)), default=0)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len({key.lower() for key in found}) == len(pairs) else {}
