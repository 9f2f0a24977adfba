"""Runs command lines in forks of one process that has imported everything already: see command_line.py.

Reads the name of a folder a line. In it, `order.json` holds arguments, cwd and environment; `pid`, `stdout`, `stderr`
and, at the end, `returncode` are written to it.
"""

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from coachrl.cli.main import main

HEAVY = ("torch", "transformers", "litellm", "coachrl.audit.report.page", "coachrl.doctor.machine", "coachrl.report")
HEAVY += ("coachrl.commands.run", "coachrl.trainers.backends.torch.sft", "coachrl.trainers.backends.torch.backend")
for name in HEAVY:
    with contextlib.suppress(ImportError):  # an extra that is not installed
        importlib.import_module(name)


def run_command(folder, order):
    """As `python -m coachrl.cli.main` would: never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background specs ignore it
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    if order["powerless"]:
        drop_capabilities()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv, code = ["coachrl", *order["arguments"]], 1
    sys.path.insert(0, order["cwd"])
    try:
        main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def drop_capabilities():
    """Also root may then write only where its permissions let it (capset(2), version 3, two words of three sets)."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, none) == 0, os.strerror(ctypes.get_errno())


def watch(folder):
    """Forks the command, waits for its end, and writes down how it ended."""
    order = json.loads((folder / "order.json").read_text())
    pid = os.fork()
    if pid == 0:
        run_command(folder, order)
    write_whole(folder / "pid", str(pid))
    _, status = os.waitpid(pid, 0)
    write_whole(folder / "returncode", str(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def write_whole(path, text):
    path.with_suffix(".aside").write_text(text)
    path.with_suffix(".aside").rename(path)


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
for line in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        watch(Path(line.rstrip("\n")))
