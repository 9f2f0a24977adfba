"""Scripts that make environments say at once where they cannot."""

import os
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
