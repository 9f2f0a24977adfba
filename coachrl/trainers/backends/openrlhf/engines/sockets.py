"""Where an engine's vLLM binds the sockets that its processes find each other by."""

from __future__ import annotations

import os

from coachrl.storage.temporary import LockedFolder, drop_left

_PREFIX = "coachrl-engine-"
_PLACE = "VLLM_RPC_BASE_PATH"
_NAME_BYTES = len("/00000000-0000-0000-0000-000000000000")
_PATH_BYTES = 107  # the longest path of a socket


def place_of_sockets() -> LockedFolder | None:
    """Have this process, an engine's, and those that it starts bind their sockets in a folder of their own. An engine
    ends by being killed, which would leave them in the temporary folder for good: what the engines before left is
    removed here.

    None, with nothing changed, where the user has set VLLM_RPC_BASE_PATH, or the temporary folder's path is so long
    that those of the sockets would not do. Raises OSError.
    """
    drop_left(_PREFIX)
    if _PLACE in os.environ:
        return None
    folder = LockedFolder(_PREFIX)
    if len(os.fsencode(folder.path)) + _NAME_BYTES > _PATH_BYTES:
        folder.remove()
        return None
    os.environ[_PLACE] = folder.path
    return folder
