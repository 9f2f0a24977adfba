"""Programs of the attempts of `bombs.py` that take more than a line or two, and what several of them share."""

from __future__ import annotations

import platform

from coachrl.doctor.sandbox import CALLS

NUMBERS = {name: numbers[platform.machine() == "aarch64"] for name, numbers in CALLS.items()}

# It names a package: such a program is a child of the warm interpreter, whose death would end it.
BYSTANDER = "import numpy, time\nopen('started', 'w').close()\ntime.sleep(1.5)\nprint('unharmed')"
CATCHABLE = "import os, signal, time\nfor s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n    try: "
CLONE_PARENT = (
    f"import ctypes, os, time\npid = ctypes.CDLL(None).syscall({NUMBERS['clone']}, 0x8000 | 17, 0, 0, 0, 0)\n"
    "if pid == 0: os._exit(0)\ntime.sleep(0.2)"
)
SOCKET_FLOOD = """
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
LET_GO = """
import mmap, time
held = mmap.mmap(-1, 900 << 20)
for begin in range(0, 900 << 20, 4 << 20):
    held[begin:begin + (4 << 20)] = bytes(4 << 20)
    held.madvise(mmap.MADV_DONTNEED, begin, 4 << 20)
time.sleep(60)
"""
LOCKS = """
import fcntl, struct
file = open('locked', 'w')
for n in range(10**7): fcntl.fcntl(file, fcntl.F_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 2 * n, 1, 0))
"""
PAGES_IN_SOCKETS = """
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
WITHOUT_FIRST_THREAD = f"""
import ctypes, os, threading, time
def hold():
    while open('/proc/self/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
    held = bytearray(300 << 20)
    time.sleep(60)
for _ in range(4):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).syscall({NUMBERS["exit"]}, 0)
time.sleep(60)
"""
CALL_OF_32_BITS = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
code.write(bytes.fromhex('b814000000cd80c3'))  # getpid by int 0x80
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
DROPPABLE = """
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
UNSEEN = """
import ctypes, os, sys, time
code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); held = b'x' * (128 << 20); time.sleep(60)"
for _ in range(8):
    if os.fork() == 0: os.execv(sys.executable, [sys.executable, '-c', code])
time.sleep(60)
"""
SWAPPING = """
import ctypes, os, time
os.mkdir('a'); os.symlink('/', 'b')
end, exchange = time.monotonic() + 2, ctypes.CDLL(None).renameat2
while time.monotonic() < end: exchange(-100, b'a', -100, b'b', 2)
"""
SIGNAL_BY_PIPE = """
import fcntl, os, time
for number in (9, 19, 2, 34):
    out, into = os.pipe()
    fcntl.fcntl(out, fcntl.F_SETOWN, 1)
    fcntl.fcntl(out, 10, number)
    fcntl.fcntl(out, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(into, b'x')
time.sleep(0.2)
"""
TIMERS = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
made, number = 0, ctypes.c_int()
for _ in range(8):
    if os.fork() == 0: break
while libc.syscall({NUMBERS["timer_create"]}, 1, None, ctypes.byref(number)) == 0: made += 1
assert made < 512, made
"""
DIRTY = "import builtins, json, os, sys\nbuiltins.leak = sys.leak = json.leak = 1\nos.environ['LEAK'] = '1'"
LOOK = (
    "import builtins, json, os, sys\n"
    "if any(hasattr(m, 'leak') for m in (builtins, sys, json)) or 'LEAK' in os.environ: print('ESCAPED')"
)
MODULES = (
    "for name in ('contextlib', 'resource', 'signal', 'sitecustomize', 'subprocess'):\n"
    "    open(name + '.py', 'w').write(\"print('ESCAPED')\")"
)
NAMED = "import ctypes\nctypes.CDLL(None).prctl(15, b'escapee-a8d3', 0, 0, 0)\n"
FIND_NAMED = (
    "import os\nfor p in os.listdir('/proc'):\n    try:\n"
    "        if p.isdigit() and 'escapee' in open(f'/proc/{p}/comm').read(): print('ESCAPED', p)\n"
    "    except OSError: pass"
)
FILL = "import itertools\nfor n in itertools.count(): open(f'{folder}{n % 32}', 'ab').write(bytes(1 << 20))"
WRITE_AND_FORK = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
