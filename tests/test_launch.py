"""Launch files for clusters: rendered, read by the shell and as YAML, and played with stand-ins for its programs."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

RENDER = Path(__file__).parents[1] / "scripts" / "launch" / "render.py"
PATIENCE_S = 120
# What stands for coachrl: it writes down its words, and ends with a checkpoint when it is told to.
DRIVER = """#!/bin/bash
echo "$@" >> "$TOLD"
trap 'echo checkpoint >> "$TOLD"; exit 143' TERM
mkdir -p "$RUN"; touch "$RUN/config.yaml"
[ -e "$FINISHES" ] && exit 0
while true; do sleep 0.05; done
"""


def rendered(*words, code=0):
    done = subprocess.run([sys.executable, RENDER, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def words_of(run, *more):
    return ["--config", "mathchat_8gpu", "--run", str(run), *more, "tasks.train=/data/it's mine.json"]


def check_shell(text):
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def programs(folder, **texts):
    """A folder of programs, to stand first on the path."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def wait_for(happened):
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def one_node(tmp_path):
    """A Slurm job of one node: its script, and what starts it."""
    run, told = tmp_path / "runs" / "team", tmp_path / "told"
    script = tmp_path / "job.sh"
    script.write_text(rendered("slurm", *words_of(run)))
    path = programs(tmp_path / "bin", coachrl=DRIVER, scontrol='#!/bin/bash\necho "scontrol $@" >> "$TOLD"\n')
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "TOLD": str(told), "RUN": str(run),
                   "FINISHES": str(tmp_path / "finishes"), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}  # fmt: skip
    return run, told, lambda: subprocess.Popen(["bash", script], env=environment)


def lines_of(told):
    return told.read_text().splitlines() if told.exists() else []


def test_a_slurm_job_that_is_taken_back_writes_a_checkpoint_is_queued_again_and_goes_on(one_node, tmp_path):
    run, told, start = one_node
    job = start()
    wait_for((run / "config.yaml").exists)
    job.send_signal(signal.SIGTERM)  # to the batch shell alone, as --signal=B: says
    assert job.wait(PATIENCE_S) == 143
    notice = f"train.notice_file={run}.notice"
    begun = f"train --config mathchat_8gpu --out {run.parent} --name team tasks.train=/data/it's mine.json {notice}"
    assert lines_of(told) == [begun, "checkpoint", "scontrol requeue 7"]
    (tmp_path / "finishes").touch()
    assert start().wait(PATIENCE_S) == 0
    assert lines_of(told)[3:] == [f"train --resume {run} {notice}"]


def test_a_slurm_job_that_fails_by_itself_is_not_queued_again(one_node):
    run, told, start = one_node
    job = start()
    wait_for((run / "config.yaml").exists)
    subprocess.run(["pkill", "-TERM", "-P", str(job.pid)], check=True, timeout=PATIENCE_S)  # the driver, not the shell
    assert job.wait(PATIENCE_S) == 143
    assert lines_of(told)[1:] == ["checkpoint"]


@pytest.mark.parametrize("nodes", ["1", "3"])
def test_a_slurm_script_is_what_the_shell_and_slurm_read(nodes):
    text = rendered("slurm", *words_of("/shared/runs/team", "--nodes", nodes, "--gpus", "4"))
    check_shell(text)
    options = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2] for line in text.splitlines() if "#SBATCH" in line
    )
    assert options["nodes"] == nodes and options["gpus-per-node"] == "4"
    assert options["signal"] == "B:TERM@600" and "requeue" in options and options["open-mode"] == "append"
    assert ("openrlhf.gpus=12" in text) == (nodes == "3")
    assert text.splitlines()[1].endswith("mkdir -p /shared/runs && sbatch THIS_FILE")  # no log, no word, without it
    [step] = [line for line in text.splitlines() if " srun " in line]
    assert f"--cpus-per-task={options['cpus-per-task']} " in step  # srun does not take the job's
    assert "%%" not in text


def test_a_rayjob_has_the_fields_of_its_definition_and_its_parts_fit_each_other():
    text = rendered("kuberay", *words_of("/shared/runs/team", "--nodes", "3", "--image", "me/c:1", "--storage", "disk"))
    config, job = yaml.safe_load_all(text)
    check_shell(config["data"]["run.sh"])
    assert (config["kind"], job["apiVersion"], job["kind"]) == ("ConfigMap", "ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert set(spec) == {"backoffLimit", "submissionMode", "shutdownAfterJobFinishes", "entrypoint", "rayClusterSpec"}
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["resources"]["limits"]["nvidia.com/gpu"] == group["rayStartParams"]["num-gpus"] == "8"
        check_shell(container["lifecycle"]["preStop"]["exec"]["command"][2])
    assert spec["entrypoint"].split()[1] == "/launch/run.sh"
    assert {"mountPath": "/launch", "name": "launch"} in container["volumeMounts"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    _, alone = yaml.safe_load_all(rendered("kuberay", *words_of("/r/team", "--image", "i", "--storage", "s")))
    assert alone["spec"]["rayClusterSpec"]["workerGroupSpecs"] == []


def test_a_pod_that_is_taken_back_tells_the_run_and_waits_for_its_checkpoint(tmp_path):
    """Its own commands, with a run in place of coachrl that looks for its notice."""
    run = tmp_path / "team"
    config, job = yaml.safe_load_all(rendered("kuberay", *words_of(run, "--image", "i", "--storage", "s")))
    looks = (
        '#!/bin/bash\nmkdir -p "$RUN"; until [ -e "$RUN.notice" ]; do sleep 0.05; done\ntouch "$RUN/saved"; exit 143\n'
    )
    path = programs(tmp_path / "bin", coachrl=looks)
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "RUN": str(run)}
    main = subprocess.Popen(["bash", "-c", config["data"]["run.sh"]], env=environment)
    [container] = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    wait_for(run.exists)
    subprocess.run(container["lifecycle"]["preStop"]["exec"]["command"], check=True, timeout=PATIENCE_S)
    assert (run / "saved").exists() and main.wait(PATIENCE_S) == 143


def test_a_skypilot_task_names_what_skypilot_knows_and_its_program_is_read_by_the_shell():
    """The same text was given to SkyPilot 0.14.1's own `Task.from_yaml`, which took it."""
    text = rendered("skypilot", *words_of("/shared/team", "--nodes", "2", "--image", "me/c:1", "--storage", "s3://b"))
    task = yaml.safe_load(text)
    assert set(task) == {"name", "num_nodes", "resources", "file_mounts", "run"}
    assert task["num_nodes"] == 2 and task["resources"]["accelerators"] == "H100:8"
    assert task["file_mounts"]["/shared"] == {"source": "s3://b", "mode": "MOUNT"}
    check_shell(task["run"])
    assert "\nPYTHON\n" in task["run"]  # the end of the program inside stands alone on its line


def test_a_worker_of_skypilot_waits_for_the_head_joins_it_once_and_ends_with_it(tmp_path):
    """Ray's `start --block` ends with an error once the head is gone."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = str(head.getsockname()[1])
        words = words_of("/r/team", "--nodes", "2", "--image", "i", "--storage", "s3://b", "--port", port)
        text = yaml.safe_load(rendered("skypilot", *words))["run"]
        nodes = {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
        path = programs(tmp_path / "bin", ray='#!/bin/bash\necho "$@" >> "$TOLD"\nexit 1\n')
        told = {"PATH": f"{path}:{os.environ['PATH']}", "TOLD": str(tmp_path / "told")}
        subprocess.run(["bash", "-c", text], env={**os.environ, **nodes, **told}, check=True, timeout=PATIENCE_S)
    assert (tmp_path / "told").read_text() == f"start --block --address=127.0.0.1:{port} --num-gpus=8\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slurm", "--config", "c", "--run", "runs/team"], "--run 'runs/team': the run's folder is an absolute path"),
        (["slurm", "--config", "c", "--run", "/runs/My Team"], "is an absolute path of letters"),
        (["slurm", "--config", "c", "--run", "/runs/My_Team"], "'My_Team' names the job too"),
        (
            ["slurm", "--config", "c", "--run", "/runs/team", "--port", "99999"],
            "--port: '99999' is no port: 1 to 65535",
        ),
        (["slurm", "--config", "c", "--run", "/runs/team", "--nodes", "0"], "'0' must be a whole number, 1 or more"),
        (["slurm", "--config", "c", "--run", "/runs/team", "--time", "1;rm"], "--time '1;rm': letters, digits"),
        (["slurm", "--config", "c", "--run", "/runs/team", "steps"], "'steps' is no setting: key=value is one"),
        (["kuberay", "--config", "c", "--run", "/runs/team"], "kuberay needs --image and --storage"),
    ],
)
def test_what_cannot_be_rendered_is_refused(words, said):
    assert said in rendered(*words, code=2)
