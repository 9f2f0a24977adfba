"""Where an engine's vLLM binds the sockets that its processes find each other by."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from coachrl.temporary import LockedFolder, drop_left

_PREFIX = "coachrl-engine-"
_PLACE = "VLLM_RPC_BASE_PATH"
_NAME_BYTES = len("/00000000-0000-0000-0000-000000000000")
_PATH_BYTES = 107  # the longest path of a socket


@contextlib.contextmanager
def sockets_aside() -> Iterator[None]:
    """While an engine starts, its sockets are bound in a folder of their own, which is then removed: connected
    processes need it no more, and an engine ends by being killed, which would leave them in the temporary folder.

    Nothing changes where the user has set VLLM_RPC_BASE_PATH, or the temporary folder's path is so long that those of
    the sockets would not do. Raises OSError.
    """
    drop_left(_PREFIX)
    with LockedFolder(_PREFIX) as folder:
        if _PLACE in os.environ or len(os.fsencode(folder.path)) + _NAME_BYTES > _PATH_BYTES:
            yield
            return
        os.environ[_PLACE] = folder.path
        try:
            yield
        finally:
            del os.environ[_PLACE]
