"""Settings that belong to a choice which was not made, such as a backend's, and that the command line names.

In a file they may stand: one file may serve two backends, or a run and its baseline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from coachrl.config.algorithm import SHIPPED, SavedAlgorithmConfig, algorithm_code, find_algorithm, made_algorithm
from coachrl.config.backends import OpenRLHFConfig, TorchConfig
from coachrl.config.load import given_settings
from coachrl.config.run import RunConfig
from coachrl.config.section import flat_settings
from coachrl.config.training import TrainConfig
from coachrl.errors import ConfigError
from coachrl.text import counted

log = logging.getLogger(__name__)

_OF_ONE_PROCESS = [
    f"torch.{key}" for key in TorchConfig.model_fields if key not in ("lora_rank", "lora_alpha", "share_base")
]

# A launch file names the cluster, whatever it starts.
_OF_CLUSTERS = [f"openrlhf.{key}" for key in OpenRLHFConfig.model_fields if key != "ray_address"]


# How a model is asked. How many calls there are at once, and what they cost, is minded where rules are asked, too.
_OF_MODELS = [
    f"coach.{key}"
    for key in ("library", "temperature", "max_tokens", "thinking_budget", "reasoning_effort", "structured")
] + ["coach.usd_per_million_tokens"]
_OF_CALLS = [
    f"coach.{key}"
    for key in ("compare", "timeout_s", "max_attempts", "give_up_after_s", "requests_per_minute", "tokens_per_minute")
]


def _asks_others(config: RunConfig) -> bool:
    """Whether a coach is no rules, or the pipeline asks a model itself (an adviser, external roles), which it does as
    the coach is asked."""
    pipeline = config.pipeline
    asks = ":" in pipeline.name or pipeline.name == "gateway" or pipeline.options.get("adviser") is not None
    return asks or any(member.name != "rules" for member in config.coach.members) or _walks_back(config)


def _walks_back(config: RunConfig) -> bool:
    return bool(find_algorithm(config.algorithm.name).needs_retrospective_pass)


def _asks_coach(config: RunConfig) -> bool:
    settings = config.algorithm
    if isinstance(settings, SavedAlgorithmConfig):  # whose code need not be at hand
        return True
    with algorithm_code(settings.name, " in needs_coach"):
        return bool(made_algorithm(find_algorithm(settings.name), settings).needs_coach(config.reward))


def _reads_source(config: RunConfig) -> bool:
    """An algorithm of one's own is handed the section whatever it declares."""
    name = config.algorithm.name
    return name not in SHIPPED or bool(find_algorithm(name).reads_reward_source)


def _may_weigh(config: RunConfig) -> bool:
    return config.reward.source == "environment" or config.algorithm.name not in SHIPPED


def _clips(config: RunConfig) -> bool:
    is_saved = isinstance(config.algorithm, SavedAlgorithmConfig)
    return is_saved or bool(find_algorithm(config.algorithm.name).loss == "ppo")


def _may_have_styles(config: RunConfig) -> bool:
    return config.pipeline.prompts is None or ":" in config.pipeline.name


# A setting or a whole section, the choice that it belongs to (in which {0} is the configuration), and whether that is
# made.
_Needs = list[tuple[str, str, Callable[[RunConfig], bool]]]

_NEEDS: _Needs = [
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
    ("train.checkpoint_every", "train.keep_checkpoints of 1 or more", lambda config: config.train.keep_checkpoints > 0),
    ("train.restarts", "backend=openrlhf or backend=vllm", lambda config: config.backend != "torch"),
    ("sandbox.max_processes", "sandbox.kind=local", lambda config: config.sandbox.kind == "local"),
    ("pipeline.prompt_style", "pipeline.prompts=null", _may_have_styles),
]


# Told and not refused: one command may serve a run and its baseline, which differ in their algorithm or coach.
_TOLD: _Needs = [
    *[
        (key, "an algorithm.name that takes rewards from reward.source (it is {0.algorithm.name})", _reads_source)
        for key in ("reward.source", "reward.team_weight")
    ],
    *[
        (key, "an algorithm.name with PPO's loss (it is {0.algorithm.name})", _clips)
        for key in ("train.clip_range", "train.clip_range_high")
    ],
    *[(key, "a language model in coach.name", _asks_others) for key in _OF_CALLS],
]


def check_read(config: RunConfig, overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError where a setting that overrides or flags name (as for `load_config`) differs from its default,
    and belongs to a choice that `config` does not make. Warns where runs that are compared differ in that choice."""
    named = given_settings(overrides, flags)
    for line in _unread(config, named, _NEEDS):
        raise ConfigError(line)
    for line in _unread(config, named, _TOLD):
        log.warning(line)


def warn_of_unread(config: RunConfig, overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> None:
    """The same for a call that several coaches are compared by: nothing is refused."""
    for line in _unread(config, given_settings(overrides, flags), [*_NEEDS, *_TOLD]):
        log.warning(line)


def _unread(config: RunConfig, named: Iterable[str], needs: _Needs) -> Iterator[str]:
    usual = flat_settings(RunConfig().model_dump(mode="json"))
    changed = [key for key, value in flat_settings(config.model_dump(mode="json")).items() if value != usual.get(key)]
    for given in named:
        if not any(_is_within(key, given) for key in changed):
            continue
        for place, needed, is_read in needs:
            if _is_within(given, place) and not is_read(config):
                yield f"nothing reads {given} without {needed.format(config)}: set that too, or leave {given} out"


def without_effect(config: RunConfig) -> list[str]:
    """Settings that come to nothing in this run, a line each. They are told and not refused: one command may serve a
    run and its baseline, or be tried with fewer steps."""
    train, audit, evaluation, coach = config.train, config.audit, config.eval, config.coach
    steps, asked = counted(train.steps, "step"), _asks_coach(config)
    one_update = train.ppo_epochs == 1 and train.ppo_mini_batch_size is None and config.backend == "torch"
    options = config.pipeline.options if ":" not in config.pipeline.name else {}
    alone = train.group_size * config.sampling.replies_per_turn == 1
    told: list[tuple[bool, str]] = [
        (
            not asked and coach.label != "rules",
            f"coach {coach.label} is not asked: algorithm.name={config.algorithm.name} and "
            f"reward.source={config.reward.source} make no use of it",
        ),
        (
            config.reward.source == "coach" and "rewards" in options,
            "pipeline.options.rewards: nothing is trained on them without reward.source=environment",
        ),
        (
            options.get("adviser_api_base") is not None and options.get("adviser") is None,
            "pipeline.options.adviser_api_base: it is the adviser's, and pipeline.options.adviser names none",
        ),
        (
            options.get("adviser") is not None and options.get("turns", 1) == 1,
            "pipeline.options.adviser: it advises between turns, and with pipeline.options.turns=1 there is one",
        ),
        (not asked and audit.every > 0, f"audit.every={audit.every}: no coach is asked, and nothing audited"),
        (asked and audit.every > train.steps, f"audit.every={audit.every}: no audit is due in {steps}"),
        (
            asked and audit.reference_set > 0 and audit.every <= train.steps < audit.every * 2,
            f"audit.reference_set={audit.reference_set}: it is scored again from the second audit on, and with "
            f"audit.every={audit.every} there is one in {steps}",
        ),
        (
            asked and coach.compare == "siblings" and alone,
            "coach.compare=siblings: with train.group_size=1 an action has none, and is scored alone",
        ),
        (
            train.warmup_steps > train.steps,
            f"train.warmup_steps={train.warmup_steps}: the rate rises in all of {steps}, to "
            f"{train.steps / max(1, train.warmup_steps):.0%} of train.learning_rate",
        ),
        (
            train.clip_ranges != TrainConfig().clip_ranges and one_update and _clips(config),
            "train.clip_range: with train.ppo_epochs=1 and one optimizer step no ratio differs from 1, and none is "
            "clipped",
        ),
        (
            train.keep_best and evaluation.every >= train.steps,
            f"train.keep_best: with eval.every={evaluation.every} only the last of {steps} is evaluated",
        ),
        (
            evaluation.temperature == 0 and evaluation.samples_per_task > 1,
            f"eval.samples_per_task={evaluation.samples_per_task}: with eval.temperature=0 they are drawn alike",
        ),
    ]
    return [line for is_so, line in told if is_so]


def _is_within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")
