"""The sections on who acts: the pipeline, its roles, and the policies that they play with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from coachrl.config.section import MAX_SECONDS, Section


class RoleConfig(Section):
    """What differs for one role. A key that is left out keeps the pipeline's own value."""

    policy: str | None = Field(
        None, description="The policy that the role plays with. Roles that name one policy share its weights."
    )
    max_turns: int | None = Field(None, ge=1, description="The agent may take at most this many turns in its part.")
    max_new_tokens: int | None = Field(
        None, ge=1, description="One reply has at most this many tokens, thinking included."
    )
    thinking: bool | None = Field(
        None, description="The model thinks before it answers, where its chat template can ask for that."
    )
    python: bool | None = Field(None, description="The agent's code blocks are run in the sandbox.")
    stop_when: Literal["answered", "ran", "saved"] | None = Field(
        None,
        description="What ends the agent's part before max_turns: it has answered, its code ran, or its code saved a "
        "file.",
    )

    tools: tuple[str, ...] | None = Field(
        None,
        description="Python functions that the agent may call, each as my_package.my_module:my_function "
        "(docs/pipelines.md).",
    )
    tool_timeout_s: float | None = Field(
        None, gt=0, le=MAX_SECONDS, description="A tool has at most this many seconds for one call."
    )
    tool_result_chars: int | None = Field(
        None, ge=40, description="A tool's result has at most this many characters; a longer one loses its middle."
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
    """Who acts, in which order, and with which prompts."""

    name: str = Field(
        "mathchat",
        description="The pipeline: a shipped one (docs/pipelines.md lists them), or your own as "
        "my_package.my_module:MyPipeline.",
    )
    prompt_style: str = Field(
        "full",
        description="The folder of prompts/agents/<pipeline>/ that the agents' prompts come from: full, or short for "
        "small models.",
    )
    partial_information: bool = Field(
        False, description="Agents see only what the agent before them wrote (MAPPA, App. A.1)."
    )
    prompts: Path | None = Field(
        None, description="A folder of prompts to use in place of prompts/agents/<pipeline>/<prompt_style>."
    )
    max_new_tokens: int = Field(
        4096, ge=1, description="One reply has at most this many tokens, unless its role says otherwise."
    )
    thinking: bool = Field(False, description="The models think before they answer, unless the role says otherwise.")
    shared_policy: str | None = Field(
        None,
        description="The policy that all roles play with, unless a role says otherwise. By default the pipeline "
        "decides.",
    )
    roles: dict[str, RoleConfig] = Field(
        default_factory=dict, description="The settings of single roles, by the role's name."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="The pipeline's own parameters, which docs/pipelines.md lists."
    )


class PolicyConfig(Section):
    """One set of weights, which one role or several play with."""

    model: str | None = Field(
        None, description="A Hugging Face folder or name with the initial weights. By default it is the run's model."
    )
    made_by: str | None = Field(
        None, description="The command that makes the folder in model, told to whoever does not have it yet."
    )
    trainable: bool = Field(True, description="False keeps the weights as they are.")
