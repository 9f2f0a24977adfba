"""Files of other trainers as rows: one reply each, a mapping of columns, whatever form the trainer gives its own.

verifiers has written one rollout a line, and since 0.4 writes one episode a line (`traces.jsonl`), with a trace of each
agent as a graph of messages. ART has written one group a line, and since writes Parquet, a file for each step.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from coachrl.errors import ConfigError, lacking
from coachrl.storage.files import bounded_file, parquet_rows
from coachrl.storage.jsonl import read_jsonl
from coachrl.text import brief

Source = Literal["trl", "verifiers", "art", "jsonl"]
Row = Mapping[str, Any]
_TABLE, _LINES = ".parquet", ".jsonl"


def files_of(path: Path) -> list[Path]:
    """The file, or those of a folder by name: trainers write one for each step. Raises ConfigError."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path} is no file")
    for suffix in (_TABLE, _LINES):
        if found := sorted(path.glob(f"*{suffix}")):
            if odd := [one for one in found if not one.is_file()]:
                raise ConfigError(f"{odd[0]} is no file")
            return found
    raise ConfigError(f"{path} holds no file *{_TABLE} or *{_LINES}")


def rows_of(file: Path, source: Source) -> Iterator[Row]:
    """The replies of the file. Raises ConfigError that names the line."""
    if file.suffix == _TABLE:
        rows = ({str(key): _plain(value) for key, value in record.items()} for record in _table(file))
        return _trajectories_of_table(rows, file) if source == "art" else rows
    lines = _lines(file)
    if source == "art":
        return _trajectories(lines, file)
    return itertools.chain.from_iterable(map(_traces, lines)) if source == "verifiers" else lines


def spoken(value: Any, own: bool) -> str:
    """The text of a value: itself, or of a list of texts all of
    them, of a list of messages the agent's own words, or what it was told before them."""
    if not isinstance(value, list):
        return "" if value is None else str(value)
    if all(isinstance(item, str) for item in value):
        return "\n\n".join(value)
    messages = [_message(item) for item in value]
    if own:
        return "\n\n".join(text for role, text in messages if role == "assistant")
    told = itertools.takewhile(lambda message: message[0] != "assistant", messages)
    return "\n\n".join(text for _, text in told)


def task_of(prompt: str) -> str:
    """What a task without a name is called: replies to one prompt are of one task."""
    return hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:12]


def _message(item: Any) -> tuple[str, str]:
    """(role, text) of a message of a chat, or of a choice that holds one."""
    message = item.get("message", item) if isinstance(item, dict) else {}
    message = message if isinstance(message, dict) else {}
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(message.get("role", "")), "" if content is None else str(content)


def _table(file: Path) -> list[dict[Any, Any]]:
    try:
        return list(parquet_rows(file))
    except ImportError as error:
        raise ConfigError(f"{file}: Parquet needs {lacking(error)}: pip install pyarrow") from error
    except (OSError, ValueError, OverflowError) as error:  # the last of odd dates
        raise ConfigError(f"{file} cannot be read as Parquet: {error}") from error


def _plain(value: Any) -> Any:
    """No value in place of NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _lines(file: Path) -> Iterator[Row]:
    try:
        bounded_file(file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with file.open("rb") as opened:
        if opened.readline().strip() == b"[":
            raise ConfigError(f"{file}, line 1: no JSON object but the beginning of a list; write one object a line")
    for number, record in enumerate(read_jsonl(file), start=1):
        if not isinstance(record, dict):
            raise ConfigError(f"{file}, line {number}: no JSON object but {brief(record)}")
        yield record


def _traces(record: Row) -> Iterator[Row]:
    """A rollout as it is; of an episode of verifiers' the trace of each agent, with the columns that a rollout has."""
    traces = record.get("traces")
    if not isinstance(traces, list):
        yield record
        return
    step = _inside(record, "run", "work", "step")
    for trace in traces:
        nodes = [node for node in _items(trace, "nodes") if isinstance(node, dict)]
        first = next((place for place, node in enumerate(nodes) if node.get("sampled") is True), len(nodes))
        said = [node.get("message") for node in nodes[first:] if node.get("sampled") is True]
        yield {
            **(trace if isinstance(trace, dict) else {}),
            "prompt": [node.get("message") for node in nodes[:first]],
            "completion": said,
            "reward": _reward(_inside(trace, "rewards")),
            "example_id": _inside(trace, "task", "key") or _inside(trace, "task", "hash"),
            "role": _inside(trace, "agent", "name"),
            "step": step,
        }


def _reward(rewards: Any) -> float | None:
    """The sum by weight, as verifiers reckons it; None where no reward was given."""
    given = [one for one in rewards.values() if isinstance(one, dict)] if isinstance(rewards, dict) else []
    parts = [(one.get("score"), one.get("weight", 1.0)) for one in given]
    if not parts or not all(isinstance(number, int | float) for part in parts for number in part):
        return None
    try:
        return float(sum(score * weight for score, weight in parts))
    except OverflowError:  # a whole number that no float holds
        return math.inf


def _trajectories(lines: Iterator[Row], file: Path) -> Iterator[Row]:
    for number, record in enumerate(lines, start=1):
        listed = record.get("trajectories")
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise ConfigError(f"{file}, line {number}: a group of ART has a list 'trajectories'")
        yield from _group(listed, file)


def _trajectories_of_table(rows: Iterator[Row], file: Path) -> Iterator[Row]:
    """ART keeps objects in a table as JSON text."""
    for number, (_, group) in enumerate(itertools.groupby(rows, key=lambda row: row.get("group_index")), start=1):
        listed = []
        for row in group:
            if not isinstance(row.get("messages"), list):
                raise ConfigError(f"{file}, group {number}: a trajectory of ART has a list 'messages'")
            objects = {name: _object(row.get(name)) for name in ("metrics", "metadata")}
            listed.append({**row, **objects, "messages_and_choices": row["messages"]})
        yield from _group(listed, file)


def _group(trajectories: Sequence[Row], file: Path) -> Iterator[Row]:
    """Trajectories with their task, which is that of the group's first prompt, and the step that the file is named
    after: groups are numbered anew in each file."""
    step = {"step": int(file.stem)} if file.stem.isdecimal() else {}
    for trajectory in trajectories:
        prompt = spoken(trajectories[0].get("messages_and_choices"), own=False)
        yield {**step, **trajectory, "group": task_of(prompt)}


def _object(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _inside(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _items(value: Any, key: str) -> list[Any]:
    found = _inside(value, key)
    return found if isinstance(found, list) else []
