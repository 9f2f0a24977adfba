"""Settings that belong to a choice which was not made, such as a backend's, and that the command line names.

In a file they may stand: one file may serve two backends, or a run and its baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from coachrl.config.algorithm import SHIPPED, find_algorithm
from coachrl.config.backends import OpenRLHFConfig, TorchConfig
from coachrl.config.load import given_settings
from coachrl.config.run import RunConfig
from coachrl.config.section import flat_settings
from coachrl.errors import ConfigError

_OF_ONE_PROCESS = [
    f"torch.{key}" for key in TorchConfig.model_fields if key not in ("lora_rank", "lora_alpha", "share_base")
]

# A launch file names the cluster, whatever it starts.
_OF_CLUSTERS = [f"openrlhf.{key}" for key in OpenRLHFConfig.model_fields if key != "ray_address"]


def _may_weigh(config: RunConfig) -> bool:
    """An algorithm of one's own is handed the weight whatever gives rewards."""
    return config.reward.source == "environment" or config.algorithm.name not in SHIPPED


# How a model is asked. Limits of calls and dollars are kept by the rules, too.
_OF_MODELS = [
    f"coach.{key}"
    for key in ("library", "temperature", "max_tokens", "thinking_budget", "reasoning_effort", "structured")
] + ["coach.usd_per_million_tokens"]


def _asks_others(config: RunConfig) -> bool:
    """Whether a coach is no rules, or the pipeline asks a model itself (an adviser, external roles), which it does as
    the coach is asked."""
    pipeline = config.pipeline
    asks = ":" in pipeline.name or pipeline.name == "gateway" or pipeline.options.get("adviser") is not None
    return asks or any(member.name != "rules" for member in config.coach.members) or _walks_back(config)


def _walks_back(config: RunConfig) -> bool:
    return bool(find_algorithm(config.algorithm.name).needs_retrospective_pass)


# A setting or a whole section, the choice that it belongs to, and whether that is made.
_NEEDS: list[tuple[str, str, Callable[[RunConfig], bool]]] = [
    *[(key, "backend=openrlhf", lambda config: config.backend == "openrlhf") for key in _OF_CLUSTERS],
    ("vllm", "backend=vllm", lambda config: config.backend == "vllm"),
    *[(key, "backend=torch or backend=vllm", lambda config: config.backend != "openrlhf") for key in _OF_ONE_PROCESS],
    ("torch.generation_batch", "backend=torch", lambda config: config.backend == "torch"),
    ("torch.lora_alpha", "torch.lora_rank", lambda config: config.torch.lora_rank is not None),
    ("rollout.silence_timeout_s", "rollout.workers above 1", lambda config: config.rollout.workers > 1),
    ("sandbox.url", "sandbox.kind=fusion", lambda config: config.sandbox.kind == "fusion"),
    ("sampling.candidates", "sampling.scheme=tree", lambda config: config.sampling.scheme == "tree"),
    ("reward.team_weight", "reward.source=environment", _may_weigh),
    *[(key, "a language model in coach.name", _asks_others) for key in _OF_MODELS],
    ("coach.combine", "coach.ensemble", lambda config: bool(config.coach.ensemble)),
    ("coach.tools", "coach.tools.turns", lambda config: config.coach.tools.turns > 0),
    ("coach.strategic", "coach.strategic.window_steps", lambda config: config.coach.strategic.window_steps > 0),
    ("coach.retrospective", "algorithm.name=retrospective", _walks_back),
    ("audit.reference_set", "audit.every", lambda config: config.audit.every > 0),
]


def check_read(config: RunConfig, overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError where a setting that overrides or flags name (as for `load_config`) differs from its default,
    and belongs to a choice that `config` does not make."""
    named = given_settings(overrides, flags)
    if not named:
        return
    usual = flat_settings(RunConfig().model_dump(mode="json"))
    changed = [key for key, value in flat_settings(config.model_dump(mode="json")).items() if value != usual.get(key)]
    for given in named:
        if not any(_is_within(key, given) for key in changed):
            continue
        for place, needed, is_read in _NEEDS:
            if _is_within(given, place) and not is_read(config):
                raise ConfigError(f"nothing reads {given} without {needed}: set that too, or leave {given} out")


def _is_within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")
