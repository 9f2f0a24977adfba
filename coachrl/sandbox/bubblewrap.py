"""Starts the waiting interpreter under bubblewrap, and says in plain words why that is not possible here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from coachrl.errors import SandboxUnavailable
from coachrl.resources import allow_open_files
from coachrl.sandbox.inside.jail import CODE_UID, WORKSPACE, WORKSPACES
from coachrl.sandbox.packages import Packages

INSTALL_HINT = (
    "install bubblewrap: `apt-get install bubblewrap` (Debian, Ubuntu), `dnf install bubblewrap` (Fedora), "
    "`apk add bubblewrap` (Alpine); without root, `conda install -c conda-forge bubblewrap`"
)
INSIDE = Path(__file__).with_name("inside")
PACKAGES = "/packages"
HOME = "/tmp"
_COVERED = (WORKSPACE, WORKSPACES, HOME, "/dev")  # by what is mounted after the interpreter
# What the supervisor needs in its own user namespace, to build and enter rooms, read usage and files, end processes.
_CAPABILITIES = (
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
    "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
)  # fmt: skip
_NOBODY = 65534
# Below the system's folders. Those of other languages ship tables, too: R's survival has the labels of a task.
_SYSTEM_PACKAGES = ("*/*-packages", "R/*library", "node_modules")
_THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR", "VECLIB")


def find_bubblewrap() -> str:
    """Path of bwrap. Raises SandboxUnavailable, saying how to install it."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxUnavailable(f"the sandbox needs bubblewrap (bwrap), which is not on the PATH; {INSTALL_HINT}")
    return path


def environment() -> dict[str, str]:
    """The whole environment of agents' code: nothing of the host's is passed on."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": HOME,
        "TMPDIR": "/tmp",
        "USER": "agent",
        "LOGNAME": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": PACKAGES,
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MPLBACKEND": "agg",
        "LOKY_MAX_CPU_COUNT": "1",
        **{f"{name}_NUM_THREADS": "1" for name in _THREADS},
    }


def _python() -> Path:
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def require_reach(packages: Packages) -> None:
    """Raises SandboxUnavailable for what has to be shown inside, and lies where this user cannot reach it: coachrl may
    have been started by somebody who can. For an interpreter as well that a folder of the programs' own would cover."""
    shown = {"the interpreter": _python(), "coachrl": INSIDE, **packages.entries}
    for name, place in shown.items():
        if not os.access(place, os.R_OK | (os.X_OK if os.path.isdir(place) else 0)):  # noqa: PTH112
            raise SandboxUnavailable(
                f"the sandbox cannot show {name} inside: {place} cannot be read by user {os.getuid()}, who runs "
                "coachrl; install it where this user may read it, or run coachrl as the user who may"
            )
    for folder in _COVERED:
        if _python().is_relative_to(folder):
            raise SandboxUnavailable(
                f"the sandbox cannot show the interpreter inside: {_python()} lies below {folder}, where programs have "
                "files of their own; run coachrl with a Python that is installed elsewhere"
            )


def _system_arguments() -> Iterator[str]:
    """What an interpreter needs of the system, read-only, without the packages installed in it."""
    folders = {Path("/usr/bin"), Path("/usr/lib"), Path("/usr/lib32"), Path("/usr/lib64"), Path("/usr/share/zoneinfo")}
    folders |= {Path(sys.base_prefix).resolve() / "lib", Path(sys.base_prefix).resolve() / "lib64", _python().parent}
    real = sorted(folder for folder in folders if folder.is_dir() and not folder.is_symlink())
    # bubblewrap makes missing parents for its own user only; agents' code is another one.
    for parent in sorted({parent for folder in real for parent in folder.parents} - {Path("/")}):
        yield from ("--dir", str(parent))
    for folder in real:
        yield from ("--ro-bind", str(folder), str(folder))
    packages = {place.resolve() for folder in real for pattern in _SYSTEM_PACKAGES for place in folder.glob(pattern)}
    for place in sorted(packages):
        if place.is_dir() and packages.isdisjoint(place.parents) and any(map(place.is_relative_to, real)):
            yield from ("--tmpfs", str(place), "--remount-ro", str(place))
    for name in ("bin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


def _device_arguments() -> Iterator[str]:
    yield from ("--tmpfs", "/dev", "--dir", "/dev/shm")
    # No /dev/zero: a shared map of it is memory that no process shows once it has let go of the pages.
    for name in ("null", "full", "random", "urandom"):
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for target, name in (("", "fd"), ("/0", "stdin"), ("/1", "stdout"), ("/2", "stderr")):
        yield from ("--symlink", f"/proc/self/fd{target}", f"/dev/{name}")
    yield from ("--remount-ro", "/dev")


def _package_arguments(packages: Packages) -> Iterator[str]:
    yield from ("--dir", PACKAGES)
    for name, source in packages.entries.items():
        yield from ("--ro-bind", str(source), f"{PACKAGES}/{name}")
    for folder in packages.hidden:
        yield from ("--tmpfs", f"{PACKAGES}/{folder}", "--remount-ro", f"{PACKAGES}/{folder}")


def arguments(bwrap: str, packages: Packages, uid: int) -> list[str]:
    """The command line. uid: that of the waiting interpreter inside its user namespace."""
    command = [bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--uid", str(uid), "--gid", str(uid), "--hostname", "sandbox", "--cap-drop", "ALL"]
    for capability in _CAPABILITIES:
        command += ["--cap-add", capability]
    for name, value in environment().items():
        command += ["--setenv", name, value]
    command += [*_system_arguments(), "--proc", "/proc", *_device_arguments(), *_package_arguments(packages)]
    for module in sorted(INSIDE.glob("*.py")):
        command += ["--ro-bind", str(module), f"/zygote/inside/{module.name}"]
    command += ["--dir", WORKSPACE, "--dir", "/tmp", "--tmpfs", WORKSPACES]
    command += ["--remount-ro", "/", "--chdir", "/"]
    start = (
        f"import sys; sys.path.insert(0, '/zygote'); from inside.zygote import main; main({list(packages.preload)!r})"
    )
    return [*command, "--", str(_python()), "-s", "-P", "-c", start]


@dataclass
class Bubblewrap:
    """bubblewrap as it runs, and a file (pidfd) of the first process inside; None where there is none yet."""

    process: subprocess.Popen[bytes]
    first: int | None = None

    def end(self) -> None:
        """End both: until bubblewrap has told the first process to end with it, that would wait for it for ever."""
        if self.first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
            os.close(self.first)
            self.first = None
        elif self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # the first process is of its session at that time
        self.process.kill()
        self.process.wait()


def start(packages: Packages, control: int, errors: IO[bytes]) -> Bubblewrap:
    """Start bubblewrap with the file `control` as the interpreter's file 0 and `errors` as its stderr.

    Started by root, agents' code becomes the host's user `nobody`: a root without capabilities would still own the
    host's files, and be exempt from the limit on processes. Started by anyone else, it keeps that user's id.
    Call it from a thread that lives on: bubblewrap ends with the thread that started it, and not by a signal to that
    thread's process group, as Ctrl-C is.
    """
    bwrap = find_bubblewrap()
    require_reach(packages)
    # The kernel counts what lies in sockets for a user, all processes together, and lets one send more only below its
    # own limit. That of programs is 512; they get beyond it by what each of the machine's processors sends at once.
    allow_open_files()
    as_root = os.getuid() == 0
    info, go = os.pipe(), os.pipe()
    command = arguments(bwrap, packages, 0 if as_root else CODE_UID)
    command[1:1] = ["--info-fd", str(info[1]), *(("--userns-block-fd", str(go[0])) if as_root else ())]
    try:
        try:
            started = Bubblewrap(_begin(command, control, errors, (info[1], go[0])))
        finally:
            os.close(info[1])
        try:
            if (first := _first_inside(info[0])) is not None:
                with contextlib.suppress(ProcessLookupError):  # it has ended already; bubblewrap says why
                    started.first = os.pidfd_open(first)
                if as_root:
                    _map_users(first, f"0 0 1\n{CODE_UID} {_NOBODY} 1\n")
            os.write(go[1], b"\n")
        except BaseException:
            started.end()
            raise
    finally:
        for fd in (info[0], *go):
            os.close(fd)
    return started


def _begin(command: list[str], control: int, errors: IO[bytes], more: tuple[int, ...]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=control, stdout=subprocess.DEVNULL, stderr=errors, env={}, pass_fds=more, start_new_session=True
    )


def _first_inside(fd: int) -> int | None:
    """The process number in the JSON object that bubblewrap writes piece by piece; None where it ended first, of which
    its stderr says why."""
    text = b""
    while not text.rstrip().endswith(b"}"):
        piece = os.read(fd, 4096)
        if not piece:
            return None
        text += piece
    return int(json.loads(text)["child-pid"])


def _map_users(first: int, mapping: str) -> None:
    try:
        Path("/proc", str(first), "gid_map").write_text(mapping)
        Path("/proc", str(first), "uid_map").write_text(mapping)
    except OSError as error:
        raise SandboxUnavailable(
            f"the sandbox cannot map root and nobody into a user namespace ({error.strerror}): give this container the "
            "capabilities SETUID and SETGID and user ids up to 65534, or run coachrl as a user other than root"
        ) from error


def explain(stderr: str) -> str:
    """What to do about a bubblewrap that does not start, from its own words and the kernel's settings."""
    if "proc on" in stderr:
        return "this container hides parts of /proc: start it with --security-opt systempaths=unconfined"
    if "Can't read /proc/" in stderr:
        return "mount /proc where coachrl runs"
    if any(word in stderr for word in ("Resource temporarily unavailable", "can't start new thread")):
        return "this user may start no more processes: end some, or allow more (`ulimit -u`, a container's pids)"
    if "Too many open files" in stderr:
        return "this process may open no more files: allow more (`ulimit -n`)"
    settings = {
        "kernel/apparmor_restrict_unprivileged_userns": ("1", "0", " or give bwrap an AppArmor profile with `userns,`"),
        "kernel/unprivileged_userns_clone": ("0", "1", ""),
        "user/max_user_namespaces": ("0", "15000", ""),
    }
    for name, (bad, good, otherwise) in settings.items():
        path = Path("/proc/sys", name)
        if path.exists() and path.read_text().strip() == bad:
            return f"allow user namespaces: `sysctl -w {name.replace('/', '.')}={good}`{otherwise}"
    if any(word in stderr for word in ("namespace", "not permitted", "Permission denied")):
        return (
            "user namespaces are forbidden here, as in most containers: start the container with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
        )
    return "see the message above; bubblewrap 0.5 or later and Linux 5.8 or later are needed"
