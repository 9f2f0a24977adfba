"""The sandbox as an ordinary user starts it, where its processes and the agent's programs are all that user's. Run by
root, these tests become such a user."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import escapes
import pytest
from escapes import ATTEMPTS, BOMBS

from coachrl.doctor.sandbox import probes

USER = 54321
AREAS = ("other processes", "signals", "kernel", "labels", "copies", "bombs")
TRY = """
import asyncio, json, sys
import escapes
from coachrl.sandbox import make_sandbox

async def main(areas):
    escapes.ATTEMPTS[:] = [attempt for attempt in escapes.ATTEMPTS if attempt.area in areas]
    for area, name in list(escapes.BOMBS):
        if area not in areas:
            del escapes.BOMBS[area, name]
    with escapes.set_out() as bait:
        sandbox = make_sandbox(escapes.SUITE_LIMITS.model_copy(update={"concurrency": 2}))
        async for result in escapes.run_suite(sandbox, bait):
            print(json.dumps([result.area, result.tried, result.held, result.detail]), flush=True)
        await sandbox.close()

asyncio.run(main(sys.argv[1:]))
"""


def _may_run(command, environment):
    # setpriv itself may still start what the user alone may not: the interpreter must be in that user's reach. Of
    # each folder of packages one is tried; `escapes`, which the tests use, would import seconds of others.
    code = "import os, sys; os.stat(os.path.realpath(sys.executable)); import coachrl, numpy, forks"
    return subprocess.run([*command, "-c", code], env=environment, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def as_user(local):
    """Start of the command line that runs Python as an ordinary user, without a way back, and its environment."""
    if os.getuid() != 0:
        pytest.skip("the other tests of this folder run as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is needed to become an ordinary user")
    roots = {str(Path(importlib.util.find_spec(name).origin).resolve().parents[1]) for name in ("coachrl", "numpy")}
    roots.add(str(Path(escapes.__file__).resolve().parents[1]))
    environment = {
        "PATH": os.defpath,
        "HOME": "/",  # the folders that tests make are root's alone
        "PYTHONPATH": os.pathsep.join(sorted(roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The interpreter of the tests may lie in root's own home, where no other user can reach it.
    for python in filter(None, (sys.executable, shutil.which(name, path=os.defpath))):
        if _may_run([*become, python], environment):
            return [*become, python], environment
    pytest.skip(f"no {name} with coachrl that a user other than root may run")


LOCK = """
import asyncio, os, sys
from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

LOCKED = {
    "a folder that can be listed and not entered": "os.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0o444)",
    "a folder": "os.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0)",
    "a file": "open('f', 'w'); os.chmod('f', 0)",
    "the workspace": "os.chmod('.', 0)",
}

async def main():
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", concurrency=1))
    for what, code in LOCKED.items():
        workspace = await sandbox.open({})
        first = await workspace.run(f"import os; {code}")
        copied = await workspace.copy()
        others = [await one.run("print('alive')") for one in (workspace, copied)]
        left = workspace.root, copied.root
        await workspace.close()
        await copied.close()
        print(what, first.state, *(other.stdout.strip() for other in others), *map(os.path.exists, left))

asyncio.run(main())
"""


@pytest.mark.thorough
def test_no_program_reaches_another_where_all_are_one_users(as_user):
    command, environment = as_user
    tried = subprocess.run(
        [*command, "-c", TRY, *AREAS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        start_new_session=True,  # a signal to its process group that got out would end this test alone
    )
    assert tried.returncode == 0, tried.stderr
    results = [json.loads(line) for line in tried.stdout.splitlines()]
    assert [result for result in results if not result[2]] == []
    expected = [a for a in ATTEMPTS if a.area in AREAS] + [area for area, _ in BOMBS if area in AREAS]
    assert len(results) == len(expected)


@pytest.mark.slow
def test_the_doctor_finds_every_attempt_held_for_an_ordinary_user_too(as_user):
    command, environment = as_user
    done = subprocess.run(
        [*command, "-m", "coachrl", "doctor", "--sandbox"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    attempts = len(probes())
    assert f"{attempts} of {attempts} attempts were held by sandbox local" in done.stdout


def test_what_code_locks_is_looked_at_copied_and_removed_without_a_sandbox_too(as_user):
    command, environment = as_user
    done = subprocess.run([*command, "-c", LOCK], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and all(line.endswith(" ok alive alive False False") for line in lines), done.stdout


COPY = """
import asyncio
from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

async def main():
    sandbox = make_sandbox(SandboxConfig(concurrency=1), [])
    workspace = await sandbox.open({})
    lock = "import os; os.mkdir('d'); open('d/f', 'w').write('kept'); os.chmod('d/f', 0); os.chmod('d', 0)"
    print((await workspace.run(lock)).state)
    copied = await workspace.copy()
    print(await workspace.files(), await copied.files(), await copied.read("d/f"))
    await sandbox.close()

asyncio.run(main())
"""


def test_a_copy_holds_what_code_has_locked(as_user):
    """Only the sandbox itself can look into it, which has rights that the user has not."""
    command, environment = as_user
    done = subprocess.run([*command, "-c", COPY], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["ok", "('d/f',) ('d/f',) b'kept'"], done.stderr


SEND = """
import asyncio, resource
from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

KEEP = '''
import array, os, socket, time
files, kept = array.array('i', [os.open('/dev/null', os.O_RDONLY)] * 253), []
for _ in range(3):
    (into, out), (hides, kept_open) = socket.socketpair(), socket.socketpair()
    socket.send_fds(hides, [b'x'], [out.fileno()])
    out.close()
    into.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    kept.append((into, hides, kept_open))
open('sent', 'w').close()
time.sleep(60)
'''

async def main():
    sandbox = make_sandbox(SandboxConfig(concurrency=2), [])
    workspace = await sandbox.open({})
    running = asyncio.create_task(workspace.run(KEEP))
    while not running.done() and "sent" not in await workspace.files():
        await asyncio.sleep(0.02)
    other = await sandbox.open({})
    print(running.done(), (await other.run("print('unharmed')")).stdout)
    await sandbox.close()

resource.setrlimit(resource.RLIMIT_NOFILE, (700, 2000))
asyncio.run(main())
"""


def test_open_files_that_a_program_keeps_in_sockets_keep_nobody_else_from_sending_some(as_user):
    """What lies in sockets counts for a user, all processes together, against the limit of the one that sends."""
    command, environment = as_user
    done = subprocess.run([*command, "-c", SEND], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["False", "unharmed"], done.stderr


HIDE = """
import asyncio, sys
from coachrl.config import SandboxConfig
from coachrl.sandbox import bubblewrap, make_sandbox

system = bubblewrap._system_arguments
bubblewrap._system_arguments = lambda: [*system(), "--ro-bind", sys.argv[1], "/tools"]

async def main():
    sandbox = make_sandbox(SandboxConfig(concurrency=1), [])
    workspace = await sandbox.open({})
    for name in ("shown", "hidden"):
        ended = await workspace.run(f"import subprocess; subprocess.run(['/tools/{name}', '1'], check=True)")
        print(name, ended.state)
    await sandbox.close()

asyncio.run(main())
"""


def test_a_program_that_nobody_may_look_into_is_ended(as_user):
    """As RHEL's sudo: a file of root's that may be run and not read. The kernel shows what it holds to root alone."""
    command, environment = as_user
    with tempfile.TemporaryDirectory() as tools:
        Path(tools).chmod(0o755)
        for name, mode in (("shown", 0o755), ("hidden", 0o711)):
            shutil.copy("/bin/sleep", Path(tools, name))
            Path(tools, name).chmod(mode)
        done = subprocess.run([*command, "-c", HIDE, tools], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["shown ok", "hidden oom"], done.stderr


@pytest.mark.parametrize("asked", [["doctor"], ["train", "-c", "quickstart", "--dry-run"]], ids=["doctor", "train"])
def test_a_current_folder_that_is_locked_is_named(as_user, tmp_path, asked):
    command, environment = as_user
    (tmp_path / "locked").mkdir(mode=0o700)  # root's, who starts the program there
    done = subprocess.run(
        [*command, "-m", "coachrl", *asked],
        env=environment,
        cwd=tmp_path / "locked",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the current folder cannot be used (Permission denied): change to one")
    assert len(done.stderr.splitlines()) == 1
