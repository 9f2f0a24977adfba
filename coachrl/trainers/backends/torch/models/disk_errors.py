"""Model folders on a disk that may refuse them. Libraries that are not written in Python have an error of their own for
what the system says of a disk; here it is the system's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coachrl.errors import PolicyError
from coachrl.storage.atomic import folder_aside

_SYSTEMS_NUMBER = re.compile(r"\(os error ([0-9]{1,4})\)")


@contextmanager
def as_the_system_has_them() -> Iterator[None]:
    """Raises OSError with its number where the block raises what safetensors, tokenizers and torch make of one."""
    try:
        yield
    except Exception as error:
        number = _systems_number(error)
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(number, os.strerror(number)) from error


def _systems_number(error: Exception) -> int | None:
    """From its text, as the libraries written in Rust have it, or from what it was raised upon, as torch's are."""
    if found := _SYSTEMS_NUMBER.search(str(error)):
        return int(found[1])
    cause = error.__context__ if isinstance(error, RuntimeError) else None
    return cause.errno if isinstance(cause, OSError) else None


def write_into_cache(model: str, folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill the folder of a model in the user's cache. Two processes may race: each writes its own folder
    aside, the first rename wins, the other is thrown away. Raises PolicyError where the disk does not take it."""
    try:
        with folder_aside(folder, may_exist=True) as aside, as_the_system_has_them():
            write(aside)
    except OSError as error:
        raise PolicyError(
            f"cannot write model {model} under {folder.parent}: {error.strerror}; set COACHRL_CACHE to a folder that "
            "can be written"
        ) from error
