"""The command line as a user meets it: a process of its own, its output, its exit code.

Each is forked from one process that has imported everything: importing takes seconds, and most commands far less.
Where several processes run the suite, that one is started by the first of them, and forks for all (`share`).
"""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import forks
from forks import Forked, ForkServer

_SHARED = "COACHRL_TEST_COMMAND_LINES"


class Command:
    """A command that was started, with the files that it writes to."""

    def __init__(self, process, folder):
        self._process, self._folder = process, folder
        self.pid = process.pid

    @property
    def running(self):
        return self._process.running

    def printed(self):
        """What it has written to its standard output so far."""
        return (self._folder / "stdout").read_text(errors="replace")

    def finish(self, timeout_s=600):
        code = self._process.wait(timeout_s)
        stdout, stderr = ((self._folder / name).read_text(errors="replace") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess((), code, stdout, stderr)


@functools.cache
def _folder():
    return tempfile.TemporaryDirectory(prefix="coachrl-cli-")


@functools.cache
def _server():
    return ForkServer(["cli_forks"], environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def _socket():
    return os.environ.get(_SHARED) or _server().socket


def share():
    """Fork for the processes that this one starts, too."""
    os.environ[_SHARED] = _server().socket


def shared():
    """The socket of the server that forks for this process and others, or None."""
    return Path(os.environ[_SHARED]) if _SHARED in os.environ else None


def start(*arguments, cwd, powerless=False, **environment):
    """Start `coachrl` with `arguments` in the folder `cwd`, with `environment` on top of this process's.

    powerless: without root's right to write to folders that are read-only."""
    place = Path(tempfile.mkdtemp(dir=_folder().name))
    function = "cli_forks:run_powerless" if powerless else "cli_forks:run"
    output = (place / "stdout", place / "stderr")
    words = list(map(str, arguments))
    process = Forked(_socket(), function, words, cwd, {**os.environ, **environment}, output)
    return Command(process, place)


def coachrl(*arguments, cwd, powerless=False, **environment):
    """Run it to its end."""
    return start(*arguments, cwd=cwd, powerless=powerless, **environment).finish()


def command(function="cli_forks:run"):
    """The words that run `coachrl` from a shell or another program; or another "module:function"."""
    return forks.command(_socket(), function)
