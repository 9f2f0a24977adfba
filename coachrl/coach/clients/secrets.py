"""Keys of the environment, in whatever a provider says: replaced by the names of their variables, since servers may
repeat the key that they were sent, and the address that they were asked at. Halves of characters go with them: with one
in it a question could not be sent, nor the cache be read, nor an error be told to a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from coachrl.text import KEY_CHARS, redacted, secrets_of, whole_characters, without_passwords

T = TypeVar("T")

_SHOWN_CHARS = 300
_READ_CHARS = 100 * _SHOWN_CHARS  # of what is said: most may be blanks
_SECRET_CHARS = 8  # a shorter value is no secret
_NOISE = re.compile(r" ssl:(?:<[^<>]{0,200}>|\w+)")  # aiohttp's, after an address


def keyless(said: T) -> T:
    """What a model said, all of it (text, names, ids, arguments), with the keys in the environment replaced: a server
    may repeat the one that it was sent, and replies are kept in files and shown to others. A shorter secret may be any
    word of a reply, and is no provider's."""
    return _keyless(said, secrets_of(KEY_CHARS))


def _keyless(said: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(said, str):
        return redacted(whole_characters(said), secrets)
    if isinstance(said, Mapping):
        return {_keyless(name, secrets): _keyless(part, secrets) for name, part in said.items()}
    if isinstance(said, list | tuple):
        return type(said)(_keyless(part, secrets) for part in said)
    if is_dataclass(said) and not isinstance(said, type):
        return replace(said, **{one.name: _keyless(getattr(said, one.name), secrets) for one in fields(said)})
    return said


def without_secrets(text: str) -> str:
    """`text` on one line, cut, with the value of every secret-looking environment variable replaced, and passwords
    and keys in URLs starred: servers repeat the address that they were asked at."""
    secrets = secrets_of(_SECRET_CHARS)
    text = text[:_READ_CHARS]  # of megabytes, all the rest would take seconds
    longest = max(map(len, secrets), default=0) if len(text) == _READ_CHARS else 0
    text = redacted(whole_characters(text), secrets)
    text = text[: len(text) - longest]  # where it was cut, there may be the beginning of a secret
    line = " ".join(_NOISE.sub("", without_passwords(text)).split())
    return line if len(line) <= _SHOWN_CHARS else line[:_SHOWN_CHARS] + "..."
