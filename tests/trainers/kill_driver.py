"""Runs trainings in forked processes that kill themselves at a given moment; itself forked, see command_line.py.

Reads one JSON order a line: {"config": path, "resume": folder or null, "kill_at": event or null, "kill_among": ending
of the events that are counted, "kill_after_s": seconds or null, "log": path}. Answers {"returncode": …, "events":
[name, …]}. An event is something that the run does to the file system or a socket, in order: a kill at event n comes
right before it is done.
"""

import asyncio
import json
import os
import signal
import sys
import traceback
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
import litellm  # noqa: F401
import torch
import transformers  # noqa: F401
from rich.console import Console

from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.errors import CoachrlError
from coachrl.runs.folder import Run

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Fuse:
    """Kills the process right before event number `kill_at` of those that end in `among`."""

    def __init__(self, kill_at, among, log):
        self.kill_at, self.among, self.count = kill_at, among, 0
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def __call__(self, event, arguments):
        if event == "open":
            path, _, flags = arguments
            if not isinstance(path, str) or "/runs/" not in path or not (flags or 0) & WRITES:
                return
        elif event not in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "socket.connect"):
            return
        name = f"{event} {arguments[0]}"
        if name.endswith(self.among):
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1
        os.write(self.log, f"{name}\n".encode())


def train(order):
    sys.addaudithook(Fuse(order["kill_at"], order["kill_among"], order["log"]))
    if order["kill_after_s"] is not None:
        signal.setitimer(signal.ITIMER_REAL, order["kill_after_s"])
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    resume = Path(order["resume"]) if order["resume"] else None
    config = load_config(resume / "config.yaml" if resume else Path(order["config"]))
    try:
        run = Run.open(resume) if resume else Run.create(config)
        asyncio.run(train_run(config, run, Console(quiet=True), resume=resume is not None))
    except (CoachrlError, OSError):
        traceback.print_exc()
        return 1
    return 0


def main():
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                torch.set_num_threads(1)  # its pool is made anew after a fork, which several threads at once cannot do
                code = train(order)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        events = Path(order["log"]).read_text().splitlines()
        answer = {"returncode": os.waitstatus_to_exitcode(status), "events": events}
        os.write(answers, json.dumps(answer).encode() + b"\n")


main()
