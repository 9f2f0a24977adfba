"""The embedded sandbox beyond the common promises: bombs of processes, its own failure, what honest programs need."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile

import pytest

from coachrl.audit.data.foreign import files_of
from coachrl.config import SandboxConfig
from coachrl.doctor.sandbox import CALLS
from coachrl.errors import ConfigError, SandboxError, TaskError
from coachrl.sandbox import answers, bubblewrap, make_sandbox
from coachrl.sandbox.base import limits_of, read_host_files
from coachrl.sandbox.inside import wire
from coachrl.sandbox.inside.memory_in_use import descendants
from coachrl.tasks.tabular.grading import read_header

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_pipe_called_main_holds_no_error_of_syntax_up(cell):
    await cell.run("import os; os.mkfifo('main.py')")
    execution = await cell.run("a = = 1", 5.0)
    assert execution.state == "error" and "a = = 1" in execution.stderr


async def test_memory_shared_with_the_waiting_interpreter_is_free(cell):
    code = (
        "import os, sys, pandas, time\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0: time.sleep(0.3); os._exit(0)\n"
        "time.sleep(0.5)"
    )
    assert (await cell.run(code)).state == "ok"


async def test_no_folder_for_temporary_files_is_needed(local, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/dev/null")
    fresh = make_sandbox(SandboxConfig(concurrency=1))
    await fresh.start()
    await fresh.close()


async def test_fork_bomb_ends(cell):
    code = "import os\nn = 0\nwhile True:\n    if os.fork() == 0:\n        while True:\n            os.fork()"
    execution = await cell.run(code, timeout_s=10)
    assert execution.state in ("error", "timeout")
    assert (await cell.run("print('alive')")).stdout == "alive\n"


async def test_process_limit_counts_this_execution_alone(local):
    many = (
        "import os, time\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0: time.sleep(5); os._exit(0)\n"
        "print('forked')\n"
        "time.sleep(1)"
    )
    cells = [await local.open({}) for _ in range(2)]
    executions = await asyncio.gather(*(cell.run(many) for cell in cells))
    assert [e.stdout for e in executions] == ["forked\n"] * 2, executions
    for cell in cells:
        await cell.close()


async def test_signals_and_timers_that_wait_count_for_this_execution_alone(local):
    number = CALLS["timer_create"][platform.machine() == "aarch64"]
    take = (
        "import ctypes, time\nlibc = ctypes.CDLL(None)\n"
        f"make = lambda: libc.syscall({number}, 1, None, ctypes.byref(ctypes.c_int()))\n"
        "print(next(made for made in range(9999) if make() != 0))\n"
        "open('taken', 'w').close()\n"
        "time.sleep(2)"
    )
    first, second = [await local.open({}) for _ in range(2)]
    running = asyncio.create_task(first.run(take))
    while "taken" not in await first.files():
        await asyncio.sleep(0.02)
    assert (await second.run(take)).stdout == "256\n"
    assert (await running).stdout == "256\n"
    for cell in (first, second):
        await cell.close()


@pytest.mark.parametrize("more", ["", "import numpy"], ids=["small", "warm"])
async def test_processes_that_are_left_end_no_faster_than_somebody_can_look_at_them(local, cell, more):
    execution = await cell.run(f"""
import os, time
{more}
began, made = time.monotonic(), 0
while time.monotonic() < began + 1:
    try: child = os.fork()
    except BlockingIOError: continue
    if child == 0:
        left = 0
        try:
            while left < 6:
                if os.fork() == 0: os._exit(0)
                left += 1
        except BlockingIOError: pass
        os._exit(left)
    made += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(made, time.monotonic() - began)
""")
    made, seconds = execution.stdout.split()
    assert int(made) <= local.limits.max_processes + float(seconds) / 0.01 + 1
    assert (await cell.run("import os\nos.system('true & true')")).state == "ok"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor fd in range(3, 256):\n"
        "    try: os.write(fd, b'failed it was the sandbox')\n    except OSError: pass",
        "import os\nos.closerange(0, 1000)",
        "import os\nfor n in range(60): os.mkdir('d' * 50); os.chdir('d' * 50)",
        "import os\nos.mkdir('locked'); open('locked/f', 'w').close(); os.chmod('locked', 0); os.chmod('.', 0)",
        r"open(b'\xff\n\x1b', 'w').close(); open('line\nbreak', 'w').close()",
        "import os, signal\nos.kill(1, signal.SIGKILL)",
        "import os, signal\nos.kill(1, signal.SIGSTOP)",
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        "import sys\nsys.stdout = sys.stderr = None\nraise ValueError",
        "import sys\nsys.excepthook = 1\nraise ValueError",
        "import sys\nsys.excepthook = lambda *_: open('none')\nraise ValueError",
        "class E:\n    __str__ = lambda self: open('none')\nraise SystemExit(E())",
        "import numpy, os\nos._exit = print",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        "class E(BaseException):\n    def __str__(self): raise E\nraise E",
        "import gc\nfor o in gc.get_objects():\n    if type(o) is dict and o is not globals(): o.clear()",
        "import sys\nframe = sys._getframe()\nwhile frame:\n"
        "    frame.f_locals.clear(); frame.f_globals.clear(); frame = frame.f_back",
    ],
)
async def test_an_agent_cannot_pass_for_a_fault_of_the_sandbox(cell, code):
    execution = await cell.run(code, timeout_s=5)
    assert execution.state != "infrastructure", execution
    assert "/zygote/" not in execution.stderr  # nor does it come to see the code that watches over it
    assert (await cell.run("print('alive')")).stdout == "alive\n"
    assert all(name.isprintable() for name in await cell.files())


async def test_a_daemon_does_not_outlive_its_execution(cell):
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True:\n"
        "            open('beat', 'a').write('x'); time.sleep(0.01)\n    os._exit(0)\n"
        "while not (os.path.exists('beat') and os.path.getsize('beat')): time.sleep(0.01)"
    )
    assert (await cell.run(code)).state == "ok"
    beats = await cell.read("beat")
    await asyncio.sleep(0.2)
    assert await cell.read("beat") == beats
    assert (
        await cell.run("import os; print([p for p in os.listdir('/proc') if p.isdigit()])")
    ).stdout == "['1', '2']\n"


async def test_cancelling_ends_the_execution(local, cell):
    waiting = descendants(local._zygote.bubblewrap.process.pid)
    code = "import time\nwhile True: open('beat', 'a').write('x'); time.sleep(0.01)"
    task = asyncio.create_task(cell.run(code, timeout_s=600))
    while "beat" not in await cell.files():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        while descendants(local._zygote.bubblewrap.process.pid) - waiting:
            await asyncio.sleep(0.02)
    beats = await cell.read("beat")
    await asyncio.sleep(0.2)
    assert await cell.read("beat") == beats


async def test_closing_ends_the_execution(local):
    cell = await local.open({})
    task = asyncio.create_task(cell.run("import time; open('started', 'w'); time.sleep(600)"))
    while "started" not in await cell.files():
        await asyncio.sleep(0.02)
    await cell.close()
    assert (await task).state == "infrastructure"


async def test_too_large_initial_files_are_refused(local, tmp_path):
    (tmp_path / "big").write_bytes(bytes(9 << 20))
    with pytest.raises(SandboxError, match="do not fit into a workspace of disk_mb=8"):
        await local.open({"big": tmp_path / "big"})
    with pytest.raises(SandboxError, match="cannot read"):
        await local.open({"none": tmp_path / "none"})


async def test_a_dead_zygote_is_infrastructure_and_is_replaced(local):
    old = await local.open({})
    task = asyncio.create_task(old.run("open('started', 'w'); import time; time.sleep(600)"))
    while "started" not in await old.files():
        await asyncio.sleep(0.02)
    local._zygote.bubblewrap.process.kill()
    in_flight = await task
    assert in_flight.state == "infrastructure"
    assert "not the code" in in_flight.stderr
    assert (await old.run("print(1)")).state == "infrastructure"
    with pytest.raises(SandboxError):
        await old.files()
    await old.close()
    new = await local.open({})
    assert (await new.run("print(1)")).stdout == "1\n"
    await new.close()


async def test_a_closed_sandbox_opens_nothing():
    sandbox = make_sandbox(SandboxConfig())
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.open({})


async def test_usual_analysis_works(cell):
    code = """
import joblib, numpy as np, pandas as pd, sympy
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score
rng = np.random.default_rng(0)
frame = pd.DataFrame(rng.normal(size=(200, 3)), columns=list("abc"))
target = (frame.a + frame.b > 0).astype(int)
model = RandomForestClassifier(10, random_state=0, n_jobs=-1).fit(frame, target)
joblib.dump(model, "model.pkl")
frame.to_csv("frame.csv", index=False)
print(cross_val_score(model, frame, target, cv=3, n_jobs=2).mean() > 0.7, sympy.solve("x**2 - 4"), stats.norm.cdf(0))
"""
    execution = await cell.run(code)
    assert execution.stdout == "True [-2, 2] 0.5\n", execution.stderr
    assert execution.files_written == ("frame.csv", "model.pkl")


async def test_libraries_that_lock_their_files_work(cell):
    code = """
import joblib, pandas, sqlite3
first, second = (sqlite3.connect('t.db', timeout=0) for _ in range(2))
pandas.DataFrame({'a': [1, 2]}).to_sql('t', first)
first.execute('BEGIN EXCLUSIVE')
try: second.execute('INSERT INTO t VALUES (3, 3)')
except sqlite3.OperationalError as error: print(error)
first.commit()
print(pandas.read_sql('SELECT sum(a) s FROM t', second).s[0])
print(joblib.Memory('cache', verbose=0).cache(abs)(-7))
"""
    execution = await cell.run(code)
    assert execution.stdout == "database is locked\n3\n7\n", execution.stderr


async def test_child_interpreters_work(cell):
    execution = await cell.run(
        "import subprocess, sys\n"
        "print(subprocess.check_output([sys.executable, '-c', 'import numpy; print(numpy.pi)'], text=True))"
    )
    assert execution.stdout.startswith("3.14"), execution.stderr


@pytest.mark.parametrize("more", ["", ", numpy"], ids=["small", "warm"])
async def test_asyncio_works_also_in_child_interpreters(cell, more):
    code = "import asyncio, sys; print(asyncio.run(asyncio.sleep(0.01, 7)))"
    execution = await cell.run(
        f"import asyncio, sys{more}\n"
        "async def main():\n"
        f"    child = await asyncio.create_subprocess_exec(sys.executable, '-c', {code!r}, stdout=-1)\n"
        "    print(await asyncio.gather(asyncio.to_thread(abs, -3), child.communicate()))\n"
        "asyncio.run(main())"
    )
    assert execution.stdout == "[3, (b'7\\n', None)]\n", execution.stderr


async def test_names_that_a_subverted_inside_gives_do_not_come_out(bait, monkeypatch, tmp_path):
    inside = tmp_path / "inside"
    shutil.copytree(bubblewrap.INSIDE, inside)
    with (inside / "files.py").open("a") as file:
        file.write(
            "\n\nhonest = snapshot\ndef snapshot(root, max_files):\n    found = honest(root, max_files)\n"
            "    return {'../../evil': (0, 0, 0, 0)} if 'lie' in found else found\n"
        )
    monkeypatch.setattr(bubblewrap, "INSIDE", inside)
    box = make_sandbox(SandboxConfig(concurrency=1), [])
    cell = await box.open({})
    execution = await cell.run("open('lie', 'w')")
    assert execution.state == "infrastructure" and execution.files_written == ()
    assert "'../../evil' is not a plain relative file name" in execution.stderr
    with pytest.raises(SandboxError, match="not a plain relative file name"):
        await cell.files()
    await box.close()


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"{",
        b"5",
        b"\xff",
        b'{"error": ["odd"]}',
        b'{"sizes": 5}',
        b'{"sizes": [1e9]}',
        b'{"sizes": [-1]}',
        b'{"sizes": [99999999999]}',
    ],
)
async def test_an_answer_that_is_none_is_a_fault_of_the_sandbox(text):
    reader = asyncio.StreamReader()
    reader.feed_data(wire.LENGTH.pack(len(text)) + text)
    reader.feed_eof()
    with pytest.raises(SandboxError):
        await answers.read_answer(reader, await answers.read_header(reader), 1)


AREAS_OF_FORKS = """
import ctypes, mmap, os, time
libc, pages = ctypes.CDLL(None), 60000
held = mmap.mmap(-1, pages << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
begin = ctypes.addressof(ctypes.c_char.from_buffer(held))
for page in range(begin, begin + (pages << 12), 2 << 12):
    ctypes.memset(page, 1, 1)
    libc.mprotect(ctypes.c_void_p(page + 4096), 4096, 0)
try:
    while os.fork() == 0: pass
except OSError: pass
time.sleep(60)
"""


async def test_what_the_kernel_keeps_for_areas_that_many_processes_were_forked_with_counts(local):
    workspace = await local.open({})
    assert (await workspace.run(AREAS_OF_FORKS, timeout_s=120.0)).state in ("oom", "error")
    await workspace.close()


UNREACHABLE = """
import ctypes, sys
from coachrl.sandbox.local import probe
from coachrl.sandbox.answers import read_answer, read_header
from coachrl.sandbox.inside import wire
sys._base_executable = sys.argv[1]
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0  # root, too, then needs leave to look into a folder
print(*((check.ok, check.detail) for check in probe()), sep="\\n")
"""


async def test_an_interpreter_that_this_user_cannot_reach_is_named(local, tmp_path):
    closed = tmp_path / "home"
    (closed / "bin").mkdir(parents=True)
    (closed / "bin" / "python3").touch(0o755)
    closed.chmod(0)
    command = [sys.executable, "-c", UNREACHABLE, str(closed / "bin" / "python3")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    closed.chmod(0o755)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert f"cannot show the interpreter inside: {closed}/bin/python3 cannot be read by user {os.getuid()}" in last
    assert last.startswith("(False, ") and "install it where this user may read it, or run coachrl as" in last


async def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.csv")
    with pytest.raises(SandboxError, match=r"train\.csv for the workspace: it is a named pipe, where a file is needed"):
        read_host_files({"train.csv": tmp_path / "train.csv"}, limits_of(SandboxConfig()))
    with pytest.raises(TaskError, match=r"it is a named pipe, where a file is needed"):
        read_header(tmp_path / "train.csv")
    os.mkfifo(tmp_path / "steps.jsonl")
    with pytest.raises(ConfigError, match=r"steps\.jsonl is no file"):
        files_of(tmp_path)


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), -1, None, "1", True, 10**400])
async def test_a_time_that_is_none_is_no_report_of_an_execution(wall_s):
    header = {"state": "ok", "exit_code": 0, "wall_s": 1, "files_written": []}
    assert answers.execution_of(header, b"", b"").wall_s == 1
    with pytest.raises(SandboxError, match="not the report of an execution"):
        answers.execution_of({**header, "wall_s": wall_s}, b"", b"")


@pytest.mark.parametrize("kind", ["local", "local-unsafe", "fusion"])
async def test_a_file_of_a_terabyte_is_not_read_to_its_end(tmp_path, kind):
    with (tmp_path / "train.csv").open("wb") as file:
        file.truncate(1 << 40)
    box = make_sandbox(SandboxConfig(kind=kind, url="http://127.0.0.1:9", disk_mb=8))
    with pytest.raises(
        SandboxError, match=r"the files given do not fit into a workspace of disk_mb=8, .*train.csv is beyond"
    ):
        await box.open({"train.csv": tmp_path / "train.csv"})
    await box.close()
