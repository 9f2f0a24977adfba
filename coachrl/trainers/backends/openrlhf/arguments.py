"""The argument tree that OpenRLHF's classes read, made from the configuration."""

from __future__ import annotations

from types import SimpleNamespace as Tree

from coachrl.config import RunConfig
from coachrl.trainers.backends.base import ADAM_BETAS
from coachrl.trainers.backends.openrlhf.cluster.placement import PolicyPlacement
from coachrl.trainers.backends.openrlhf.training.flash_attention import chosen_attention


def openrlhf_arguments(config: RunConfig, placed: PolicyPlacement) -> Tree:
    """The arguments of one policy, as far as OpenRLHF's policy, reference and strategy classes read them.

    Two accumulation steps are announced to DeepSpeed, so that it allocates for more than one; `begin_step` sets
    the real number. Old log-probabilities are the sampler's own, so OpenRLHF's correction for those stays off.
    """
    given = config.openrlhf
    world = max(placed.trainers, 1)
    return Tree(
        local_rank=-1,
        actor=_actor(config, world),
        algo=Tree(
            advantage=Tree(
                is_correction_level="off",
                is_correction_mode="mask",
                is_correction_gating="ratio",
                is_correction_threshold=[0.5, 5.0],
            ),
            kl=Tree(use_loss=False, init_coef=0.0, estimator="k1", unbiased_gradient=False),
        ),
        ckpt=Tree(path="", output_dir="", load_enable=False, save_hf=False, disable_ds=False),
        data=Tree(disable_fast_tokenizer=False),
        ds=_deepspeed(config),
        ref=Tree(offload=False, num_nodes=1, num_gpus_per_node=world),
        rollout=Tree(temperature=config.sampling.temperature),
        train=Tree(
            batch_size=2 * world,
            micro_batch_size=1,
            max_epochs=config.train.ppo_epochs,
            colocate_all=given.colocate,
            async_enable=False,
            dynamic_batch_enable=False,
            enable_ema=False,
            ema_beta=0.992,
            seed=config.seed % 2**32,
            full_determinism_enable=False,
        ),
        vllm=Tree(
            num_engines=placed.engines,
            tensor_parallel_size=placed.tensor_parallel,
            sync_backend="nccl",
            sync_with_ray=False,
            enable_prefix_caching=given.prefix_caching,
            enable_sleep=config.openrlhf.sleeps,
        ),
    )


def _actor(config: RunConfig, world: int) -> Tree:
    """Optimizer, schedule and loss. OpenRLHF asks for a schedule, a clip and how losses are averaged, all of which
    `train_policy` does by itself."""
    return Tree(
        num_nodes=1,
        num_gpus_per_node=world,
        optim="adam",
        adam=Tree(
            lr=config.train.learning_rate, betas=list(ADAM_BETAS), eps=1e-8, weight_decay=config.train.weight_decay
        ),
        muon=Tree(),
        lr_scheduler="constant",
        lr_warmup_ratio=0.0,
        min_lr_ratio=1.0,
        max_norm=config.train.max_grad_norm,
        eps_clip=config.train.clip_range,
        eps_clip_low_high=config.train.clip_ranges,
        dual_clip=None,
        policy_loss_type="ppo",
        loss_agg_mode="token-mean",
        aux_loss_coef=0.0,
        entropy_coef=None,
        freeze_visual_encoder=False,
        gradient_checkpointing_enable=config.openrlhf.gradient_checkpointing,
        gradient_checkpointing_reentrant=False,
    )


def _deepspeed(config: RunConfig) -> Tree:
    given = config.openrlhf
    return Tree(
        zero_stage=given.zero_stage,
        adam_offload=given.adam_offload,
        enable_sleep=config.openrlhf.sleeps,
        attn_implementation=chosen_attention(given.attention),
        experts_implementation=None,
        param_dtype="bf16",
        grad_accum_dtype="fp32",  # a sum of many micro-batches in bfloat16 loses its last terms
        load_in_4bit=False,
        lora=Tree(
            rank=config.torch.lora_rank or 0,
            alpha=config.torch.lora_alpha,
            target_modules="all-linear",  # but the output layer, as of the embedded backend's adapters
            dropout=0.0,
        ),
        packing_samples=False,
        use_liger_kernel=False,
        tensor_parallel_size=1,
        ring_attn_size=1,
        zpg=1,
        overlap_comm=False,
        deepcompile=False,
        use_universal_ckpt=False,
    )
