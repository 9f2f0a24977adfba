"""Episodes and roles as plain data, one line of JSON each, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar

from coachrl.jsonl import json_line
from coachrl.prompts import Prompt
from coachrl.types import Action, CoachScore, Episode, Example, Execution, Outcome, Reward, Role, Usage

_T = TypeVar("_T")
# What a value from JSON must be, by the name of its annotation.
_JSON_TYPES: Mapping[str, Any] = {
    "str": str, "int": int, "float": (int, float), "bool": bool, "None": NoneType, "tuple": tuple, "Mapping": Mapping,
}  # fmt: skip


def episode_record(episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, Any]:
    """Plain data of an episode; each action carries its coach score under "score", or null."""
    record = dataclasses.asdict(episode)
    for action in (*record["actions"], *record["rejected_candidates"]):
        score = scores.get(action["id"])
        action["score"] = dataclasses.asdict(score) if score is not None else None
    return record


def episode_line(episode: Episode, scores: Mapping[str, CoachScore]) -> str:
    """`episode_record` as one line of JSON, with its line end."""
    return json_line(episode_record(episode, scores))


def episode_from_record(record: Mapping[str, Any]) -> tuple[Episode, dict[str, CoachScore]]:
    """The inverse of `episode_record`. What other versions write beside the fields of this one is left out.

    Raises KeyError, TypeError, ValueError for a record that is no episode."""
    scores: dict[str, CoachScore] = {}
    made = {
        "actions": [_action(raw, scores) for raw in record["actions"]],
        "rejected_candidates": [_action(raw, scores) for raw in record.get("rejected_candidates", ())],
        "outcome": _built(Outcome, record["outcome"]),
    }
    return _built(Episode, {**record, **made}), scores


def score_from_record(record: Mapping[str, Any]) -> CoachScore:
    """A coach's score from its fields. Raises TypeError for a record that is none."""
    return _built(CoachScore, {**record, "usage": _built(Usage, record.get("usage", {"attempts": 1}))})


def _action(raw: Mapping[str, Any], scores: dict[str, CoachScore]) -> Action:
    """One action; its score goes into `scores`."""
    fields = {**raw}
    if (score := fields.pop("score", None)) is not None:
        scores[str(fields["id"])] = score_from_record(score)
    for key, kind in (("execution", Execution), ("reward", Reward)):
        if fields.get(key) is not None:
            fields[key] = _built(kind, fields[key])
    return _built(Action, fields)


def _built(kind: Callable[..., _T], raw: Mapping[str, Any]) -> _T:
    """`kind`, a dataclass, from those of its fields that `raw` holds. Raises TypeError where one is missing, or is of
    another type."""
    return kind(**{name: _checked(name, raw[name], hint) for name, hint in _hints(kind).items() if name in raw})


def _checked(name: str, value: Any, hint: str) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    if hint == "Mapping[str, float]" and isinstance(value, Mapping):
        value = {key: number for key, number in value.items() if number is not None}  # null: not a number
        if not all(isinstance(number, (int, float)) for number in value.values()):
            raise TypeError(f"{name} holds more than numbers")
    if not any(isinstance(value, _JSON_TYPES.get(part.partition("[")[0], object)) for part in hint.split(" | ")):
        raise TypeError(f"{name} is {type(value).__name__}, not {hint}")
    return value


@cache
def _hints(kind: Any) -> Mapping[str, str]:
    """Field -> its annotation, as it is written."""
    return {field.name: str(field.type) for field in dataclasses.fields(kind)}


def role_record(role: Role) -> dict[str, Any]:
    """Plain data of a role. Headers of prompt files may hold anything; what they mean is in the role already."""
    record = dataclasses.asdict(role)
    for key in ("prompt", "feedback"):
        record[key]["header"] = {}
    return record


def role_from_record(record: Mapping[str, Any]) -> Role:
    """The inverse of `role_record`, through JSON."""
    fields = dict(record)
    for key in ("prompt", "feedback"):
        fields[key] = Prompt(**{**fields[key], "fields": frozenset(fields[key]["fields"])})
    fields["examples"] = tuple(Example(**example) for example in fields["examples"])
    for key in ("required_files", "needed_files"):
        fields[key] = tuple(fields[key])
    return Role(**fields)
