"""What OpenRLHF's classes are told of the configuration: each setting where they read it."""

import pytest

from coachrl.config import load_config
from coachrl.trainers.backends.openrlhf.arguments import openrlhf_arguments
from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement

SETTINGS = [
    *("backend=openrlhf", "train.learning_rate=3e-5", "train.weight_decay=0.02", "train.max_grad_norm=0.7"),
    *("train.clip_range=0.15", "train.ppo_epochs=3", "sampling.temperature=0.9", "seed=7", "openrlhf.gpus=4"),
    *("openrlhf.zero_stage=2", "openrlhf.tensor_parallel=2", "openrlhf.engines=1", "torch.lora_rank=8"),
    "torch.lora_alpha=32",
]


def arguments(*overrides, trainable=True):
    config = load_config(None, [*SETTINGS, *overrides])
    [placed] = plan_placement(config.openrlhf, {"solver": trainable}, False).policies
    return openrlhf_arguments(config, placed)


def test_the_optimizer_and_the_loss_are_those_of_the_configuration():
    made = arguments().actor
    assert (made.adam.lr, made.adam.weight_decay, made.adam.betas, made.adam.eps) == (3e-5, 0.02, [0.9, 0.95], 1e-8)
    assert (made.max_norm, made.eps_clip, made.eps_clip_low_high, made.dual_clip) == (0.7, 0.15, (0.15, 0.15), None)
    assert (made.lr_scheduler, made.lr_warmup_ratio, made.loss_agg_mode) == ("constant", 0.0, "token-mean")
    assert arguments("train.clip_range_high=0.28").actor.eps_clip_low_high == (0.15, 0.28)
    assert made.entropy_coef is None and made.aux_loss_coef == 0.0, "nothing is added to the loss"


@pytest.mark.parametrize(("installed", "auto"), [(True, "flash_attention_2"), (False, "sdpa")])
def test_attention_is_what_is_configured_or_what_is_installed(monkeypatch, installed, auto):
    monkeypatch.setattr("coachrl.trainers.backends.openrlhf.training.flash_attention.has_flash_attn", lambda: installed)
    assert arguments().ds.attn_implementation == auto
    assert arguments("openrlhf.attention=eager").ds.attn_implementation == "eager"


def test_trainers_engines_and_shards_are_those_of_the_placement():
    made = arguments()
    assert (made.actor.num_gpus_per_node, made.ref.num_gpus_per_node, made.train.batch_size) == (4, 4, 8)
    assert (made.vllm.num_engines, made.vllm.tensor_parallel_size) == (1, 2)
    assert (made.ds.zero_stage, made.ds.param_dtype, made.ds.grad_accum_dtype) == (2, "bf16", "fp32")
    assert (made.ds.lora.rank, made.ds.lora.alpha, made.ds.lora.dropout) == (8, 32, 0.0)
    assert (made.train.max_epochs, made.train.seed, made.rollout.temperature) == (3, 7, 0.9)
    frozen = arguments(trainable=False)
    assert (frozen.actor.num_gpus_per_node, frozen.train.batch_size) == (1, 2), "of a policy that has no trainer"


def test_engines_sleep_where_they_share_the_gpus_and_everything_else_follows_its_switch():
    asleep, awake, apart = (arguments(*more) for more in ((), ("openrlhf.sleep=false",), ("openrlhf.colocate=false",)))
    assert [(a.vllm.enable_sleep, a.ds.enable_sleep) for a in (asleep, awake, apart)] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert [a.train.colocate_all for a in (asleep, apart)] == [True, False]
    for name, told in {
        "gradient_checkpointing": lambda made: made.actor.gradient_checkpointing_enable,
        "adam_offload": lambda made: made.ds.adam_offload,
        "prefix_caching": lambda made: made.vllm.enable_prefix_caching,
    }.items():
        assert [told(arguments(f"openrlhf.{name}={value}")) for value in ("true", "false")] == [True, False]
    assert arguments("torch.lora_rank=null").ds.lora.rank == 0
    assert arguments("seed=4294967303").train.seed == 7, "of 32 bits, as NumPy takes it"
