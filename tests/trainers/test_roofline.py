"""The time of a step by a card's figures, against figures worked out by hand."""

from dataclasses import replace

import pytest

from coachrl.commands import gpu_estimates
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import load_config
from coachrl.trainers.backends.openrlhf.cluster.memory import ModelShape
from coachrl.trainers.backends.roofline import Card, PolicyWork, StepTime, card_named, step_time

CARD = Card("round figures", 100, 1000)  # 40 TFLOP/s and 700 GB/s are counted on
SHAPE = ModelShape(10**9, 10, 1000, 3000, 1000, 250, 32_000, 8192)  # 10,000 bytes of cache a token
WORK = PolicyWork(
    shape=SHAPE,
    replies=100,
    prompt_tokens=100_000,
    reply_tokens=20_000,
    at_once=10,
    engine_gpus=2,
    forwards=1,
    trained=3,
    trainer_gpus=4,
)


def test_replies_wait_for_memory_where_few_are_drawn_at_once_and_for_arithmetic_where_many_are():
    prompts = 100_000 * (2e9 + 4 * 10 * 1000 * 500) / 40e12  # 1,000 tokens each, and attention to half of them
    weights_and_caches = 2e9 + 10 * 1100 * 10_000  # at 1,100 tokens on average
    assert prompts == pytest.approx(5.05)
    assert WORK.generating_s(CARD) == pytest.approx(5.05 + 2000 * weights_and_caches / 700e9)
    assert replace(WORK, at_once=1000).generating_s(CARD) == pytest.approx(5.05 + 20 * 2e9 * 1000 / 40e12)


def test_a_token_costs_two_operations_a_weight_and_three_times_that_in_training():
    forward = 120_000 * (2e9 + 4 * 10 * 1000 * 600) / 40e12
    assert WORK.forward_s(CARD) == pytest.approx(forward) == pytest.approx(6.072)
    time = step_time([WORK, WORK], 4, CARD)
    assert time.forwards_s == pytest.approx(2 * 6.072 / 4)
    assert time.training_s == pytest.approx(2 * 3 * 6.072 / 4)
    frozen = replace(WORK, forwards=0, trained=0, trainer_gpus=0)
    assert step_time([frozen], 4, CARD).training_s == 0


def test_shared_gpus_add_up_the_policies_and_own_ones_wait_for_the_slowest():
    alone = WORK.generating_s(CARD)
    larger = replace(WORK, shape=replace(SHAPE, parameters=2 * 10**9))
    assert step_time([WORK, WORK], 4, CARD).generating_s == pytest.approx(alone / 2)
    assert step_time([WORK, WORK], 1, CARD).generating_s == pytest.approx(2 * alone)  # engines that meet on one GPU
    apart = step_time([WORK, larger], None, CARD)
    assert apart.generating_s == pytest.approx(larger.generating_s(CARD) / 2)
    assert apart.training_s == pytest.approx(3 * larger.forward_s(CARD) / 4)


def test_one_step_off_plays_while_it_trains():
    assert StepTime(5, 1, 2).all_s == 8
    assert StepTime(5, 1, 2, one_step_off=True).all_s == 5


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", None),
    ],
)
def test_cards_are_known_by_the_names_that_nvidia_smi_gives_them(said, found):
    card = card_named(said)
    assert (card and card.name) == found


def test_a_dry_run_says_how_long_a_step_takes_at_most_and_by_which_figures(monkeypatch):
    settings = ["backend=openrlhf", "pipeline.prompt_style=short", "openrlhf.gpus=8", "train.tasks_per_step=64"]

    def shown(card, *more):
        monkeypatch.setattr(gpu_estimates, "smallest_card", lambda: card)
        return make_dry_run(load_config(None, [*settings, *more])).gpu.time

    h100 = shown(None)
    assert h100[0].startswith("about ") and " generating, " in h100[0] and h100[0].endswith(" training")
    assert h100[1] == "by roofline, on H100 of 989 TFLOP/s and 3,350 GB/s, of which 40% and 70% are counted on;"
    assert shown((85.0, "NVIDIA H200"))[1].startswith("by roofline, on H200 of 989 TFLOP/s and 4,800 GB/s")
    assert shown((16.0, "Tesla T4")) == ("unknown: the figures of this card are not known here",)
    assert "log-probabilities" in shown(None, "algorithm.kl_beta=0.01")[0]
    assert "log-probabilities" not in shown(None, "algorithm.kl_beta=0")[0]
    assert make_dry_run(load_config(None, [])).gpu.time == ()


def test_the_distributed_dry_run_counts_as_many_tokens_as_a_step_may_have(monkeypatch):
    made = []
    monkeypatch.setattr(gpu_estimates, "step_time", lambda works, *_: made.append(works) or StepTime(1, 1, 1))
    settings = ["backend=openrlhf", "pipeline.prompt_style=short", "openrlhf.gpus=8", "openrlhf.max_length=4096"]
    roles = ["pipeline.max_new_tokens=100", "pipeline.roles.code_executor.max_turns=3"]
    make_dry_run(load_config(None, [*settings, *roles, "train.tasks_per_step=10", "train.group_size=2"]))
    [[solver, executor, verifier]] = made
    assert [work.replies for work in (solver, executor, verifier)] == [20, 60, 20]
    assert [work.reply_tokens for work in (solver, executor, verifier)] == [2000, 6000, 2000]
    assert executor.prompt_tokens == 3 * solver.prompt_tokens > 60 * 250  # half of what five replies hold, and a task
    assert [work.trained for work in (solver, executor, verifier)] == [4, 4, 4]  # activations are computed again
    assert [work.at_once for work in (solver, executor, verifier)] == [6, 6, 10]  # of three engines, three, and two
