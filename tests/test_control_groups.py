import os

import pytest

from coachrl.machine import machine_bytes, machine_cpus, machine_mb

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _machine(monkeypatch):
    """Of 64 GiB and 16 processors."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * GIB // 4096, "SC_PAGE_SIZE": 4096}.__getitem__)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)


def control_groups(folder, own, files):
    """Where they are, and the file that tells which of them are this process's."""
    for name, text in files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(f"{text}\n")
    (folder / "own").write_text("".join(f"{line}\n" for line in own))
    return folder / "tree", folder / "own"


@pytest.mark.parametrize(
    ("own", "files", "gib"),
    [
        (["0::/"], {}, 64),  # no container
        (["0::/"], {"memory.max": 8 * GIB}, 8),  # Docker, with a namespace of its own
        (["0::/"], {"memory.max": "max"}, 64),
        (["0::/system.slice/docker-1.scope"], {"memory.max": 4 * GIB}, 4),  # the host's path, which is not seen inside
        (["0::/job/step"], {"job/memory.max": 8 * GIB, "job/step/memory.max": "max"}, 8),  # Slurm limits the job
        (["0::/job/step"], {"job/memory.max": 8 * GIB, "other/memory.max": GIB, "job/step/memory.max": 9 * GIB}, 8),
        (["9:memory:/docker/1", "0::/"], {"memory/docker/1/memory.limit_in_bytes": 2 * GIB}, 2),  # version 1
        (["9:memory:/"], {"memory/memory.limit_in_bytes": 9223372036854771712}, 64),  # as it says that there is none
        (["0::/"], {"memory.max": 128 * GIB}, 64),  # more than there is
        (["4:cpu:/x"], {"cpu/x/memory.limit_in_bytes": GIB}, 64),  # another controller's
        (["0::/../../else"], {"memory.max": 3 * GIB}, 64),  # outside of what is seen here
        (["no groups", "0::/"], {"memory.max": 5 * GIB}, 5),
        (["0::/"], {"memory.max": "words"}, 64),
    ],
)
def test_memory_is_what_a_container_or_job_may_take(tmp_path, own, files, gib):
    assert machine_bytes(*control_groups(tmp_path, own, files)) == gib * GIB


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        (["0::/"], {}, 16),
        (["0::/"], {"cpu.max": "200000 100000"}, 2),  # docker run --cpus=2
        (["0::/"], {"cpu.max": "150000 100000"}, 2),
        (["0::/"], {"cpu.max": "1000 100000"}, 1),
        (["0::/"], {"cpu.max": "max 100000"}, 16),
        (["0::/"], {"cpu.max": "6400000 100000"}, 16),
        (["0::/pod/app"], {"pod/cpu.max": "400000 100000", "pod/app/cpu.max": "max 100000"}, 4),
        (["3:cpu,cpuacct:/"], {"cpu,cpuacct/cpu.cfs_quota_us": 300000, "cpu,cpuacct/cpu.cfs_period_us": 100000}, 3),
        (["3:cpu,cpuacct:/"], {"cpu/cpu.cfs_quota_us": 300000, "cpu/cpu.cfs_period_us": 100000}, 3),
        (["3:cpu:/"], {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, 16),
        (["0::/"], {"cpu.max": ""}, 16),
        (["0::/"], {"cpuset.cpus.effective": "0-3,8,10-11"}, 7),  # docker run --cpuset-cpus, or Slurm
        (["0::/job"], {"job/cpuset.cpus": "", "cpuset.cpus.effective": "4"}, 1),
        (["0::/"], {"cpuset.cpus.effective": "0-31", "cpu.max": "max 100000"}, 16),
        (["2:cpuset:/x", "0::/"], {"cpuset/x/cpuset.effective_cpus": "0-1", "cpuset/x/cpuset.cpus": "0-63"}, 2),
        (["0::/"], {"cpuset.cpus.effective": "words"}, 16),
    ],
)
def test_processors_are_those_that_a_quota_is_worth(tmp_path, own, files, cpus):
    assert machine_cpus(*control_groups(tmp_path, own, files)) == cpus


def test_another_system_has_no_control_groups(tmp_path):
    assert machine_bytes(tmp_path, tmp_path / "none") == 64 * GIB
    assert machine_cpus(tmp_path, tmp_path / "none") == 16


def test_memory_is_counted_in_mebibytes_too(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1024, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert machine_mb() == 4
