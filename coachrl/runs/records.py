"""Episodes, scores and roles as plain data and back: the one definition of what a run's files hold.

An episode is one line of JSON: the fields of `coachrl.types.Episode`, with each action's coach score under "score". The
dataclasses of `coachrl.types` say what each field may be; pydantic holds every line against them. `Run.write_episodes`
in `folder.py` puts the lines on disk.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from coachrl.storage.jsonl import json_line, readable_jsonl
from coachrl.text import brief, counted
from coachrl.types import HIGHEST_SCORE, CoachScore, Episode, Role

_T = TypeVar("_T")
_FILE = re.compile(r"((?:step|eval)-[0-9]+)\.")  # what the ids of a run's episodes begin with
_SCALARS = ("str", "int", "float", "bool")


class ScoredEpisode(NamedTuple):
    """An episode with what its run's coach said, by action id."""

    episode: Episode
    scores: dict[str, CoachScore]


def step_name(step: int) -> str:
    """What its episode file, its checkpoint and the ids of its episodes begin with; `step_of` reads the number."""
    return f"step-{step:06d}"


def step_of(episode_file: Path) -> int:
    """The training step of one of `Run.episode_files` or of a checkpoint; the number of steps before an evaluation."""
    return int(episode_file.stem.rpartition("-")[2])


def read_episodes(path: Path, problems: list[str]) -> Iterator[ScoredEpisode]:
    """The episodes of a file, in order; none where there is no file. What is no episode, or one of another step or
    evaluation, is left out, and `problems` gets a sentence that says so."""

    def parse(record: Mapping[str, Any]) -> ScoredEpisode:
        found = episode_from_record(record)
        if (of := _FILE.match(found.episode.id)) is not None and _FILE.match(f"{path.stem}.") and of[1] != path.stem:
            raise ValueError(f"it is an episode of {of[1]}.jsonl")
        return found

    return readable_jsonl(path, parse, problems)


def read_each_once(path: Path, seen: set[str], problems: list[str]) -> Iterator[ScoredEpisode]:
    """As `read_episodes`, but an episode with an action of `seen`, or with one action twice, is left out, and
    `problems` counts it. Adds the ids of the actions that it gives to `seen`: one set for all files of a kind."""
    repeated = 0
    for scored in read_episodes(path, problems):
        ids = [action.id for action in scored.episode.all_actions]
        if len({*ids}) == len(ids) and seen.isdisjoint(ids):
            seen.update(ids)
            yield scored
        else:
            repeated += 1
    if repeated:
        problems.append(f"{path.name}: {counted(repeated, 'episode')} left out: the run has its actions already")


def read_scores(path: Path, problems: list[str]) -> Iterator[CoachScore]:
    """The scores of a rescore's file, read as `read_episodes` reads."""
    return readable_jsonl(path, score_from_record, problems)


def episode_record(episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, Any]:
    """Plain data of an episode; each action carries its coach score under "score", or null."""
    record = _plain(Episode, episode)
    for action in (*record["actions"], *record["rejected_candidates"]):
        score = scores.get(action["id"])
        action["score"] = _plain(CoachScore, score) if score is not None else None
    return record


def episode_line(episode: Episode, scores: Mapping[str, CoachScore]) -> str:
    """`episode_record` as one line of JSON, with its line end."""
    return json_line(episode_record(episode, scores))


def episode_from_record(record: Any) -> ScoredEpisode:
    """The inverse of `episode_record`. Raises ValueError or TypeError that says where a record is no episode, and what
    would be right."""
    if not isinstance(record, Mapping):
        raise ValueError(f"it is {brief(record)}, not an episode")
    fields = dict(record)
    scores: dict[str, CoachScore] = {}
    for key in ("actions", "rejected_candidates"):
        if isinstance(fields.get(key), list):
            fields[key] = [
                _without_score(action, f"{key}.{place}.", scores) for place, action in enumerate(fields[key])
            ]
    if "outcome" in fields:
        fields["outcome"] = _without_nulls(fields["outcome"], "metrics")
    return ScoredEpisode(checked(Episode, fields), scores)


def scores_of_rescores(run_folder: Path, problems: list[str]) -> dict[str, dict[str, CoachScore]]:
    """Label of each rescore of a run -> its scores, see `scores_by_action`."""
    return {
        path.parent.name: scores_by_action(read_scores(path, problems))
        for path in sorted(run_folder.glob("rescores/*/scores.jsonl"))
    }


def scores_by_action(scores: Iterable[CoachScore]) -> dict[str, CoachScore]:
    """Of several for one action, as where a call that failed was tried again, the last one counts, with what all of
    them took."""
    found: dict[str, CoachScore] = {}
    for score in scores:
        earlier = found.get(score.action_id)
        whole = score if earlier is None else dataclasses.replace(score, usage=earlier.usage + score.usage)
        found[score.action_id] = whole
    return found


def score_from_record(record: Any, place: str = "") -> CoachScore:
    """A coach's score from its fields. place: as for `checked`. Raises ValueError for a record that is none, and for a
    score off the scale, which would move every mean that it goes into."""
    score = checked(CoachScore, record, place)
    if score.process_0_10 is not None and not 0 <= score.process_0_10 <= HIGHEST_SCORE:
        raise ValueError(
            f"{place}process_0_10 is {brief(score.process_0_10)}, not a number from 0 to {HIGHEST_SCORE:g}"
        )
    return score


def role_record(role: Role) -> dict[str, Any]:
    """Plain data of a role. Headers of prompt files may hold anything; what they mean is in the role already."""
    record = dataclasses.asdict(role)
    for key in ("prompt", "feedback"):
        record[key]["header"] = {}
    return record


def roles_text(roles: Iterable[Role]) -> str:
    """What `roles.json` holds."""
    return json.dumps([role_record(role) for role in roles], indent=2, default=sorted) + "\n"


def role_as_kept(role: Role) -> Role:
    """The role as it comes back from `roles.json`. Raises ValueError or TypeError that says why it would not."""
    return role_from_record(json.loads(roles_text([role]))[0])


def role_from_record(record: Mapping[str, Any]) -> Role:
    """The inverse of `role_record`, through JSON. Raises ValueError for a record that is none."""
    return checked(Role, record)


def _without_score(action: Any, place: str, scores: dict[str, CoachScore]) -> Any:
    """The fields of an action alone; its score goes into `scores`. What is no action stays, to be refused."""
    if not isinstance(action, Mapping):
        return action
    fields = dict(action)
    score = fields.pop("score", None)
    if score is not None:
        scores[fields["id"]] = score_from_record(score, f"{place}score.")
    if fields.get("reward") is not None:
        fields["reward"] = _without_nulls(fields["reward"], "checks")
    return fields


def _without_nulls(raw: Any, key: str) -> Any:
    """`raw` without those of its numbers under `key` that JSON cannot write: `json_line` makes null of them."""
    if not isinstance(raw, Mapping):
        return raw
    fields = dict(raw)
    if isinstance(numbers := fields.get(key), Mapping):
        fields[key] = {name: number for name, number in numbers.items() if number is not None}
    return fields


def _plain(kind: Any, value: object) -> dict[str, Any]:
    """What `dataclasses.asdict` gives, which copies token by token and takes twenty times as long."""
    plain: dict[str, Any] = _adapter(kind).dump_python(value, warnings=False)
    return plain


def checked(kind: Callable[..., _T], raw: Any, place: str = "") -> _T:
    """`raw` as the dataclass `kind`. place: where in the line it stands, with a dot behind. Raises ValueError."""
    try:
        made: _T = _validator(kind).validate_python(raw)
    except ValidationError as error:
        raise ValueError(_explained(error, place)) from None
    return made


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _validator(kind: Any) -> SchemaValidator:
    return SchemaValidator(_strict(_adapter(kind).core_schema))


def _strict(schema: Any) -> Any:
    """A schema that takes no text for a number, no fraction for a whole number, no number that JSON does not have, and
    no field that nobody declared.

    Pydantic's own strict mode would also refuse the lists that JSON has in place of tuples."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(part) for key, part in schema.items()}
    if made.get("type") in _SCALARS:
        made["strict"] = True
        if made["type"] == "float":
            made["allow_inf_nan"] = False
    elif made.get("type") == "dataclass-args":
        made["extra_behavior"] = "forbid"
    return made


def _explained(error: ValidationError, place: str) -> str:
    """The first thing that is wrong: where it stands, what it is, and what would be right."""
    wrong = error.errors(include_url=False)[0]
    where = place + ".".join(map(str, wrong["loc"]))
    if wrong["type"] == "missing":
        return f"it has no {where}"
    if wrong["type"] == "unexpected_keyword_argument":
        return f"it has {where}, which is no field"
    right = wrong["msg"].removeprefix("Input should be ")
    return f"{where.rstrip('.') or 'it'} is {brief(wrong['input'])}, not {right}"
