"""Stands between whoever starts a program and that program, where no namespace holds what it leaves behind.

The keeper adopts what the program's processes leave, ends that with the program, and then ends as the program did. A
program may end its keeper, too, being of the same user: then nobody holds what it left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from typing import NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE_S = 5.0  # with processes that are made faster than they can be ended


def keep(started_by: int) -> None:
    """Go on in a child; the process that calls becomes its keeper, and never returns. Where `started_by`, the process
    that has started it, is killed, also before this call, it ends everything."""
    adopt_orphans()
    child = os.fork()
    if child:
        _keep(child, started_by)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end. Raises OSError."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("the kernel lets nobody adopt processes")


def _prctl(setting: int, value: int) -> int:
    return ctypes.CDLL(None).prctl(setting, *map(ctypes.c_ulong, (value, 0, 0, 0)))


def end_below(pid: int) -> bool:
    """End all processes below `pid`, and say whether none is left. Another process than the one that calls has to reap
    them itself."""
    from . import memory_in_use  # a program that leaves nothing starts without it

    give_up = time.monotonic() + _PATIENCE_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)  # its program may have stopped it
    while time.monotonic() < give_up:
        left = memory_in_use.descendants(pid) - {pid}
        for one in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        # Those that follow one another fast may be missing in a list; one of them is always a child of who adopts them.
        if not (_has_children() if pid == os.getpid() else left):
            return True
        time.sleep(0.001)
    return False


def _has_children() -> bool:
    """Whether there are any, once those that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _end_all(*_: object) -> NoReturn:
    # The kernel tells it once for each thread that was its parent: a second call would cut into an import of the first.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_below(os.getpid())
    os._exit(1)


def _keep(child: int, started_by: int) -> NoReturn:
    os.closerange(0, 3)
    signal.signal(signal.SIGTERM, _end_all)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != started_by:  # killed before the kernel was asked to tell
        _end_all()
    while True:
        pid, ended = os.wait()
        if pid == child:
            break
    if _has_children():
        end_below(os.getpid())
    code = os.waitstatus_to_exitcode(ended)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # of SIGKILL, which is not to be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
