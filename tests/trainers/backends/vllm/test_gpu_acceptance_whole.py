"""The acceptance of a machine with a GPU, whole, at tiny size on vLLM's CPU build."""

import os
import shutil

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from acceptance import accept

GPU_ONLY = {
    ("install", "a product and a step of AdamW on the card"),
    ("step", "memory against the planner"),
    ("training", "tokens/s with torch.compile=true"),
    ("distributed", "two steps on the distributed backend"),
}


@pytest.mark.slow
@pytest.mark.skipif(
    "COACHRL_TEST_ACCEPTANCE" not in os.environ,
    reason="takes minutes; COACHRL_TEST_ACCEPTANCE=1 runs it, and tests/test_gpu_acceptance.py has its parts",
)
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_all_stages_pass_on_a_cpu_but_for_those_that_a_gpu_alone_can_do(tmp_path):
    done, rows = accept("--tiny", "--patience", "20", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = {key for key, (found, state) in rows.items() if (found, state) == ("skipped: no CUDA device", "skipped")}
    assert skipped == GPU_ONLY
    assert all(state == "ok" for key, (_, state) in rows.items() if key not in GPU_ONLY)
    assert {stage for stage, _ in rows} == {
        "doctor", "install", "hand_over", "learning", "step", "training", "resume", "distributed",
    }  # fmt: skip
    assert rows["resume", "steps that it has recorded"][0].startswith("[0, 1, 2, 3]")
    assert float(rows["step", "rollout against the engine alone"][0]) > 0
    assert not list(tmp_path.glob("runs/*/checkpoints"))
