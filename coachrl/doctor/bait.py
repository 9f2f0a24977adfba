"""Real things on the host that attempts to escape are after: a secret, a file with labels, servers that listen."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import coachrl
from coachrl.sandbox.checks import MOST_HOME_ENTRIES

_VARIABLE = "COACHRL_BAIT"
_MOST_FOLDER_BYTES = 80  # the path of a socket in it has at most 107


@contextlib.contextmanager
def set_out() -> Iterator[dict[str, object]]:
    """Names that attempts may use, and what they stand for. Set it out before the sandbox starts: only then could its
    processes have inherited the secret."""
    secret = f"sk-bait-{uuid.uuid4().hex}"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  Path.home() raises where there is none, as in containers
    place = "/tmp" if len(os.fsencode(tempfile.gettempdir())) > _MOST_FOLDER_BYTES else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coachrl-bait-", dir=place)))
        folder.chmod(0o755)
        for name in ("secret.txt", "labels.csv"):
            (folder / name).write_text(f"{secret}\n", encoding="utf-8")
        server = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=100))
        addresses = (f"\0{folder.name}", str(folder / "s"))
        for address in addresses:
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen(100)
        (folder / "s").chmod(0o777)
        before = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = secret
        try:
            yield {
                "SECRET": secret,
                "HOST_FILE": str(folder / "secret.txt"),
                "LABELS_FILE": str(folder / "labels.csv"),
                "PROJECT_FILE": str(Path(coachrl.__file__).resolve()),
                "HOME": str(home),
                "HOME_ENTRIES": _entries(home),
                "PORT": server.getsockname()[1],
                "ABSTRACT": addresses[0],
                "SOCKET_FILE": addresses[1],
            }
        finally:
            if before is None:
                os.environ.pop(_VARIABLE, None)
            else:  # another bait lies out around this one
                os.environ[_VARIABLE] = before


def _entries(home: Path) -> list[str]:
    is_readable = home.is_dir() and os.access(home, os.R_OK | os.X_OK)
    return sorted(os.listdir(home))[:MOST_HOME_ENTRIES] if is_readable else []  # noqa: PTH208
