"""Which configuration a verb works with: that of a new run, or that of a saved one with another coach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coachrl.coach.base import is_language_model
from coachrl.config import RunConfig, check_read, find_config, load_config, sources_of
from coachrl.config.load import Below
from coachrl.errors import ConfigError
from coachrl.pipelines.defaults import pipeline_defaults
from coachrl.runs.folder import Run


def run_config(
    config: str | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    named: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration of a new run. config: a YAML file, the name of a shipped one, or a tree of settings. flags:
    dotted key -> value; None where one was not given. named: those of the flags that somebody has named for this call,
    by default all of them. Raises ConfigError, also where nothing reads what was named."""
    overrides = list(overrides)
    resolved = load_config(*_layers(config, overrides, flags))
    check_read(resolved, overrides, flags if named is None else named)
    return resolved


def setting_sources(config: str | None, overrides: Iterable[str], flags: Mapping[str, Any]) -> dict[str, str]:
    """Dotted key -> where `run_config` takes its value from; defaults are left out."""
    return sources_of(*_layers(config, overrides, flags))


def _layers(
    config: str | Mapping[str, Any] | None, overrides: Iterable[str], flags: Mapping[str, Any] | None
) -> tuple[Path | Mapping[str, Any] | None, Iterable[str], dict[str, Any], Below]:
    base = find_config(config) if isinstance(config, str) else config
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    return base, overrides, given, pipeline_defaults


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
