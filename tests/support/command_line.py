"""The command line as a user meets it: a process of its own, its output, its exit code.

Each is forked from one process that has imported everything: importing takes seconds, and most commands far less.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


class Command:
    """A command that was started, with the files that it writes to."""

    def __init__(self, folder):
        self._folder = folder

    @property
    def pid(self):
        return int(self._wait_for("pid", 60))

    @property
    def running(self):
        return not (self._folder / "returncode").exists()

    def finish(self, timeout_s=600):
        code = int(self._wait_for("returncode", timeout_s))
        stdout, stderr = ((self._folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess((), code, stdout, stderr)

    def _wait_for(self, name, timeout_s):
        deadline = time.monotonic() + timeout_s
        while not (self._folder / name).exists():
            assert time.monotonic() < deadline, (self._folder / "stderr").read_text()
            time.sleep(0.01)
        return (self._folder / name).read_text()


@functools.cache
def _forks():
    folder = tempfile.TemporaryDirectory(prefix="coachrl-cli-")
    script = Path(__file__).with_name("cli_forks.py")
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, text=True, env=environment)
    atexit.register(process.stdin.close)
    return folder, process


def _forked(order):
    folder, process = _forks()
    place = Path(tempfile.mkdtemp(dir=folder.name))
    (place / "order.json").write_text(json.dumps(order))
    process.stdin.write(f"{place}\n")
    process.stdin.flush()
    return Command(place)


def start(*arguments, cwd, powerless=False, **environment):
    """Start `coachrl` with `arguments` in the folder `cwd`, with `environment` on top of this process's.

    powerless: without root's right to write to folders that are read-only."""
    words = [str(argument) for argument in arguments]
    order = {"arguments": words, "cwd": str(cwd), "environment": {**os.environ, **environment}}
    return _forked(order | {"powerless": powerless})


def coachrl(*arguments, cwd, powerless=False, **environment):
    """Run it to its end."""
    return start(*arguments, cwd=cwd, powerless=powerless, **environment).finish()
