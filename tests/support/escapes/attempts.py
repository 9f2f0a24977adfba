"""Attempts that one program can make. Each prints ESCAPED where it gets what it wants.

An attempt changes nothing that outlives its process, even where nothing holds it: it shows that it could. (A mount is
tried on a folder that is none, and the kernel's word tells whether the right was there.)

`open_outside` marks attempts that a process without a sandbox gets away with (as the user who runs the tests): tests
run them there too, so that an attempt which is refused for a reason of its own does not pass for a wall that holds.
"""

# ruff: noqa: E501  an attempt is one line of the table, however long

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass

from coachrl.doctor.sandbox import refusable

_HAS_OLD_CALLS = platform.machine() == "x86_64"


@dataclass(frozen=True)
class Attempt:
    """code: lines that raise where they are refused. It may use the names of `bait.set_out` as variables."""

    area: str
    name: str
    code: str
    open_outside: bool = False


ATTEMPTS = [
    Attempt("read the host", "secret in the environment", "assert SECRET in repr(dict(os.environ))"),
    Attempt("read the host", "secret in pid 1's environment", "open('/proc/1/environ').read()"),
    Attempt("read the host", "secret in any process", "assert any(SECRET.encode() in open(f'/proc/{p}/environ', 'rb').read() for p in os.listdir('/proc') if p.isdigit())"),
    Attempt("read the host", "shadow", "open('/etc/shadow').read()"),
    Attempt("read the host", "passwd", "open('/etc/passwd').read()", open_outside=True),
    Attempt("read the host", "resolver", "os.stat('/etc/resolv.conf')", open_outside=True),
    Attempt("read the host", "file of the host's /tmp", "open(HOST_FILE).read()", open_outside=True),
    Attempt("read the host", "project checkout", "open(PROJECT_FILE).read()", open_outside=True),
    Attempt("read the host", "home folder", "assert set(os.listdir(HOME)) >= set(HOME_ENTRIES) and HOME_ENTRIES"),
    Attempt("read the host", "cgroup of pid 1", "open('/proc/1/cgroup').read()", open_outside=True),
    Attempt("read the host", "root of pid 1", "os.listdir('/proc/1/root/etc')"),
    Attempt("read the host", "files of pid 1", "os.listdir('/proc/1/fd')"),
    Attempt("read the host", "memory of pid 1", "open('/proc/1/mem', 'rb')"),
    Attempt("read the host", "folder of pid 1 by descent", "os.listdir('/proc/1/cwd/..')"),
    Attempt("read the host", "many parents up", "open('../' * 20 + 'etc/passwd')", open_outside=True),
    Attempt("read the host", "other site-packages", "assert any('torch' in os.listdir(p) or 'coachrl' in os.listdir(p) or 'pip' in os.listdir(p) for p in sys.path if os.path.isdir(p))"),
    Attempt("read the host", "kernel settings", "open('/proc/sys/kernel/core_pattern').read()", open_outside=True),
    Attempt("read the host", "kernel memory", "open('/proc/kcore', 'rb')"),
    Attempt("read the host", "kernel log", "open('/dev/kmsg')"),
    Attempt("read the host", "disks", "os.listdir('/sys/block')", open_outside=True),
    Attempt("read the host", "inherited files", "assert [f for f in range(3, 1024) if os.path.exists(f'/proc/self/fd/{f}')]"),
    Attempt("write to the host", "write to /usr", "os.open('/usr/lib', os.O_TMPFILE | os.O_WRONLY)"),
    Attempt("write to the host", "write to /", "os.open('/', os.O_TMPFILE | os.O_WRONLY)"),
    Attempt("write to the host", "write to a package", "os.open(os.path.dirname(__import__('numpy').__file__), os.O_TMPFILE | os.O_WRONLY)"),
    Attempt("write to the host", "write to the standard library", "os.open(os.path.dirname(os.__file__), os.O_TMPFILE | os.O_WRONLY)"),
    Attempt("write to the host", "write to /dev", "os.open('/dev', os.O_TMPFILE | os.O_WRONLY)"),
    Attempt("write to the host", "write to the waiting interpreter's code", "open('/zygote/inside/zygote.py', 'a')"),
    Attempt("write to the host", "make a workspace", "os.mkdir('/workspaces/evil'); os.rmdir('/workspaces/evil')"),
    Attempt("write to the host", "set the core handler", "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)"),
    Attempt("write to the host", "sysrq", "os.open('/proc/sysrq-trigger', os.O_WRONLY)"),
    *(
        Attempt("write to the host", f"lock a file that it may read, {how}", f"import fcntl; fcntl.flock(os.open(sys.executable, os.O_RDONLY), fcntl.{kind} | fcntl.LOCK_NB)", open_outside=True)
        for how, kind in {"alone": "LOCK_EX", "with others": "LOCK_SH"}.items()
    ),
    Attempt("write to the host", "lock a part of a file that it may read", "import fcntl; fcntl.lockf(os.open(sys.executable, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"),
    Attempt("write to the host", "disk device", "os.mknod('disk', 0o060600, os.makedev(8, 0))"),
    Attempt("write to the host", "memory device", "os.mknod('mem', 0o020600, os.makedev(1, 1)); open('mem', 'rb').read(1)"),
    Attempt("network", "host's loopback", "socket.create_connection(('127.0.0.1', PORT), timeout=2)", open_outside=True),
    Attempt("network", "all addresses of the host", "socket.create_connection(('0.0.0.0', PORT), timeout=2)", open_outside=True),
    Attempt("network", "internet", "socket.create_connection(('192.0.2.1', 80), timeout=2)"),
    Attempt("network", "name service", "socket.getaddrinfo('example.com', 80)"),
    Attempt("network", "datagram", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"),
    Attempt("network", "abstract unix socket", "socket.socket(socket.AF_UNIX).connect(ABSTRACT)", open_outside=True),
    Attempt("network", "unix socket by path", "socket.socket(socket.AF_UNIX).connect(SOCKET_FILE)", open_outside=True),
    Attempt("network", "virtual machine's host", "socket.socket(socket.AF_VSOCK)"),
    Attempt("network", "netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", open_outside=True),
    Attempt("network", "raw packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    Attempt("network", "kernel crypto", "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)"),
    Attempt("gain rights", "user namespace", "call('unshare', 0x10000000)"),
    Attempt("gain rights", "user namespace by clone", "pid = libc.syscall(NUMBERS['clone'], 0x10000000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nassert pid > 0"),
    Attempt("gain rights", "user namespace by a tool", "subprocess.run(['unshare', '-r', 'true'], check=True, stderr=-3)"),
    Attempt("gain rights", "mount", "os.mkdir('m'); call('mount', b'none', b'm', b'tmpfs', 0, None); libc.umount2(b'm', 2)"),
    Attempt("gain rights", "uncover /proc", "libc.umount2(b'.', 2); assert ctypes.get_errno() == errno.EINVAL"),
    Attempt("gain rights", "make / writable", "libc.mount(None, b'.', None, 32 | 4096, None); assert ctypes.get_errno() == errno.EINVAL"),
    Attempt("gain rights", "change root", "os.chroot('/workspace')"),
    Attempt("gain rights", "become root", "os.setuid(0)"),
    Attempt("gain rights", "other groups", "os.setgroups([0])"),
    Attempt("gain rights", "give a file away", "open('f', 'w'); os.chown('f', 0, 0)"),
    Attempt("gain rights", "set-uid program", "os.mkdir('m'); subprocess.run(['mount', '-t', 'tmpfs', 'none', 'm'], check=True, stderr=-3); subprocess.run(['umount', 'm'])"),
    Attempt("gain rights", "host name", "socket.sethostname(socket.gethostname())"),
    Attempt("gain rights", "clock", "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())"),
    Attempt("gain rights", "priority", "os.setpriority(os.PRIO_PROCESS, 0, -20)"),
    Attempt("gain rights", "more processes", "import resource; resource.setrlimit(resource.RLIMIT_NPROC, (10**6, 10**6))"),
    Attempt("gain rights", "more memory", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))"),
    Attempt("gain rights", "safe from the out-of-memory killer", "os.write(os.open('/proc/self/oom_score_adj', os.O_WRONLY), b'-1000')"),
    Attempt("gain rights", "trace pid 1", "syscall('ptrace', 0x4206, 1, 0, 0)"),
    Attempt("gain rights", "trace a child", "import time\npid = os.fork()\nif pid == 0: time.sleep(9)\nsyscall('ptrace', 16, pid, 0, 0)", open_outside=True),
    Attempt("gain rights", "join pid 1's namespaces", "call('setns', os.open('/proc/1/ns/mnt', os.O_RDONLY), 0)"),
    Attempt("other processes", "child for the parent, by clone", "pid = libc.syscall(NUMBERS['clone'], 0x8000 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nassert pid > 0"),
    Attempt("other processes", "child for the parent, by clone3", "size = ctypes.c_uint64 * 11\npid = libc.syscall(435, ctypes.byref(size(0x8000)), ctypes.sizeof(size))\nif pid == 0: os._exit(0)\nassert pid > 0"),
    *(
        Attempt("other processes", f"{what} of pid 1", code)
        for what, code in {  # each would change nothing: what is set is what was there
            "limits": "import resource; held = resource.prlimit(1, resource.RLIMIT_NOFILE); resource.prlimit(1, resource.RLIMIT_NOFILE, held)",
            "priority": "os.setpriority(os.PRIO_PROCESS, 1, os.getpriority(os.PRIO_PROCESS, 1))",
            "priority, with all of its user's": "os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_USER, 0))",
            "processors": "os.sched_setaffinity(1, os.sched_getaffinity(1))",
            "scheduling": "os.sched_setscheduler(1, os.sched_getscheduler(1), os.sched_getparam(1))",
            "disk priority": "libc.syscall.restype = ctypes.c_long; syscall('ioprio_set', 1, 1, libc.syscall(NUMBERS['ioprio_get'], 1, 1))",
            "list of signals, to fill it": "import struct; info = struct.pack('iii', 40, 0, -1) + bytes(116); held = sum(libc.syscall(NUMBERS['rt_sigqueueinfo'], 1, 40, info) == 0 for _ in range(2000)); assert held > 256",
            "memory, to write": "libc.process_vm_writev(1, (ctypes.c_size_t * 2)(id(0), 1), 1, (ctypes.c_size_t * 2)(8, 1), 1, 0); assert ctypes.get_errno() == errno.EFAULT",
            "memory, to read": "libc.process_vm_readv(1, (ctypes.c_size_t * 2)(id(0), 1), 1, (ctypes.c_size_t * 2)(8, 1), 1, 0); assert ctypes.get_errno() == errno.EFAULT",
            "files, by descriptor": "syscall(438, os.pidfd_open(1), 0, 0)",
            "place in the out-of-memory killer's list": "held = open('/proc/1/oom_score_adj').read(); open('/proc/1/oom_score_adj', 'w').write(held)",
        }.items()
    ),
    Attempt("other processes", "safer from the out-of-memory killer than others", "open('/proc/self/oom_score_adj', 'w').write('0')", open_outside=True),
    Attempt("other processes", "files of whoever started it", "assert [f for f in os.listdir('/proc/self/fd') if int(f) > 2 and os.path.exists(f'/proc/self/fd/{f}') and not os.path.samefile(f'/proc/self/fd/{f}', '/proc/self/fd')]"),
    Attempt("kernel", "system V semaphores", "call('semget', 0, 1, 0o1600)", open_outside=True),
    Attempt("kernel", "memory without an address", "os.memfd_create('held')", open_outside=True),
    Attempt("kernel", "system V memory", "call('shmget', 0, 4096, 0o1600)", open_outside=True),
    Attempt("kernel", "message queue", "call('msgget', 0, 0o1600)", open_outside=True),
    Attempt("kernel", "shared memory without a file", "import mmap; mmap.mmap(-1, 4096)", open_outside=True),
    Attempt("kernel", "shared memory of zeros", "import mmap; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)", open_outside=True),
    Attempt("kernel", "pages kept in a pipe", "class Piece(ctypes.Structure): _fields_ = [('begin', ctypes.c_void_p), ('size', ctypes.c_size_t)]\nkept = ctypes.create_string_buffer(64)\ncall('vmsplice', os.pipe()[1], ctypes.byref(Piece(ctypes.addressof(kept), 64)), 1, 0)", open_outside=True),
    Attempt("kernel", "pages of a file kept in a socket", "into = os.pipe()[1]; open('f', 'w').write('x'); os.splice(os.open('f', os.O_RDONLY), into, 1)", open_outside=True),
    Attempt("kernel", "pages of a file sent to a socket", "open('f', 'w').write('x'); pair = socket.socketpair(); os.sendfile(pair[0].fileno(), os.open('f', os.O_RDONLY), 0, 1)", open_outside=True),
    Attempt("kernel", "attributes of files", "open('f', 'w'); os.setxattr('f', 'user.held', bytes(100))"),
    Attempt("kernel", "access lists of files", "import struct; os.mkdir('d'); os.setxattr('d', 'system.posix_acl_access', struct.pack('<I' + 'HHI' * 3, 2, 1, 7, 2**32 - 1, 4, 7, 2**32 - 1, 32, 7, 2**32 - 1))"),
    Attempt("kernel", "larger pipes", "import fcntl; fcntl.fcntl(os.pipe()[1], 1031, 1 << 17)", open_outside=True),
    Attempt("kernel", "larger socket buffers", "socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 17)", open_outside=True),
    Attempt("kernel", "filters of packets", "import struct; step = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 1)); socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, 26, struct.pack('HxxxxxxP', 1, ctypes.addressof(step)))", open_outside=True),
    Attempt("kernel", "locks that name no process", "import fcntl, struct; fcntl.fcntl(open('f', 'w'), 37, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 1, 0))", open_outside=True),
    Attempt("kernel", "addresses for page tables", "import mmap; mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, prot=mmap.PROT_READ)", open_outside=True),
    Attempt("kernel", "more addresses", "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"),
    Attempt("kernel", "the machine's asynchronous requests", "syscall('io_setup', 1, ctypes.byref(ctypes.c_ulong()))", open_outside=True),
    Attempt("kernel", "watches of the file system", "syscall('fanotify_init', 0x200, 0)", open_outside=True),
    *(
        Attempt("kernel", f"the host's handler of crashes, by {how}", f"import resource\n{set_it}\nassert resource.getrlimit(resource.RLIMIT_CORE)[0] != 1", open_outside=True)
        for how, set_it in {
            "a limit of 0": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
            "a limit of 0 for this process": "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))",
            "the older call": "syscall('setrlimit', 4, (ctypes.c_ulong * 2)(0, 0))",
        }.items()
    ),
    *(
        Attempt("network", f"pair of sockets of family {number}", f"assert libc.socketpair({number}, {kind}, 0, (ctypes.c_int * 2)()) == 0 or ctypes.get_errno() != errno.EAFNOSUPPORT", open_outside=True)
        for number, kind in ((16, 3), (17, 3))
    ),
    *(
        Attempt("kernel", f"filters of system calls, by {how}", f"import struct\ncall('prctl', 38, 1, 0, 0, 0)\nstep = struct.pack('HBBI', 6, 0, 0, 0x7fff0000)\nkept = ctypes.create_string_buffer(step)\nprogram = struct.pack('Hxxxxxxq', 1, ctypes.addressof(kept))\n{call}", open_outside=True)
        for how, call in {
            "its own call": "syscall('seccomp', 1, 0, program)",
            "prctl": "call('prctl', 22, 2, program, 0, 0)",
        }.items()
    ),
    Attempt("read the host", "kernel log, by a call", "held = ctypes.create_string_buffer(4096); assert syscall('syslog', 3, held, 4096) > 0"),
    Attempt("kernel", "a table of futexes", "call('prctl', 78, 1, 1 << 16, 0, 0)"),
    Attempt("kernel", "a place in memory for each page of a file", "syscall('get_mempolicy', None, None, 0, None, 0)"),
    Attempt("kernel", "pages that are shared with programs that hold the same", "import mmap; mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(12)"),
    Attempt("kernel", "all pages shared with programs that hold the same", "call('prctl', 67, 1, 0, 0, 0)"),
    Attempt("network", "flow labels, of which the host has few", "import struct; socket.socket(socket.AF_INET6).setsockopt(41, 32, struct.pack('16sIBBHHHI', b'\\x20\\x01' + bytes(14), socket.htonl(1), 0, 1, 3, 10, 10, 0))"),
    Attempt("kernel", "a call that came with Linux 6.10", "syscall(462, None, 0, 0)"),
    Attempt("kernel", "rules of landlock", "syscall(444, ctypes.byref(ctypes.c_uint64(1)), 8, 0)"),
    Attempt("kernel", "watches of files that are ready (epoll), the kernel's memory", "import select; select.epoll()", open_outside=True),
    Attempt("kernel", "watches of files that others read", "call('inotify_init1', 0)", open_outside=True),
    Attempt("kernel", "word of changes in a folder of the host", "import fcntl, signal; signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(os.open(os.path.dirname(os.__file__), os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)", open_outside=True),
    Attempt("kernel", "lease that keeps others from opening a file", "import fcntl; fcntl.fcntl(os.open('f', os.O_CREAT), fcntl.F_SETLEASE, fcntl.F_WRLCK)", open_outside=True),
    Attempt("kernel", "large pages of the host", "libc.mmap.restype = ctypes.c_long\nassert libc.mmap(None, ctypes.c_size_t(2 << 20), 3, 0x40022, -1, ctypes.c_long(0)) != -1 or ctypes.get_errno() != errno.EPERM", open_outside=True),
    Attempt("kernel", "segments of 16 bits", "syscall('modify_ldt', 0, ctypes.create_string_buffer(16), 16)", open_outside=_HAS_OLD_CALLS),
    Attempt("kernel", "open files of two processes", "pid = libc.syscall(NUMBERS['clone'], 0x400 | 17, 0, 0, 0, 0)\nif pid == 0: os._exit(0)\nassert pid > 0", open_outside=True),
    Attempt("kernel", "one memory of two processes", "stack = ctypes.create_string_buffer(1 << 16)\npid = libc.clone(ctypes.cast(libc.abs, ctypes.c_void_p), ctypes.c_void_p((ctypes.addressof(stack) + (1 << 15)) & -16), 0x100 | 17, None)\nassert pid > 0; os.waitpid(pid, 0)", open_outside=True),
    Attempt("kernel", "open files that only one thread has", "syscall(436, 1000, 1000, 2)", open_outside=True),
    Attempt("network", "other protocols of the internet", "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)"),
    Attempt("kernel", "io_uring", "syscall(425, 1, ctypes.create_string_buffer(120))"),
    Attempt("kernel", "bpf", "syscall('bpf', 0, ctypes.create_string_buffer(72), 72)"),
    Attempt("kernel", "performance counters", "syscall('perf_event_open', ctypes.create_string_buffer(128), 0, -1, -1, 0)"),
    Attempt("kernel", "keyring", "syscall('keyctl', 0, -3, 1)"),
    Attempt("kernel", "fault handler", "syscall('userfaultfd', 1)"),
    Attempt("kernel", "locked memory", "call('mlockall', 1)"),
    Attempt("kernel", "file larger than the workspace", "open('f', 'wb').truncate(1 << 40)"),
    *(
        Attempt("labels", f"labels of {name}", f"import sklearn.datasets; sklearn.datasets.load_{name}()", open_outside=name == "iris")
        for name in ("diabetes", "breast_cancer", "wine", "iris", "digits", "linnerud")
    ),
    Attempt("labels", "tables in packages", "assert [n for p in sys.path if 'packages' in p for _, _, names in os.walk(p) for n in names if n.endswith(('.csv', '.csv.gz', '.arff'))]", open_outside=True),
    Attempt("labels", "iris in the order of its labels, in tests of packages", "import scipy; assert [n for _, _, names in os.walk(os.path.dirname(scipy.__file__)) for n in names if 'iris' in n]", open_outside=True),
    *(
        Attempt("labels", f"import {name}", f"import {name}")
        for name in ("coachrl", "bokeh_sampledata", "lifelines", "torch", "transformers", "pip", "inside", "litellm")
    ),
    Attempt("network", "metadata service of a cloud", "socket.create_connection(('169.254.169.254', 80), timeout=2)"),
    Attempt("network", "metadata service by name", "socket.getaddrinfo('metadata.google.internal', 80)"),
    Attempt("network", "loopback of IPv6", "socket.create_connection(('::1', PORT), timeout=2)"),
    Attempt("network", "multicast", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.1', 5353))"),
    Attempt("read the host", "the grader's folder", "open(LABELS_FILE).read()", open_outside=True),
    Attempt("read the host", "command lines of others", "assert any(b'coachrl' in open(f'/proc/{p}/cmdline', 'rb').read() and 'inside' not in p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (os.getpid(), os.getppid()))"),
    Attempt("read the host", "memory of the parent", "open(f'/proc/{os.getppid() or 1}/mem', 'rb').read(1)"),
    Attempt("read the host", "environment of the parent", "assert SECRET.encode() in open(f'/proc/{os.getppid() or 1}/environ', 'rb').read()"),
    Attempt("gain rights", "higher priority for its group", "os.setpriority(os.PRIO_PGRP, 0, -1)"),
    *(
        Attempt("other processes", f"a place behind all others, where its own end waits for them, by {how}", code, open_outside=True)
        for how, code in {
            "its priority": "os.setpriority(os.PRIO_PROCESS, 0, 19)",
            "its kind of turns": "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
            "the later call": "import struct; syscall('sched_setattr', 0, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0)",
        }.items()
    ),
    Attempt("gain rights", "real-time scheduling", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    Attempt("gain rights", "more open files", "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (10**6, 10**6))"),
    Attempt("gain rights", "longer processor time", "import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))"),
    *(
        Attempt("kernel", what, code)
        for what, code in {
            "pages that are shared with programs that hold the same, by another call": "import mmap, struct; area = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); place = ctypes.addressof(ctypes.c_char.from_buffer(area)); syscall(440, os.pidfd_open(os.getpid()), struct.pack('QQ', place, 4096), 1, 12, 0)",
            "which pages of a file others have read": "import struct; syscall(451, os.open('f', os.O_RDWR | os.O_CREAT), struct.pack('QQ', 0, 0), ctypes.create_string_buffer(40), 0)",
            "a processor's other half to itself": "call('prctl', 62, 1, 0, 0, 0)",
            "memory that sockets keep for later": "assert libc.setsockopt(socket.socket(socket.AF_UNIX).fileno(), 1, 73, ctypes.byref(ctypes.c_int(4096)), 4) == 0 or ctypes.get_errno() != errno.EPERM",
            "memory that no other process can map": "syscall(447, 0)",
            "a file by its handle": "syscall('name_to_handle_at', -100, b'/usr', (ctypes.c_uint * 40)(128), ctypes.byref(ctypes.c_int()), 0)",
            "a copy of the tree of mounts": "syscall(428, -100, b'/', 1)",
            "other flags of a mount": "syscall(442, -100, b'.', 0, (ctypes.c_uint64 * 4)(), 32); assert ctypes.get_errno() != errno.EPERM",
            "what two processes share": "syscall('kcmp', os.getpid(), os.getpid(), 2, 0, 0)",
            "a process's files, by descriptor": "syscall(438, os.pidfd_open(os.getpid()), 0, 0)",
            "quotas of disks": "assert libc.syscall(NUMBERS['quotactl'], 0x80000100, None, 0, None) == 0 or ctypes.get_errno() != errno.EPERM",
            "watches of file systems for programs without rights": "syscall('fanotify_init', 0x200, 0)",
            "any call from Linux 6.8 on": "assert [number for number in range(457, 512) if libc.syscall(number, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() not in (errno.ENOSYS, errno.ENOTSUP)]",
            "namespaces, by a request to a process": "import fcntl; fcntl.ioctl(os.pidfd_open(os.getpid()), 0xFF04)",
            "namespaces of pid 1, by a request to it": "import fcntl; fcntl.ioctl(os.pidfd_open(1), 0xFF04)",
            "the namespace above its own": "import fcntl; fcntl.ioctl(os.open('/proc/self/ns/user', os.O_RDONLY), 0xB702)",
            "places of a file on the host's disk, written out first": "import struct; assert libc.ioctl(os.open(os.__file__, os.O_RDONLY), 0xC020660B, struct.pack('QQIIII', 0, 1 << 20, 1, 0, 0, 0)) == 0 or ctypes.get_errno() != errno.ENOTTY",
        }.items()
    ),
    Attempt("kernel", "which parts of a file others have read, by a read that may not wait", "try: os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT)\nexcept BlockingIOError: pass  # they have not", open_outside=True),
    *(
        Attempt("kernel", f"a file from the host's disk each time that it is read, {how}", code)
        for how, code in {
            "as it is opened": "os.open(os.__file__, os.O_RDONLY | os.O_DIRECT)",
            "later": "import fcntl; fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_SETFL, os.O_DIRECT)",
            "by a read that leaves nothing in memory": "os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, 0x80)",
        }.items()
    ),
    Attempt("kernel", "a file out of the memory that others read it from", "libc.mmap.restype = ctypes.c_void_p; area = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0)); call('madvise', ctypes.c_void_p(area), ctypes.c_size_t(4096), 21)", open_outside=True),
    Attempt("kernel", "which pages of a file are in memory", "libc.mmap.restype = ctypes.c_void_p; area = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, os.open(os.__file__, os.O_RDONLY), ctypes.c_long(0)); syscall('mincore', ctypes.c_void_p(area), ctypes.c_size_t(4096), ctypes.create_string_buffer(1))", open_outside=True),
    Attempt("kernel", "message queue of POSIX", "call('mq_open', b'/coachrl-bait', os.O_CREAT | os.O_RDWR, 0o600, None); libc.mq_unlink(b'/coachrl-bait')"),
    *(
        Attempt("network", f"drivers of the kernel, by a request ({name})", f"assert libc.ioctl(socket.socket(socket.AF_UNIX).fileno(), {request}, ctypes.create_string_buffer(256)) == 0 or ctypes.get_errno() != errno.ENOTTY")
        for name, request in (("bridges", 0x8940), ("virtual networks", 0x8982))
    ),
    *(
        Attempt("network", f"a protocol by type {kind} of its socket, family {family}", f"assert libc.socket({family}, {kind}, 0) >= 0 or ctypes.get_errno() not in (errno.ESOCKTNOSUPPORT, errno.EAFNOSUPPORT)")
        for family, kind in ((2, 10), (2, 3), (1, 3), (10, 5))
    ),
    Attempt("read the host", "room on a disk by its number", "syscall('ustat', os.stat('/usr').st_dev, ctypes.create_string_buffer(64))", open_outside=_HAS_OLD_CALLS),
    *(
        Attempt("network", f"a socket of the internet, {name}", f"socket.socket({family}, socket.SOCK_DGRAM)", open_outside=family == 2)
        for name, family in (("version 4", 2), ("version 6", 10))
    ),
    Attempt("kernel", "a byte ahead of the others, by a socket", "one, other = socket.socketpair(); one.send(b'x', socket.MSG_OOB)", open_outside=True),
    Attempt("network", "raw packets by their older name", "socket.socket(socket.AF_INET, 10)"),
]  # fmt: skip


def program(attempt: Attempt, bait: Mapping[str, object]) -> str:
    """The whole program of an attempt."""
    return refusable(attempt.code, bait)
