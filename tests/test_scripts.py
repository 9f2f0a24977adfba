"""Scripts that make environments say at once where they cannot."""

import contextlib
import os
import pty
import shutil
import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(script, folder, **programs):
    """The script, with `programs` (name -> what they print) in place of the machine's."""
    for name, printed in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{printed}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "VENV": str(folder / "venv"), "PYTHON": ""}
    return subprocess.run([SCRIPTS / script], env=environment, capture_output=True, text=True, timeout=60)


def test_another_platform_cannot_test_the_distributed_backend(tmp_path):
    done = run("test_openrlhf_cpu.sh", tmp_path, uname="echo Darwin arm64")
    assert done.returncode == 2
    assert "Linux x86_64 alone: its packages are not built for Darwin arm64" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_machine_without_a_python_that_fits_is_told_which_do(tmp_path):
    old = dict.fromkeys(("python3", "python3.12", "python3.11"), "exit 1")
    done = run("test_openrlhf_cpu.sh", tmp_path, uname="echo Linux x86_64", **old)
    assert done.returncode == 2
    assert "coachrl needs Python 3.11 or 3.12; set PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_that_fits_is_found(tmp_path):
    fits = {"python3": "exit 1", "python3.12": "exit 0"}
    assert run("find_python.sh", tmp_path, **fits).stdout == "python3.12\n"


def test_the_set_up_lets_pip_speak_on_a_terminal_alone(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("setup.sh", "find_python.sh"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text("")
    programs = {".venv/bin/pip": "exit 1", ".venv/bin/python": 'echo "pip was told: $*"', "bwrap": "", "python3": ""}
    for name, does in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": ""}
    ours, theirs = pty.openpty()
    to_file = tmp_path / "log.txt"
    with to_file.open("w") as file:
        for stdout in (file, theirs):
            subprocess.run([tmp_path / "scripts" / "setup.sh"], env=environment, stdout=stdout, timeout=60, check=True)
            for stamp in (tmp_path / ".venv").glob(".coachrl-*"):
                stamp.unlink()
    os.close(theirs)
    said = [to_file.read_text(), _all_of(ours)]
    assert [text.count("pip was told: -m pip install") for text in said] == [2, 2]
    assert ["--quiet" in text for text in said] == [True, False]


def _all_of(terminal):
    """What was written to a terminal that nobody holds open any more."""
    text = b""
    with contextlib.suppress(OSError):  # EIO is its end
        while part := os.read(terminal, 65536):
            text += part
    os.close(terminal)
    return text.decode()
