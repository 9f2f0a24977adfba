"""The Slurm script of several nodes, with real nodes of Ray: all of them on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

RENDER = Path(__file__).parents[2] / "scripts" / "launch" / "render.py"
PATIENCE_S = 600
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then hostname; hostname; else echo "scontrol $@" >> "$TOLD"; fi
"""
# Ray as it is, but small.
RAY = """#!/bin/bash
more="--num-cpus=1 --object-store-memory=80000000 --disable-usage-stats"
[[ "$*" == *--head* ]] && more="$more --temp-dir=$FOLDER --include-dashboard=false"
exec {ray} "$@" $more
"""
# What stands for coachrl: it says what it finds in the cluster that it is told of.
DRIVER = """#!{python}
import os, signal, sys, time
import ray
[address] = [word.partition("=")[2] for word in sys.argv if word.startswith("openrlhf.ray_address=")]
ray.init(address, logging_level="ERROR", log_to_driver=False)
def end(*_):
    ray.shutdown()
    os._exit(143)
signal.signal(signal.SIGTERM, end)
with open(os.environ["TOLD"], "a") as told:
    print(sum(node["Alive"] for node in ray.nodes()), ray.cluster_resources()["GPU"], file=told)
while True:
    time.sleep(0.05)
"""


def wait_for(happened, job=None):
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        assert job is None or job.poll() is None, f"the job ended with {job.returncode}"
        time.sleep(0.1)


def processes_of(folder):
    """Ray's, which name their session's folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if folder in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


@pytest.fixture
def folder():
    made = tempfile.mkdtemp(prefix="slurm", dir="/tmp")  # short: Ray makes sockets in it
    yield Path(made)
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.thorough
def test_a_slurm_job_of_two_nodes_has_one_ray_cluster_and_leaves_none_behind(folder, tmp_path):
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    words = ["--config", "mathchat_8gpu", "--run", str(tmp_path / "team"), "--nodes", "2", "--gpus", "4"]
    script = subprocess.run(
        [sys.executable, RENDER, "slurm", *words, "--port", str(port)], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "job.sh").write_text(script)
    ray = Path(sys.executable).parent / "ray"
    python = f'#!/bin/bash\nexec {sys.executable} "$@"\n'
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, text in {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "ray": RAY.format(ray=ray),
        "coachrl": DRIVER.format(python=sys.executable),
        "python": python,
    }.items():
        (bin_folder / name).write_text(text)
        (bin_folder / name).chmod(0o755)
    told, session = tmp_path / "told", str(folder / "ray")
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "TOLD": str(told), "FOLDER": session,
                   "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "two"}  # fmt: skip
    with (tmp_path / "log").open("w") as log:
        job = subprocess.Popen(["bash", tmp_path / "job.sh"], env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: told.exists() and told.read_text().endswith("\n"), job)
        assert told.read_text() == "2 8.0\n"
        job.terminate()  # what `sbatch --signal=B:TERM@…` does
        assert job.wait(PATIENCE_S) == 143
        assert told.read_text() == "2 8.0\nscontrol requeue 7\n"
        wait_for(lambda: not processes_of(session))
    finally:
        job.kill()
        for pid in processes_of(session):
            psutil.Process(pid).kill()
