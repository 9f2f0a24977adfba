"""Seeds by name: every random choice of a run is derived from its one seed and from where it is made."""

from __future__ import annotations

import zlib

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part, in order; equal on every platform."""
    words = [_checksum(part) if isinstance(part, str) else part & 0xFFFFFFFFFFFFFFFF for part in parts]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0]) >> 1


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode("utf-8", "surrogatepass"))  # a task's own id may hold half a character


def generator(*parts: int | str) -> np.random.Generator:
    """A numpy Generator seeded with `derive_seed(*parts)`."""
    return np.random.default_rng(derive_seed(*parts))
