"""scripts/serve_judge.sh: which server it starts, under which name, and what it says where it cannot."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "serve_judge.sh"


def serve(tmp_path, *arguments, **environment):
    return subprocess.run(
        [str(SCRIPT), *map(str, arguments)],
        env={**os.environ, "COACHRL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def programs(tmp_path):
    """Servers that print where and how they were started, and end."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("vllm", "transformers"):
        (folder / name).write_text('#!/bin/sh\necho "$(basename "$0") $*"\n')
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_folder_is_served_under_its_name_on_this_machine_only(tmp_path, programs):
    model = tmp_path / "models" / "my-judge"
    model.mkdir(parents=True)
    done = serve(tmp_path, model, 8123, "--device", "cpu", BIN=programs, ENGINE="transformers")
    assert done.returncode == 0, done.stderr
    how, started = done.stdout.splitlines()
    assert how == "coach: --coach hosted_vllm/my-judge --coach-api-base http://127.0.0.1:8123/v1"
    assert started == "transformers serve my-judge --host 127.0.0.1 --port 8123 --device cpu"
    assert (tmp_path / "cache" / "judges" / "my-judge").resolve() == model.resolve()


def test_a_name_on_the_hub_is_served_by_vllm_where_it_is_asked_for(tmp_path, programs):
    done = serve(tmp_path, "org/model", BIN=programs, ENGINE="vllm")
    assert done.stdout.splitlines()[1] == (
        "vllm serve org/model --served-model-name org/model --host 127.0.0.1 --port 8000"
    )


@pytest.mark.parametrize(
    ("arguments", "engine", "words"),
    [
        ((), "transformers", "usage: scripts/serve_judge.sh MODEL"),
        (("--port", "8000"), "transformers", "usage: scripts/serve_judge.sh MODEL"),
        (("org/model", "--device"), "transformers", "PORT '--device' must be a number"),
        (("org/model",), "vllm", "has no vllm"),
        (("org/model",), "ollama", "ENGINE 'ollama' must be vllm or transformers"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path, arguments, engine, words):
    done = serve(tmp_path, *arguments, BIN=str(tmp_path), ENGINE=engine, PATH="/usr/bin:/bin")
    assert done.returncode == 2 and words in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def test_an_environment_without_a_web_server_is_one_line(tmp_path, programs):
    python = Path(programs) / "python"
    python.write_text("#!/bin/sh\nexit 1\n")  # as where fastapi cannot be imported
    python.chmod(0o755)
    done = serve(tmp_path, "org/model", BIN=programs, ENGINE="transformers")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == f"{programs} cannot serve: pip install 'transformers[serving]' there\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_starts_and_installs_nothing(tmp_path, programs, flag):
    done = serve(tmp_path, flag, BIN=programs, ENGINE="transformers")
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.startswith("Serves a model on this machine") and "scripts/serve_judge.sh MODEL" in done.stdout
    assert "serve --help" not in done.stdout and not (tmp_path / "cache").exists()
