"""The whole configuration of a run, and the rules about settings of several sections."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from coachrl.config.advantage import AdvantageConfig
from coachrl.config.backends import OpenRLHFConfig, TorchConfig
from coachrl.config.coach import CoachConfig
from coachrl.config.pipeline import PipelineConfig, PolicyConfig
from coachrl.config.sandbox import SandboxConfig
from coachrl.config.section import Section
from coachrl.config.tasks import TaskConfig, WordProblemTasks
from coachrl.config.training import AuditConfig, EvalConfig, RolloutConfig, SamplingConfig, TrainConfig


class RunConfig(Section):
    """Everything that a run is made of."""

    name: str | None = Field(
        None, description="The name of the run's folder. By default it is made of the pipeline and the time."
    )
    out: Path = Field(Path("runs"), description="The folder that holds the runs.")
    seed: int = Field(0, ge=0, description="Every random choice is made from this number.")
    model: str = Field(
        "smollm2-135m",
        description="The initial weights of every policy: the bundled model, a Hugging Face folder, or a hub name.",
    )
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = Field(
        (), description="The trackers that get a copy of the metrics."
    )
    policies: dict[str, PolicyConfig] = Field(
        default_factory=dict, description="The settings of single policies, by the policy's name."
    )
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    tasks: TaskConfig = Field(default_factory=WordProblemTasks)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    coach: CoachConfig = Field(default_factory=CoachConfig)
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    backend: Literal["torch", "openrlhf"] = Field(
        "torch",
        description="What generates and trains: torch (one process, on the CPU or on one GPU) or openrlhf (Ray, vLLM "
        "and DeepSpeed, on GPU nodes).",
    )
    torch: TorchConfig = Field(default_factory=TorchConfig)
    openrlhf: OpenRLHFConfig = Field(default_factory=OpenRLHFConfig)

    @model_validator(mode="after")
    def _groups_need_siblings(self) -> RunConfig:
        mode = self.advantage.mode
        if mode in ("grpo", "magrpo") and self.train.group_size < 2:
            raise ValueError(f"advantage.mode={mode} compares episodes of one task: set train.group_size to 2 or more")
        if mode == "at_grpo" and (self.sampling.scheme != "tree" or self.sampling.candidates < 2):
            raise ValueError(
                "advantage.mode=at_grpo compares candidates of one state: set sampling.scheme=tree and "
                f"sampling.candidates to 2 or more (they are {self.sampling.scheme} and {self.sampling.candidates})"
            )
        return self

    @model_validator(mode="after")
    def _workers_need_engines(self) -> RunConfig:
        if self.rollout.workers > 1 and self.backend == "torch":
            raise ValueError(
                f"rollout.workers={self.rollout.workers} needs backend=openrlhf: the torch backend generates in the "
                "process that plays the episodes"
            )
        return self

    @model_validator(mode="after")
    def _adapters_are_of_the_embedded_backend(self) -> RunConfig:
        if self.torch.lora_rank is not None and self.backend != "torch":
            raise ValueError(
                f"torch.lora_rank is for backend=torch (it is {self.backend}): OpenRLHF sends adapters to vLLM "
                "under names that it does not know"
            )
        return self

    @model_validator(mode="after")
    def _old_weights_need_a_ratio(self) -> RunConfig:
        if self.advantage.mode == "magrpo" and self.backend == "openrlhf" and self.openrlhf.one_step_off:
            raise ValueError(
                "openrlhf.one_step_off=true trains on what older weights wrote, and advantage.mode=magrpo has no ratio "
                "that corrects for it: set openrlhf.one_step_off=false"
            )
        return self

    @model_validator(mode="after")
    def _contributions_are_the_coachs(self) -> RunConfig:
        if self.advantage.mode == "retrospective" and self.advantage.rewards == "environment":
            raise ValueError("advantage.mode=retrospective takes the coach's scores: leave advantage.rewards=coach")
        return self

    @model_validator(mode="after")
    def _trees_need_early_rewards(self) -> RunConfig:
        if self.sampling.scheme != "tree":
            return self
        if self.advantage.mode != "at_grpo":
            raise ValueError(
                "sampling.scheme=tree draws candidates that only advantage.mode=at_grpo compares "
                f"(it is {self.advantage.mode})"
            )
        if self.advantage.rewards == "coach" and self.coach.evidence.ground_truth != "none":
            raise ValueError(
                "sampling.scheme=tree needs each score before the episode goes on, when its outcome is not known yet: "
                f"set coach.evidence.ground_truth=none (it is {self.coach.evidence.ground_truth}), or "
                "advantage.rewards=environment"
            )
        return self

    @model_validator(mode="after")
    def _backward_passes_need_a_model(self) -> RunConfig:
        if self.advantage.mode != "retrospective":
            return self
        if self.advantage.rewards != "coach":
            raise ValueError("advantage.mode=retrospective is made of coach scores: set advantage.rewards=coach")
        walker = self.coach.retrospective.name or ("" if self.coach.ensemble else self.coach.name)
        if walker in ("", "rules"):
            raise ValueError(
                "advantage.mode=retrospective walks back over episodes with a language model: name it in "
                f"coach.retrospective.name ({'an ensemble' if self.coach.ensemble else 'coach rules'} cannot)"
            )
        if self.coach.evidence.ground_truth != "none":
            raise ValueError(
                "advantage.mode=retrospective scores forward without the outcome: set "
                f"coach.evidence.ground_truth=none (it is {self.coach.evidence.ground_truth})"
            )
        return self
