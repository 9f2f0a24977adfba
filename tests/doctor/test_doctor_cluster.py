"""What `coachrl doctor --backend openrlhf` checks of a machine and of what its processes say to each other."""

import os
import resource
from types import SimpleNamespace

import pytest

from coachrl.commands.gpu_estimates import planned_main_memory
from coachrl.config import find_config, load_config
from coachrl.doctor import cluster
from coachrl.doctor.gpu import diagnose_distributed

PATIENCE_S = 600.0  # importing torch takes long where others use the machine


def test_two_processes_sum_numbers():
    pytest.importorskip("torch", reason="needs the torch extra")
    finding = cluster._collective("gloo", PATIENCE_S)
    assert finding.ok and "two processes agreed" in finding.detail, finding


@pytest.mark.thorough
def test_a_network_interface_that_is_not_there_is_told_with_the_variable_that_names_it(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    finding = cluster._collective("gloo", PATIENCE_S)
    assert not finding.ok and "nosuch0" in finding.detail and "GLOO_SOCKET_IFNAME" in finding.remedy


def test_a_sum_that_fails_is_told_by_its_error_and_not_by_what_libraries_say_as_they_end(monkeypatch):
    said = "[rank0]:[W1127] Warning: WARNING: destroy_process_group() was not called before program exit"
    failing = f"import atexit, sys\natexit.register(print, {said!r}, file=sys.stderr)\nraise OSError('no route')\n"
    monkeypatch.setattr(cluster, "_SUM", failing)
    finding = cluster._collective("gloo", PATIENCE_S)
    assert not finding.ok and finding.detail == "OSError: no route"


def test_two_processes_that_do_not_answer_in_time_are_ended():
    finding = cluster._collective("gloo", limit_s=0.0)
    assert not finding.ok and finding.detail == "two processes did not end within 0 s"


def test_without_torch_sums_are_not_tried_and_no_network_is_blamed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    findings = cluster.collectives()
    assert [finding.name for finding in findings] == ["sum by gloo", "sum by nccl"]
    assert all("torch is not installed" in finding.detail and finding.optional for finding in findings)
    assert not any("IFNAME" in finding.remedy for finding in findings)


def test_a_sum_by_nccl_is_left_out_with_words_where_there_are_no_two_gpus():
    pytest.importorskip("torch", reason="needs the torch extra")
    import torch

    if torch.cuda.device_count() < 2:
        finding = cluster._nccl_collective()
        assert finding.ok and "not tried: it takes two GPUs" in finding.detail
        assert "not tried" in cluster.peers().detail
        assert finding.skipped and cluster.peers().skipped, "what was not tried is not said to be ok"


@pytest.mark.parametrize(
    ("gpus", "closed", "ok", "detail"),
    [
        (1, {}, True, "not tried: torch sees 1 GPUs"),
        (3, {}, True, "all 6 ways are open"),
        (3, {(2, 0)}, False, "not from 2 to 0"),
        (3, {(a, b) for a in range(3) for b in range(3)}, False, "not from 0 to 1, 0 to 2, 1 to 0, 1 to 2"),
    ],
)
def test_ways_between_gpus_are_told_by_those_that_are_closed(monkeypatch, gpus, closed, ok, detail):
    cuda = SimpleNamespace(device_count=lambda: gpus, can_device_access_peer=lambda a, b: (a, b) not in closed)
    monkeypatch.setattr(cluster.importlib, "import_module", lambda name: SimpleNamespace(cuda=cuda))
    finding = cluster.peers()
    assert (finding.ok, finding.optional) == (ok, True) and finding.detail == detail


def test_limits_of_this_process_are_compared_with_what_a_node_needs(monkeypatch):
    """Ray raises its limit of open files to the hard one; of processes the soft one holds."""
    soft_and_hard = {resource.RLIMIT_NOFILE: (10**6, 1024), resource.RLIMIT_NPROC: (4096, 10**6)}
    monkeypatch.setattr(cluster.resource, "getrlimit", lambda of: soft_and_hard.get(of, (0, 0)))
    files, processes, _ = cluster.limits()
    assert (files.ok, files.name, files.detail) == (False, "open files", "1,024 (ulimit -Hn)")
    assert (processes.ok, processes.name, processes.detail) == (False, "processes", "4,096 (ulimit -u)")
    assert files.remedy.startswith("raise nofile to 16384 or more")
    assert processes.remedy.startswith("raise nproc to 16384 or more")
    assert cluster._limit("open files", resource.RLIM_INFINITY, 16_384, "nofile", "ulimit -Hn").ok


def test_locked_memory_must_have_no_limit_where_there_is_infiniband(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "_INFINIBAND", tmp_path)
    assert cluster._locked_memory().ok
    (tmp_path / "mlx5_0").mkdir()
    finding = cluster._locked_memory()
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    assert finding.ok is unlimited and "InfiniBand needs no limit" in finding.detail


@pytest.mark.parametrize(
    ("planned_gb", "gpus", "gpus_here", "ok", "words"),
    [
        (1, 8, 8, True, "the run takes about 1 GB for"),
        (10**7, 8, 8, False, "the run takes about 10000000 GB for"),
        (4, 16, 8, True, "about 4 GB, 2 GB on each of 2 machines"),
        (10**7, 8, 0, False, "about 10000000 GB for"),
    ],
)
def test_main_memory_is_compared_with_what_a_run_is_planned_to_take(planned_gb, gpus, gpus_here, ok, words):
    finding = cluster.main_memory(planned_gb, gpus, gpus_here)
    assert finding.ok is ok and words in finding.detail and finding.remedy


def test_memory_and_limits_are_enough_where_they_are_just_what_is_needed():
    has_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    assert cluster.main_memory(has_gb, 8, 8).ok and not cluster.main_memory(has_gb * 1.001, 8, 8).ok
    assert cluster.main_memory(has_gb * 2, 9, 8).ok  # on two machines
    allowed = [cluster._limit("open files", most, 100, "nofile", "ulimit -Hn").ok for most in (99, 100, 101)]
    assert allowed == [False, True, True]


def test_the_plan_of_main_memory_is_that_of_the_dry_run():
    assert planned_main_memory(load_config(find_config("mathchat_8gpu"), [])) == (pytest.approx(280, abs=1), 8)
    assert planned_main_memory(load_config(None, ["backend=openrlhf", "model=someone/unheard-of"])) is None
    [finding] = [found for found in diagnose_distributed((280, 8)) if found.name == "main memory"]
    assert "the run takes about 280 GB" in finding.detail


@pytest.mark.parametrize(
    ("rows", "driver", "capability"),
    [("580.65.06, 9.0", True, True), ("570.1, 9.0", False, True), ("580.65.06, 9.0\\n580.65.06, 7.5", True, False)],
)
def test_the_driver_and_the_oldest_card_must_run_what_is_installed(tmp_path, monkeypatch, rows, driver, capability):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in *driver*) printf "{rows}\\n";; *) echo "NVIDIA H100, 81920, 0";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = {finding.name: finding for finding in diagnose_distributed()}
    assert found["driver"].ok is driver and found["compute capability"].ok is capability
    assert "driver 580 or later" in found["driver"].remedy


def test_a_machine_without_a_driver_says_that_it_was_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = [found for found in diagnose_distributed() if found.name == "driver"]
    assert finding.optional and "not looked at: no GPU is seen" in finding.detail
