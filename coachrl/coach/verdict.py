"""Reply text of a coach model -> `Verdict`, or CoachError. Pure, and strict: no number is ever guessed.

A verdict is a line of its own, ``PROCESS_SCORE: n`` with 0 <= n <= 10, or a JSON object with the key ``process_score``.
What the odd replies mean (each has its row in the tests):

    n                                       meaning
    8   10.0   9/10   **8**   [8]   `8`     that score; a code fence around the line changes nothing
    ABSTAIN                                 the coach declines: no score, and no failure
    the same score twice                    that score
    two different scores, a score and       error
    ABSTAIN, 11, -1, NaN, inf, 8,5, 7-8,
    "8 because ...", "[0 to 10]"
    no such line: an empty reply, a         error
    refusal, a bare number, prose

Models that can be held to a JSON schema are given `verdict_schema`, and `json_instruction` in words.

``ANSWER_CORRECT: 0|1`` (JSON ``answer_correct``) is optional; ``N/A`` counts as not given. Hidden thoughts
(``<think>...</think>``) are never read, nor are lines quoted with ``>``, nor a suggested reply for the agent, which
stands between lines ``<suggestion>`` and ``</suggestion>`` (JSON ``suggestion``). A reply ends in its verdict: where
more than emphasis and fences follows it, the line may be one that the coach quotes, and is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coachrl.errors import CoachError
from coachrl.text import visible

_LINE = re.compile(
    r"^[ \t*_`#-]*(?P<key>PROCESS[_ ]SCORE|ANSWER[_ ]CORRECT)[ \t*_`]*[:=](?P<value>.*)$", re.IGNORECASE | re.MULTILINE
)
_ABSTAIN_LINE = re.compile(r"^[ \t*_`#-]*ABSTAIN[ \t*_`.]*(?::.*)?$", re.MULTILINE)
_NUMBER = re.compile(r"(?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+))(?:\s*/\s*10(?:\.0)?)?", re.ASCII)
_DECORATION = " \t\r*_`"
_OPENING = re.compile(r"^[ \t]*<suggestion>[ \t]*$", re.MULTILINE)
_CLOSING = re.compile(r"^[ \t]*</suggestion>[ \t]*$", re.MULTILINE)
_THOUGHTS = re.compile(r"^[ \t]*<(?:think|thinking|thought)>", re.MULTILINE | re.IGNORECASE)
_NOTHING_SAID = re.compile(r"[\s*_`#.]*(?:json)?[\s*_`#.]*")  # what may follow a verdict: fences and emphasis
_SHOWN_CHARS = 80
_MOST_UNREADABLE = 100
_SCORE_OR_NOT = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_VERDICT_KEYS: Mapping[str, Any] = {
    "rationale": {"type": "string", "description": "your reasons, in two to five sentences"},
    "process_score": {**_SCORE_OR_NOT, "description": "the score, a number from 0 to 10, or null where you abstain"},
    "answer_correct": {
        "anyOf": [{"type": "integer", "enum": [0, 1]}, {"type": "null"}],
        "description": "0 or 1 where you were asked for ANSWER_CORRECT, else null",
    },
    "abstain": {"type": "boolean", "description": "true where the material does not allow any judgement"},
}


SUGGESTION_KEY: Mapping[str, Any] = {
    "suggestion": {
        "anyOf": [{"type": "string"}, {"type": "null"}],
        "description": "the reply that the agent should have given, in place of the section asked for above, or null "
        "where its reply cannot be bettered",
    }
}


@dataclass(frozen=True)
class Verdict:
    """process_0_10: None where the coach abstained. outcome_0_1: None where the coach was not asked, or did not say.

    rationale: the visible reply without its suggestion, or the reasons alone where it is JSON that gives them.
    suggestion: the reply that the agent should have given, or empty.
    """

    process_0_10: float | None
    outcome_0_1: float | None
    rationale: str
    suggestion: str = ""

    @property
    def abstained(self) -> bool:
        return self.process_0_10 is None


def verdict_schema(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """JSON schema of a verdict, in the subset that every provider takes. extra: further keys, each with its own schema
    and a "description"; they are written before the score, so that the model has reasoned when it comes to it."""
    return closed_schema({"rationale": _VERDICT_KEYS["rationale"], **(extra or {}), **_VERDICT_KEYS})


def closed_schema(keys: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of an object that holds each of `keys`, and nothing else."""
    return {"type": "object", "properties": dict(keys), "required": list(keys), "additionalProperties": False}


def json_instruction(schema: Mapping[str, Any]) -> str:
    """What a prompt says at its end where the reply must meet `schema`."""
    keys = "\n".join(f'- "{name}": {entry["description"]}' for name, entry in schema["properties"].items())
    return f"Give your answer as one JSON object, in place of any closing lines asked for above. Its keys:\n{keys}"


def parse_verdict(reply: str) -> Verdict:
    """The verdict of `reply`. Raises CoachError, saying what is wrong, where it does not hold exactly one."""
    text = visible(reply)
    if not text:
        raise CoachError("the reply is empty" if not reply.strip() else "the reply holds nothing but hidden thoughts")
    if _THOUGHTS.search(text):
        raise CoachError("the reply ends in hidden thoughts: they were never closed")
    suggestion, text = suggestion_in(text), _without_suggestion(text).strip()
    scores: set[float | None] = set()
    answers: set[float | None] = set()
    end = 0
    for key, value, stated_to in _statements(text):
        end = max(end, stated_to)
        if key == "process_score":
            scores.add(number_within(value, "PROCESS_SCORE", 0, 10))
        else:
            answers.add(_answer(value))
    if not scores:
        raise CoachError(f"the reply has no line 'PROCESS_SCORE: n': {_shown(text)}")
    answers.discard(None)
    if len(scores) > 1 or len(answers) > 1:
        raise CoachError(f"the reply contradicts itself: {_listed(scores if len(scores) > 1 else answers)}")
    if not _NOTHING_SAID.fullmatch(text, end):
        raise CoachError(f"the reply does not end in its verdict: {_shown(text[end:])} follows")
    return Verdict(scores.pop(), answers.pop() if answers else None, _rationale(text), suggestion)


def _rationale(text: str) -> str:
    """The reasons of a reply that is one JSON object and gives them; else all of it."""
    found = next(json_objects(text), {}) if text.startswith("{") else {}
    return found["rationale"] if isinstance(found.get("rationale"), str) else text


def suggestion_in(reply: str) -> str:
    """The section `<suggestion>` ... `</suggestion>` of a reply, or the JSON key; empty where there is none. Nothing in
    it is read as a score."""
    text = visible(reply)
    section = _section(text)
    if section is not None:
        return text[section[1] : section[2]].strip()
    found = [fields["suggestion"] for fields, _ in _placed_objects(text) if isinstance(fields.get("suggestion"), str)]
    return found[-1].strip() if found else ""


def _section(text: str) -> tuple[int, int, int, int] | None:
    """Begin of the suggestion, of its text, end of its text, and of it: from the first opening line to the last closing
    one, whatever stands between. None where there is none.

    Raises CoachError for one that is never closed: nobody knows what in it is the coach's own word."""
    opening = _OPENING.search(text)
    if opening is None:
        return None
    closing = next(reversed(list(_CLOSING.finditer(text, opening.end()))), None)
    if closing is None:
        raise CoachError("the reply ends in its suggestion: no line '</suggestion>' closes it")
    return opening.start(), opening.end(), closing.start(), closing.end()


def _without_suggestion(text: str) -> str:
    section = _section(text)
    return text if section is None else text[: section[0]] + text[section[3] :]


def _statements(text: str) -> Iterator[tuple[str, Any, int]]:
    """Every (key, raw value, end in the text) that the reply states, on a line of its own or in a JSON object."""
    for match in _LINE.finditer(text):
        yield match["key"].lower().replace(" ", "_"), match["value"], match.end()
    for match in _ABSTAIN_LINE.finditer(text):
        yield "process_score", "ABSTAIN", match.end()
    for found, end in _placed_objects(text):
        fields = {key.lower(): value for key, value in found.items()}
        if fields.get("abstain") is True:
            yield "process_score", "ABSTAIN", end
        for key in ("process_score", "answer_correct"):
            if key in fields and not (
                fields[key] is None and (key == "answer_correct" or fields.get("abstain") is True)
            ):
                yield key, fields[key], end


def json_objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that begin a line of `text`, outermost ones only. One that gives a key twice is none: nobody
    knows which is meant."""
    return (found for found, _ in _placed_objects(text))


def _placed_objects(text: str) -> Iterator[tuple[dict[str, Any], int]]:
    """The objects, each with where it ends."""
    decoder, position, unreadable = json.JSONDecoder(object_pairs_hook=_unique), 0, 0
    for match in re.finditer(r"^[^\S\n]*\{", text, re.MULTILINE):
        start = match.end() - 1
        if start < position:
            continue
        try:
            found, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            unreadable += 1  # each takes a look at the whole text: without a bound a long reply would take hours
            if unreadable > _MOST_UNREADABLE:
                return
            continue
        yield found, position


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key.lower() for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def number_within(value: Any, key: str, low: float, high: float) -> float | None:
    """The number that stands as `value` of `key`, or None for ABSTAIN. Raises CoachError for anything else."""
    wanted = f"one number from {low:g} to {high:g}"
    if isinstance(value, str):
        bare = _bare(value)
        if bare.upper() == "ABSTAIN":
            return None
        match = _NUMBER.fullmatch(bare)
        if match is None:
            raise CoachError(f"{key} is not {wanted}: {_shown(value)}")
        value = float(match["number"])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CoachError(f"{key} is not {wanted}: {_shown(repr(value))}")
    if not low <= value <= high:  # NaN fails this too
        raise CoachError(f"{key} is outside {low:g} to {high:g}: {_shown(repr(value))}")
    return float(value)


def _answer(value: Any) -> float | None:
    """0.0 or 1.0, or None for "N/A". Raises CoachError for anything else."""
    text = _bare(value) if isinstance(value, str) else str(value)
    if text.upper() in ("N/A", "NA", "NONE", ""):
        return None
    if text.lower() in ("0", "1", "0.0", "1.0", "true", "false"):
        return float(text.lower() in ("1", "1.0", "true"))
    raise CoachError(f"ANSWER_CORRECT is neither 0 nor 1: {_shown(text)}")


def _bare(value: str) -> str:
    """`value` without Markdown emphasis, one pair of square brackets and a full stop."""
    text = value.strip(_DECORATION).removesuffix(".").strip(_DECORATION)
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip(_DECORATION)
    return text


def _listed(values: set[float | None]) -> str:
    return " and ".join(sorted("ABSTAIN" if value is None else f"{value:g}" for value in values))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "...")
