"""Which code is forked from the warm interpreter, and that nothing passes from one execution to the next."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coachrl.sandbox.inside import warm
from coachrl.sandbox.inside.warm import needs_packages

pytestmark = pytest.mark.asyncio(loop_scope="session")
PACKAGES = ("numpy", "pandas", "sklearn")


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np",
        "import os, pandas",
        "from sklearn.linear_model import Ridge",
        "import helper",
        "from . import x",
        "import os, helper.sub",
        "exec('import ' + 'num' + 'py'); numpy",
        "__import__('num' + 'py')",
        "import importlib; importlib.import_module('num' + 'py')",
        "import pickle; pickle.load(open('model.pkl', 'rb'))",
        "x = 'an import of goods'",
    ],
)
async def test_code_that_may_need_packages(code):
    assert needs_packages(code, PACKAGES)


@pytest.mark.parametrize("code", ["", "print(1)", "import math, re\nfrom os import path"])
async def test_code_that_needs_none(code):
    assert needs_packages(code, PACKAGES) is False


@pytest.mark.parametrize("packages", ["", "import numpy, pandas, sklearn.linear_model\n"], ids=["small", "warm"])
async def test_nothing_passes_from_one_execution_to_the_next(cell, packages):
    dirty = """
import builtins, gc, json, os, random, resource, signal, sys, threading
builtins.leak = sys.leak = json.leak = 1
os.environ["LEAK"] = "1"
os.umask(0o777 & ~0o700)
random.random()
random.seed = None
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.alarm(1)
sys.setrecursionlimit(77)
sys.modules["leak"] = json
sys.path.append("/leak")
threading.Thread(target=lambda: None, name="leak").start()
open("/tmp/leak", "w").close(); open("/dev/shm/leak", "w").close()
for name in ("numpy", "pandas"):
    if name in sys.modules:
        sys.modules[name].leak = 1
        sys.modules[name].array = None
gc.disable()
"""
    look = """
import builtins, gc, json, os, random, resource, signal, sys, threading
print(sorted(os.listdir("/tmp") + os.listdir("/dev/shm")), sorted(n for n in os.listdir("/proc") if n.isdigit()))
print([hasattr(m, "leak") for m in (builtins, sys, json)], sorted(os.environ), oct(os.umask(0)), random.random())
print(resource.getrlimit(resource.RLIMIT_NOFILE), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM))
print(sys.getrecursionlimit(), "leak" in sys.modules, sys.path, threading.enumerate(), gc.isenabled(), random.seed)
for name in ("numpy", "pandas"):
    if name in sys.modules:
        print(name, hasattr(sys.modules[name], "leak"), sys.modules[name].array.__name__)
"""
    before = await cell.run(packages + look)
    assert before.state == "ok", before
    assert (await cell.run(packages + dirty)).state == "ok"
    after = await cell.run(packages + look)

    def without_addresses(text):
        return [word for word in text.split() if not word.startswith("0x7") and "0x" not in word]

    assert without_addresses(after.stdout) == without_addresses(before.stdout)


async def test_both_ways_give_the_same_report(cell):
    for code in ("print(open('gone'))", "import os; os._exit(5)", "import sys; sys.exit('x')", "1/0"):
        plain, warm = await cell.run(code), await cell.run(f"{code} # numpy")
        assert (plain.state, plain.exit_code, plain.stdout) == (warm.state, warm.exit_code, warm.stdout)


def warm_interpreter(sandbox):
    """Host pid of the sandbox's warm interpreter: the largest of its processes."""
    below, sizes = {sandbox._zygote.bubblewrap.process.pid}, {}
    for _ in range(4):
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            except OSError:
                continue
            if int(fields["PPid"]) in below:
                below.add(int(fields["Pid"]))
                sizes[int(fields["Pid"])] = int(fields.get("VmRSS", "0 kB").split()[0])
    return max(sizes, key=lambda pid: sizes[pid])


async def test_a_dead_warm_interpreter_is_infrastructure_and_is_replaced(local):
    cell = await local.open({})
    running = asyncio.create_task(cell.run("import numpy, time; open('started', 'w').close(); time.sleep(600)"))
    while "started" not in await cell.files():
        await asyncio.sleep(0.05)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    os.kill(warm_interpreter(local), signal.SIGKILL)
    while local._zygote.alive:
        await asyncio.sleep(0.05)
    assert (await cell.run("import numpy")).state == "infrastructure"
    await cell.close()
    cell = await local.open({})
    assert (await cell.run("import numpy; print(numpy.__name__)")).stdout == "numpy\n"
    await cell.close()


async def test_cancelling_while_the_warm_interpreter_works_harms_nobody(local):
    cells = [await local.open({}) for _ in range(4)]
    for delay_s in (0.0, 0.005, 0.01, 0.02, 0.04):
        tasks = [asyncio.create_task(cell.run("import numpy; print(1)")) for cell in cells]
        await asyncio.sleep(delay_s)
        for task in tasks[:2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [execution.stdout for execution in done[2:]] == ["1\n", "1\n"], done
    for cell in cells:
        await cell.close()


async def test_a_program_gets_no_file_of_those_that_run_beside_it_however_many_these_are(monkeypatch, tmp_path):
    """The warm interpreter holds one for each program that runs: hundreds of them on a large machine."""
    monkeypatch.setattr(warm.jail, "stand_alone", lambda: None)
    monkeypatch.setattr(warm.jail, "enter", lambda *_: warm.jail._lower(resource.RLIMIT_NOFILE, 512))
    monkeypatch.setattr(warm.program, "run_and_exit", lambda code: os._exit(Path("/proc/self/fd/600").exists()))
    told = os.open(tmp_path / "told", os.O_WRONLY | os.O_CREAT)
    if (pid := os.fork()) == 0:
        try:
            os.dup2(told, 600)
            warm.become_program("", None, told, warm.ProgramFiles(told, told, told))
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "told").read_text() == warm.BEGUN
    os.close(told)


SIGNALS_TO_ALL = """
import asyncio, os, signal
from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

async def main():
    sandbox = make_sandbox(SandboxConfig(concurrency=1))
    cell = await sandbox.open({})
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
        os.killpg(0, number)
    await asyncio.sleep(0.5)
    print((await cell.run("print(1)")).state)
    await sandbox.close()

asyncio.run(main())
"""


async def test_a_signal_to_a_whole_process_group_leaves_the_sandbox_to_whoever_started_it():
    """As Ctrl-C is, which coachrl itself answers: else it would say that the sandbox had ended."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    command = [sys.executable, "-c", SIGNALS_TO_ALL]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert done.stdout == "ok\n", done.stderr


async def test_no_process_to_be_had_is_waited_for(monkeypatch):
    answers = iter([BlockingIOError(), BlockingIOError(), 7])

    def fork():
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(warm.jail, "FORK_AGAIN_S", 0)
    monkeypatch.setattr(warm.os, "fork", fork)
    assert warm.jail.fork() == 7


@pytest.mark.parametrize(("error", "is_done"), [(BlockingIOError(), False), (ProcessLookupError(), True)])
async def test_a_program_for_which_there_is_no_process_stays_asked_for(monkeypatch, error, is_done):
    def fork():
        raise error

    monkeypatch.setattr(warm.jail, "join", lambda *_: None)
    monkeypatch.setattr(warm.os, "fork", fork)
    told, status = os.pipe()
    fds = [os.dup(status) for _ in range(5)] + [status]
    assert warm._fork_program(fds, -1, {}) is is_done
    assert all(Path(f"/proc/self/fd/{fd}").exists() for fd in fds) is not is_done
    if not is_done:
        for fd in fds:
            os.close(fd)
    assert os.read(told, 99) == (b"failed " if is_done else b"")
    os.close(told)
