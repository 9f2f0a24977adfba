"""`coachrl doctor --backend vllm` hands weights over for real, in a process of its own."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; scripts/test_openrlhf_cpu.sh makes a place where it is")

from coachrl.config import RunConfig
from coachrl.doctor import hand_over

PATIENCE_S = 1800.0  # it imports vLLM and starts an engine on whatever machine this is
ON_CPU = RunConfig(torch={"device": "cpu"})


@pytest.mark.thorough
def test_a_tiny_trainer_and_a_tiny_engine_agree():
    finding = hand_over.try_hand_over(ON_CPU, "vllm", PATIENCE_S)
    assert finding.ok and not finding.optional and "once its weights are handed over" in finding.detail, finding


@pytest.mark.thorough
def test_an_engine_that_does_not_start_is_a_line_with_what_vllm_says(monkeypatch):
    no_room = RunConfig(backend="vllm", torch={"device": "cpu"}, vllm={"engine_args": {"kv_cache_memory_bytes": 4096}})
    monkeypatch.setattr(hand_over, "_tiny_run", lambda *_: no_room)
    finding = hand_over.try_hand_over(ON_CPU, "vllm", PATIENCE_S)
    assert not finding.ok and "vLLM's engine does not start" in finding.detail and "\n" not in finding.detail


def test_one_that_takes_too_long_is_ended():
    finding = hand_over.try_hand_over(ON_CPU, "vllm", limit_s=0.01)
    assert not finding.ok and finding.detail == "it did not end within 0.01 s"
