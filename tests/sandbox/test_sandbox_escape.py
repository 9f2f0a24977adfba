"""First attempts at escaping from the embedded sandbox. Each attempt prints ESCAPED where it gets what it wants.

`open_outside` marks attempts that a process without a sandbox gets away with (as the user who runs the tests): they are
run there too, so that an attempt which is refused for a reason of its own does not pass for a wall that holds.
"""

# ruff: noqa: E501  an attempt is one line of the table, however long

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

import coachrl

from conftest import SECRET  # isort: skip

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRELUDE = """
import ctypes, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)

def syscall(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(number))
"""


@dataclass(frozen=True)
class Attempt:
    name: str
    code: str
    open_outside: bool = False


ATTEMPTS = [
    # Reading the host.
    Attempt("secret in the environment", "assert SECRET in repr(dict(os.environ))"),
    Attempt("secret in pid 1's environment", "open('/proc/1/environ').read()"),
    Attempt("secret in any process", "assert any(SECRET.encode() in open(f'/proc/{p}/environ', 'rb').read() for p in os.listdir('/proc') if p.isdigit())"),
    Attempt("shadow", "open('/etc/shadow').read()"),
    Attempt("passwd", "open('/etc/passwd').read()", open_outside=True),
    Attempt("resolver", "os.stat('/etc/resolv.conf')", open_outside=True),
    Attempt("file of the host's /tmp", "open(HOST_FILE).read()", open_outside=True),
    Attempt("project checkout", "open(PROJECT_FILE).read()", open_outside=True),
    Attempt("home folder", "assert set(os.listdir(HOME)) >= set(HOME_ENTRIES) and HOME_ENTRIES"),
    Attempt("root of pid 1", "os.listdir('/proc/1/root/etc')"),
    Attempt("files of pid 1", "os.listdir('/proc/1/fd')"),
    Attempt("memory of pid 1", "open('/proc/1/mem', 'rb')"),
    Attempt("folder of pid 1 by descent", "os.listdir('/proc/1/cwd/..')"),
    Attempt("many parents up", "open('../' * 20 + 'etc/passwd')", open_outside=True),
    Attempt("other site-packages", "assert any('torch' in os.listdir(p) or 'coachrl' in os.listdir(p) or 'pip' in os.listdir(p) for p in sys.path if os.path.isdir(p))"),
    Attempt("kernel settings", "open('/proc/sys/kernel/core_pattern').read()", open_outside=True),
    Attempt("kernel memory", "open('/proc/kcore', 'rb')"),
    Attempt("kernel log", "open('/dev/kmsg')"),
    Attempt("disks", "os.listdir('/sys/block')", open_outside=True),
    Attempt("inherited files", "assert [f for f in range(3, 1024) if os.path.exists(f'/proc/self/fd/{f}')]"),
    # Writing to the host.
    Attempt("write to /usr", "open('/usr/lib/evil', 'w')"),
    Attempt("write to /", "open('/evil', 'w')"),
    Attempt("write to a package", "open(os.path.dirname(__import__('numpy').__file__) + '/evil.py', 'w')"),
    Attempt("write to the standard library", "open(os.path.dirname(os.__file__) + '/evil.py', 'w')"),
    Attempt("write to /dev", "open('/dev/evil', 'w')"),
    Attempt("write to the waiting interpreter's code", "open('/zygote/inside/zygote.py', 'a')"),
    Attempt("make a workspace", "os.mkdir('/workspaces/evil')"),
    Attempt("set the core handler", "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)"),
    Attempt("sysrq", "os.open('/proc/sysrq-trigger', os.O_WRONLY)"),
    Attempt("disk device", "os.mknod('disk', 0o060600, os.makedev(8, 0))"),
    Attempt("memory device", "os.mknod('mem', 0o020600, os.makedev(1, 1)); open('mem', 'rb').read(1)"),
    # Network.
    Attempt("host's loopback", "socket.create_connection(('127.0.0.1', PORT), timeout=2)", open_outside=True),
    Attempt("all addresses of the host", "socket.create_connection(('0.0.0.0', PORT), timeout=2)", open_outside=True),
    Attempt("internet", "socket.create_connection(('192.0.2.1', 80), timeout=2)"),
    Attempt("name service", "socket.getaddrinfo('example.com', 80)"),
    Attempt("datagram", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"),
    Attempt("abstract unix socket", "socket.socket(socket.AF_UNIX).connect(ABSTRACT)", open_outside=True),
    Attempt("unix socket by path", "socket.socket(socket.AF_UNIX).connect(SOCKET_FILE)", open_outside=True),
    Attempt("virtual machine's host", "socket.socket(socket.AF_VSOCK)"),
    Attempt("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", open_outside=True),
    Attempt("raw packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    Attempt("kernel crypto", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    # Gaining rights.
    Attempt("user namespace", "call('unshare', 0x10000000)"),
    Attempt("user namespace by clone", "pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nassert pid > 0"),
    Attempt("user namespace by a tool", "subprocess.run(['unshare', '-r', 'true'], check=True, stderr=-3)"),
    Attempt("mount", "call('mount', b'none', b'/workspace', b'tmpfs', 0, None)"),
    Attempt("uncover /proc", "call('umount2', b'/proc', 2)"),
    Attempt("make / writable", "call('mount', None, b'/', None, 32 | 4096, None)"),
    Attempt("change root", "os.chroot('/workspace')"),
    Attempt("become root", "os.setuid(0)"),
    Attempt("other groups", "os.setgroups([0])"),
    Attempt("give a file away", "open('f', 'w'); os.chown('f', 0, 0)"),
    Attempt("set-uid program", "open('f', 'w'); os.chmod('f', 0o4755); subprocess.run(['mount', '-t', 'tmpfs', 'none', '/tmp'], check=True, stderr=-3)"),
    Attempt("host name", "socket.sethostname('evil')"),
    Attempt("clock", "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())"),
    Attempt("priority", "os.setpriority(os.PRIO_PROCESS, 0, -20)"),
    Attempt("more processes", "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))"),
    Attempt("more memory", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))"),
    Attempt("safe from the out-of-memory killer", "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"),
    Attempt("trace pid 1", "syscall(101, 16, 1, 0, 0)"),
    Attempt("trace a child", "import time\npid = os.fork()\nif pid == 0: time.sleep(9)\nsyscall(101, 16, pid, 0, 0)", open_outside=True),
    Attempt("join pid 1's namespaces", "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)"),
    # Around the limits, and into the kernel.
    Attempt("memory without an address", "os.memfd_create('held')", open_outside=True),
    Attempt("system V memory", "call('shmget', 0, 4096, 0o1600)", open_outside=True),
    Attempt("message queue", "call('msgget', 0, 0o1600)", open_outside=True),
    Attempt("io_uring", "syscall(425, 1, ctypes.create_string_buffer(120))"),
    Attempt("bpf", "syscall(321, 0, ctypes.create_string_buffer(72), 72)"),
    Attempt("performance counters", "syscall(298, ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
    Attempt("keyring", "syscall(250, 0, -3, 1)"),
    Attempt("fault handler", "syscall(323, 1)"),
    Attempt("locked memory", "call('mlockall', 1)"),
    Attempt("file larger than the workspace", "open('f', 'wb').truncate(1 << 40)"),
    # Labels and what would lead to them.
    *(
        Attempt(f"labels of {name}", f"import sklearn.datasets; sklearn.datasets.load_{name}()", open_outside=True)
        for name in ("diabetes", "breast_cancer", "wine", "iris", "digits", "linnerud")
    ),
    Attempt("tables in packages", "assert [n for p in sys.path if 'packages' in p for _, _, names in os.walk(p) for n in names if n.endswith(('.csv', '.csv.gz', '.arff'))]", open_outside=True),
    *(
        Attempt(f"import {name}", f"import {name}")
        for name in ("coachrl", "bokeh_sampledata", "lifelines", "torch", "transformers", "pip", "inside", "litellm")
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """Real things on the host worth reaching: a file, servers that listen."""
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret.txt").write_text(SECRET)
    abstract = f"\0coachrl-test-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=100))
        for address in (abstract, str(folder / "s")):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen(100)
        yield {
            "SECRET": SECRET,
            "HOST_FILE": str(folder / "secret.txt"),
            "PROJECT_FILE": str(Path(coachrl.__file__).resolve()),
            "HOME": str(Path.home()),
            "HOME_ENTRIES": sorted(path.name for path in Path.home().iterdir()),
            "PORT": server.getsockname()[1],
            "ABSTRACT": abstract,
            "SOCKET_FILE": str(folder / "s"),
        }


def _program(attempt: Attempt, host: dict[str, object]) -> str:
    values = "\n".join(f"{name} = {value!r}" for name, value in host.items())
    body = "\n".join(f"    {line}" for line in attempt.code.splitlines())
    refused = "(OSError, ImportError, AssertionError, ValueError, subprocess.CalledProcessError)"
    return f"{PRELUDE}\n{values}\ntry:\n{body}\n    print('ESCAPED')\nexcept {refused} as error:\n    print('refused', repr(error))"


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_attempt_is_refused(cell, host, attempt):
    execution = await cell.run(_program(attempt, host))
    assert execution.state == "ok", execution
    assert execution.stdout.startswith("refused"), execution


@pytest.mark.parametrize("attempt", [a for a in ATTEMPTS if a.open_outside], ids=lambda attempt: attempt.name)
async def test_attempt_would_work_without_the_sandbox(unsafe, host, attempt):
    workspace = await unsafe.open({})
    execution = await workspace.run(_program(attempt, host))
    await workspace.close()
    assert execution.stdout.endswith("ESCAPED\n"), execution


async def test_workspaces_do_not_see_each_other(local):
    owner, thief = await local.open({}), await local.open({})
    await owner.run("open('mine', 'w').write('answer 42')\nopen('/tmp/left', 'w').write('answer 42')")
    busy = asyncio.create_task(owner.run("import time; open('/tmp/note', 'w').write('answer 42'); time.sleep(1.5)"))
    search = (
        "import os\nfor folder, _, names in os.walk('/'):\n    if folder.startswith(('/proc', '/packages', '/usr')): continue\n"
        "    for n in names:\n        if n in ('mine', 'left', 'note'): print('ESCAPED', folder, n)\n"
        "print([p for p in os.listdir('/proc') if p.isdigit()])"
    )
    execution = await thief.run(search)
    assert execution.stdout == "['1', '2']\n"
    assert (await busy).state == "ok"
    await owner.close()
    await thief.close()


async def test_what_one_execution_breaks_stays_broken_there_only(cell):
    await cell.run(
        "import os, signal\nfor pid in range(1, 400):\n    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass"
    )
    await cell.run("import sys, gc\nfor m in list(sys.modules.values()): vars(m).clear()")
    assert (await cell.run("import pandas as pd; print(pd.Series([1, 2]).sum())")).stdout == "3\n"
