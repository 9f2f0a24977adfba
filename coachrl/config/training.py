"""The sections on the loop: how episodes are played, trained on, evaluated and audited."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from coachrl.config.backends import TorchConfig
from coachrl.config.section import MAX_COUNT, Resumable, Section

LrSchedule = Literal["constant", "linear", "cosine"]
LossAggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


class SamplingConfig(Section):
    """How replies are drawn while training. The whole distribution is drawn from, since importance ratios need it."""

    temperature: float = Field(1.0, gt=0, description="The temperature at which replies are drawn.")
    scheme: Literal["parallel", "tree"] = Field(
        "parallel",
        description="parallel plays each episode on its own. tree draws several candidates for each turn from one "
        "state, rewards each of them, and goes on from the best.",
    )
    candidates: int = Field(
        4,
        ge=1,
        le=MAX_COUNT,
        description="With scheme=tree, so many replies are drawn from one state (K of Stronger-MAS).",
    )

    @property
    def replies_per_turn(self) -> int:
        """How many replies are drawn from one state."""
        return self.candidates if self.scheme == "tree" else 1


class RolloutConfig(Section):
    """Which processes play the episodes."""

    workers: int = Field(
        1,
        ge=1,
        description="The number of processes that play episodes; with 1 the driver itself plays them. More need "
        "backend=openrlhf: Ray spreads them over the cluster, and the coach's limits stay those of the whole run.",
    )
    silence_timeout_s: Resumable[float] = Field(
        300.0,
        gt=0,
        description="One of those processes that has given no sign of life for so many seconds, of itself and not of "
        "its episodes, is ended and started again, as one that died.",
    )

    @property
    def processes(self) -> int:
        """Processes that play episodes beside the driver: 0 where it plays them itself."""
        return self.workers if self.workers > 1 else 0


class TrainConfig(Section):
    """The training loop and the optimizer."""

    steps: int = Field(100, ge=1, le=MAX_COUNT, description="The number of training steps.")
    tasks_per_step: int = Field(32, ge=1, le=MAX_COUNT, description="The number of tasks that one step plays.")
    group_size: int = Field(
        1, ge=1, le=MAX_COUNT, description="The number of episodes that one step plays of each of its tasks."
    )
    learning_rate: float = Field(1e-6, gt=0, description="The learning rate of AdamW, at its highest.")
    lr_schedule: LrSchedule = Field(
        "constant",
        description="How the learning rate goes on after the warm-up: constant, or down in a straight line (linear) or "
        "along half a wave (cosine), so that it would be 0 one step after the last of train.steps.",
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        le=MAX_COUNT,
        description="The number of steps over which the learning rate rises to its highest, in a straight line.",
    )
    weight_decay: float = Field(0.0, ge=0, description="The weight decay of AdamW.")
    max_grad_norm: float = Field(1.0, gt=0, description="A gradient with a larger norm is scaled down to this one.")
    mask_truncated: bool = Field(
        True, description="Replies that hit the limit of their length are left out of the update."
    )
    mask_blocked: bool = Field(
        False,
        description="Actions of an agent that lacks a file which an earlier agent owes it are left out of the update, "
        "unless it left all that it owes itself. Agents that hand on no files have none.",
    )
    min_actions: int = Field(
        1,
        ge=1,
        description="A policy with fewer actions in a step whose advantage is not zero keeps its weights in that step: "
        "AdamW moves it about as far for two actions as for a hundred. One that never has so many is never trained.",
    )
    clip_range: float = Field(
        0.2, gt=0, le=1e30, description="PPO clips the ratio of new to old probability to 1 ± this value."
    )
    clip_range_high: float | None = Field(
        None,
        gt=0,
        le=1e30,
        description="Above 1 the ratio is clipped at this value, and clip_range is for below 1 alone: a larger one "
        "leaves unlikely tokens room to rise (clip-higher, DAPO). By default it is clip_range.",
    )
    loss_aggregation: LossAggregation | None = Field(
        None,
        description="What the loss of an optimizer step is of its tokens' losses: token-mean (DAPO), "
        "seq-mean-token-mean (each reply's mean counts alike: GRPO), seq-mean-token-sum, or seq-mean-token-sum-norm "
        "(the same divided by pipeline.max_new_tokens: Dr. GRPO). By default token-mean; with algorithm.name=magrpo, "
        "seq-mean-token-sum.",
    )
    ppo_epochs: int = Field(1, ge=1, le=MAX_COUNT, description="The number of passes over the samples of one step.")
    ppo_mini_batch_size: int | None = Field(
        None, ge=1, description="The number of samples of one optimizer step. By default it is all of them."
    )
    checkpoint_every: int = Field(
        0, ge=0, description="The number of steps between checkpoints; 0 writes one after the last step only."
    )
    keep_checkpoints: int = Field(
        1, ge=0, description="So many checkpoints are kept. 0 writes none, and the run cannot be resumed."
    )
    keep_best: Resumable[bool] = Field(
        False,
        description="Beside the newest checkpoints, that of the step with the highest success on held-out tasks is "
        "kept, and written where no other is due; of equal ones the earliest. It needs eval.every.",
    )
    restarts: Resumable[int] = Field(
        3,
        ge=0,
        description="Where an engine or a trainer dies, all of them are started again and the run goes on from its "
        "last checkpoint, as with --resume: so many times at most. With `backend: vllm` a new process takes the place "
        "of the command's. With 0 the run ends.",
    )
    notice_file: Resumable[Path | None] = Field(
        None,
        description="When this file appears, or is written anew, the run writes a checkpoint and ends, as after a "
        "SIGTERM: for schedulers that cannot signal the process, and for people.",
    )
    max_faulty_fraction: float = Field(
        0.5, ge=0, le=1, description="A step stops the run where a larger share of its episodes broke."
    )
    episode_timeout_s: float | None = Field(
        None,
        gt=0,
        description="An episode that takes more seconds, waiting included, is left out and counted as broken. By "
        "default there is no limit.",
    )

    @property
    def clip_ranges(self) -> tuple[float, float]:
        """How far below and above 1 a ratio may lie."""
        return self.clip_range, self.clip_range_high or self.clip_range

    @model_validator(mode="after")
    def _keeps_what_is_best(self) -> TrainConfig:
        if self.keep_best and self.keep_checkpoints == 0:
            raise ValueError("keep_best keeps a checkpoint, and keep_checkpoints=0 writes none: set keep_checkpoints=1")
        return self


class SftConfig(Section):
    """A supervised warm start on demonstrations (`coachrl sft`), which is no part of a run.

    The learning rate rises over the first `warmup_share` of all steps and then falls to zero, both linearly.
    """

    epochs: int = Field(1, ge=1, description="The number of passes over the conversations.")
    learning_rate: float = Field(2e-5, gt=0, description="The learning rate at its highest.")
    batch_size: int = Field(16, ge=1, description="The number of conversations of one optimizer step.")
    max_length: int = Field(1024, ge=8, description="A conversation of more tokens is refused, not cut.")
    seed: int = Field(0, ge=0, description="The order and the held-out conversations are made from this number.")
    validation_share: float = Field(
        0.05, ge=0, lt=1, description="The share of conversations that is held out: one at least, unless it is 0."
    )
    warmup_share: float = Field(0.1, ge=0, le=1, description="The share of steps in which the learning rate rises.")
    log_every: int = Field(10, ge=1, description="The number of steps between two lines of the log.")
    torch: TorchConfig = Field(default_factory=TorchConfig)

    @field_validator("torch")
    @classmethod
    def _trains_one_model(cls, torch: TorchConfig) -> TorchConfig:
        if torch.share_base:
            raise ValueError("share_base is for the policies of a run: sft trains one model, and writes it whole")
        return torch


def is_due(step: int, every: int) -> bool:
    """Whether what happens every so many steps does after this one; 0: never."""
    return every > 0 and step % every == 0


class EvalConfig(Section):
    """How held-out tasks are played and measured, without a coach and without an update."""

    every: int = Field(
        0, ge=0, description="The number of steps between evaluations; 0 evaluates before and after training only."
    )
    samples_per_task: int = Field(1, ge=1, le=MAX_COUNT, description="The number of episodes of each held-out task.")
    temperature: float = Field(0.6, ge=0, description="The temperature at which replies are drawn.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Replies are drawn from the likeliest tokens that hold this share of probability."
    )


class AuditConfig(Section):
    """What a run says of its own coach while it trains. `coachrl audit` says all of it."""

    every: int = Field(
        0, ge=0, description="The number of steps between audits of the scores, which go into the metrics; 0: none."
    )
    reference_set: int = Field(
        0,
        ge=0,
        description="So many actions of the first audited step are scored again at each audit, which costs as many "
        "calls each time.",
    )
