"""Runs on two policies: trees of candidates, and episodes that are played while their predecessors train."""

import pytest
from whole_runs import MATHCHAT, Judge, configured, episodes_of, needs_sandbox, train_on

from coachrl.runs import checkpoints
from coachrl.runs.checkpoints import best_step

pytestmark = [needs_sandbox, pytest.mark.usefixtures("bare_sandboxes")]

PLANPATH = {
    "backend": "openrlhf",
    "openrlhf.colocate": "false",
    "pipeline.name": "planpath",
    "pipeline.prompt_style": "short",
    "pipeline.max_new_tokens": 8,
    "pipeline.options": "{turns: 1}",
    "pipeline.roles.tool.policy": "solver",
    "pipeline.roles.planner.policy": "verifier",
    "tasks.source": "planpath",
    "tasks.size": 3,
    "tasks.heldout_count": 1,
    "sampling.scheme": "tree",
    "sampling.candidates": 2,
    "algorithm.name": "at_grpo",
    "train.mask_truncated": "false",
    "coach.evidence.ground_truth": "none",
    "coach.max_failed_fraction": 0,
    "train.steps": 2,
    "train.tasks_per_step": 3,
    "train.learning_rate": 1e-3,
}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_at_grpo_trains_on_candidates_and_follows_the_best(pair, tmp_path, monkeypatch, workers):
    config = configured(tmp_path, PLANPATH | {"rollout.workers": workers})
    run = await train_on(pair, config, monkeypatch, Judge())
    for step, metrics in enumerate(run.metrics()[1:], 1):
        assert metrics["train/groups"] == 6  # of both roles, in each of three episodes
        assert metrics["train/grad_norm/solver"] > 0 and metrics["train/grad_norm/verifier"] > 0
        assert (
            max(
                metrics["train/sampler_trainer_logprob_gap/solver"],
                metrics["train/sampler_trainer_logprob_gap/verifier"],
            )
            < 0.01
        )
        for episode in episodes_of(run, step):
            assert [action["role"] for action in episode["actions"]] == ["tool", "planner"]
            chosen = {action["index"]: action["score"]["process_0_10"] for action in episode["actions"]}
            left = {action["index"]: action["score"]["process_0_10"] for action in episode["rejected_candidates"]}
            assert all(chosen[index] >= left[index] for index in (0, 1))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_one_step_off_plays_with_weights_one_update_old_and_keeps_the_best(pair, tmp_path, monkeypatch, workers):
    settings = MATHCHAT | {"openrlhf.one_step_off": "true", "train.steps": 3, "rollout.workers": workers}
    settings |= {"eval.every": 1, "train.keep_best": "true"}
    before = pair.engines()[1]
    run = await train_on(pair, configured(tmp_path, settings), monkeypatch)
    assert [metrics["train/staleness"] for metrics in run.metrics()[1:]] == [0, 1, 1]
    for step, age in ((1, 0), (2, 0), (3, 1)):
        versions = {a["weights_version"] for episode in episodes_of(run, step) for a in episode["actions"]}
        assert versions == {before + age}
    assert pair.engines()[1] == before + 3
    kept = {best_step({line["step"]: line for line in run.metrics()}), 3}
    assert [path.name for path in run.checkpoints()] == [f"step-{step:06d}" for step in sorted(kept)]
    assert all(checkpoints.read(path, {}).step for path in run.checkpoints())
