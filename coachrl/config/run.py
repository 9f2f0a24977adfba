"""The whole configuration of a run, and the rules about settings of several sections."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from coachrl.config.algorithm import AnyAlgorithm, SavedAlgorithmConfig, check_algorithm, read_algorithm
from coachrl.config.backends import OpenRLHFConfig, TorchConfig, VllmConfig
from coachrl.config.choices import check_choice
from coachrl.config.coach import CoachConfig
from coachrl.config.pipeline import PipelineConfig, PolicyConfig
from coachrl.config.reward import RewardConfig
from coachrl.config.sandbox import SandboxConfig
from coachrl.config.section import Section
from coachrl.config.tasks import TaskConfig, WordProblemTasks
from coachrl.config.training import AuditConfig, EvalConfig, RolloutConfig, SamplingConfig, TrainConfig, is_due
from coachrl.errors import ConfigError

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


class RunConfig(Section):
    """Everything that a run is made of."""

    name: str | None = Field(
        None, description="The name of the run's folder. By default it is made of the pipeline and the time."
    )
    out: Path = Field(Path("runs"), description="The folder that holds the runs.")
    seed: int = Field(0, ge=0, description="Every random choice is made from this number.")
    model: str = Field(
        "smollm2-135m",
        description="The initial weights of every policy: the bundled model, a Hugging Face folder, or a hub name; "
        "tiny-random is a tiny one without any training, to try parts of your own, a step in seconds. Both bring "
        "the settings of a small run, as said above.",
    )
    track: tuple[str, ...] = Field(
        (),
        description="The trackers that get a copy of the metrics: tensorboard, wandb, mlflow, trackio, or a class of "
        "your own as my_package.my_module:MyTracker.",
    )
    policies: dict[str, PolicyConfig] = Field(
        default_factory=dict, description="The settings of single policies, by the policy's name."
    )
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    tasks: TaskConfig = Field(default_factory=WordProblemTasks)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    coach: CoachConfig = Field(default_factory=CoachConfig)
    algorithm: AnyAlgorithm = Field(default_factory=lambda: read_algorithm({}))
    reward: RewardConfig = Field(default_factory=RewardConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    backend: Literal["torch", "vllm", "openrlhf"] = Field(
        "torch",
        description="What generates and trains: torch (one process, on the CPU or on one GPU), vllm (the same with "
        "vLLM's engine, for one GPU) or openrlhf (Ray, vLLM and DeepSpeed, on GPU nodes).",
    )
    torch: TorchConfig = Field(default_factory=TorchConfig)
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    openrlhf: OpenRLHFConfig = Field(default_factory=OpenRLHFConfig)

    def initial_model(self, policy: str) -> str:
        """The weights that a policy begins with."""
        own = self.policies.get(policy)
        return (own.model if own is not None else None) or self.model

    def initial_models(self, policies: Iterable[str]) -> list[str]:
        """Those that these policies begin with, each once; the run's where there is no policy."""
        return list(dict.fromkeys(map(self.initial_model, policies))) or [self.model]

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation is due after that step: the last is always followed by one."""
        return step == self.train.steps or is_due(step, self.eval.every)

    def without_cache(self) -> RunConfig:
        """The same run, whose coach is asked anew what it was asked before."""
        return self.model_copy(update={"coach": self.coach.model_copy(update={"cache": "none"})})

    @field_validator("policies", mode="before")
    @classmethod
    def _names_policies(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("share_base"), bool):
            raise ValueError("share_base is no policy: adapters over one base are torch.share_base=true")
        return given

    @field_validator("track")
    @classmethod
    def _trackers_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            check_choice(name, "tracker", TRACKERS, "my_package.my_module:MyTracker")
        return names

    @model_validator(mode="after")
    def _algorithm_fits(self) -> RunConfig:
        if isinstance(self.algorithm, SavedAlgorithmConfig):
            return self
        # Only the algorithm knows what goes with it; its sentence becomes one of pydantic's, to stand with the others.
        try:
            check_algorithm(self.algorithm, self)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _best_is_one_of_several(self) -> RunConfig:
        if self.train.keep_best and self.eval.every == 0:
            raise ValueError(
                "train.keep_best chooses among evaluations, and with eval.every=0 the one after the last step is the "
                "only one of trained weights: set eval.every to the number of steps between evaluations"
            )
        return self

    @model_validator(mode="after")
    def _backend_fits(self) -> RunConfig:
        if self.rollout.workers > 1 and self.backend != "openrlhf":
            raise ValueError(
                f"rollout.workers={self.rollout.workers} needs backend=openrlhf: the {self.backend} backend generates "
                "in the process that plays the episodes"
            )
        if self.torch.share_base and self.backend == "openrlhf":
            raise ValueError(
                "torch.share_base is for backend=torch and backend=vllm (it is openrlhf): there every policy has "
                "processes of its own, and its adapter's base needs no second copy; leave it out"
            )
        return self
