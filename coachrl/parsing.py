"""The boundary where text that somebody wrote becomes data: YAML, JSON, CSV and numbers.

Whatever a parser raises (a timestamp of a 45th day is a ValueError, deep nesting a RecursionError, `!!bool maybe` a
KeyError) leaves here as one line that names the place: a ConfigError, or the TaskError that the caller asks for.
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from numbers import Real
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import yaml

from coachrl.errors import CoachrlError, ConfigError
from coachrl.storage.files import read_text
from coachrl.text import brief, one_line

_SHOWN_CHARS = 40  # of a number, in an error
_Number = TypeVar("_Number", int, float)
_SEPARATORS = ",;\t"  # of a CSV file
MAX_DEPTH = 64  # sections in sections: far more than any file needs, far less than what ends Python's stack
MAX_VALUES = 10_000  # in one YAML text, with what its aliases stand for
MAX_YAML_CHARS = 1 << 20  # its parser takes some seconds for so many
MAX_BITS = 1024  # of a whole number
_BEGIN_JSON_VALUES = (b",", b"[", b"{")
# With or without its end: where one that is never closed did not match, each quote in it would be tried in turn.
_JSON_PIECE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([,[{])', re.DOTALL)


class _NotAsItLooks(yaml.MarkedYAMLError):
    """A number that YAML reads otherwise than people do."""


class _Loader(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error: the first of two sections would be gone without a word; and so
    is {name:rules}, which YAML reads as one long key."""

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:
        # The scanner looks at every open bracket again at each token, so thousands of them would take seconds.
        if self.flow_level > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.get_mark())
        super().fetch_flow_collection_start(TokenClass)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as wrong:
            if not isinstance(node, yaml.ScalarNode):
                raise
            shown, kind = one_line(node.value, _SHOWN_CHARS), node.tag.rpartition(":")[2]
            problem = f"'{shown}' cannot be read as YAML's {kind}; put text in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from wrong

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key '{key.value}' stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        for key, value in node.value if node.flow_style else ():
            if isinstance(key, yaml.ScalarNode) and ":" in key.value and key.style is None and _is_empty(value):
                problem = f"a space is missing behind the first colon of {key.value}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return self._as_it_looks(node, super().construct_yaml_int(node))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return self._as_it_looks(node, super().construct_yaml_float(node))

    def _as_it_looks(self, node: yaml.ScalarNode, value: _Number) -> _Number:
        """`value`, unless it is what YAML makes of 010 (8, as an octal number) or of 1:30 (90, as minutes and
        seconds)."""
        written = node.value.replace("_", "")
        is_octal = re.fullmatch(r"[-+]?0\d+", written) and int(written) != value
        if is_octal or ":" in written:
            base, marks = (8, "zeros before it") if is_octal else (60, "colons")
            looks, reads = one_line(node.value, _SHOWN_CHARS), one_line(brief(value), _SHOWN_CHARS)
            problem = f"{looks} is {reads} in YAML, which counts it in base {base}: write a number without {marks}"
            raise _NotAsItLooks(problem=f"{problem}, and text in quotes", problem_mark=node.start_mark)
        return value

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _weight(node, {}, 0) > MAX_VALUES:
            raise yaml.YAMLError(f"it stands for more than {MAX_VALUES:,} values; write what aliases repeat once")
        return node


for _tag, _construct in (("int", _Loader.construct_yaml_int), ("float", _Loader.construct_yaml_float)):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct)


def _is_empty(node: yaml.Node) -> bool:
    """Whether nothing was written where the node stands."""
    return isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None


_YAML_IN_WORDS = (
    (r"found character '\\t'", "a tab; indent with spaces"),
    ("found character '(.)'", "text cannot begin with {0}; put it in quotes"),
    ("expected ',' or '(.)'", "the bracket that opens here is not closed by {0}"),
    ("while scanning a quoted scalar", "the quote that opens here is not closed"),
    (
        "found undefined alias '(.*?)'",
        "*{0} repeats what no &{0} has named before; put text that begins with * in quotes",
    ),
    ("for the tag '(.*?)'", "there is no tag {0}; put text that begins with ! in quotes"),
    ("expected a single document", "a second document begins here; a file holds one"),
    ("could not find expected ':'", "a key without a colon; write key: value"),
    ("found unhashable key", "a section or a list in the place of a key; put text that begins with {{{{ in quotes"),
    ("special characters are not allowed", "a control character, which text cannot hold"),
    ("while parsing a block", "it does not go on with what stands above; keys of one section begin in one column"),
)
"""What PyYAML says -> what is meant. Of two that fit, the first counts."""

_MISPLACED_KEY = "the line above has a value, or no colon, so that no key can follow deeper; keys begin in one column"
_SECOND_COLON = "a second colon; put text that holds one in quotes"


def _yaml_reason(wrong: yaml.YAMLError, text: str) -> str:
    """The end of a message: the line, where there are several, and what is wrong with it, in plain words."""
    said = one_line(str(wrong))
    problem, mark = getattr(wrong, "problem", said), getattr(wrong, "problem_mark", None)
    for pattern, words in _YAML_IN_WORDS:
        if found := re.search(pattern, said):
            problem = words.format(*found.groups())
            mark = getattr(wrong, "context_mark", mark) if "opens here" in words else mark
            break
    if mark is not None and "mapping values are not allowed" in said:
        is_first = ":" not in text.splitlines()[mark.line][: mark.column]
        problem = _MISPLACED_KEY if is_first else _SECOND_COLON
    place = f", line {mark.line + 1}" if mark is not None and "\n" in text.strip() else ""
    return f"{place}: {problem}" if isinstance(wrong, _NotAsItLooks) else f"{place}: not YAML: {problem}"


def parse_yaml(text: str, where: str) -> Any:
    """The data of a YAML text. where: the file or the override, for the message. Raises ConfigError."""
    if len(text) > MAX_YAML_CHARS:
        raise ConfigError(f"{where}: {len(text):,} characters; YAML of at most {MAX_YAML_CHARS:,} is read")
    try:
        return copy.deepcopy(_plain_yaml(text))
    except yaml.YAMLError as wrong:
        raise ConfigError(f"{where}{_yaml_reason(wrong, text)}") from wrong
    except (ValueError, RecursionError, LookupError, AttributeError, TypeError, ArithmeticError) as wrong:
        raise ConfigError(f"{where}: not YAML: {_reason(wrong)}; put text in quotes") from wrong


@functools.lru_cache(maxsize=32)  # a run's settings are read again and again, and its parser takes long
def _plain_yaml(text: str) -> Any:
    value = yaml.load(text, _Loader)
    _check_plain(value)
    return value


def parse_json(
    text: str | bytes,
    where: str,
    error: type[CoachrlError] = ConfigError,
    half_characters: bool = False,
    keys_once: bool = False,
) -> Any:
    """The data of a JSON text. where: the file and line, for the message. half_characters: take them, as models whose
    replies were cut write them; no tokenizer does. keys_once: of a key that stands twice in an object one value would
    be gone without a word. Raises `error`."""
    try:
        value = json.loads(text, object_pairs_hook=_with_keys_once if keys_once else None)
        if not half_characters:
            _check_plain(value)
    except json.JSONDecodeError as wrong:
        place = f", line {wrong.lineno}" if "\n" in wrong.doc.strip() else ""
        raise error(f"{where}{place}: not JSON: {wrong.msg} at column {wrong.colno}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise error(f"{where}: not JSON: {_reason(wrong)}") from wrong
    return value


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {brief(twice)} stands twice in the object {brief(found)}")
    return found


def check_few_values(data: bytes, most: int, where: str, error: type[CoachrlError]) -> None:
    """Raises `error` where a JSON text holds more than `most` values: how long it takes to make them, and what is made
    of them, goes by their number, and a megabyte can hold half a million. So it does for UTF-16 and UTF-32, which
    Python reads too, and in which values can be hidden from who counts bytes."""
    if b"\0" in data:
        raise error(f"{where} is not JSON in UTF-8")
    if sum(map(data.count, _BEGIN_JSON_VALUES)) <= most:  # as in nearly all texts, commas of prose included
        return
    if count_values(data, most) > most:
        raise error(f"{where} holds more than {most:,} values, the most that are read")


def count_values(data: bytes, most: int) -> int:
    """How many values a JSON text holds, or a number above `most`, where it stops to count."""
    count = 0
    for looked_at, found in enumerate(_JSON_PIECE.finditer(data)):
        count += found.lastindex is not None
        if count > most or looked_at > 4 * most:  # no JSON: its parser says so where texts begin to follow each other
            break
    return count


def read_json(path: Path, where: str, error: type[CoachrlError] = ConfigError, half_characters: bool = False) -> Any:
    """The data of a JSON file; `read_text` and `parse_json` in one."""
    return parse_json(read_text(path, where, error), where, error, half_characters)


def json_lines(text: str, where: str, error: type[CoachrlError]) -> Iterator[tuple[str, Any]]:
    """("line 3", its data) of each line that is not blank. Raises `error` that names file and line, also for a key that
    stands twice."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", parse_json(line, f"{where}, line {number}", error, keys_once=True)


def csv_rows(text: str, where: str, error: type[CoachrlError] = ConfigError) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of each row under a header; empty lines are none. The header's commonest separator counts:
    spreadsheets of many countries write semicolons. Raises `error`."""
    separator = max(_SEPARATORS, key=text.partition("\n")[0].count)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # Python's own is 131,072: a document is longer
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        twice = sorted(name for name, count in Counter(header).items() if count > 1)
        if twice:
            raise error(f"{where}: the column {brief(twice[0])} stands twice in its header")
        ended = rows.line_num
        for row in rows:
            line, ended = ended + 1, rows.line_num  # a text in quotes may have several lines
            if not any(row):
                continue
            if len(row) != len(header):
                raise error(f"{where}, line {line}: {len(row)} fields; the header has {len(header)}")
            yield line, dict(zip(header, row, strict=True))
    except csv.Error as wrong:
        raise error(f"{where}, line {rows.line_num}: not CSV: {wrong}") from wrong


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether `value`, as JSON and YAML give it, is a number: Python counts True as one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether `value` is a number, of NumPy's too, that a float holds: a whole one of a thousand digits is none."""
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:
        return False


def _weight(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """How many values `node` stands for once its aliases are written out. Raises YAMLError for nesting too deep, as
    that of an alias that holds itself."""
    if depth > MAX_DEPTH:
        raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=node.start_mark)
    if id(node) not in known:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        known[id(node)] = 1 + sum(_weight(child, known, depth + 1) for child in children)
    return known[id(node)]


def _check_plain(value: Any) -> None:
    """Raises ValueError for nesting too deep, for half a character, which no tokenizer and no file takes, and for a
    number that cannot be written down again."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        texts = [item for item in level if isinstance(item, str)]
        for item in level:
            if isinstance(item, dict):
                texts += [key for key in item if isinstance(key, str)]
            if isinstance(item, int) and item.bit_length() > MAX_BITS:
                raise ValueError(f"a number of more than {MAX_BITS} bits")
        try:
            "".join(texts).encode()
        except UnicodeEncodeError as wrong:
            raise ValueError(f"half a character ({brief(wrong.object[wrong.start])})") from None
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, RecursionError):
        return "nested too deep"
    if isinstance(wrong, (LookupError, AttributeError)):  # a tag whose value the parser looks up and does not find
        return f"a value that its tag does not allow ({brief(str(wrong))})"
    return one_line(str(wrong))
