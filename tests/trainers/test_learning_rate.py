"""The learning rate of each step, by hand, and that it is the one which a run trains with, resumed or not."""

import importlib.util
import shutil
from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_figures import figures
from two_step import make_trainer, reply

import coachrl
from coachrl.config import TrainConfig
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.learning_rate import learning_rate_of, share_of_highest


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "shares"),
    [
        ("constant", 0, [1, 1, 1, 1, 1]),
        ("constant", 2, [1 / 2, 1, 1, 1, 1]),
        ("linear", 0, [1, 4 / 5, 3 / 5, 2 / 5, 1 / 5]),
        ("linear", 2, [1 / 2, 1, 1, 2 / 3, 1 / 3]),
        ("cosine", 0, [(1 + cos(pi * step / 5)) / 2 for step in range(5)]),
        ("cosine", 1, [1, 1, (1 + cos(pi / 4)) / 2, 1 / 2, (1 + cos(pi * 3 / 4)) / 2]),
        ("cosine", 10, [1 / 10, 2 / 10, 3 / 10, 4 / 10, 5 / 10]),  # the run ends amid the warm-up
    ],
)
def test_the_rate_rises_over_the_warm_up_and_goes_on_as_its_schedule_says(schedule, warmup_steps, shares):
    settings = TrainConfig(steps=5, learning_rate=3e-4, lr_schedule=schedule, warmup_steps=warmup_steps)
    rates = [learning_rate_of(step, settings) for step in range(1, 6)]
    assert rates == pytest.approx([3e-4 * share for share in shares])
    assert schedule != "constant" or warmup_steps or rates == [3e-4] * 5, "the very number of the settings"


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 10**6), st.integers(0, 10**6), st.data())
def test_no_step_trains_at_a_rate_of_zero_or_above_the_highest(schedule, steps, warmup_steps, data):
    step = data.draw(st.integers(0, steps - 1))
    share = share_of_highest(schedule, step, steps, warmup_steps)
    assert 0 < share <= 1
    if warmup_steps < step:
        assert share <= share_of_highest(schedule, step - 1, steps, warmup_steps)


async def test_each_update_of_a_run_has_the_rate_of_its_step(tmp_path):
    policy = ScriptedPolicy(reply)
    schedule = ["train.lr_schedule=linear", "train.warmup_steps=1", "train.learning_rate=0.5"]
    trainer, _ = make_trainer(tmp_path, policy=policy, overrides=["train.steps=4", *schedule])
    await trainer.train()
    assert policy.learning_rates == pytest.approx([0.5, 0.5, 0.5 * 2 / 3, 0.5 / 3])


def by_tokens(episode):
    return {action.id: float(sum(action.response_ids) % 7) for action in episode.actions}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch")
def test_a_resumed_run_goes_on_with_the_rates_and_comes_to_the_weights_of_one_that_was_not_interrupted(
    one_layer_model, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    whole = coachrl.train(
        name="whole",
        model=str(one_layer_model),
        pipeline={"name": "mixture", "max_new_tokens": 8, "options": {"proposers": 1}},
        tasks={"train_count": 4, "heldout_count": 2},
        reward={"source": f"{__name__}:by_tokens"},
        train={"steps": 4, "tasks_per_step": 2, "keep_checkpoints": 9, "checkpoint_every": 1, "mask_truncated": False}
        | {"lr_schedule": "cosine", "warmup_steps": 2, "learning_rate": 1e-2, "ppo_epochs": 2},
        torch={"threads": 1, "device": "cpu"},
        quiet=True,
    )
    shutil.copytree(whole.folder, tmp_path / "runs" / "cut")
    for step in (3, 4):
        shutil.rmtree(tmp_path / "runs" / "cut" / "checkpoints" / f"step-{step:06d}")
    cut = coachrl.train(resume="runs/cut", quiet=True)
    for name in ("proposer", "aggregator"):
        rates = [line[f"train/learning_rate/{name}"] for line in cut.metrics()[1:]]
        assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005])
    assert figures(cut) == figures(whole)
    for path in whole.last_checkpoint().rglob("*.safetensors"):
        place = cut.last_checkpoint() / path.relative_to(whole.last_checkpoint())
        assert place.read_bytes() == path.read_bytes()
