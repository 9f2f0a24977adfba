"""What the doctor says of the machines of a Ray cluster, and when it does not try a hand-over."""

from dataclasses import replace

import pytest

from coachrl.cli.doctor import doctor
from coachrl.config import RunConfig
from coachrl.doctor import cluster, gpu, hand_over, machine, nodes
from coachrl.doctor.hand_over import HandOver, try_hand_over
from coachrl.doctor.nodes import Node, _judge, diagnose_nodes, look_around
from coachrl.errors import ConfigError
from coachrl.sandbox.checks import Finding

HERE = Node(("NVIDIA H100",) * 8, "580.65.06", 2000.0, 900.0, {"python": "3.11.7", "ray": "2.55.0", "flash-attn": ""})
IN_RAY = {"NodeManagerAddress": "10.0.0.2", "Resources": {"GPU": 8.0, "CPU": 64.0}}


def test_a_machine_like_this_one_is_fine():
    finding = _judge(IN_RAY, HERE, HERE)
    assert finding.ok and finding.name == "node 10.0.0.2"
    assert finding.detail.startswith("8 GPUs (NVIDIA H100), driver 580.65.06, 2000 GB of memory, 900 GB free on disk")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"versions": {**HERE.versions, "ray": "2.54.0"}}, "ray is 2.54.0, and here 2.55.0"),
        ({"versions": {"python": "3.11.7", "flash-attn": ""}}, "ray is not installed, and here 2.55.0"),
        ({"driver": "570.10"}, "the driver here is 580.65.06; the driver must be 580 or later"),
        ({"gpus": HERE.gpus[:7]}, "nvidia-smi shows 7 GPUs"),
        ({"disk_gb": 3.0}, "less than 15 GB are free where runs are written"),
        ({"driver": "[N/A]"}, "the driver here is 580.65.06"),
    ],
)
def test_what_is_not_as_here_is_said(changed, words):
    finding = _judge(IN_RAY, replace(HERE, **changed), HERE)
    assert not finding.ok and finding.detail.endswith(words) and finding.remedy


def test_what_a_machine_may_lack_and_be_fine():
    for changed in ({"disk_gb": 15.0}, {"gpus": ()}, {"driver": ""}, {"memory_gb": 1.0}):
        assert _judge(IN_RAY, replace(HERE, **changed), HERE).ok, changed
    assert _judge(IN_RAY, HERE, replace(HERE, driver="", disk_gb=0.0)).ok  # of this one's disk others say nothing
    cpu = {**IN_RAY, "Resources": {"CPU": 64.0}}
    assert _judge(cpu, replace(HERE, gpus=()), HERE).detail.startswith("0 GPUs in Ray's books, driver 580.65.06")


def test_a_machine_that_says_nothing_is_named():
    finding = _judge(IN_RAY, "ModuleNotFoundError: No module named 'coachrl'", HERE)
    assert not finding.ok and finding.name == "node 10.0.0.2" and "No module named 'coachrl'" in finding.detail


def test_this_machine_is_looked_at_without_a_driver_and_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look_around(tmp_path / "no" / "such" / "folder")
    assert found.gpus == () and found.driver == "" and found.memory_gb > 1 and found.disk_gb > 0
    assert found.versions["python"] and "vllm" in found.versions


def test_this_machine_is_told_by_its_cards_and_the_driver_of_the_first(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H100, 580.1'\necho 'Inc. A, B, 580.2'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = look_around(tmp_path)
    assert (found.gpus, found.driver) == (("NVIDIA H100", "Inc. A, B"), "580.1")


def test_a_cluster_that_is_not_there_is_one_line(tmp_path):
    [finding] = diagnose_nodes("127.0.0.1:9", tmp_path)
    assert not finding.ok and finding.name == "ray cluster" and "\n" not in finding.detail


@pytest.mark.parametrize("backend", ["vllm", "openrlhf"])
def test_a_hand_over_that_cannot_be_tried_here_says_why_and_is_no_fault(monkeypatch, backend):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = try_hand_over(RunConfig(), backend)
    assert finding.optional and "not tried" in finding.detail and "vllm" in finding.detail


@pytest.mark.parametrize(
    ("gaps", "agrees"),
    [((0.002, 0.3, 0.003), True), ((0.002, 0.3, 0.3), False), ((0.002, 0.001, 0.003), False), ((0.3, 0.4, 0.3), False)],
)
def test_engine_and_trainer_must_agree_before_and_after_and_only_then(gaps, agrees):
    assert HandOver(*gaps).agrees is agrees


@pytest.mark.parametrize(
    ("given", "asked"), [([], "10.0.0.1:6379"), (["openrlhf.ray_address=10.0.0.2:6379"], "10.0.0.2:6379")]
)
def test_the_doctor_asks_the_cluster_that_a_run_would_join(monkeypatch, given, asked):
    heard = []
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(machine, "diagnose", lambda settings: [])
    monkeypatch.setattr(gpu, "diagnose_distributed", lambda *_: [])
    monkeypatch.setattr(cluster, "collectives", list)
    monkeypatch.setattr(nodes, "diagnose_nodes", lambda address, out: heard.append(address) or [])
    monkeypatch.setattr(
        hand_over, "try_hand_over", lambda run, _: heard.append(run.openrlhf.ray_address) or Finding("hand-over", True)
    )
    doctor(given, backend="openrlhf")
    assert heard == [asked, asked]
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS in the environment: .*it is the host and the port"):
        doctor(backend="openrlhf")


def test_the_backend_that_is_looked_at_is_that_of_the_settings_unless_one_is_named(monkeypatch):
    heard = []
    monkeypatch.setattr(machine, "diagnose", lambda settings: [])
    monkeypatch.setattr(gpu, "diagnose_vllm", list)
    monkeypatch.setattr(
        hand_over, "try_hand_over", lambda run, backend: heard.append(backend) or Finding("hand-over", True)
    )
    doctor()
    doctor(["backend=vllm"], backend="torch")
    assert heard == []
    doctor(["backend=vllm"])
    doctor(config="one_gpu")
    doctor(backend="vllm")
    assert heard == ["vllm"] * 3
