"""Attempts that take more than one program: bombs, what outlives a run, and traps left for whoever reads the outputs.

Each is a function of a sandbox that returns an empty string where the sandbox held, else what went wrong.
"""

# ruff: noqa: E501  an attempt is a line or two of the table, however long

from __future__ import annotations

import asyncio
import os
import pickle
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from coachrl.doctor.sandbox import CALLS
from coachrl.errors import SandboxError
from coachrl.sandbox.base import Sandbox
from coachrl.tasks.tabular.grading import TabularTruth, grade_submission
from coachrl.types import Execution

Bomb = Callable[[Sandbox], Awaitable[str]]
_SHORT_S = 5.0
_NUMBERS = {name: numbers[platform.machine() == "aarch64"] for name, numbers in CALLS.items()}


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
            busy = asyncio.create_task(other.run(_BYSTANDER))
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
        running = asyncio.create_task(workspace.run(_SWAPPING))
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


# It names a package: such a program is a child of the warm interpreter, whose death would end it.
_BYSTANDER = "import numpy, time\nopen('started', 'w').close()\ntime.sleep(1.5)\nprint('unharmed')"
_CATCHABLE = "import os, signal, time\nfor s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n    try: "
_CLONE_PARENT = (
    f"import ctypes, os, time\npid = ctypes.CDLL(None).syscall({_NUMBERS['clone']}, 0x8000 | 17, 0, 0, 0, 0)\n"
    "if pid == 0: os._exit(0)\ntime.sleep(0.2)"
)
_SOCKET_FLOOD = """
import os, socket, time
for _ in range(12):
    if os.fork() == 0:
        break
held = []
try:
    while True:
        pair = socket.socketpair()
        held.append(pair)
        for end in pair:
            end.setblocking(False)
            try:
                while True: end.send(bytes(65536))
            except BlockingIOError: pass
except OSError: pass
time.sleep(60)
"""
_LET_GO = """
import mmap, time
held = mmap.mmap(-1, 900 << 20)
for begin in range(0, 900 << 20, 4 << 20):
    held[begin:begin + (4 << 20)] = bytes(4 << 20)
    held.madvise(mmap.MADV_DONTNEED, begin, 4 << 20)
time.sleep(60)
"""
_LOCKS = """
import fcntl, struct
file = open('locked', 'w')
for n in range(10**7): fcntl.fcntl(file, fcntl.F_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 2 * n, 1, 0))
"""
_PAGES_IN_SOCKETS = """
import os, socket, time
held = []
for _ in range(40):
    pair, (out, into) = socket.socketpair(), os.pipe()
    pair[0].setblocking(False)
    held.append(pair)
    try:
        while True:
            with open('/tmp/pages', 'w+b', 0) as file:
                file.write(bytes(1 << 16))
                for page in range(16): os.splice(file.fileno(), into, 1, offset_src=page << 12)
                file.truncate(0)
            os.splice(out, pair[0].fileno(), 16, flags=2)
    except BlockingIOError:
        os.close(out)
        os.close(into)
time.sleep(60)
"""
_WITHOUT_FIRST_THREAD = f"""
import ctypes, os, threading, time
def hold():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
    held = bytearray(300 << 20)
    time.sleep(60)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).syscall({_NUMBERS["exit"]}, 0)
time.sleep(60)
"""
_CALL_OF_32_BITS = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
code.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
_DROPPABLE = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
size = ctypes.c_size_t(60 << 20)
for _ in range(12):
    if os.fork() == 0: break
for _ in range(20):
    place = libc.mmap(None, size, 3, 0x28, -1, ctypes.c_long(0))
    if place == ctypes.c_void_p(-1).value: raise OSError(ctypes.get_errno())
    ctypes.memset(place, 1, size)
time.sleep(60)
"""
# Nobody but a trusted process may look into one of these, from its first moment on.
_UNSEEN = """
import ctypes, os, sys, time
code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); held = b'x' * (128 << 20); time.sleep(60)"
for _ in range(8):
    if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', code])
time.sleep(60)
"""
_SWAPPING = """
import ctypes, os, time
os.mkdir('a'); os.symlink('/', 'b')
end, exchange = time.monotonic() + 2, ctypes.CDLL(None).renameat2
while time.monotonic() < end: exchange(-100, b'a', -100, b'b', 2)
"""
_SIGNAL_BY_PIPE = """
import fcntl, os, time
for number in (9, 19, 2, 34):
    out, into = os.pipe()
    fcntl.fcntl(out, fcntl.F_SETOWN, 1)
    fcntl.fcntl(out, 10, number)
    fcntl.fcntl(out, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(into, b'x')
time.sleep(0.2)
"""
_TIMERS = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
made, number = 0, ctypes.c_int()
for _ in range(8):
    if os.fork() == 0: break
while libc.syscall({_NUMBERS["timer_create"]}, 1, None, ctypes.byref(number)) == 0: made += 1
assert made < 512, made
"""
_DIRTY = "import builtins, json, os, sys\nbuiltins.leak = sys.leak = json.leak = 1\nos.environ['LEAK'] = '1'"
_LOOK = (
    "import builtins, json, os, sys\n"
    "if any(hasattr(m, 'leak') for m in (builtins, sys, json)) or 'LEAK' in os.environ: print('ESCAPED')"
)
_NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, b'escapee-a8d3', 0, 0, 0)\n"
_FIND_NAMED = (
    "import os\nfor p in os.listdir('/proc'):\n    try:\n"
    "        if p.isdigit() and 'escapee' in open(f'/proc/{p}/comm').read(): print('ESCAPED', p)\n"
    "    except OSError: pass"
)
_FILL = "import itertools\nfor n in itertools.count(): open(f'{folder}{n % 32}', 'ab').write(bytes(1 << 20))"
_WRITE_AND_FORK = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"

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
    ("bombs", "shared memory that it lets go of"): _ends(_LET_GO, "error"),
    ("bombs", "locks"): _ends(_LOCKS, "oom", "error"),
    ("bombs", "pages of a file that is gone, kept in sockets"): _ends(_PAGES_IN_SOCKETS, "oom", "error"),
    ("bombs", "memory of processes without a first thread"): _ends(_WITHOUT_FIRST_THREAD, "oom"),
    **{
        ("labels", f"{name} of its own choice"): _ends(code, "error")
        for name, code in {
            "a want of memory": "raise MemoryError",
            "a want of memory in words": "import sys\nsys.stderr.write('MemoryError\\n')\nsys.exit(1)",
            "an end by the system": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
            "an end by the clock": "import os, signal\nos.kill(os.getpid(), signal.SIGXCPU)",
            "a number like the clock's": "import os\nos._exit(124)",
            "a call of another processor": _CALL_OF_32_BITS,
        }.items()
    },
    **{
        ("labels", f"a name of its process that {what}"): _ends(
            f"import ctypes, time\nctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\ntime.sleep(0.3)", "ok"
        )
        for what, name in {"is not text": b"\xff\xfe", "looks like a figure": b"x\rVmPTE: y"}.items()
    },
    ("bombs", "memory that the kernel may take back"): _ends(_DROPPABLE, "oom", "error"),
    ("bombs", "memory of processes that hide it"): _ends(_UNSEEN, "oom"),
    ("bombs", "timers"): _ends(_TIMERS, "ok"),
    ("bombs", "memory of sockets"): _ends(_SOCKET_FLOOD, "oom", "error"),
    ("bombs", "disk"): _ends("folder = ''\n" + _FILL, "error", says="No space left on device"),
    ("bombs", "disk of /tmp"): _ends("folder = '/tmp/'\n" + _FILL, "error", says="No space left on device"),
    ("bombs", "disk of /dev/shm"): _ends("folder = '/dev/shm/'\n" + _FILL, "error", says="No space left on device"),
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
        _NAMED + _WRITE_AND_FORK + "        time.sleep(300)\n    os._exit(0)\ntime.sleep(0.3)", _FIND_NAMED
    ),
    ("outlive", "daemon of a run that timed out"): _sees_nothing(
        _NAMED + _WRITE_AND_FORK + "        time.sleep(300)\n    os._exit(0)\ntime.sleep(300)", _FIND_NAMED, timeout_s=2.0
    ),
    ("outlive", "zombies that fill the process table"): _sees_nothing(
        "import os\nfor _ in range(10):\n    if os.fork() == 0: os._exit(0)",
        "import os\ntry:\n    for _ in range(8):\n        if os.fork() == 0: os._exit(0)\nexcept OSError: print('ESCAPED')",
    ),
    ("outlive", "changed modules and environment"): _sees_nothing(_DIRTY, _LOOK),
    ("outlive", "changed packages"): _sees_nothing(
        "import numpy\nnumpy.leak = 1", "import numpy\nif hasattr(numpy, 'leak'): print('ESCAPED')"
    ),
    ("outlive", "files in /tmp and /dev/shm"): _sees_nothing(
        "for f in ('/tmp', '/dev/shm'): open(f + '/left-a8d3', 'w')",
        "import os\nif any(os.path.exists(f + '/left-a8d3') for f in ('/tmp', '/dev/shm')): print('ESCAPED')",
    ),
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
    ("signals", "every signal to pid 1"): _alone(_CATCHABLE + "os.kill(1, s)\n    except OSError: pass\ntime.sleep(0.2)"),
    ("signals", "every signal to pid 1's thread"): _alone(
        f"import ctypes\ntgkill = lambda s: ctypes.CDLL(None).syscall({_NUMBERS['tgkill']}, 1, 1, s)\n"
        + _CATCHABLE + "tgkill(s)\n    except OSError: pass\ntime.sleep(0.2)"
    ),
    ("signals", "every signal by descriptor"): _alone(
        _CATCHABLE + "signal.pidfd_send_signal(os.pidfd_open(1), s)\n    except OSError: pass\ntime.sleep(0.2)"
    ),
    ("signals", "signals to pid 1 by a pipe"): _alone(_SIGNAL_BY_PIPE),
    ("signals", "child for the parent"): _alone(_CLONE_PARENT),
    ("signals", "child for the warm interpreter"): _alone(_CLONE_PARENT + "  # numpy"),
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
