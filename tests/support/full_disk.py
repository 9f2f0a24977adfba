"""A disk that is full: a write past the limit fails half-way, with "File too large" in place of "No space left"."""

import contextlib
import resource


@contextlib.contextmanager
def room_for(most_bytes):
    """No file of this process grows larger while the block runs."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
