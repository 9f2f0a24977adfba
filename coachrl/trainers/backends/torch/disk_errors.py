"""Libraries written in Rust have an error of their own for what the system says of a disk; here it is the system's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

_SYSTEMS_NUMBER = re.compile(r"\(os error ([0-9]{1,4})\)")


@contextmanager
def as_the_system_has_them() -> Iterator[None]:
    """Raises OSError with its number where the block raises what safetensors and tokenizers make of one."""
    try:
        yield
    except Exception as error:
        number = _SYSTEMS_NUMBER.search(str(error))
        if isinstance(error, OSError) or number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
