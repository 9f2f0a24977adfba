"""What `local-unsafe` promises, which isolates nothing: limits, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import pytest_asyncio
from processes import is_running

import coachrl
from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.inside import plain

pytestmark = pytest.mark.asyncio(loop_scope="session")

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open('pid', 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)
print('begun', flush=True)
"""
APART = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: held = b'x' * (64 << 20); time.sleep(600)
        os._exit(0)
time.sleep(600)
"""


@pytest_asyncio.fixture(loop_scope="session")
async def cell():
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=60, memory_mb=256, concurrency=1))
    yield await sandbox.open({})
    await sandbox.close()


@pytest.mark.parametrize("path", [None, f"{os.pathsep}/nowhere", "."])
async def test_a_file_that_is_named_like_a_module_ends_no_later_program(cell, monkeypatch, path):
    if path:
        monkeypatch.setenv("PYTHONPATH", path)  # its empty part means the workspace
    else:
        monkeypatch.setattr(plain, "_interpreter", lambda: [sys.executable, "-s", "-c"])  # as Python 3.10 is started
    for module in ("contextlib", "resource", "signal", "sitecustomize", "inside"):
        await cell.run(f"open('{module}.py', 'w').write('raise SystemExit(7)')")
    assert (await cell.run("print(1)")).stdout == "1\n"
    assert (await cell.run("import inside")).exit_code == 7, "its own imports are those of plain Python"


async def test_that_it_isolates_nothing_is_said_once_and_before_anything_runs(caplog):
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", concurrency=1))
    await sandbox.start()
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "isolates NOTHING" in caplog.text
    for _ in range(2):
        await (await sandbox.open({})).close()
    await sandbox.close()
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("more", "timeout_s", "state"),
    [
        ("", None, "ok"),
        ("time.sleep(600)", 5.0, "timeout"),
        ("raise ValueError", None, "error"),
        ("os.kill(os.getpid(), 9)", None, "error"),
        ("os.killpg(0, 19)", 5.0, "timeout"),
        ("print('x' * 10**6); time.sleep(600)", None, "output_limit"),
    ],
)
async def test_what_a_program_leaves_in_a_session_of_its_own_ends_with_it(cell, more, timeout_s, state):
    execution = await cell.run(DAEMON + more, timeout_s)
    assert (execution.state, execution.stdout[:6]) == (state, "begun\n"), execution
    assert not is_running(int(await cell.read("pid")))


async def test_memory_of_processes_in_sessions_of_their_own_counts(cell):
    began = time.monotonic()
    assert (await cell.run(APART)).state == "oom"
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("import sys; sys.exit(7)", 7)]
    + [(f"import os; os.kill(os.getpid(), {number})", -number) for number in (6, 9, 14, 15, 34)],
)
async def test_a_program_ends_for_its_caller_as_it_ended(cell, code, exit_code):
    assert (await cell.run(code)).exit_code == exit_code


async def test_a_program_that_ends_its_parent_does_not_end_coachrl(cell):
    execution = await cell.run(f"import os, time; os.kill(os.getppid(), {int(signal.SIGKILL)}); time.sleep(600)")
    assert execution.state == "error"
    assert (await cell.run("print('alive')")).stdout == "alive\n"


async def test_a_program_finds_no_module_of_its_keeper(cell):
    found = "import sys; print([name for name in sys.modules if 'inside' in name or 'keeper' in name], sys.path[0])"
    assert (await cell.run(found)).stdout == f"[] {cell.root}\n"


async def test_a_link_in_the_place_of_the_workspace_leads_nowhere(cell, tmp_path):
    (tmp_path / "theirs").write_text("x")
    tmp_path.chmod(0o755)
    code = f"import os, shutil; here = os.getcwd(); shutil.rmtree(here); os.symlink({str(tmp_path)!r}, here)"
    assert (await cell.run(code)).files_written == ()
    assert await cell.files() == ()
    again = await cell.run("print(1)")
    assert (again.state, again.stdout) == ("error", "") and "removed its workspace" in again.stderr
    with pytest.raises(SandboxError, match="earlier code removed it"):
        await cell.copy()
    await cell.close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755 and (tmp_path / "theirs").exists()
    assert (await cell.run("print(1)")).state == "infrastructure"


async def test_a_file_that_has_no_end_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe"))
    for path, what in ((tmp_path / "pipe", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(SandboxError, match=f"cannot read {path} for the workspace: it is {what}"):
            await sandbox.open({"a": path})
    await sandbox.close()


TOLD_TWICE = f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(coachrl.__file__).parent / "sandbox")!r})
from inside import keeper

class Teller:
    def find_spec(self, name, *where):
        if name == "socket":  # the keeper is in the middle of an import of its own
            os.kill(os.getpid(), signal.SIGTERM)

sys.modules.pop("socket", None)
sys.meta_path.insert(0, Teller())
if (child := os.fork()) == 0:
    time.sleep(600)
print(child, flush=True)
signal.signal(signal.SIGTERM, keeper._end_all)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""


async def test_a_keeper_that_is_told_twice_ends_what_is_below_it():
    done = subprocess.run([sys.executable, "-c", TOLD_TWICE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "") and not is_running(int(done.stdout))


UNSEEN = f"""
import os, sys, time
sys.path.insert(0, {str(Path(coachrl.__file__).parent / "sandbox")!r})
from inside import keeper, memory_in_use

looks, seen = [], memory_in_use.descendants
def look(pid):
    looks.append(pid)
    return seen(pid) if len(looks) > 2 else {{pid}}
memory_in_use.descendants = look
if os.fork() == 0:
    time.sleep(600)
print(keeper.end_below(os.getpid()), keeper._has_children())
keeper._PATIENCE_S = 0
print(keeper.end_below(os.getpid()))
"""


async def test_processes_that_a_look_misses_are_looked_for_again_and_no_patience_is_no_end():
    done = subprocess.run([sys.executable, "-c", UNSEEN], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True False\nFalse\n", "")


OPENS_ONE = """
import asyncio, sys
import coachrl
from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

async def main():
    workspace = await make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=600)).open({})
    print(workspace.root, flush=True)
    await workspace.run(sys.argv[1])

asyncio.run(main())
"""


async def test_what_a_killed_process_leaves_ends_with_it_and_is_removed_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandboxes = [make_sandbox(SandboxConfig(kind="local-unsafe")) for _ in range(2)]
    in_use = await sandboxes[0].open({})
    command = [sys.executable, "-c", OPENS_ONE, f"{DAEMON}time.sleep(600)"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as killed:
        left = Path(killed.stdout.readline().decode().strip())
        while not (left / "pid").exists() or not (pid := (left / "pid").read_text()):
            time.sleep(0.02)
        killed.kill()
    for _ in range(1000):
        if not is_running(int(pid)):
            break
        time.sleep(0.02)
    assert not is_running(int(pid))
    assert left.is_dir()
    await sandboxes[1].start()
    assert not left.exists()
    assert Path(in_use.root).is_dir()
    for sandbox in sandboxes:
        await sandbox.close()
    assert not list(tmp_path.iterdir())


STARTS_LATE = """
import os, sys
if sys.flags.no_user_site:  # an interpreter that is to run a program, and no other
    here = os.path.dirname(__file__)
    with open(here + "/next", "w") as file:
        file.write(str(os.getpid()))
    os.rename(here + "/next", here + "/pid")
    open(here + "/go").read()
"""


async def test_a_program_whose_interpreter_was_just_starting_ends_with_a_killed_process_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(STARTS_LATE)
    os.mkfifo(tmp_path / "go")
    places = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": places, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", OPENS_ONE, "import time; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as killed:
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        killed.kill()
    pid = int((tmp_path / "pid").read_text())
    (tmp_path / "go").write_text("")
    for _ in range(1000):
        if not is_running(pid):
            break
        time.sleep(0.02)
    assert not is_running(pid)
