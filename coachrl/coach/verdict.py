"""Reply text of a coach model -> `Verdict`, or CoachError. Pure, and strict: no number is ever guessed.

A verdict is a line of its own, ``PROCESS_SCORE: n`` with 0 <= n <= 10, or a JSON object with the key ``process_score``.
What the odd replies mean (each has its row in the tests):

    n                                       meaning
    8   10.0   9/10   **8**   [8]   `8`     that score; a code fence around the line changes nothing, nor do
    "8"   <8>   \\boxed{8}                   <answer> ... </answer> and a model's closing tokens (<|im_end|>)
    8 out of 10   8 points   8 (solid)      that score: a remark in brackets may follow, without a number in it
    ABSTAIN                                 the coach declines: no score, and no failure
    the same score twice                    that score
    two different scores, a score and       error
    ABSTAIN, 11, -1, NaN, inf, 8,5, 7-8,
    "8 because ...", "[0 to 10]"
    no such line: an empty reply, a         error
    refusal, a bare number, prose

Models that can be held to a JSON schema are given `verdict_schema`, and `json_instruction` in words.

``ANSWER_CORRECT: 0|1`` (JSON ``answer_correct``) is optional; ``N/A`` counts as not given. Hidden thoughts
(``<think>...</think>``, and what other families of models write in its place) are never read, nor are lines quoted with
``>``, nor a suggested reply for the agent, which stands from a line that begins with ``<suggestion>`` to one that ends
in ``</suggestion>`` (JSON ``suggestion``). A reply ends in its verdict: where more than emphasis, fences and
``ANSWER_CORRECT`` follows the score, the line may be one that the coach quotes, and is an error. What cannot be told
from a verdict is a refusal that quotes such a line and says nothing after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coachrl.coach import replies
from coachrl.errors import CoachError
from coachrl.types import CriterionScore

_SCORE = r"PROCESS\\?[ \u00a0_-]SCORE"
NAMES_SCORE = re.compile(_SCORE, re.IGNORECASE)  # in a prompt, which then says how a reply ends
_LINE = replies.statement_lines(_SCORE, r"ANSWER\\?[ \u00a0_-]CORRECT")
_ABSTAIN_LINE = re.compile(r"^[ \t*_`#-]*+ABSTAIN[ \t*_`.]*+(?::.*)?$", re.MULTILINE)
_OPENING = re.compile(r"^[ \t]*+<suggestion>", re.MULTILINE)
_CLOSING = re.compile(r"</suggestion>[ \t]*+$", re.MULTILINE)
_Placed = tuple[dict[str, Any], int]
SCORE_OR_NOT: Mapping[str, Any] = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_VERDICT_KEYS: Mapping[str, Any] = {
    "rationale": {"type": "string", "description": "your reasons, in two to five sentences"},
    "process_score": {**SCORE_OR_NOT, "description": "the score, a number from 0 to 10, or null where you abstain"},
    "answer_correct": {
        "anyOf": [{"type": "integer", "enum": [0, 1]}, {"type": "null"}],
        "description": "0 or 1 where you were asked for ANSWER_CORRECT, else null",
    },
    "abstain": {"type": "boolean", "description": "true where the material does not allow any judgement"},
}

HOW_TO_ABSTAIN = "If the material does not allow any judgement, write the word ABSTAIN alone in place of these lines."
RATIONALE_KEY: Mapping[str, Any] = {"rationale": _VERDICT_KEYS["rationale"]}
ABSTAIN_KEY: Mapping[str, Any] = {"abstain": _VERDICT_KEYS["abstain"]}
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
    suggestion: the reply that the agent should have given, or empty. criteria: what the total is made of, where the
    prompt lists criteria.
    """

    process_0_10: float | None
    outcome_0_1: float | None
    rationale: str
    suggestion: str = ""
    criteria: tuple[CriterionScore, ...] = ()

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


def repair_words(lines: Iterable[str]) -> str:
    """What a model is told whose reply could not be read."""
    wanted = ", ".join(f"'{line}'" for line in lines)
    return f"Keep your judgement and answer again with these lines alone: {wanted}; or with the one word ABSTAIN."


def parse_verdict(reply: str) -> Verdict:
    """The verdict of `reply`. Raises CoachError, saying what is wrong, where it does not hold exactly one."""
    text, suggestion = without_suggestion(replies.own_words(reply))
    objects = list(replies.json_objects(text))
    stated = list(_statements(text, objects))
    if all(one.key != "PROCESS_SCORE" for one in stated):
        raise CoachError(f"the reply has no line 'PROCESS_SCORE: n': {replies.shown(text)}")
    score = replies.one_number(stated, "PROCESS_SCORE", 0, 10)
    answers = {_answer(one.value) for one in stated if one.key == "ANSWER_CORRECT"} - {None}
    if len(answers) > 1:
        raise CoachError("the reply contradicts itself: 0 and 1 for ANSWER_CORRECT")
    after = text[max(one.end for one in stated if one.key == "PROCESS_SCORE") :]
    replies.check_end(_LINE.sub("", after), 0, "verdict")  # the answer may stand behind the score
    answer = answers.pop() if answers else None
    return Verdict(score, answer, rationale_of(text, objects), suggestion or _suggested(objects))


def rationale_of(text: str, objects: Sequence[_Placed]) -> str:
    """The reasons of a reply that is one JSON object and gives them; else all of it."""
    found = objects[0][0] if text.startswith("{") and objects else {}
    return found["rationale"] if isinstance(found.get("rationale"), str) else text


def suggestion_in(reply: str) -> str:
    """The section `<suggestion>` ... `</suggestion>` of a reply, or the JSON key; empty where there is none, or none
    that was closed. Nothing in it is read as a score."""
    try:
        text, suggestion = without_suggestion(replies.own_words(reply))
        return suggestion or _suggested(list(replies.json_objects(text)))
    except CoachError:
        return ""


def _suggested(objects: Sequence[_Placed]) -> str:
    found = [fields["suggestion"] for fields, _ in objects if isinstance(fields.get("suggestion"), str)]
    return found[-1].strip() if found else ""


def without_suggestion(text: str) -> tuple[str, str]:
    """`text` without its suggestion, and the suggestion: from the first opening line to the last closing one, whatever
    stands between.

    Raises CoachError for one that is never closed: nobody knows what in it is the coach's own word."""
    opening = _OPENING.search(text)
    if opening is None:
        return text, ""
    closing = next(reversed(list(_CLOSING.finditer(text, opening.end()))), None)
    if closing is None:
        raise CoachError("the reply ends in its suggestion: no line '</suggestion>' closes it")
    outside = text[: opening.start()] + text[closing.end() :]
    return outside.strip(), text[opening.end() : closing.start()].strip()


def _statements(text: str, objects: Sequence[_Placed]) -> Iterator[replies.Statement]:
    """All that the reply states, on a line of its own or in a JSON object; of lines that say the same, the last."""
    yield from replies.last_statements(
        _LINE, text, lambda match: "PROCESS_SCORE" if match["key"][0] in "Pp" else "ANSWER_CORRECT"
    )
    if declined := abstentions(text, objects):
        yield replies.Statement("PROCESS_SCORE", "ABSTAIN", max(declined), max(declined))
    for found, end in objects:
        fields = _lowered(found)
        for name in ("process_score", "answer_correct"):
            if name in fields and not (fields[name] is None and (name == "answer_correct" or _abstains(fields))):
                yield replies.Statement(name.upper(), fields[name], end, end)


def abstentions(text: str, objects: Sequence[_Placed]) -> list[int]:
    """Where each statement ends by which the coach abstains from the whole: a line of its own, or a JSON key."""
    lines = [match.end() for match in _ABSTAIN_LINE.finditer(text)]
    return lines + [end for found, end in objects if _abstains(_lowered(found))]


def abstains(text: str, objects: Sequence[_Placed], stated: Sequence[replies.Statement]) -> bool:
    """Whether the coach abstains from the whole. Raises CoachError where it gives a score ("SCORE ...") all the same,
    or goes on after that."""
    declined = abstentions(text, objects)
    if not declined:
        return False
    if any(one.value is not None for one in stated if one.key.startswith("SCORE ")):
        raise CoachError("the reply contradicts itself: it abstains and gives scores")
    replies.check_end(text, max([*declined, *(one.end for one in stated)]), "verdict")
    return True


def _abstains(fields: Mapping[str, Any]) -> bool:
    return str(fields.get("abstain")).lower() in ("true", "yes", "1")


def _lowered(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in fields.items()}


def _answer(value: Any) -> float | None:
    """0.0 or 1.0, or None for "N/A". Raises CoachError for anything else."""
    text = replies.bare(value) if isinstance(value, str) else str(value)
    if text.upper() in ("N/A", "NA", "NONE", ""):
        return None
    if text.lower() in ("0", "1", "0.0", "1.0", "true", "false"):
        return float(text.lower() in ("1", "1.0", "true"))
    raise CoachError(f"ANSWER_CORRECT is neither 0 nor 1: {replies.shown(text)}")
