"""Attempts that take more than one program: bombs, what outlives a run, and traps left for whoever reads the outputs.

Each is a function of a sandbox that returns an empty string where the sandbox held, else what went wrong.
"""

# ruff: noqa: E501  an attempt is a line or two of the table, however long

from __future__ import annotations

import asyncio
import os
import pickle
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from coachrl.errors import SandboxError
from coachrl.sandbox.base import Sandbox
from coachrl.tasks.tabular.grading import TabularTruth, grade_submission
from coachrl.types import Execution
from escapes import programs

Bomb = Callable[[Sandbox], Awaitable[str]]
_SHORT_S = 5.0


async def _run(sandbox: Sandbox, code: str, timeout_s: float = 20.0) -> tuple[Execution, str]:
    """The execution, and what is wrong with the sandbox after it."""
    workspace = await sandbox.open({})
    try:
        execution = await workspace.run(code, timeout_s)
        if execution.state == "infrastructure":
            return execution, f"the code passes for a fault of the sandbox: {execution.stderr[:200]}"
        after = await workspace.run("print('alive')")
        problem = "" if after.stdout == "alive\n" else f"the next execution ended with {after.state}: {after.stderr}"
        return execution, problem
    finally:
        await workspace.close()


def _ends(code: str, *states: str, says: str = "", timeout_s: float = 20.0) -> Bomb:
    """The code must end in one of `states`, with `says` in its stderr, and the next execution must run."""

    async def bomb(sandbox: Sandbox) -> str:
        execution, problem = await _run(sandbox, code, timeout_s)
        if problem:
            return problem
        if execution.state not in states or says not in execution.stderr:
            return f"ended with {execution.state}: {(execution.stderr or execution.stdout)[-200:]}"
        return ""

    return bomb


def _alone(code: str) -> Bomb:
    """Whatever `code` does to itself, it is the agent's doing; a program of another workspace must not notice."""

    async def bomb(sandbox: Sandbox) -> str:
        other = await sandbox.open({})
        try:
            busy = asyncio.create_task(other.run(programs.BYSTANDER))
            for _ in range(50):  # a server shows no files before the program's end
                if "started" in await other.files():
                    break
                await asyncio.sleep(0.02)
            _, problem = await _run(sandbox, code, timeout_s=2.0)
            beside = await busy
        finally:
            await other.close()
        if beside.stdout != "unharmed\n":
            return f"a program beside it ended with {beside.state}: {beside.stderr[-200:]}"
        return problem

    return bomb


def _sees_nothing(first: str, second: str, timeout_s: float = 20.0) -> Bomb:
    """`second`, run after `first` in the same workspace, must not print ESCAPED."""

    async def bomb(sandbox: Sandbox) -> str:
        workspace = await sandbox.open({})
        try:
            await workspace.run(first, timeout_s)
            execution = await workspace.run(second, timeout_s)
        finally:
            await workspace.close()
        if execution.state == "infrastructure" or "ESCAPED" in execution.stdout:
            return f"{execution.state}: {(execution.stdout or execution.stderr)[:200]}"
        return ""

    return bomb


def _not_read(code: str, *names: str) -> Bomb:
    """After `code`, none of `names` is listed or read, and looking takes no time."""

    async def bomb(sandbox: Sandbox) -> str:
        workspace = await sandbox.open({})
        try:
            execution = await workspace.run(code)
            if execution.state == "infrastructure":
                return execution.stderr
            began = time.monotonic()
            if listed := set(names) & {*await workspace.files(), *execution.files_written}:
                return f"listed: {sorted(listed)}"
            for name in filter(str.isprintable, names):
                try:
                    data = await workspace.read(name, 1024)
                except (FileNotFoundError, ValueError):
                    continue
                return f"{name!r} was read: {data[:60]!r}"
            return "" if time.monotonic() - began < _SHORT_S else "looking at the files took too long"
        finally:
            await workspace.close()

    return bomb


async def _listed_meanwhile(sandbox: Sandbox) -> str:
    """A program swaps a folder and a link to all of the sandbox's files while its own are listed."""
    workspace = await sandbox.open({})
    try:
        running = asyncio.create_task(workspace.run(programs.SWAPPING))
        for _ in range(100):
            if any(name.startswith("b/") for name in await workspace.files()):
                return "files behind the link were listed"
        await running
    finally:
        await workspace.close()
    return ""


def _copied(code: str) -> Bomb:
    """What `code` leaves in a workspace does not keep the workspace from being copied, nor makes the copy larger."""

    async def bomb(sandbox: Sandbox) -> str:
        workspace = await sandbox.open({})
        try:
            made = await workspace.run(code)
            if made.state == "infrastructure":
                return f"passes for a fault of the sandbox: {made.stderr[-200:]}"
            copied = await workspace.copy()
            try:
                if await copied.files() != await workspace.files():
                    return "the copy holds other files"
                after = await copied.run("print('alive')")
                return "" if after.stdout == "alive\n" else f"the copy ended with {after.state}: {after.stderr}"
            finally:
                await copied.close()
        finally:
            await workspace.close()

    return bomb


async def _other_workspaces(sandbox: Sandbox) -> str:
    owner, thief = await sandbox.open({}), await sandbox.open({})
    try:
        await owner.run("for folder in ('', '/tmp/', '/dev/shm/'):\n    open(folder + 'mine-a8d3', 'w').write('42')")
        search = (
            "import os\nfor folder, _, names in os.walk('/'):\n"
            "    if not folder.startswith(('/proc', '/sys', '/usr')) and 'mine-a8d3' in names: print('ESCAPED', folder)"
        )
        return (await thief.run(search)).stdout[:200]
    finally:
        await owner.close()
        await thief.close()


async def _graded_bytes(sandbox: Sandbox, code: str) -> str:
    """What grading the `submission.csv` that `code` writes did to the host: it must be refused, and run nothing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "answers.csv").write_text("id,y\n1,0.5\n2,0.7\n", encoding="utf-8")
        truth = TabularTruth("regression", "rmse", "id", ("y",), folder / "answers.csv")
        workspace = await sandbox.open({})
        try:
            execution = await workspace.run(f"canary = {str(folder / 'canary')!r}\n{code}")
            if execution.state != "ok":
                return f"the trap could not be set: {execution.stderr[-200:]}"
            began = time.process_time()
            try:
                submission: bytes | None = await workspace.read("submission.csv", 8 * 2**20)
            except (FileNotFoundError, ValueError):
                submission = None
            outcome = grade_submission(submission, truth)
        except SandboxError as error:
            return f"passes for a fault of the sandbox: {error}"
        finally:
            await workspace.close()
        if (folder / "canary").exists():
            return "the grader ran what was in the file"
        if outcome.success:
            return "graded as if it were a submission"
        return "" if time.process_time() - began < _SHORT_S else "grading took too long"


def _trap(code: str) -> Bomb:
    async def bomb(sandbox: Sandbox) -> str:
        return await _graded_bytes(sandbox, code)

    return bomb


async def _pickles_stay_bytes(sandbox: Sandbox) -> str:
    workspace = await sandbox.open({})
    try:
        await workspace.run(
            "import os, pickle\nclass Evil:\n    def __reduce__(self): return os.mkdir, ('/tmp/coachrl-unpickled',)\n"
            "open('model.pkl', 'wb').write(pickle.dumps(Evil()))\nopen('model.pkl.npy', 'wb').write(pickle.dumps(Evil()))"
        )
        data = await workspace.read("model.pkl")
    finally:
        await workspace.close()
    if os.path.exists("/tmp/coachrl-unpickled"):  # noqa: PTH110
        return "the host unpickled it"
    return "" if data.startswith(pickle.PROTO) and isinstance(data, bytes) else "the host changed it"


BOMBS: dict[tuple[str, str], Bomb] = {
    ("bombs", "fork bomb"): _ends(
        "import os\nwhile True:\n    if os.fork() == 0:\n        while True: os.fork()", "error", "timeout", timeout_s=_SHORT_S
    ),
    ("bombs", "thread bomb"): _ends(
        "import threading, time\nfor _ in range(100000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "error", "timeout", "oom", timeout_s=_SHORT_S,
    ),
    ("bombs", "memory"): _ends("held = [bytearray(1 << 24) for _ in range(10000)]", "oom", "error"),
    ("bombs", "memory of many processes"): _ends(
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0: held = b'x' * (128 << 20); time.sleep(60)\ntime.sleep(60)",
        "oom",
    ),
    ("bombs", "shared memory"): _ends(
        "import mmap, time\nheld = mmap.mmap(-1, 1 << 30)\nfor n in range(0, 1 << 30, 4096): held[n] = 1\ntime.sleep(60)",
        "error",
    ),
    ("bombs", "shared memory that it lets go of"): _ends(programs.LET_GO, "error"),
    ("bombs", "locks"): _ends(programs.LOCKS, "oom", "error"),
    ("bombs", "pages of a file that is gone, kept in sockets"): _ends(programs.PAGES_IN_SOCKETS, "oom", "error"),
    ("bombs", "memory of processes without a first thread"): _ends(programs.WITHOUT_FIRST_THREAD, "oom"),
    **{
        ("labels", f"{name} of its own choice"): _ends(code, "error")
        for name, code in {
            "a want of memory": "raise MemoryError",
            "a want of memory in words": "import sys\nsys.stderr.write('MemoryError\\n')\nsys.exit(1)",
            "an end by the system": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "an end by the clock": "import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)",
            "a number like the clock's": "import os\nos._exit(124)",
            "a call of another processor": programs.CALL_OF_32_BITS,
        }.items()
    },
    **{
        ("labels", f"a name of its process that {what}"): _ends(
            f"import ctypes, time\nctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\ntime.sleep(0.3)", "ok"
        )
        for what, name in {"is not text": b"\xff\xfe", "looks like a figure": b"x\rVmPTE: y"}.items()
    },
    ("bombs", "memory that the kernel may take back"): _ends(programs.DROPPABLE, "oom", "error"),
    ("bombs", "memory of processes that hide it"): _ends(programs.UNSEEN, "oom"),
    ("bombs", "timers"): _ends(programs.TIMERS, "ok"),
    ("bombs", "memory of sockets"): _ends(programs.SOCKET_FLOOD, "oom", "error"),
    ("bombs", "disk"): _ends("folder = ''\n" + programs.FILL, "error", says="No space left on device"),
    ("bombs", "disk of /tmp"): _ends("folder = '/tmp/'\n" + programs.FILL, "error", says="No space left on device"),
    ("bombs", "disk of /dev/shm"): _ends("folder = '/dev/shm/'\n" + programs.FILL, "error", says="No space left on device"),
    ("bombs", "inodes"): _ends(
        "import itertools\nfor n in itertools.count(): open(f'{n}', 'w').close()", "error", says="No space left on device"
    ),
    ("bombs", "folders"): _ends("import itertools, os\nfor n in itertools.count(): os.mkdir(f'{n}')", "error"),
    ("bombs", "deep folders"): _ends("import os\nfor n in range(60): os.mkdir('d' * 50); os.chdir('d' * 50)", "ok", "error"),
    ("bombs", "output"): _ends("while True: print('x' * 1000)", "output_limit"),
    ("bombs", "error output"): _ends("import sys\nwhile True: sys.stderr.write('x' * 1000)", "output_limit"),
    ("bombs", "output in one write"): _ends("import os\nos.write(1, b'x' * (1 << 26))", "output_limit"),
    ("bombs", "endless loop"): _ends("while True: pass", "timeout", timeout_s=2.0),
    ("bombs", "sleep that ignores signals"): _ends(
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "time.sleep(600)", "timeout", timeout_s=2.0,
    ),
    ("bombs", "recursion without a limit"): _ends(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", "error", "oom", "timeout"
    ),
    ("outlive", "daemon in a session of its own"): _sees_nothing(
        programs.NAMED + programs.WRITE_AND_FORK + "        time.sleep(300)\n    os._exit(0)\ntime.sleep(0.3)", programs.FIND_NAMED
    ),
    ("outlive", "daemon of a run that timed out"): _sees_nothing(
        programs.NAMED + programs.WRITE_AND_FORK + "        time.sleep(300)\n    os._exit(0)\ntime.sleep(300)", programs.FIND_NAMED, timeout_s=2.0
    ),
    ("outlive", "zombies that fill the process table"): _sees_nothing(
        "import os\nfor _ in range(10):\n    if os.fork() == 0: os._exit(0)",
        "import os\ntry:\n    for _ in range(8):\n        if os.fork() == 0: os._exit(0)\nexcept OSError: print('ESCAPED')",
    ),
    ("outlive", "changed modules and environment"): _sees_nothing(programs.DIRTY, programs.LOOK),
    ("outlive", "changed packages"): _sees_nothing(
        "import numpy\nnumpy.leak = 1", "import numpy\nif hasattr(numpy, 'leak'): print('ESCAPED')"
    ),
    ("outlive", "files in /tmp and /dev/shm"): _sees_nothing(
        "for f in ('/tmp', '/dev/shm'): open(f + '/left-a8d3', 'w')",
        "import os\nif any(os.path.exists(f + '/left-a8d3') for f in ('/tmp', '/dev/shm')): print('ESCAPED')",
    ),
    ("outlive", "modules in the place of those that start a program"): _sees_nothing(programs.MODULES, "print(1)"),
    ("outlive", "other workspaces"): _other_workspaces,
    ("signals", "kill every process"): _ends("import os, signal\nos.kill(-1, signal.SIGKILL)", "ok", "error", "timeout"),
    ("signals", "kill the parent"): _ends("import os, signal\nos.kill(os.getppid() or 1, signal.SIGKILL)", "ok", "error", "timeout"),
    ("signals", "stop the parent"): _ends(
        "import os, signal\nos.kill(os.getppid() or 1, signal.SIGSTOP)", "ok", "error", "timeout", timeout_s=2.0
    ),
    ("signals", "stop itself"): _ends(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", "timeout", "error", timeout_s=2.0
    ),
    ("signals", "write to inherited files"): _ends(
        "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'failed it was the sandbox')\n    except OSError: pass",
        "ok", "error",
    ),
    **{
        ("signals", f"{name} to its process group{whose}"): _alone(f"import os, signal{more}\nos.kill(0, signal.{name})")
        for name in ("SIGINT", "SIGKILL", "SIGTERM", "SIGSTOP")
        for whose, more in (("", ""), (", as a child of the warm interpreter", ", numpy"))
    },
    **{
        ("signals", f"{name} to every process"): _alone(f"import os, signal\nos.kill(-1, signal.{name})")
        for name in ("SIGINT", "SIGTERM", "SIGSTOP", "SIGHUP")
    },
    ("signals", "interrupt pid 1"): _alone("import os, time\nos.kill(1, 2)\ntime.sleep(0.2)"),
    ("signals", "interrupt pid 1, as a child of the warm interpreter"): _alone(
        "import numpy, os, time\nos.kill(1, 2)\ntime.sleep(0.2)"
    ),
    ("signals", "every signal to pid 1"): _alone(programs.CATCHABLE + "os.kill(1, s)\n    except OSError: pass\ntime.sleep(0.2)"),
    ("signals", "every signal to pid 1's thread"): _alone(
        f"import ctypes\ntgkill = lambda s: ctypes.CDLL(None).syscall({programs.NUMBERS['tgkill']}, 1, 1, s)\n"
        + programs.CATCHABLE + "tgkill(s)\n    except OSError: pass\ntime.sleep(0.2)"
    ),
    ("signals", "every signal by descriptor"): _alone(
        programs.CATCHABLE + "signal.pidfd_send_signal(os.pidfd_open(1), s)\n    except OSError: pass\ntime.sleep(0.2)"
    ),
    ("signals", "signals to pid 1 by a pipe"): _alone(programs.SIGNAL_BY_PIPE),
    ("signals", "child for the parent"): _alone(programs.CLONE_PARENT),
    ("signals", "child for the warm interpreter"): _alone(programs.CLONE_PARENT + "  # numpy"),
    ("signals", "limits for every process"): _alone(
        "import os, resource, time\nfor p in filter(str.isdigit, os.listdir('/proc')):\n    for limit in range(16):\n"
        "        try: resource.prlimit(int(p), limit, (0, 0))\n        except (OSError, ValueError): pass\ntime.sleep(0.2)"
    ),
    **{
        ("copies", name): _copied(code)
        for name, code in {
            "sparse files": "for n in range(30): open(f'{n}', 'wb').truncate(7 << 20)",
            "hard links of a link": "import os\nos.symlink('x' * 4000, 'l')\nfor n in range(60): os.link('l', f'{n}', follow_symlinks=False)\nwith open('f', 'wb', 0) as file:\n    for _ in range(2047): file.write(bytes(4096))",
            "hard links": "import os\nopen('f', 'wb').write(bytes(6 << 20))\nfor n in range(30): os.link('f', f'{n}')",
            "long names in deep folders": "import os\nfor _ in range(14): os.mkdir('d' * 255); os.chdir('d' * 255)\nopen('e' * 255, 'w')",
            "paths too long for the system": "import os\nfor _ in range(15): os.mkdir('d' * 255); os.chdir('d' * 255)\nopen('e' * 255, 'w')",
            "times beyond any calendar": "import os\nopen('f', 'w'); os.utime('f', (-2**55, 2**62))",
            "locked folders": "import os\nos.mkdir('d'); open('d/f', 'w'); os.chmod('d', 0); os.chmod('.', 0)",
            "pipes, sockets, links to itself": "import os, socket\nos.mkfifo('p'); socket.socket(socket.AF_UNIX).bind('s'); os.symlink('l', 'l'); os.symlink('x' * 4000, 'm')",
            "names that are not text": r"open(b'\xff\xfe', 'w').close(); open('a\nb', 'w').close()",
            "as many files as there may be": "import itertools\ntry:\n    for n in itertools.count(): open(f'{n}', 'w').close()\nexcept OSError: pass",
            "as much as fits": "try: open('f', 'wb').write(bytes(8 << 20))\nexcept OSError: pass",
        }.items()
    },
    ("outputs", "link to a file of the host"): _not_read("import os; os.symlink('/etc/hostname', 'link')", "link"),
    ("outputs", "link to a folder of the host"): _not_read("import os; os.symlink('/etc', 'etc')", "etc", "etc/hostname"),
    ("outputs", "link in the place of a folder that is just listed"): _listed_meanwhile,
    ("outputs", "names that lead out"): _not_read("pass", "../main.py", "/etc/hostname", "a/../../etc/hostname", ".", ""),
    ("outputs", "pipe that nobody writes to"): _not_read("import os; os.mkfifo('pipe')", "pipe"),
    ("outputs", "socket"): _not_read("import socket; socket.socket(socket.AF_UNIX).bind('s')", "s"),
    ("outputs", "folder in place of a file"): _not_read("import os; os.mkdir('submission.csv')", "submission.csv"),
    ("outputs", "device file"): _not_read(
        "import os\ntry: os.mknod('dev', 0o020666, os.makedev(1, 5))\nexcept OSError: pass", "dev"
    ),
    ("outputs", "names that are not text"): _not_read(
        r"open('line\nbreak', 'w').close(); open(b'\xff\x1b', 'w').close()", "line\nbreak", "\udcff\x1b"
    ),
    ("outputs", "pickle as a submission"): _trap(
        "import os, pickle\nclass Evil:\n    def __reduce__(self): return os.mkdir, (canary,)\n"
        "open('submission.csv', 'wb').write(pickle.dumps(Evil()))"
    ),
    ("outputs", "pickle as a model"): _pickles_stay_bytes,
    ("outputs", "CSV of formulas and prototypes"): _trap(
        "open('submission.csv', 'w').write('id,y\\n1,=cmd|calc\\n2,__import__(\"os\").mkdir(canary)\\n')"
    ),
    ("outputs", "CSV with an unclosed quote"): _trap("open('submission.csv', 'w').write('id,y\\n1,\"' + 'x' * 1000000)"),
    ("outputs", "CSV of a million columns"): _trap("open('submission.csv', 'w').write(','.join(['id,y'] * 500000) + '\\n1,2')"),
    ("outputs", "CSV of zero bytes"): _trap("open('submission.csv', 'wb').write(bytes(1000000))"),
    ("outputs", "CSV that is a folder"): _trap("import os; os.mkdir('submission.csv')"),
    ("outputs", "CSV that is a link to the answers"): _trap(
        "import os; os.symlink(os.path.dirname(canary) + '/answers.csv', 'submission.csv')"
    ),
    ("outputs", "CSV that is a pipe"): _trap("import os; os.mkfifo('submission.csv')"),
}  # fmt: skip
