"""Whether a call that was refused is the app's doing, and whether the app failed on that.

What an agent can cause by what it writes is never put down to the app: it would learn to have its failures thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from coachrl.gateway.calls import CallError, HeldUp
from coachrl.text import said

_WORD = re.compile(r"[^\W_]+")
_LETTERS_OR_DIGITS = re.compile(r"[^\W\d_]+|\d+")
_ALONE_CHARS = 4  # a part with fewer letters stands in many a word by chance: it must be a word of its own
_LOOKED_AT = 20_000  # characters of an error, at each end
_OF_REFUSAL = 60  # letters of it that are looked for: clients clip what they are told
_MOST_CAUSES = 100
_BROKEN_OFF = {"ConnectionError", "APIConnectionError", "TransportError", "ProtocolError"}  # of most clients, and below


def may_have_written(texts: Iterable[str], parts: Iterable[str]) -> bool:
    """Whether one of `parts` stands in what agents said. Case, signs and spaces are what apps change on the way."""
    if not (parts := list(parts)):
        return False
    words = [word for text in texts for word in _WORD.findall(text.casefold())]
    together = "".join(words)
    alone = {*words, *(part for word in words for part in _LETTERS_OR_DIGITS.findall(word))}
    return any(part in alone or (len(part) >= _ALONE_CHARS and part in together) for part in map(_letters, parts))


def came_of(failure: BaseException, refusal: CallError) -> bool:
    """Whether an app failed since a call was refused: the error that it ended with, or one that this names as its
    cause, says so. One that copes, and then fails on what its agents wrote, has failed on that."""
    return any(_is_of(error, refusal) for error in _causes(failure))


def tells_of_time_out(failure: BaseException) -> bool:
    """Whether an app may have failed since it waited no longer for a reply, by the names of its errors."""
    return any("timeout" in _letters(f"{type(error).__name__}: {said(error)}") for error in _causes(failure))


def _causes(error: BaseException) -> Iterator[BaseException]:
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_CAUSES:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        yield error
        # Not `__context__`: what is raised while an app copes with a refusal is of what it does then.
        waiting += [error.__cause__] if error.__cause__ is not None else []
        waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else []


def _is_of(error: BaseException, refusal: CallError) -> bool:
    if isinstance(refusal, HeldUp):  # it was never answered, so that nothing can say what it was told
        return any(kind.__name__ in _BROKEN_OFF for kind in type(error).__mro__)
    looked_for = _letters(str(refusal))[:_OF_REFUSAL]
    return any(looked_for in _letters(text) for text in (said(error), _answer_in(error)))


def _answer_in(error: Any) -> str:
    """The body of the answer that an error of httpx or requests holds, and does not tell."""
    try:
        return str(error.response.text)
    except Exception:  # noqa: BLE001  it has none, or it was not read
        return ""


def _letters(text: str) -> str:
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]} {text[-_LOOKED_AT:]}"
    return "".join(_WORD.findall(text.casefold()))
