"""The line on a terminal that says what a command is at before it has anything else to say."""

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

from coachrl.cli.console import out, waiting
from coachrl.cli.main import app


class Screen:
    """A terminal, in the place of the standard error."""

    def __init__(self):
        self._master, slave = pty.openpty()
        self.file = os.fdopen(slave, "w")
        self.text = ""

    def until(self, words):
        """Read until `words` are there."""
        deadline = time.monotonic() + 60
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self._master], [], [], 0.2)[0]:
                self.text += os.read(self._master, 65536).decode()
        return self.text

    def close(self):
        self.file.close()
        os.close(self._master)


@pytest.fixture
def screen(monkeypatch):
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm")
    yield screen
    waiting.stop()
    screen.close()


def test_a_verb_says_that_it_is_at_work_until_it_prints(screen, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen.file)  # in the test: pytest sets its own between fixture and test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Tasks that come only once the line was seen.
    (tmp_path / "slow_tasks.py").write_text(
        "from coachrl.types import Task\nwait = None\n"
        "def load(config):\n    wait()\n    return [Task(str(n), 'c', 'p', ground_truth='') for n in range(10)]\n"
    )
    sys.path.append(str(tmp_path))
    import slow_tasks

    monkeypatch.setattr(slow_tasks, "wait", lambda: screen.until("coachrl tasks … 1 s"))
    app(["tasks", "list", "tasks.source=slow_tasks:load"], prog_name="coachrl", standalone_mode=False)
    assert screen.until("\x1b[2K").startswith("\r\x1b[2Kcoachrl tasks … 0 s\r\x1b[2Kcoachrl tasks … 1 s")
    assert waiting._thread is None
    sys.modules.pop("slow_tasks")


def test_it_is_gone_before_anything_is_printed(screen, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen.file)
    waiting.start("reading")
    screen.until("reading … 0 s")
    out.print("found")
    assert screen.until("0 s\r\x1b[2K").endswith("\r\x1b[2K")
    assert capsys.readouterr().out == "found\n"


def test_a_pipe_and_a_terminal_that_cannot_erase_get_no_such_line(monkeypatch, screen):
    monkeypatch.setattr(sys, "stderr", screen.file)
    monkeypatch.setenv("TERM", "dumb")
    waiting.start("reading")
    assert waiting._thread is None
    monkeypatch.setenv("TERM", "xterm")
    with Path(os.devnull).open("w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        waiting.start("reading")
        assert waiting._thread is None
