"""Which configuration a verb works with: that of a new run, or that of a saved one with another coach."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coachrl.coach.base import is_language_model
from coachrl.config import RunConfig, check_read, find_config, load_config, sources_of
from coachrl.config.load import Below, given_settings
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.defaults import pipeline_defaults
from coachrl.runs.folder import Run
from coachrl.types import policy_names

log = logging.getLogger(__name__)


def run_config(
    config: str | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    named: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration of a new run. config: a YAML file, the name of a shipped one, or a tree of settings. flags:
    dotted key -> value. named: those of the flags that somebody has named for this call, by default all of them. Raises
    ConfigError, also where nothing reads what was named."""
    overrides = list(overrides)
    resolved = load_config(*_layers(config, overrides, flags))
    check_named(resolved, overrides, flags if named is None else named)
    return resolved


def check_named(config: RunConfig, overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> None:
    """Raises ConfigError where nothing reads what was named for this call: it belongs to a choice that is not made. Of
    a setting for all roles or policies, each of which has its own, it warns: runs of several teams may be given the
    same, and `model` still says whether the run is a small one."""
    overrides = list(overrides)
    check_read(config, overrides, flags)
    named = given_settings(overrides, flags)
    if {"model", *(f"pipeline.{key}" for key in _OF_ALL_ROLES)}.isdisjoint(named):
        return
    try:
        roles = [role for role in make_pipeline(config.pipeline).roles if not role.external]
    except ConfigError:  # which is said in its own place
        return
    models = {name: config.initial_model(name) for name in policy_names(roles)}
    if "model" in named and _is_unused(config.model, models):
        log.warning("no policy begins as model: each has its own by policies.NAME.model (%s)", _listed(models))
    for key, own in _OF_ALL_ROLES.items():
        if key == "max_new_tokens" and config.train.loss_aggregation == "seq-mean-token-sum-norm":
            continue  # which divides by it
        found = {role.name: getattr(role, own) for role in roles}
        if (name := f"pipeline.{key}") in named and _is_unused(getattr(config.pipeline, key), found):
            own_key, listed = f"pipeline.roles.NAME.{own}", _listed(found)
            log.warning("nothing reads %s: each has its own (%s); set %s, or leave %s out", name, listed, own_key, name)


_OF_ALL_ROLES = {"max_new_tokens": "max_new_tokens", "thinking": "thinking", "shared_policy": "policy"}
"""Settings of a pipeline for roles that have none of their own -> what a role calls it."""


def _is_unused(given: Any, found: Mapping[str, Any]) -> bool:
    """Whether what was given for all is that of none. found: what there is in the end, by role or policy."""
    return bool(found) and given is not None and given not in found.values()


def _listed(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def warn_of_sampling(overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> None:
    """For a call that only evaluates."""
    if "sampling.temperature" in given_settings(overrides, flags):
        log.warning("sampling.temperature is that of training: an evaluation draws its replies at eval.temperature")


def setting_sources(config: str | None, overrides: Iterable[str], flags: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> where `run_config` takes its value from; defaults are left out."""
    return sources_of(*_layers(config, overrides, flags))


def _layers(
    config: str | Mapping[str, Any] | None, overrides: Iterable[str], flags: Mapping[str, Any] | None
) -> tuple[Path | Mapping[str, Any] | None, Iterable[str], dict[str, Any], Below]:
    base = find_config(config) if isinstance(config, str) else config
    return base, overrides, dict(flags or {}), pipeline_defaults


def coach_flags(coach: str | None, coach_prompt: Path | None, coach_api_base: str | None) -> dict[str, Any]:
    """What these change in the coach of a saved run. Another coach does not inherit the address, the ensemble and the
    fallbacks of the run's, and what is no language model inherits no prompt."""
    flags: dict[str, Any] = {}
    if coach is not None:
        flags |= {"coach.name": coach, "coach.api_base": None, "coach.ensemble": [], "coach.fallbacks": []}
    if coach is not None and not is_language_model(coach):
        flags["coach.prompt"] = None
    if coach is not None or coach_prompt is not None:
        flags["coach.calibration"] = None  # it is of the run's own coach and prompt
    if coach_prompt is not None:
        flags["coach.prompt"] = str(coach_prompt)
    if coach_api_base is not None:
        flags["coach.api_base"] = coach_api_base
    return flags


def rescore_config(run: Run, overrides: Iterable[str], flags: Mapping[str, Any]) -> RunConfig:
    """The run's own configuration with other settings of its coach. Raises ConfigError for those of anything else.

    Nothing is sampled and nothing trained: what the run learned by does not count, nor need its code be at hand."""
    overrides = list(overrides)
    for setting in (*overrides, *flags):
        if not setting.startswith("coach."):
            raise ConfigError(f"override '{setting}': here settings of the coach only can change, coach.key=value")
    return run.config(overrides, {**flags, "algorithm": {}, "sampling": {}})
