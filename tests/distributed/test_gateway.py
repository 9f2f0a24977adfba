"""Apps that play the episodes of a run on real engines: in the driver, and shared out over worker processes."""

import sys

import pytest
from whole_runs import Judge, configured, episodes_of, train_on

APP = """
import json, os, sys
from pathlib import Path


def say(client, role, text, **more):
    talk = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=role, messages=talk, **more).choices[0].message.content


def solve(task, endpoint):
    client = endpoint.openai()
    plan = say(client, "planner", Path("hint.txt").read_text() + task.prompt)
    say(client, "solver", plan, max_tokens=2, n=2)
    return os.getpid()


def grade(task, result):
    assert task.ground_truth is not None
    with open("graded.txt", "a") as file:
        file.write(f"{result}\\n")
    return 0.5


if __name__ == "__main__":
    from openai import OpenAI

    task = json.loads(Path(sys.argv[1]).read_text())
    say(OpenAI(), "planner", task["prompt"])
    say(OpenAI(), "solver", task["prompt"])
    print(os.getppid())
"""
GATEWAY = {
    "backend": "openrlhf",
    "openrlhf.colocate": "false",
    "pipeline.name": "gateway",
    "pipeline.max_new_tokens": 8,
    "tasks.source": "word-problems",
    "tasks.train_count": 4,
    "tasks.heldout_count": 2,
    "train.steps": 1,
    "train.tasks_per_step": 4,
    "train.mask_truncated": "false",
    "train.learning_rate": 1e-3,
    "algorithm.kl_beta": 0,
    "coach.max_failed_fraction": 0,
}


def options(app, **more):
    given = {"grade": "cluster_app:grade", "roles": {"planner": {"policy": "solver"}, "solver": {"policy": "verifier"}}}
    return {"pipeline.options": str({**given, **app, **more})}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Where the run is started: another folder than the cluster's."""
    (tmp_path / "cluster_app.py").write_text(APP)
    (tmp_path / "hint.txt").write_text("Plan. ")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cluster_app", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("app", "workers"),
    [
        ({"run": "cluster_app:solve"}, 2),
        pytest.param({"command": f"{sys.executable} cluster_app.py {{task_file}}"}, 1, marks=pytest.mark.thorough),
    ],
)
async def test_an_app_is_trained_on_engines_wherever_its_episodes_are_played(pair, here, monkeypatch, app, workers):
    config = configured(here, GATEWAY | options(app) | {"rollout.workers": workers})
    run = await train_on(pair, config, monkeypatch, Judge())
    [metrics] = run.metrics()[1:]
    for policy in ("solver", "verifier"):
        assert metrics[f"train/grad_norm/{policy}"] > 0
        assert metrics[f"train/sampler_trainer_logprob_gap/{policy}"] < 0.01
    assert metrics["train/calls"] == 2 and metrics["train/faulty_fraction"] == 0
    played = ["planner", "solver", "solver"] if "run" in app else ["planner", "solver"]
    for episode in episodes_of(run, 1):
        assert [action["role"] for action in episode["actions"]] == played
        assert all(action["score"]["status"] == "scored" for action in episode["actions"])
    processes = set((here / "graded.txt").read_text().split())
    assert len(processes) == workers
