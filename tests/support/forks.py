"""Processes that are forked from one that has imported everything already: importing takes seconds, forking none.

    python forks.py serve SOCKET MODULE...                  imports the modules, and forks until its input ends
    python forks.py run SOCKET MODULE:FUNCTION ARGUMENT...  is, to whoever started it, the process that is forked

A process calls one function with words, and has the folder, environment and open files of whoever asks for it, with
whom it ends. What a process of `run` leaves behind ends with it, as Ray lets it in its own workers. `ForkServer` is the
way in from Python.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

_BECOME_SUBREAPER = 36  # prctl(2): orphans of what is forked come to the process that says so
_BIND_TIMEOUT_S, _LISTEN_TIMEOUT_S, _IMPORT_TIMEOUT_S = 120.0, 5.0, 600.0


class ForkServer:
    """Imports `modules` once, in a process that ends with this one."""

    def __init__(self, modules, paths=(), environment=None):
        self._folder = tempfile.TemporaryDirectory(prefix="forks-", dir="/tmp")  # short: a socket's name is
        self.socket = str(Path(self._folder.name) / "socket")
        path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", self.socket, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )
        atexit.register(self._process.stdin.close)

    def start(self, function, *words, cwd=".", environment=None, output=(os.devnull, os.devnull)):
        """Call "module:function" with `words` in a process of its own. environment: all of it, this process's where
        None. output: the files of its standard output and error, which are added to."""
        return Forked(self.socket, function, words, cwd, environment, output)


class Forked:
    """A process that was forked."""

    def __init__(self, server, function, words, cwd, environment, output):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        files = [os.open(os.devnull, os.O_RDONLY), *(os.open(path, flags) for path in output)]
        try:
            self._connection = connect(server)
            order(self._connection, function, words, str(cwd), dict(environment or os.environ), files)
        finally:
            for file in files:
                os.close(file)
        self._heard = b""
        self.pid = int(self._line(_IMPORT_TIMEOUT_S))

    @property
    def running(self):
        return not self._heard and not select.select([self._connection], [], [], 0)[0]

    def wait(self, timeout_s=600.0):
        """Its return code, negative where a signal ended it."""
        code = int(self._line(timeout_s))
        self._connection.close()
        return code

    def _line(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._heard:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._connection], [], [], left)[0], f"no answer in {timeout_s:g} s"
            said = self._connection.recv(64)
            assert said, "the server has ended"
            self._heard += said
        line, _, self._heard = self._heard.partition(b"\n")
        return line


def connect(server):
    """A connection to the server, which answers once it has imported everything, or ends where it cannot."""
    deadline, refused = time.monotonic() + _BIND_TIMEOUT_S, False
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(server)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            if isinstance(error, ConnectionRefusedError) and not refused:
                # Its file is there: it is about to listen, or it has ended already.
                deadline, refused = time.monotonic() + _LISTEN_TIMEOUT_S, True
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return connection


def order(connection, function, words, cwd, environment, files, reap=False):
    """Ask for a process. reap: end what it leaves behind."""
    asked = {"function": function, "words": words, "cwd": cwd, "environment": environment, "reap": reap}
    text = json.dumps(asked).encode()
    ancillary = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    connection.sendmsg([len(text).to_bytes(8, "big")], [ancillary])
    connection.sendall(text)


def command(server, function):
    """The command line of a process that words can be added to. Without site-packages: it is to be quick."""
    return [sys.executable, "-I", "-S", __file__, "run", server, function]


def run(server, function, *words):
    """Order a process like this one, and end as it does."""
    connection = connect(server)
    order(connection, function, words, str(Path.cwd()), dict(os.environ), [0, 1, 2], reap=True)
    answers = connection.makefile().read().split()
    code = int(answers[1]) if len(answers) == 2 else 70
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(path, *modules):
    """Until standard input ends, which is when whoever started the server ends."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)  # first: whoever connects hears at once where an import fails
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # collections look at new objects only, and leave shared pages alone
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
    while server in select.select([server, sys.stdin], [], [])[0]:
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            watch(connection)
        connection.close()


def watch(connection):
    """Fork the process, tell its number and how it ends. Never returns."""
    asked, files = read_order(connection)
    if asked["reap"]:
        ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(asked, files)
    for file in files:
        os.close(file)
    connection.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection], [], [])[0]:  # whoever asked is gone
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    end_children()
    try:
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)


def end_children():
    """The orphans that this process has inherited, and those that they leave in turn."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := [int(pid) for pid in children.read_text().split()]:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def read_order(connection):
    size = array.array("i").itemsize
    head, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * size))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data[: len(data) - len(data) % size])
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += connection.recv(length - len(text)) or sys.exit(70)
    return json.loads(text), files


def become(asked, files):
    """The process that was asked for. Never returns."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # Streams of these files: the old ones know, for instance, whether what they were opened for can be sought in.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    code = 1
    try:
        module, _, function = asked["function"].partition(":")
        getattr(importlib.import_module(module), function)(*asked["words"])
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter itself does
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def script(path, *words):
    """As `python PATH WORD...` would."""
    import runpy

    sys.argv = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](*sys.argv[2:])
