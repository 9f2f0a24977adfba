"""One execution as a plain subprocess: time, memory, output and the size of files are limited; nothing is isolated."""

# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from . import keeper, memory_in_use, supervisor
from .jail import Limits
from .supervisor import Report
from .warm import needs_packages

PACKAGES = ("numpy", "pandas", "scipy", "sklearn", "sympy")
_START = f"""
import sys
sys.path[:] = [place for place in sys.path if place]  # not yet from the workspace: Python 3.10 knows no -P
sys.path.insert(0, {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))!r})
import contextlib, resource
from inside import keeper, program
keeper.keep(int(sys.argv[1]))
del sys.path[0]
for name in [name for name in sys.modules if name.partition('.')[0] == 'inside']:
    del sys.modules[name]
del keeper
if sys.argv[2] == 'numpy':  # its generators are seeded, as everything that code finds is
    with contextlib.suppress(ImportError):
        import numpy.random
for limit in sys.argv[3:]:
    name, value = map(int, limit.split('='))
    hard = resource.getrlimit(name)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(name, (value, value))
program.run_and_exit(sys.stdin.buffer.read().decode(errors="surrogatepass"))
"""


def execute(code: str, root: str, limits: Limits, environment: Mapping[str, str], host: socket.socket) -> Report:
    """Run `code` in the folder `root`; what it leaves behind is ended with it, as far as it lets its keeper live.
    Raises `supervisor.Cancelled` when `host` hangs up, OSError where no process can be started."""
    report = Report()
    started = time.monotonic()
    with tempfile.TemporaryFile() as source:
        source.write(code.encode(errors="surrogatepass"))  # half a character is for the interpreter to refuse
        source.seek(0)
        imports = "numpy" if needs_packages(code, PACKAGES) else ""
        process = subprocess.Popen(
            [*_interpreter(), _START, str(os.getpid()), imports, *_limit_arguments(limits)],
            cwd=root, env={**environment, "PYTHONPATH": _absolute(environment.get("PYTHONPATH", ""))},
            start_new_session=True,
            stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    assert process.stdout and process.stderr
    ended = os.pidfd_open(process.pid)
    with process.stdout, process.stderr:
        pipes = {process.stdout.fileno(): report.stdout, process.stderr.fileno(): report.stderr}
        for fd in pipes:
            os.set_blocking(fd, False)

        def holds_too_much() -> bool:
            tree = memory_in_use.descendants(process.pid)
            return memory_in_use.uses_more_than(tree, limits.memory_mb * 1024 * 1024)

        try:
            supervisor.watch(ended, holds_too_much, pipes, report, limits, host)
        finally:
            os.close(ended)
            keeper.end_below(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        report.wall_s = time.monotonic() - started
        for fd, kept in pipes.items():
            supervisor.drain(fd, kept, report, limits)
    supervisor.conclude(report, f"exit {process.returncode}", kernel_killed=False)
    return report


def _interpreter() -> list[str]:
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, "-s", *safe_path, "-c"]


def _absolute(places: str) -> str:
    """Of a PYTHONPATH: other parts, also an empty one, would lead into the workspace."""
    return os.pathsep.join(filter(os.path.isabs, places.split(os.pathsep)))


def _limit_arguments(limits: Limits) -> Iterator[str]:
    mebibyte = 1024 * 1024
    values = {
        resource.RLIMIT_DATA: limits.memory_mb * mebibyte,
        resource.RLIMIT_FSIZE: limits.disk_mb * mebibyte,
        resource.RLIMIT_CPU: int(limits.timeout_s * (os.cpu_count() or 1)) + 1,
        resource.RLIMIT_CORE: 0,
    }
    return (f"{name}={value}" for name, value in values.items())
