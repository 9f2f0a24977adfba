"""Reads the files and data sets that people have: JSON, JSON lines, CSV, parquet, and Hugging Face data sets.

Whatever it was, it comes out as named splits of entries, each with its place for messages. docs/tasks.md shows every
layout.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from coachrl.errors import TaskError, lacking
from coachrl.parsing import csv_rows, json_lines, parse_json
from coachrl.resources import quiet
from coachrl.storage.files import named_path, parquet_rows, read_text, regular_file
from coachrl.text import brief, nearest, one_line

log = logging.getLogger(__name__)

Entry = tuple[str, Any]
"""Its place in the file or data set, and what stands there."""

_HELDOUT_NAMES = ("test", "validation")  # of splits, in the order in which they are taken
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".gz", ".txt")  # no name on the hub ends like them
_JSON = (".json", ".jsonl")
_TABLES = (".csv", ".tsv", ".parquet")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_BUILDERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
_SAVED_BY_DATASETS = ("dataset_dict.json", "state.json")
_EXTRA = "pip install 'coachrl[datasets]'"


@dataclass(frozen=True)
class Source:
    """A file, which has one split, `train`; or a data set, which has those that it names.

    where: what messages call it. stem: what ids and categories are made of. is_table: whether all of its entries have
    the same fields, its columns.
    """

    where: str
    stem: str
    splits: Mapping[str, Sequence[Entry]]
    is_table: bool = False

    def split(self, name: str, key: str) -> Sequence[Entry]:
        """The split of that name. key: the setting that asks for it. Raises TaskError naming those that there are."""
        if name not in self.splits:
            raise TaskError(
                f"{self.where} has no split '{one_line(name)}'{nearest(name, self.splits)}; {key} must be one of "
                f"{', '.join(self.splits)}"
            )
        return self.splits[name]

    def heldout_name(self) -> str | None:
        """The split that is held out where nobody says which; None where none is named so."""
        return next((name for name in _HELDOUT_NAMES if name in self.splits), None)


def read_source(name: str, subset: str | None = None) -> Source:
    """What the path, or the name on the Hugging Face hub, stands for. subset: which of its configurations, where a data
    set has several. Raises TaskError that says what could not be read, and where."""
    path = named_path(Path(name), "task file", TaskError)
    if path.is_dir():
        return _read_data_set(name, path.resolve().name, subset)
    if not os.path.lexists(path) and _HUB_NAME.fullmatch(name) and path.suffix not in _FILES:
        return _read_data_set(name, path.name, subset)
    if subset is not None:
        raise TaskError(f"task file {name}: a file has no subsets; leave out tasks.subset")
    return read_file(path)


def read_file(path: Path) -> Source:
    """A JSON, JSON-lines, CSV or parquet file, told by its ending; without a known one it is read as JSON."""
    where = f"task file {path}"
    if not os.path.lexists(path):
        on_hub = "" if path.suffix else "; a data set of the hub is named with its owner, as openai/gsm8k"
        raise TaskError(f"{where}: No such file or directory{nearest_beside(path) or on_hub}")
    try:
        regular_file(path)
    except (ValueError, OSError) as error:
        raise TaskError(f"{where}: {getattr(error, 'strerror', None) or error}") from error
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind in (".csv", ".tsv"):
        entries = [(f"line {line}", row) for line, row in csv_rows(read_text(path, where, TaskError), where, TaskError)]
    elif kind == ".parquet":
        entries = _parquet_entries(path, where)
    else:
        entries = _read_json(path, where, kind)
    return Source(where, path.stem, {"train": entries}, is_table=kind in _TABLES)


def nearest_beside(path: Path) -> str:
    """As `nearest`, of the first part of `path` that is not there: it is what was mistyped."""
    while not os.path.lexists(path.parent):
        path = path.parent
    beside = [other.name for other in path.parent.glob("*")] if path.parent.is_dir() else []
    return nearest(path.name, beside)


def _read_json(path: Path, where: str, kind: str) -> list[Entry]:
    try:
        return _json_entries(read_text(path, where, TaskError), where)
    except TaskError as error:
        if kind in _JSON:
            raise
        raise TaskError(
            f"{error}; it was read as JSON, since it ends in none of {', '.join(_JSON + _TABLES)}"
        ) from error


def _json_entries(text: str, where: str) -> list[Entry]:
    if text.lstrip().startswith("["):
        entries = parse_json(text, where, TaskError, keys_once=True)
        return [(f"entry {number}", entry) for number, entry in enumerate(entries, start=1)]
    first = text.lstrip().partition("\n")[0].strip()
    if first == "{" or (first.startswith('{"') and not first.endswith("}")):
        _refuse_object(parse_json(text, where, TaskError), where)
    lines = list(json_lines(text, where, TaskError))
    if len(lines) == 1 and _holds_others(lines[0][1]):
        _refuse_object(lines[0][1], where)
    return lines


def _holds_others(entry: Any) -> bool:
    """Whether it is no problem, but a table by columns, or holds a list of problems."""
    values = list(entry.values()) if isinstance(entry, dict) else []
    by_columns = bool(values) and all(isinstance(value, dict) for value in values)
    return by_columns or any(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)


def _refuse_object(whole: Any, where: str) -> NoReturn:
    """One object in place of many: a whole file of pandas or of an API, and no list of problems."""
    raise TaskError(
        f"{where}: it is one object with the keys {', '.join(map(brief, list(whole)[:5]))}; it must be an array of "
        "objects, or one object a line (pandas: to_json(path, orient='records', lines=True))"
    )


def _parquet_entries(path: Path, where: str) -> list[Entry]:
    try:
        import pyarrow

        rows = [(f"row {number}", row) for number, row in enumerate(parquet_rows(path), start=1)]
        features = _features_of(path, where)
        return [(place, _meant(row, features, f"{where}, {place}")) for place, row in rows] if features else rows
    except ImportError as error:
        raise TaskError(f"{where}: parquet files need {lacking(error)}: {_EXTRA}") from error
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # the last two of odd bytes and dates
        raise TaskError(f"{where}: not a parquet file: {one_line(str(error))}") from error


def _features_of(path: Path, where: str) -> Any:
    """What the library `datasets` wrote of the columns of a Parquet file; None where it wrote of none that stands for
    something else, or is not here."""
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path)
    said = (schema.metadata or {}).get(b"huggingface", b"")
    if b'"ClassLabel"' not in said and b'"Json"' not in said:
        return None
    try:
        import datasets

        return datasets.Features.from_arrow_schema(schema)
    except ImportError:
        return None
    except Exception as error:  # whatever it makes of a description that is not its own
        raise TaskError(f"{where}: what it says of its columns cannot be read: {one_line(str(error))}") from error


def _read_data_set(name: str, stem: str, subset: str | None) -> Source:
    """A folder that `datasets` saved, a folder of data files, or a data set of the hub."""
    where = f"data set {name}"
    try:
        import datasets
    except ImportError as error:
        what = "" if Path(name).is_dir() else f"no file {name} here; "
        raise TaskError(f"{where}: {what}data sets of Hugging Face need {lacking(error)}: {_EXTRA}") from error
    datasets.disable_progress_bars()
    saved = any((Path(name) / marker).is_file() for marker in _SAVED_BY_DATASETS)
    try:
        with quiet("huggingface_hub"):
            if Path(name).is_dir() and not saved:
                read = datasets.load_dataset_builder(name, subset).config.data_files or {}
                _check_within(Path(name), [str(file) for files in read.values() for file in files])
            found = datasets.load_from_disk(name) if saved else datasets.load_dataset(name, subset)
    except TaskError:
        raise
    except FileNotFoundError as error:
        if not Path(name).is_dir():
            raise TaskError(f"{where}: no folder of that name, nor on the hub: {one_line(str(error))}") from error
        raise TaskError(f"{where}: the folder holds no data files (.json, .jsonl, .csv, .parquet)") from error
    except Exception as error:  # the boundary to a library that raises errors of pyarrow, requests, pandas and the hub
        cause = error.__cause__ if type(error) is datasets.exceptions.DatasetGenerationError else None
        if saved and isinstance(error, IndexError):
            raise TaskError(f"{where}: it holds no rows, or lacks files") from error
        told = cause or error  # the library's own says that "an error occurred"
        reason = one_line(f"{type(told).__name__}: {told}")
        what = "cannot be read" if Path(name).is_dir() else "neither a file or folder here nor available from the hub"
        raise TaskError(f"{where}: {what}: {reason}") from error
    parts = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    if saved:
        _check_within(Path(name), [file["filename"] for part in parts.values() for file in part.cache_files])
    elif Path(name).is_dir():
        _warn_of_other_kinds(Path(name), {part.builder_name for part in parts.values()})
    return Source(where, stem, {str(split): _Rows(part, where) for split, part in parts.items()}, is_table=True)


def _check_within(folder: Path, files: Sequence[str]) -> None:
    """Raises TaskError for a file that the folder's own lists name and that lies elsewhere, as `../../notes.jsonl` or a
    URL do: whoever takes a folder from others does not expect his own files among its tasks. Links may lead anywhere,
    as the hub's library makes them."""
    places = {os.path.abspath(folder), os.path.realpath(folder)}  # noqa: PTH100  which keeps links
    for file in files:
        whole = "" if "://" in file else os.path.abspath(file)  # noqa: PTH100
        if not any(Path(whole).is_relative_to(place) for place in places):
            raise TaskError(
                f"data set {folder}: its lists of files name {one_line(file)}, which is not in the folder: put it "
                "there, or name that file itself"
            )


def _warn_of_other_kinds(folder: Path, read: set[str | None]) -> None:
    """Of a folder with files of several kinds, `datasets` reads one kind and says nothing of the others."""
    others = sorted(path.name for path in folder.rglob("*") if _BUILDERS.get(path.suffix) not in {*read, None})
    if others:
        log.warning("data set %s: files of one kind are read; left out: %s", folder, one_line(", ".join(others), 200))


class _Rows(Sequence[Entry]):
    """The rows of a split, read when they are asked for: what is not used is not held in memory. They are as they lie
    in the file, whatever format the set was saved with: pictures and sounds stay undecoded."""

    def __init__(self, part: Any, where: str) -> None:
        self._part, self._where = part.with_format("arrow"), where
        self._features = part.features  # which are copied each time that they are asked for

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._entry(index + 1, self._part[index])

    def __iter__(self) -> Iterator[Entry]:
        return (self._entry(number, table) for number, table in enumerate(self._part, start=1))

    def _entry(self, number: int, table: Any) -> Entry:
        place = f"row {number}"
        try:
            table.validate(full=True)  # of a damaged file, texts may lie beyond its end
            [row] = table.to_pylist()
        except (ValueError, OverflowError, OSError) as error:  # pyarrow's own are ValueErrors
            raise TaskError(f"{self._where}, {place}: cannot be read: {one_line(str(error))}") from error
        return place, _meant(row, self._features, f"{self._where}, {place}")


def _meant(value: Any, feature: Any, where: str) -> Any:
    """What a stored value stands for: a class's number for its name, a text of JSON, as a column of numbers and texts
    is kept, for what it says. feature: what `datasets` knows of it. Raises TaskError."""
    kind = type(feature).__name__
    if value is None:
        return None
    if kind == "ClassLabel":
        return feature.names[value] if value in range(len(feature.names)) else None
    if kind == "Json":
        return parse_json(value, where, TaskError)
    if kind in ("List", "LargeList"):
        return [_meant(item, feature.feature, where) for item in value]
    if isinstance(feature, dict):
        return {key: _meant(item, feature.get(key), where) for key, item in value.items()}
    return value
