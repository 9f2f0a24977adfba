"""The acceptance of a machine with a GPU, as far as one without GPU and vLLM can run it."""

import subprocess
import sys
from pathlib import Path

import pytest
from acceptance import accept

FOLDER = Path(__file__).parents[1] / "benchmarks" / "gpu_acceptance"


def test_a_stage_that_fails_and_one_that_takes_too_long_are_rows_and_the_others_go_on(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('torch is broken here')\n")
    (tmp_path / "vllm.py").write_text("")
    broken = {"PYTHONPATH": str(tmp_path)}
    done, rows = accept("--tiny", "--only", "training", "install", "--out", tmp_path / "broken", **broken)
    assert done.returncode == 1
    for stage in ("training", "install"):
        found, state = rows[stage, "the stage itself"]
        assert state == "FAILED" and "ended with 1: ImportError: torch is broken here" in found
    done, rows = accept("--tiny", "--only", "doctor", "--patience", "1e-5", "--out", tmp_path / "late")
    found, state = rows["doctor", "the stage itself"]
    assert done.returncode == 1 and state == "FAILED" and "not done within 0 s" in found


def test_a_stage_that_failed_is_told_by_its_error_and_not_by_what_libraries_say_as_they_end(tmp_path):
    (tmp_path / "torch").mkdir()
    said = "[rank0]:[W1127] Warning: WARNING: destroy_process_group() was not called before program exit"
    (tmp_path / "torch" / "__init__.py").write_text(
        f"import atexit, sys\natexit.register(print, {said!r}, file=sys.stderr)\natexit.register(lambda: 1 / 0)\n"
        "raise ImportError('torch is broken here')\n"
    )
    (tmp_path / "vllm.py").write_text("")
    _, rows = accept("--tiny", "--only", "install", "--out", tmp_path / "broken", PYTHONPATH=str(tmp_path))
    assert rows["install", "the stage itself"] == ("ended with 1: ImportError: torch is broken here", "FAILED")


@pytest.mark.thorough
def test_training_is_held_against_the_products_of_this_machine(tmp_path):
    done, rows = accept("--tiny", "--only", "training", "--patience", "40", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows["training", "training against that limit, at 6 operations a weight and token"][0].endswith("%")
    assert rows["training", "gradient of random tokens"][1] == "ok"


def test_all_stages_end_within_25_minutes_by_their_own_limits():
    limits = subprocess.run(
        [sys.executable, "-c", "import runpy; a = runpy.run_path('.'); print(sum(a['LIMITS_S'].values()) + "
         "2 * a['GRACE_S'] * len(a['LIMITS_S']))"], cwd=FOLDER, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert 0 < float(limits.stdout) <= 25 * 60, limits.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "no/such"], "--model no/such: there is no such folder; nothing is fetched"),
        (["--tiny", "steps"], "'steps' is no setting: key=value is one"),
        (["--tiny", "--only", "lerning"], "invalid choice: 'lerning'"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_started(words, said):
    done, rows = accept(*words)
    assert done.returncode == 2 and said in done.stderr and not rows
