"""Replies on disk, by what was asked: a resumed run pays for nothing twice."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tenacity
from pydantic import TypeAdapter

from coachrl.coach.clients.base import ChatRequest, Function, Reply
from coachrl.coach.clients.ledger import Message
from coachrl.errors import CoachUnavailable, ConfigError
from coachrl.storage.files import regular_file
from coachrl.text import first_line

log = logging.getLogger(__name__)

_BUSY_S = 30.0
_UNUSABLE = (OSError, sqlite3.Error, ValueError)  # the last of what is no file, and where SQLite quotes what is damaged
_REPLY = TypeAdapter(Reply)
_TABLE = """CREATE TABLE IF NOT EXISTS replies
    (key TEXT PRIMARY KEY, reply TEXT NOT NULL, made_at REAL NOT NULL) WITHOUT ROWID"""


def cache_key(model: str, request: ChatRequest, options: Mapping[str, Any]) -> str:
    """Digest of everything that a reply depends on. options: settings of the client (address, thinking budget)."""
    asked = {
        **vars(request),
        "messages": [_asked(message) for message in request.messages],
        "prompt_hash": None,  # the rendered messages hold all of it
    }
    # What was asked before there were functions, and stand-ins, keeps its key.
    function, instead_of = asked.pop("function"), asked.pop("instead_of")
    asked |= {"function": asdict(function)} if isinstance(function, Function) else {}
    asked |= {"instead_of": instead_of} if instead_of else {}
    canonical = json.dumps([model, asked, dict(options)], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_cache(path: Path) -> None:
    """Raises ConfigError where `ReplyCache(path)` would, and writes nothing."""
    above = next(place for place in path.absolute().parents if place.exists())
    try:
        if not above.is_dir():
            raise NotADirectoryError(f"{above} is no folder")
        if path.exists():
            regular_file(path)
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                connection.execute("SELECT name FROM sqlite_master").fetchone()
    except _UNUSABLE as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"coach cache {path} cannot be used: {error}")


class ReplyCache:
    """A SQLite file, which several processes may share. A reply is on disk when `put` returns: a killed process loses
    none (a machine that loses power may lose the last ones).

    Raises ConfigError where the file cannot be opened, or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                regular_file(path)  # SQLite would wait for a writer of a named pipe
            if not path.exists():
                path.touch()  # by the umask: SQLite makes files for their owner alone to write to
            self._connection = _open(path)
        except _UNUSABLE as error:
            raise _unusable(path, error) from error

    def get(self, key: str) -> Reply | None:
        """The reply of then; it is `from_cache`. Raises CoachUnavailable where the file is damaged: to ask again would
        be to pay again, without a word."""
        try:
            row = self._connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
            return _kept(row[0]) if row is not None else None
        except (sqlite3.Error, ValueError) as error:
            raise CoachUnavailable(
                f"coach cache {self.path} is damaged ({first_line(error)}): remove it, and what it held is asked and "
                "paid for again"
            ) from error

    def put(self, key: str, reply: Reply) -> None:
        """Keep `reply`; the first one under a key stays. A full disk costs the entry, not the run. What could not be
        read again, such as nesting without an end, is not kept: the file would pass for a damaged one."""
        try:
            record = json.dumps(asdict(reply))
            _kept(record)
            self._connection.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", (key, record, time.time()))
        except (sqlite3.Error, ValueError, RecursionError) as error:
            log.warning("coach cache %s: a reply was not kept: %s", self.path, first_line(error))

    def close(self) -> None:
        self._connection.close()


def _kept(record: str) -> Reply:
    """Raises ValueError for what is no reply."""
    reply = _REPLY.validate_json(record, strict=True)
    json.dumps(asdict(reply.usage), allow_nan=False)  # what a ledger could not hold
    return replace(reply, usage=replace(reply.usage, calls_from_cache=1))


def _asked(message: Message) -> list[Any]:
    answers = asdict(message.answers) if message.answers is not None else None
    return [message.role, message.content, *filter(None, (message.native, answers))]


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_busy),
    stop=tenacity.stop_after_delay(_BUSY_S),
    wait=tenacity.wait_random(0, 0.05),
    reraise=True,
)
def _open(path: Path) -> sqlite3.Connection:
    """A file that several processes make at the same time is busy for all but one of them, and SQLite does not wait
    where it changes the journal."""
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", _TABLE):
            connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection
