"""Tries each control of the local sandbox for real: code inside does what it must not, and says how that went."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import coachrl
from coachrl.config import SandboxConfig
from coachrl.errors import SandboxUnavailable
from coachrl.sandbox import bubblewrap
from coachrl.sandbox.base import Workspace

SMALL = SandboxConfig(timeout_s=30.0, memory_mb=256, disk_mb=1, max_files=16, max_processes=4)

_ATTEMPTS = """
import ctypes, json, os, socket, sys  # which the waiting interpreter has: it may be the only one who can read others

packages = [os.path.join(PACKAGES, name) for name in os.listdir(PACKAGES)] if os.path.isdir(PACKAGES) else []
modes = {sys.executable: os.X_OK, **dict.fromkeys([os.__file__, *packages], os.R_OK)}
closed = ', '.join(path for path, mode in modes.items() if not os.access(path, mode))
if closed:  # what else is tried needs them
    print(json.dumps({READABLE: closed}))
    raise SystemExit

def refused(attempt, *errors):
    try:
        attempt()
    except errors or OSError as error:
        return ''
    return 'was allowed'

def connect(address):
    with socket.create_connection(address, timeout=2):
        pass

def fork_many():
    for _ in range(8):
        if os.fork() == 0:
            os.read(held, 1)
            os._exit(0)

def write_much():
    with open('much', 'wb') as file:
        for _ in range(64):
            file.write(bytes(65536))

def make_many():
    for number in range(32):
        open(f'many-{number}', 'w').close()

def leave_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) != 0:
        raise OSError(ctypes.get_errno(), 'unshare')

held, kept_open = os.pipe()
status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
rights = [status[name].strip() for name in ('CapEff', 'CapPrm', 'CapBnd', 'NoNewPrivs', 'Seccomp')]
no_rights = ['0' * 16] * 3 + ['1', '2']
print(json.dumps({
    'network': refused(lambda: connect(tuple(ADDRESS))) or refused(lambda: connect(('192.0.2.1', 80))),
    'host files': ', '.join(path for path in HIDDEN if os.path.exists(path)),
    'privileges': '' if rights == no_rights else f'rights {rights}, expected {no_rights}',
    'user namespaces inside': refused(leave_namespace),
    'memory limit': refused(lambda: bytearray(1 << 30), MemoryError),
    'disk limit': refused(write_much),
    'file limit': refused(make_many),
    'process limit': refused(fork_many),
    READABLE: closed,
}))
"""
MOST_HOME_ENTRIES = 1000  # that are looked for: a program holds their names
CGROUPS = "memory cgroups"
_READABLE = "Python and packages readable"
_REMEDIES = {
    _READABLE: "the code runs as user nobody when coachrl is started by root: `chmod -R o+rX` their folders",
}
_REMEDY = "this kernel or container does not keep what bubblewrap asked for; use Linux 5.8 or later, outside of gVisor"


@dataclass(frozen=True)
class Finding:
    """One check of the machine. detail: what was found; remedy: what to do where it is not ok. optional: what some runs
    alone need. skipped: there was nothing here to try it on, so that it is neither good nor bad."""

    name: str
    ok: bool
    detail: str = ""
    remedy: str = ""
    optional: bool = False
    skipped: bool = False


def without_cgroups(why: str) -> Finding:
    """The sandbox holds without them, somewhat later."""
    remedy = (
        "start coachrl outside of containers, on a system with cgroups of version 2"
        if os.getuid() == 0
        else "where systemd runs, start coachrl with `systemd-run --user --scope coachrl …`"
    )
    return Finding(CGROUPS, False, f"{why}; programs' memory is looked at 20 times a second", remedy, optional=True)


def _hidden_paths() -> list[str]:
    project = Path(coachrl.__file__).resolve().parent
    return ["/etc/shadow", "/etc/passwd", "/proc/1/root/etc", "/proc/sys", str(project), *_home_entries()]


def _home_entries() -> list[str]:
    home = Path(os.path.realpath(os.path.expanduser("~")))  # noqa: PTH111  Path.home() raises where there is none
    python = Path(sys.base_prefix).resolve()
    if home == Path("/") or not home.is_dir() or not os.access(home, os.R_OK | os.X_OK):
        return []
    # An interpreter that lives in the home folder is shown; the rest of that folder is not.
    return [str(path) for path in islice(home.iterdir(), MOST_HOME_ENTRIES) if not python.is_relative_to(path)]


async def try_controls(workspace: Workspace) -> list[Finding]:
    """One check for each control, tried in `workspace`, which must have SMALL.

    Raises SandboxUnavailable where the attempts themselves could not be run.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {
            "ADDRESS": server.getsockname(),
            "HIDDEN": _hidden_paths(),
            "PACKAGES": bubblewrap.PACKAGES,
            "READABLE": _READABLE,
        }
        code = "\n".join(f"{name} = {value!r}" for name, value in values.items()) + _ATTEMPTS
        execution = await workspace.run(code)
    if execution.state != "ok":
        raise SandboxUnavailable(f"the sandbox's self-check ended with {execution.state}: {execution.stderr.strip()}")
    found = json.loads(execution.stdout).items()
    return [
        Finding(name, False, problem, _REMEDIES.get(name, _REMEDY)) if problem else Finding(name, True, "holds")
        for name, problem in found
    ]
