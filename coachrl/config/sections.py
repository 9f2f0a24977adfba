"""The sections of a run's configuration: each setting with its default, its bounds and one line of help.

`coachrl.config.load.RunConfig` is the tree that they make.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, field_validator, model_validator

from coachrl.parsing import usable_path

MAX_COUNT = 1_000_000  # of tasks and of steps: more is a slip of the keyboard, and would be counted for hours


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _paths_are_usable(cls, value: Any) -> Any:
        return usable_path(value) if isinstance(value, Path) else value


class RoleConfig(Section):
    """What differs for one role; None keeps the pipeline's own value."""

    policy: str | None = Field(
        None, description="Policy that the role plays with. Roles that name one policy share weights."
    )
    max_turns: int | None = Field(None, ge=1, description="Turns that the agent may take in its part.")
    max_new_tokens: int | None = Field(None, ge=1, description="Tokens of one reply, thinking included.")
    thinking: bool | None = Field(None, description="Let the model think before it answers, where its template can.")
    python: bool | None = Field(None, description="Run the agent's code blocks in the sandbox.")
    stop_when: Literal["answered", "ran", "saved"] | None = Field(
        None, description="What ends the part before max_turns."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_model(cls, given: Any) -> Any:
        if isinstance(given, dict) and "model" in given:
            raise ValueError(
                "a role plays with its policy's model, so that roles that share a policy share one tokenizer: set "
                "policies.<policy>.model, and another policy for the role where it needs another model"
            )
        return given


class PipelineConfig(Section):
    """Who acts, with which prompts."""

    name: str = Field(
        "mathchat",
        description="A shipped one (docs/pipelines.md lists them), or my_package.my_module:MyPipeline.",
    )
    prompt_style: str = Field(
        "full", description="Folder of prompts/agents/<pipeline>/: full, or short for small models."
    )
    partial_information: bool = Field(
        False, description="Agents see only the previous agent's output (MAPPA, App. A.1)."
    )
    prompts: Path | None = Field(
        None, description="Folder to use in place of prompts/agents/<pipeline>/<prompt_style>."
    )
    max_new_tokens: int = Field(4096, ge=1, description="Tokens of one reply, unless the role says otherwise.")
    thinking: bool = Field(False, description="Thinking on or off, unless the role says otherwise.")
    shared_policy: str | None = Field(
        None,
        description="Policy that all roles play with, unless the role says otherwise; default: as the pipeline says.",
    )
    roles: dict[str, RoleConfig] = Field(default_factory=dict, description="Settings of single roles, by role name.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="The pipeline's own parameters, listed in docs/pipelines.md."
    )


class TaskConfig(Section):
    """Where the tasks come from. train and held-out tasks never overlap."""

    source: Literal[
        "word-problems",
        "math",
        "dsbench-lite",
        "dsbench",
        "coop-code",
        "humaneval",
        "code",
        "planpath",
        "sokoban",
        "sudoku",
    ] = Field(
        "word-problems",
        description="word-problems (generated), math (JSON files), dsbench-lite (shipped), dsbench (official layout), "
        "coop-code (shipped programming tasks), humaneval (its package), code (JSON-lines files of that form), "
        "planpath, sokoban, sudoku (generated environments).",
    )
    train: Path | None = Field(None, description="math, dsbench, code: the list of training tasks.")
    heldout: Path | None = Field(None, description="math, dsbench, code: the list of held-out tasks.")
    root: Path | None = Field(None, description="dsbench: folder that holds data_resplit/ and answers/.")
    cleaned_prompts: Path | None = Field(
        None, description="dsbench: JSON file with shorter prompts and declared columns."
    )
    train_count: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Use this many training tasks (word-problems: generate; default 512)."
    )
    heldout_count: int | None = Field(
        None, ge=1, le=MAX_COUNT, description="Use this many held-out tasks (word-problems: generate; default 64)."
    )
    skip_unusable: bool = Field(
        False,
        description="Leave out, with a warning, tasks that cannot be graded: dsbench without answers, programs "
        "whose reference solution fails their own tests.",
    )
    levels: tuple[int, ...] = Field((1,), description="word-problems: numbers of steps, from 1 up.")
    size: int | None = Field(
        None, ge=2, description="planpath, sokoban, sudoku: cells of a side; default 10, 6 (inside the border), 4."
    )
    walls: float | None = Field(
        None, ge=0, lt=1, description="planpath, sokoban: share of cells that are walls; default 0.2, 0.1."
    )
    boxes: int | None = Field(None, ge=1, description="sokoban: boxes; default 1.")
    blanks: int | None = Field(None, ge=1, description="sudoku: empty cells; default half of all.")


class PolicyConfig(Section):
    """One set of weights."""

    model: str | None = Field(None, description="Hugging Face folder or name; default: the run's model.")
    made_by: str | None = Field(None, description="What makes `model`, for who does not have it yet.")
    trainable: bool = Field(True, description="False keeps the weights as they are.")


class SamplingConfig(Section):
    """How replies are drawn while training: from the whole distribution, since ratios are of what was drawn from."""

    temperature: float = Field(1.0, gt=0)
    scheme: Literal["parallel", "tree"] = Field(
        "parallel",
        description="tree: each turn draws `candidates` replies from one state, rewards each, goes on from the best.",
    )
    candidates: int = Field(4, ge=1, description="tree: replies drawn from one state (K of Stronger-MAS).")


class RolloutConfig(Section):
    """Who plays episodes."""

    workers: int = Field(
        1,
        ge=1,
        description="Processes that play episodes; 1: the driver itself. More need backend=openrlhf: Ray spreads them "
        "over the cluster, and the coach's limits stay those of the whole run.",
    )


class EvidenceConfig(Section):
    """What the coach is shown of an action, beside the task, the role and the agent's own words."""

    ground_truth: Literal["last", "all", "none"] = Field(
        "last",
        description="Whose actions the coach sees the measured outcome for: the last agent's (MAPPA), all, none.",
    )
    tool_log: bool = Field(True, description="What code printed, how it ended, what the environment answered.")
    files: bool = Field(True, description="Names of the files in the workspace before and after.")
    previous: bool = Field(True, description="What the agents before it wrote and ran.")
    window_tokens: int = Field(4000, ge=16, description="Of each text, about; a longer one loses its middle.")
    previous_tokens: int = Field(500, ge=16, description="The same for each text of an earlier action.")


class MemberConfig(Section):
    """One coach of an ensemble."""

    name: str = Field(description="rules, or a model, as in coach.name.")
    prompt: Path | None = Field(None, description="Coach prompt file; default prompts/coach/<pipeline>.md.")
    api_base: str | None = Field(None, description="Base URL of an OpenAI-compatible server.")


class RetrospectiveConfig(Section):
    """Who walks back over an episode (advantage.mode=retrospective)."""

    name: str | None = Field(None, description="A model; default: coach.name.")
    prompt: Path | None = Field(
        None, description="Prompt of the backward pass; default prompts/coach/retrospective.md."
    )
    api_base: str | None = Field(None, description="Base URL of its server; default: coach.api_base, for coach.name.")


class StrategicConfig(Section):
    """A coach that sees how the run goes, and how it has scored (MAPPA, Sec. 4.4 and App. E.4)."""

    window_steps: int = Field(0, ge=0, description="Steps whose statistics precede the coach's prompt; 0: none.")
    reliable_at: float = Field(
        0.8, ge=0, le=1, description="Success of every task kind from which on quality comes before reliability."
    )


class CoachConfig(Section):
    """Who scores, and how."""

    name: str = Field("rules", description="rules, or a model: gemini-2.5-pro, anthropic/…, openai/…, hosted_vllm/…")
    prompt: Path | None = Field(None, description="Coach prompt file; default prompts/coach/<pipeline>.md.")
    api_base: str | None = Field(None, description="Base URL of an OpenAI-compatible server.")
    evidence: EvidenceConfig = Field(default_factory=EvidenceConfig)
    suggest: bool = Field(
        False, description="Also ask for the reply that the agent should have given; coachrl export uses it."
    )
    ensemble: tuple[MemberConfig, ...] = Field(
        (), description="Several coaches in place of coach.name: a list of {name, prompt, api_base}."
    )
    combine: Literal["mean", "median", "trimmed"] = Field(
        "mean", description="How an ensemble's scores become one; trimmed: the mean without the highest and the lowest."
    )
    strategic: StrategicConfig = Field(default_factory=StrategicConfig)
    retrospective: RetrospectiveConfig = Field(default_factory=RetrospectiveConfig)
    fallbacks: tuple[str, ...] = Field(
        (), description="Models that are asked, in turn, where a call to the one before fails for good."
    )
    library: Literal["auto", "litellm", "google-genai"] = Field(
        "auto", description="auto: google-genai for Gemini, plain HTTP for own servers, LiteLLM for all others."
    )
    temperature: float = Field(0.0, ge=0)
    max_tokens: int = Field(8192, ge=16, description="Tokens of one reply; thinking counts towards it.")
    thinking_budget: int | None = Field(
        None, ge=-1, description="Tokens of thinking (Gemini, Anthropic); 0 none, -1 the model's choice."
    )
    reasoning_effort: Literal["minimal", "low", "medium", "high"] | None = Field(
        None, description="How much the model thinks, for models that are told so in words."
    )
    structured: bool | None = Field(
        None, description="Hold replies to a JSON schema; default: where the model is known to take one."
    )
    timeout_s: float = Field(60.0, gt=0, description="Of one attempt.")
    max_attempts: int = Field(5, ge=1, description="Attempts of one call that fails; a 429 is none.")
    give_up_after_s: float = Field(600.0, gt=0, description="One call from its first attempt on.")
    concurrency: int = Field(32, ge=1, description="Calls in flight at once; their pace is found by itself.")
    requests_per_minute: int | None = Field(None, ge=1, description="To one model; default: no limit.")
    tokens_per_minute: int | None = Field(None, ge=1, description="To and from one model; default: no limit.")
    budget_usd: float | None = Field(
        None, gt=0, description="Dollars for the whole run; it pauses before it would pass them."
    )
    usd_per_million_tokens: tuple[NonNegativeFloat, NonNegativeFloat] | None = Field(
        None, description="[input, output], for models whose price LiteLLM does not know."
    )
    cache: Literal["none"] | Path | None = Field(
        None, description="SQLite file of replies, which runs may share; default: the run's own. none: keep none."
    )
    max_failed_fraction: float = Field(0.25, ge=0, le=1, description="Above it the run checkpoints and stops.")

    @property
    def members(self) -> tuple[MemberConfig, ...]:
        """Who scores: the ensemble, or the one coach."""
        return self.ensemble or (MemberConfig(name=self.name, prompt=self.prompt, api_base=self.api_base),)

    @property
    def label(self) -> str:
        """The coach, for people: "rules", "gemini-2.5-pro", "mean of rules, gemini-2.5-pro"."""
        return f"{self.combine} of {', '.join(m.name for m in self.ensemble)}" if self.ensemble else self.name

    @model_validator(mode="after")
    def _ensemble_is_whole(self) -> CoachConfig:
        if not self.ensemble:
            return self
        if self.name != "rules" or self.prompt is not None or self.api_base is not None:
            raise ValueError("ensemble lists every coach: leave coach.name, coach.prompt and coach.api_base out")
        needed = 3 if self.combine == "trimmed" else 2
        if len(self.ensemble) < needed:
            raise ValueError(
                f"ensemble: combine={self.combine} needs {needed} coaches or more, not {len(self.ensemble)}"
            )
        return self

    @model_validator(mode="after")
    def _thinking_leaves_room(self) -> CoachConfig:
        if self.thinking_budget is not None and self.thinking_budget >= self.max_tokens:
            raise ValueError(
                f"thinking_budget of {self.thinking_budget} leaves no room for an answer in max_tokens "
                f"({self.max_tokens})"
            )
        return self

    @model_validator(mode="after")
    def _rules_read_what_they_read(self) -> CoachConfig:
        if any(member.name != "rules" for member in self.members):
            return self
        if self.evidence.model_copy(update={"ground_truth": "last"}) != EvidenceConfig():
            raise ValueError("evidence: rules read what they need; all but ground_truth is for language models")
        if self.fallbacks:
            raise ValueError("fallbacks: rules never fail; name a language model in coach.name")
        if self.strategic.window_steps:
            raise ValueError("strategic: rules read no statistics; name a language model in coach.name")
        return self


class RetrospectiveCreditConfig(Section):
    """Retrospective credit: alpha * process score + beta * contribution (MAPPA, App. F)."""

    alpha: float = Field(1.0, gt=0, description="Weight of the 0-10 score that was made without the outcome.")
    beta: float = Field(1.0, gt=0, description="Weight of the contribution to the outcome, -10 to 10.")
    consistency: Literal["none", "normalize"] = Field(
        "none", description="normalize: an episode's contributions are rescaled to sum to its outcome's worth."
    )


CALL_SETTINGS = tuple(
    f"coach.{name}"
    for name in (
        "budget_usd",
        "usd_per_million_tokens",
        "concurrency",
        "requests_per_minute",
        "tokens_per_minute",
        "timeout_s",
        "max_attempts",
        "give_up_after_s",
        "max_failed_fraction",
    )
)
"""How the coach is called, not what it is asked: what a resumed run may change."""

PLACE_SETTINGS = ("coach.api_base", "sandbox.url", "openrlhf.ray_address")
"""Where servers and clusters are. They may have moved when a run is resumed."""


class AdvantageConfig(Section):
    """From scores to per-token advantages; the only part that names an algorithm."""

    mode: Literal["reinforce_pp", "retrospective", "at_grpo", "magrpo", "grpo", "outcome"] = Field(
        "reinforce_pp",
        description="reinforce_pp (MAPPA), retrospective (the same with the coach's backward pass), at_grpo (groups "
        "of tree sampling), magrpo (groups of joint episodes), grpo (groups by task), outcome (the outcome to every "
        "action).",
    )
    rewards: Literal["coach", "environment"] = Field(
        "coach",
        description="Who rewards an action: the coach's score, or the pipeline's environment. (Not in outcome.)",
    )
    alpha: float = Field(
        1.0, ge=0, description="environment: weight of the team's reward; an agent's own has weight 1."
    )
    group_by: Literal["task", "turn"] = Field(
        "task", description="grpo: compare all actions of a task, or those of one task, role and turn."
    )
    backprop: RetrospectiveCreditConfig = Field(default_factory=RetrospectiveCreditConfig)
    return_scope: Literal["agent", "action"] = Field(
        "agent", description="reinforce_pp, retrospective, outcome: add rewards of the same agent's later actions?"
    )
    normalize_over: Literal["batch", "policy", "role"] = Field(
        "batch", description="reinforce_pp, retrospective, outcome: tokens that share mean and deviation."
    )
    kl_beta: float = Field(
        0.01,
        ge=0,
        description="reinforce_pp, retrospective, outcome: KL penalty in token rewards; 0 keeps no reference.",
    )
    reward_scale: float = Field(1.0, gt=0, description="Multiplies every reward.")
    mask_truncated: bool = Field(True, description="Leave replies that hit the length limit out of the update.")
    shuffle_scores: bool = Field(
        False, description="Control: permute scores within each role. Nothing must be learned."
    )


class TrainConfig(Section):
    """The loop and the optimiser."""

    steps: int = Field(100, ge=1, le=MAX_COUNT, description="Training steps.")
    tasks_per_step: int = Field(32, ge=1, description="Tasks of one step.")
    group_size: int = Field(1, ge=1, description="Episodes of each task in one step.")
    learning_rate: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    clip_range: float = Field(0.2, gt=0)
    ppo_epochs: int = Field(1, ge=1, description="Passes over the samples of one step.")
    ppo_mini_batch_size: int | None = Field(None, ge=1, description="Samples of one optimiser step; default: all.")
    checkpoint_every: int = Field(0, ge=0, description="Steps between checkpoints; 0: only the last step.")
    keep_checkpoints: int = Field(1, ge=0, description="Older ones are removed; 0 writes none: no resuming.")
    max_faulty_fraction: float = Field(
        0.5, ge=0, le=1, description="Share of a step's episodes that may break before it stops."
    )
    episode_timeout_s: float | None = Field(
        None, gt=0, description="Seconds of one episode, waits included; later it is left out and counted as broken."
    )


class EvalConfig(Section):
    """Held-out outcome metrics: no coach, no updates."""

    every: int = Field(0, ge=0, description="Steps between evaluations; 0: before and after only.")
    samples_per_task: int = Field(1, ge=1, description="Episodes of each held-out task.")
    temperature: float = Field(0.6, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)


class AuditConfig(Section):
    """What a run says of its own coach while it trains; `coachrl audit` says all of it."""

    every: int = Field(0, ge=0, description="Steps between audits of the scores, into the metrics; 0: none.")
    reference_set: int = Field(
        0,
        ge=0,
        description="Actions of the first audited step that are scored again at each audit: so many calls each time.",
    )


class SandboxConfig(Section):
    """Where model-written code runs."""

    kind: Literal["local", "local-unsafe", "fusion"] = Field(
        "local", description="local (bubblewrap), fusion (a SandboxFusion server), local-unsafe (no isolation)."
    )
    url: str | None = Field(None, description="fusion: the server, e.g. http://127.0.0.1:8080.")
    timeout_s: float = Field(60.0, gt=0)
    memory_mb: int = Field(2048, ge=64)
    disk_mb: int = Field(512, ge=1)
    concurrency: int | None = Field(
        None,
        ge=1,
        description="Executions at once, divided among rollout workers; default, of each: the cores of its machine, "
        "with fusion 16.",
    )


class TorchConfig(Section):
    """The embedded backend."""

    device: str = "auto"
    generation_batch: int = Field(64, ge=1, description="Replies drawn side by side.")
    micro_batch_tokens: int = Field(2048, ge=64, description="Padded tokens of one pass; memory grows with it.")
    precision: Literal["bfloat16", "float32"] = Field(
        "bfloat16",
        description="Of generation, and of forward passes (autocast); what is trained is float32 in any case.",
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        description="Train adapters of this rank (LoRA, coachrl[lora]) in every linear layer; default: all weights.",
    )
    lora_alpha: int = Field(32, ge=1, description="lora_rank: adapters are scaled by lora_alpha / lora_rank.")
    threads: int | None = Field(None, ge=1, description="CPU threads; default: cores.")


class OpenRLHFConfig(Section):
    """The distributed backend: Ray, vLLM engines and DeepSpeed trainers, a set of each for every policy."""

    ray_address: str | None = Field(
        None,
        description="host:port of a running Ray cluster, or auto; default: $RAY_ADDRESS, else Ray on this machine.",
    )
    colocate: bool = Field(
        True, description="All processes of all policies share the same GPUs; else each has its own."
    )
    gpus: int = Field(1, ge=1, description="Trainer GPUs: of all policies together with colocate, else of each policy.")
    engines: int | None = Field(
        None, ge=1, description="vLLM engines of each policy; default: gpus / tensor_parallel, at least 1."
    )
    tensor_parallel: int = Field(1, ge=1, description="GPUs that one vLLM engine spreads over.")
    engine_memory: float = Field(
        0.7, gt=0, lt=1, description="Share of a GPU's memory for engines, split evenly between those on it."
    )
    sleep: bool = Field(
        True, description="With colocate: engines leave GPU memory while training, optimizers while generating."
    )
    max_length: int | None = Field(
        None, ge=2, description="Tokens of prompt and reply together; default: the model's context."
    )
    zero_stage: Literal[2, 3] = Field(3, description="DeepSpeed ZeRO: 2 shards optimizer and gradients, 3 weights too.")
    adam_offload: bool = Field(False, description="Keep the optimizer's state in main memory, and step there.")
    gradient_checkpointing: bool = Field(True, description="Compute activations again instead of keeping them.")
    attention: str = Field("flash_attention_2", description="transformers' name of the trainers' attention, e.g. sdpa.")
    micro_batch_size: int = Field(1, ge=1, description="Samples of one forward and backward pass on one GPU.")
    one_step_off: bool = Field(
        False, description="Play the next step's episodes while this step trains, with weights one update old."
    )
    prefix_caching: bool = Field(True, description="Engines reuse the cache of prompts that begin alike.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments of vLLM's engines, passed as they are."
    )
    start_timeout_s: float = Field(
        1800.0, gt=0, description="Within it all GPUs must be granted, all models loaded, and new weights sent."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_adapters(cls, given: Any) -> Any:
        if isinstance(given, dict) and any(str(key).startswith("lora") for key in given):
            raise ValueError(
                "LoRA cannot be used: OpenRLHF sends adapters to vLLM under names that it does not know. "
                "All weights are trained; openrlhf.adam_offload and zero_stage=3 save GPU memory"
            )
        return given

    @model_validator(mode="after")
    def _generates_beside_training(self) -> OpenRLHFConfig:
        if self.one_step_off and self.colocate:
            raise ValueError(
                "one_step_off generates while it trains, so engines need GPUs of their own: set openrlhf.colocate=false"
            )
        return self
