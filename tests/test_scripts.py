"""Scripts that make environments say at once where they cannot."""

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from processes import is_running

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(script, folder, *arguments, **programs):
    """The script, with `programs` (name -> what they print) in place of the machine's."""
    for name, printed in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{printed}\n")
        (folder / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "VENV": str(folder / "venv"), "PYTHON": ""}
    return subprocess.run([SCRIPTS / script, *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_another_platform_cannot_test_the_distributed_backend(tmp_path):
    done = run("test_openrlhf_cpu.sh", tmp_path, uname="echo Darwin arm64")
    assert done.returncode == 2
    assert "Linux x86_64 alone: its packages are not built for Darwin arm64" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_machine_without_a_python_that_fits_is_told_which_do(tmp_path):
    old = dict.fromkeys(("python3", "python3.13", "python3.12", "python3.11"), "exit 1")
    done = run("test_openrlhf_cpu.sh", tmp_path, uname="echo Linux x86_64", **old)
    assert done.returncode == 2
    assert "coachrl needs Python 3.11, 3.12 or 3.13; set PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("name", ["mathchat_8gpu", "dsbench_8gpu"])
def test_the_doctor_looks_at_the_run_that_begins_in_the_folder_that_its_files_are_named_from(tmp_path, name):
    (tmp_path / "here").mkdir()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "coachrl").write_text('#!/bin/sh\necho "$PWD: $*"\n')
    (tmp_path / "coachrl").chmod(0o755)
    words = ["tasks.train=train.json", "--name", "mine", "torch.lora_rank=16"]
    ran = subprocess.run(
        [SCRIPTS / f"{name}.sh", *words], cwd=tmp_path / "here", env=environment, capture_output=True, text=True
    )
    folder, train = (tmp_path / "here").resolve(), f"train --config {name} {' '.join(words)}"
    doctor = f"doctor --backend openrlhf --config {name} tasks.train=train.json torch.lora_rank=16"
    assert ran.stdout.splitlines() == [f"{folder}: {told}" for told in (doctor, f"{train} --dry-run", train)]


def test_a_python_that_fits_is_found(tmp_path):
    fits = {"python3": "exit 1", "python3.13": "exit 1", "python3.12": "exit 0"}
    assert run("find_python.sh", tmp_path, **fits).stdout == "python3.12\n"


def test_the_set_up_takes_no_option_for_an_extra(tmp_path):
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(SCRIPTS / "setup.sh", tmp_path / "scripts")
    asked = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 2 and asked.stderr.startswith("usage: scripts/setup.sh [EXTRA")


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
    assert [text.count("pip was told: -m pip install") for text in said] == [3, 3]
    assert ["--quiet" in text for text in said] == [True, False]


def test_the_oldest_and_the_newest_versions_are_tested_by_uv(tmp_path):
    (python := tmp_path / "venv" / "bin" / "python").parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "python was told: $*"\n')
    python.chmod(0o755)
    all_extras = ".[dev,wandb,mlflow,trackio]"
    for versions, wanted in (
        ("oldest", f"lowest-direct -e {all_extras}"),
        ("plain", "lowest-direct -e .\n"),
        ("newest", f"highest -e {all_extras}"),
    ):
        done = run("test_versions.sh", tmp_path, versions, "-k verdict", uv='echo "uv was told: $*"', python3="exit 0")
        told = done.stdout.splitlines()
        assert f"--resolution {wanted}" in told[1] + "\n", done
        assert told[-1] == "python was told: -m pytest --ignore tests/distributed -k verdict"


@pytest.mark.parametrize(
    ("versions", "said"), [("old", "usage: scripts/test_versions.sh oldest|plain|newest"), ("oldest", "pip install uv")]
)
def test_what_the_test_of_versions_lacks_is_said(tmp_path, versions, said):
    for program in ("bash", "dirname"):  # and no uv
        (tmp_path / program).symlink_to(shutil.which(program))
    script = [SCRIPTS / "test_versions.sh", versions]
    done = subprocess.run(script, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr


@pytest.fixture
def checkout(tmp_path):
    """Makes scripts/test.sh of a checkout whose programs do as they are told, each a line of shell."""

    def make(types="true", main="true", distributed="true"):
        does = {".venv/bin/ruff": "true", ".venv/bin/mypy": types, ".venv/bin/pytest": main, "scripts/setup.sh": "true"}
        for path, line in (does | {"scripts/test_openrlhf_cpu.sh": distributed}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / path).chmod(0o755)
        return shutil.copy(SCRIPTS / "test.sh", tmp_path / "scripts")

    return make


@pytest.mark.parametrize(("main", "distributed", "code"), [(0, 0, 0), (1, 0, 1), (0, 2, 2)])
def test_both_parts_are_tested_and_said_whichever_fails(checkout, main, distributed, code):
    said = {
        "main": f"echo a; echo 5 passed; exit {main}",
        "distributed": f"echo b; echo 2 passed >&2; exit {distributed}",
    }
    done = subprocess.run([checkout(**said)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done
    first, second, *rest = done.stdout.splitlines()
    assert (first, second) == ("a", "5 passed")
    assert rest[1:] == ["b", "2 passed", "main: 5 passed", "distributed: 2 passed"]


def test_the_two_parts_run_at_the_same_time(checkout):
    def once_there_is(other, own):
        return f"touch {own}; for _ in $(seq 600); do [ -e {other} ] && exit 0; sleep 0.1; done; exit 1"

    script = checkout(main=once_there_is("second", "first"), distributed=once_there_is("first", "second"))
    assert subprocess.run([script], capture_output=True, timeout=180).returncode == 0


@pytest.mark.parametrize("how", ["types are wrong", "it is told to"])
def test_the_distributed_part_ends_where_the_script_does(checkout, tmp_path, how):
    waits = "while [ ! -e pid ]; do sleep 0.1; done"
    fails = {"types": f"{waits}; false"} if how == "types are wrong" else {"main": f"{waits}; touch main; sleep 600"}
    script = checkout(distributed="echo $$ > aside; mv aside pid; sleep 600", **fails)
    process = subprocess.Popen([script], stdout=subprocess.DEVNULL, start_new_session=True)
    if "main" in fails:
        _wait_until((tmp_path / "main").exists)
        os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) != 0
    _wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


def _wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _all_of(terminal):
    """What was written to a terminal that nobody holds open any more."""
    text = b""
    with contextlib.suppress(OSError):  # EIO is its end
        while part := os.read(terminal, 65536):
            text += part
    os.close(terminal)
    return text.decode()
