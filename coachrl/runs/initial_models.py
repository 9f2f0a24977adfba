"""The initial weights of a run's policies: adapters are laid over them again whenever it goes on, and a KL penalty
measures from them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coachrl.errors import CheckpointError, ConfigError
from coachrl.parsing import read_json
from coachrl.runs.folder import Run
from coachrl.storage.atomic import write_aside
from coachrl.storage.files import regular_file
from coachrl.text import one_line

_FILE = "models.json"
# What a model is loaded from. Others put notes, results and states of trainers beside it, most of them JSON.
_LOADED = re.compile(
    r"[^.].*\.(safetensors|jinja|model)|(vocab|merges)\.txt"
    r"|(\w*config|tokenizer\w*|special_tokens_map|added_tokens|vocab|chat_template|[^.].*\.index)\.json"
)
# Of a larger file 16 MiB are read, in pieces that are spread evenly over it: all of 7 billion weights would take a
# quarter of a minute at each start, and who trains a model anew changes it everywhere.
_WHOLE_BYTES, _PIECES, _PIECE_BYTES = 64 << 20, 1024, 16 << 10

Models = Mapping[str, tuple[str, Path]]
"""Policy -> the name of its initial model as checkpoints are sealed with it, and the folder that it is loaded from."""


def keep_models(run: Run, models: Models) -> None:
    """`models.json`, of their `records`; what is there stays."""
    path = run.folder / _FILE
    if not path.exists():
        write_aside(path, json.dumps(records(models), indent=1) + "\n")


def check_models(run: Run, models: Models) -> None:
    """Raises CheckpointError where these are not the weights that the run began with, as far as it has kept them."""
    if changed := changed_models(run, models):
        raise CheckpointError(
            f"{run.folder}: {changed}: put them back, in whatever folder. To go on over those that are there now, "
            f"remove {run.folder / _FILE}; what was learned before was learned over others"
        )


def changed_models(run: Run, models: Models) -> str:
    """How they differ from those that the run began with, or why nobody can say; "" where they do not, or the run has
    kept none. Where they lie does not count."""
    try:
        kept = _kept(run)
        now = records({policy: models[policy] for policy in models if policy in kept})
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return f"its initial models cannot be read: {error.filename}: {error.strerror}"
    told = [_change(name, kept[name], now[name]) for name in now if kept[name]["files"] != now[name]["files"]]
    return f"not the initial models that the run began with: {'; '.join(told)}" if told else ""


def names_at_first(run: Run) -> dict[str, str]:
    """Policy -> the name of its initial model when the run began, as far as that is kept: what its checkpoints are
    sealed with, wherever the model lies by now."""
    try:
        return {policy: record["model"] for policy, record in _kept(run).items()}
    except ConfigError:
        return {}


def _kept(run: Run) -> dict[str, dict[str, Any]]:
    """Raises ConfigError where it is no record of models."""
    path = run.folder / _FILE
    if not path.exists():
        return {}
    kept = read_json(path, _FILE, half_characters=True)
    if not isinstance(kept, dict) or not all(_is_record(record) for record in kept.values()):
        raise ConfigError(f"{_FILE} does not hold the initial models of a run")
    return kept


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("model"), str) and isinstance(record.get("files"), dict)


def records(models: Models) -> dict[str, dict[str, Any]]:
    """Of each policy the model, its commit where it came from the hub, and a digest of each file that is loaded."""
    files = {folder: _digests(folder) for _, folder in models.values()}  # policies may share one
    return {
        policy: {"model": name, "commit": _commit(folder), "files": files[folder]}
        for policy, (name, folder) in models.items()
    }


def _change(policy: str, kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """As "policies.solver.model: /models/base, changed model.safetensors"."""
    was, is_ = kept["files"], now["files"]
    kinds = {
        "changed": [name for name in was if name in is_ and was[name] != is_[name]],
        "gone": [name for name in was if name not in is_],
        "new": [name for name in is_ if name not in was],
    }
    told = [f"{kind} {', '.join(names[:3])}{', …' if len(names) > 3 else ''}" for kind, names in kinds.items() if names]
    shown = [record["model"] + (f" at {record['commit']}" if record.get("commit") else "") for record in (kept, now)]
    return one_line(f"policies.{policy}.model: {' -> '.join(dict.fromkeys(shown))}, {'; '.join(told)}", 400)


def _commit(folder: Path) -> str:
    """Of a model from the hub; "" of any other folder."""
    return folder.name if folder.parent.name == "snapshots" else ""


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: _digest(file) for file in sorted(folder.iterdir()) if _LOADED.fullmatch(file.name)}


def _digest(file: Path) -> str:
    """ "" for what cannot be read, or is no file: no model is loaded from that."""
    found = hashlib.blake2b(digest_size=16)
    try:
        for piece in _pieces(regular_file(file)):
            found.update(piece)
    except (OSError, ValueError):
        return ""
    return found.hexdigest()


def _pieces(file: Path) -> Iterator[bytes]:
    """Raises OSError."""
    if file.name.endswith("config.json"):
        yield _config(file.read_bytes())
        return
    size = file.stat().st_size
    yield f"{size} ".encode()
    with file.open("rb") as stream:
        if size <= _WHOLE_BYTES:
            yield from iter(lambda: stream.read(1 << 20), b"")
            return
        for number in range(_PIECES):
            stream.seek(number * (size - _PIECE_BYTES) // (_PIECES - 1))
            yield stream.read(_PIECE_BYTES)


def _config(data: bytes) -> bytes:
    """But for the version of transformers that wrote it: the bundled model is written again where the cache is new."""
    try:
        read = json.loads(data)
        read.pop("transformers_version", None)
        return json.dumps(read, sort_keys=True).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):  # it is no configuration
        return data
