"""The embedded sandbox beyond the common promises: bombs, its own failure, its checks."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys

import pytest

from coachrl.audit.data.foreign import files_of
from coachrl.config import SandboxConfig
from coachrl.doctor.sandbox import CALLS
from coachrl.errors import ConfigError, SandboxError, SandboxUnavailable, TaskError
from coachrl.sandbox import answers, bubblewrap, checks, make_sandbox
from coachrl.sandbox.base import limits_of, read_host_files
from coachrl.sandbox.inside import wire
from coachrl.sandbox.inside.memory_in_use import descendants
from coachrl.sandbox.local import probe
from coachrl.sandbox.packages import resolve
from coachrl.tasks.tabular.grading import read_header

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_memory_of_the_whole_tree_is_bounded(cell):
    # 8 processes of 128 MiB: none exceeds the limit of 512 MiB alone.
    code = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (128 << 20)\n"
        "        time.sleep(60)\n"
        "time.sleep(60)"
    )
    assert (await cell.run(code)).state == "oom"


async def test_a_start_that_takes_too_long_says_so(monkeypatch):
    monkeypatch.setattr("coachrl.sandbox.local._START_TIMEOUT_S", 0.001)
    box = make_sandbox(SandboxConfig(kind="local"))
    with pytest.raises(SandboxUnavailable, match=r"it did not answer within 0\.001 s; try again where less is running"):
        await box.start()
    await box.close()


async def test_files_of_scratch_folders_are_memory(bait):
    box = make_sandbox(SandboxConfig(timeout_s=30, memory_mb=64, disk_mb=64, concurrency=1))
    cell = await box.open({})
    code = "import time\nfor f in ('/tmp', '/dev/shm'): open(f + '/f', 'wb').write(bytes(60 << 20))\ntime.sleep(60)"
    assert (await cell.run(code)).state == "oom"
    assert (await cell.run("open('f', 'wb').write(bytes(60 << 20))")).state == "ok"  # the workspace has its own limit
    await box.close()


async def test_the_workspaces_together_are_bounded(bait):
    box = make_sandbox(SandboxConfig(timeout_s=30, disk_mb=8, concurrency=2))
    box.all_files_mb = 12
    first, second, third = [await box.open({}) for _ in range(3)]
    fill = "try:\n    while True: open('f', 'ab').write(bytes(1 << 18))\nexcept OSError as error: print(error.strerror)"
    for cell in (first, second, first, second):
        assert (await cell.run(fill)).stdout == "No space left on device\n"
    held = [len(await cell.read("f")) >> 20 for cell in (first, second)]
    assert held[0] >= 6 and sum(held) <= 12, held
    assert (await first.run("open('f', 'wb')")).state == "ok"  # what one gives back, others get
    await second.run(fill)
    assert len(await second.read("f")) >> 20 > held[1]
    await third.run(fill)
    box.all_files_mb = 4
    with pytest.raises(SandboxError, match="hold 4 MiB together, which is all that they may"):
        await box.open({})
    assert (await third.run("print('alive')")).stdout == "alive\n"
    await box.close()


async def test_room_that_a_running_program_has_not_filled_yet_is_not_given_to_others(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=16, concurrency=2))
    box.all_files_mb = 24
    fill = "try:\n    while True: open('f', 'ab').write(bytes(1 << 18))\nexcept OSError: pass"
    waits = f"import time\nopen('ready', 'w')\ntime.sleep(3)\n{fill}"
    cells = [await box.open({}) for _ in range(6)]
    running = asyncio.create_task(cells[0].run(waits))
    while "ready" not in await cells[0].files():
        await asyncio.sleep(0.02)
    for cell in cells[1:]:
        assert (await cell.run(fill)).state == "ok"
    assert (await running).state == "ok"
    assert sum([len(await cell.read("f")) for cell in cells]) <= 24 << 20
    await box.close()


async def test_a_program_that_runs_leaves_room_for_a_workspace(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=64, concurrency=1))
    box.all_files_mb = 64
    first = await box.open({})
    running = asyncio.create_task(first.run("import time\nopen('ready', 'w')\ntime.sleep(2)"))
    while "ready" not in await first.files():
        await asyncio.sleep(0.02)
    await box.open({})
    assert (await running).state == "ok"
    await box.close()


async def test_copies_that_are_made_at_once_have_no_more_room_than_there_is(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=16, concurrency=2))
    box.all_files_mb = 40
    cell = await box.open({})
    assert (await cell.run("open('f', 'wb').write(bytes(10 << 20))")).state == "ok"
    copies = await asyncio.gather(*(cell.copy() for _ in range(8)), return_exceptions=True)
    made = [copy for copy in copies if not isinstance(copy, SandboxError)]
    assert len(made) == 3 and [len(await copy.read("f")) for copy in made] == [10 << 20] * 3
    await cell.close()
    with pytest.raises(SandboxError, match="could not be copied"):
        await cell.copy()
    await box.close()


async def test_workspaces_may_be_made_while_others_are_closed(local):
    async def open_and_close():
        for _ in range(25):
            cell = await local.open({})
            copy = await cell.copy()
            await asyncio.gather(cell.close(), copy.close())

    await asyncio.gather(*(open_and_close() for _ in range(8)))


async def test_memory_shared_with_the_waiting_interpreter_is_free(cell):
    code = (
        "import os, sys, pandas, time\n"
        "for _ in range(12):\n"
        "    if os.fork() == 0: time.sleep(0.3); os._exit(0)\n"
        "time.sleep(0.5)"
    )
    assert (await cell.run(code)).state == "ok"


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


async def test_disk_bomb_ends(cell):
    code = "import itertools\nfor n in itertools.count():\n    open(f'{n % 32}', 'ab').write(bytes(1 << 20))"
    execution = await cell.run(code)
    assert execution.state == "error"
    assert "No space left on device" in execution.stderr


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
async def test_scratch_space_is_bounded_and_private(cell, folder):
    code = (
        f"import itertools\nfor n in itertools.count():\n    open(f'{folder}/{{n % 32}}', 'ab').write(bytes(1 << 20))"
    )
    assert "No space left on device" in (await cell.run(code)).stderr
    assert (await cell.run(f"import os; print(os.listdir({folder!r}))")).stdout == "[]\n"


@pytest.mark.parametrize("make", ["open(f'{n}', 'w')", "os.mkdir(f'{n}')", "os.symlink('x', f'{n}')"])
async def test_inode_bomb_ends(cell, make):
    execution = await cell.run(f"import itertools, os\nfor n in itertools.count(): {make}")
    assert execution.state == "error"
    assert "No space left on device" in execution.stderr


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
    waiting = descendants(local._zygote.process.pid)
    code = "import time\nwhile True: open('beat', 'a').write('x'); time.sleep(0.01)"
    task = asyncio.create_task(cell.run(code, timeout_s=600))
    while "beat" not in await cell.files():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        while descendants(local._zygote.process.pid) - waiting:
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
    local._zygote.process.kill()
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


async def test_every_control_holds(local):
    found = await local.check()
    assert {check.name for check in found} >= {"network", "host files", "privileges", "memory limit", "process limit"}
    assert [check for check in found if not (check.ok or check.optional)] == []


async def test_a_control_that_does_not_hold_is_found(unsafe):
    found = {check.name: check for check in await checks.try_controls(await unsafe.open({}))}
    for name in ("network", "host files", "privileges", "disk limit", "file limit"):
        assert not found[name].ok
        assert found[name].remedy


async def test_without_bubblewrap_it_fails_closed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap") as error:
        await make_sandbox(SandboxConfig()).start()
    assert error.value.exit_code == 2
    (check,) = await asyncio.to_thread(probe)
    assert not check.ok
    assert "apt-get install bubblewrap" in check.remedy


async def test_a_bubblewrap_that_cannot_isolate_fails_closed(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create new namespace; .*namespaces"):
        await make_sandbox(SandboxConfig()).start()


async def test_a_hole_in_the_wall_fails_closed_each_time(local, monkeypatch):
    arguments = bubblewrap.arguments

    def with_a_hole(*values):
        command = arguments(*values)
        end = command.index("--remount-ro")
        return [*command[:end], "--ro-bind", "/etc", "/etc", *command[end:]]

    monkeypatch.setattr(bubblewrap, "arguments", with_a_hole)
    holed = make_sandbox(SandboxConfig())
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"host files: .*/etc/passwd"):
            await holed.open({})
    await holed.close()


async def test_unknown_package_is_a_config_error():
    with pytest.raises(ConfigError, match="no-such-distribution"):
        make_sandbox(SandboxConfig(), packages=["no-such-distribution"])


async def test_packages_come_with_what_they_need_and_no_tables():
    packages = resolve(("scikit-learn",))
    assert {"sklearn", "numpy", "scipy", "joblib", "threadpoolctl.py"} <= set(packages.entries)
    assert "pandas" not in packages.entries
    assert {"sklearn/datasets/data", "scipy/spatial/tests/data"} <= set(packages.hidden)


async def test_packages_of_the_system_are_hidden_whatever_their_language(tmp_path, monkeypatch):
    library = tmp_path.resolve() / "lib"
    hidden = [
        library / name for name in ("R/library", "node_modules", "pypy3/dist-packages", "python3.11/site-packages")
    ]
    for folder in hidden:
        folder.mkdir(parents=True)
    (library / "R" / "site-library").symlink_to("library")
    (library / "node_modules" / "more-packages").mkdir()
    (library / "tools").mkdir()
    (library / "tools" / "list-packages").touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    given = list(bubblewrap._system_arguments())
    empty = [
        given[n + 1] for n, word in enumerate(given) if word == "--tmpfs" and given[n + 1].startswith(str(library))
    ]
    assert empty == sorted(map(str, hidden))


async def test_a_copy_takes_no_more_room_than_what_is_copied(cell):
    made = await cell.run(
        "import os\n"
        "for n in range(4):\n"
        "    with open(f'sparse{n}', 'wb') as file: file.truncate(6 << 20); file.seek(3 << 20); file.write(b'core')\n"
        "open('once', 'wb').write(b'x' * (3 << 20))\n"
        "for n in range(4): os.link('once', f'twice{n}')"
    )
    assert made.state == "ok", made
    copied = await cell.copy()
    try:
        assert await copied.files() == await cell.files()
        for name in ("sparse3", "twice3"):
            assert await copied.read(name) == await cell.read(name)
        linked = await copied.run(
            "import os\nprint(os.path.samefile('once', 'twice3'), os.stat('once').st_uid == os.getuid())"
        )
        assert linked.stdout == "True True\n"
    finally:
        await copied.close()


async def test_names_that_a_subverted_inside_gives_do_not_come_out(bait, monkeypatch, tmp_path):
    inside = tmp_path / "inside"
    shutil.copytree(bubblewrap.INSIDE, inside)
    with (inside / "files.py").open("a") as file:
        file.write(
            "\n\nhonest = snapshot\ndef snapshot(root, max_files):\n    found = honest(root, max_files)\n"
            "    return {'../../evil': (0, 0, 0, 0)} if 'lie' in found else found\n"
        )
    monkeypatch.setattr(bubblewrap, "INSIDE", inside)
    box = make_sandbox(SandboxConfig(concurrency=1))
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
