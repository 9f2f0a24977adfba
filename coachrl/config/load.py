"""One typed tree of settings. YAML files hold only what differs from the defaults below.

Precedence: defaults < what the pipeline says < the config file < command-line flags and `key.sub=value` overrides. An
unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from coachrl.config.algorithm import FOREIGN_KEY, UNKNOWN_NAME, AnyAlgorithm, find_algorithm, read_algorithm
from coachrl.config.sections import (
    AuditConfig,
    CoachConfig,
    EvalConfig,
    OpenRLHFConfig,
    PipelineConfig,
    PolicyConfig,
    RewardConfig,
    RolloutConfig,
    SamplingConfig,
    SandboxConfig,
    Section,
    TaskConfig,
    TorchConfig,
    TrainConfig,
)
from coachrl.errors import ConfigError
from coachrl.parsing import parse_yaml, read_text, usable_path
from coachrl.resources import resource
from coachrl.text import brief, holds_password, nearest, one_line

Below = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RunConfig(Section):
    """Everything that a run is made of."""

    name: str | None = Field(None, description="Name of the run's folder; default: pipeline and time.")
    out: Path = Field(Path("runs"), description="Folder that holds the runs.")
    seed: int = Field(0, ge=0)
    model: str = Field("smollm2-135m", description="Initial weights of every policy.")
    track: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = Field(
        (), description="Trackers that get a copy of the metrics: tensorboard, wandb, mlflow, trackio."
    )
    policies: dict[str, PolicyConfig] = Field(default_factory=dict, description="Settings of single policies, by name.")
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig)
    tasks: TaskConfig = Field(default_factory=TaskConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    coach: CoachConfig = Field(default_factory=CoachConfig)
    algorithm: AnyAlgorithm = Field(default_factory=lambda: read_algorithm({}))
    reward: RewardConfig = Field(default_factory=RewardConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    audit: AuditConfig = Field(default_factory=AuditConfig)
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig)
    backend: Literal["torch", "openrlhf"] = Field(
        "torch", description="torch (one process, CPU or one GPU) or openrlhf (Ray, vLLM, DeepSpeed: GPU nodes)."
    )
    torch: TorchConfig = Field(default_factory=TorchConfig)
    openrlhf: OpenRLHFConfig = Field(default_factory=OpenRLHFConfig)

    @model_validator(mode="after")
    def _algorithm_fits(self) -> RunConfig:
        # Only the algorithm knows what goes with it; its sentence becomes one of pydantic's, to stand with the others.
        try:
            find_algorithm(self.algorithm.name)(self.algorithm).check(self)
        except ConfigError as error:
            raise ValueError(str(error)) from error
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


def load_config(
    path: Path | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    below: Below | None = None,
) -> RunConfig:
    """The resolved configuration.

    path: YAML file. overrides: `key.sub=value`, value read as YAML.
    flags: dotted key -> value, set by named command-line options; they count as overrides.
    below: gives the tree that stands below all of these, made from what they say. Raises ConfigError.
    """
    tree = _read_yaml(path) if path is not None else {}
    return _resolve(tree, overrides, flags, str(path) if path is not None else "", below)


def read_saved_config(
    path: Path, overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None
) -> tuple[RunConfig, list[str]]:
    """What a run of any version was configured with, as far as this version knows it, and one line for each setting
    that it does not know: left out, or with a default in its place.

    Raises ConfigError where the file cannot be read, and for wrong overrides and flags."""
    tree, problems = _read_yaml(path), []
    try:
        parse_config(tree, "")
    except ConfigError:
        problems = [f"{path.name}: {problem}" for problem in _drop_unknown(tree)]
    return _resolve(tree, overrides, flags, str(path)), problems


_SECTIONS_WITH_RULES = [("algorithm",), ("reward",), ("sampling",), ("rollout",), ("torch",), ("openrlhf",)]


def _drop_unknown(tree: dict[str, Any]) -> Iterator[str]:
    """Take out of `tree` what keeps it from being a configuration; says what, key by key."""
    while True:
        try:
            RunConfig.model_validate(tree)
            return
        except ValidationError as error:
            for item in error.errors():
                # Settings that are known but do not go together: all of those rules are about these sections.
                for place in [item["loc"]] if item["loc"] else _SECTIONS_WITH_RULES:
                    _remove(tree, place)
                unknown = item["type"] in ("extra_forbidden", FOREIGN_KEY)
                yield f"{_explain(item)}; {'it is left out' if unknown else 'a default is shown in its place'}"


def _remove(tree: dict[str, Any], place: Sequence[Any]) -> None:
    """Take out the innermost key on the way to `place` that is there."""
    *parents, leaf = place
    for depth, key in enumerate(parents):
        if not isinstance(tree.get(key), dict):
            leaf = parents[depth]
            break
        tree = tree[key]
    tree.pop(leaf, None)


def _resolve(
    tree: dict[str, Any],
    overrides: Iterable[str],
    flags: Mapping[str, Any] | None,
    where: str,
    below: Below | None = None,
) -> RunConfig:
    overrides = list(overrides)
    for dotted, value in (flags or {}).items():
        _set(tree, dotted, value)
    for override in overrides:
        dotted, separator, text = override.partition("=")
        if not separator or not dotted:
            raise ConfigError(f"override '{one_line(override)}' must read key.sub=value")
        _set(tree, dotted, parse_yaml(text, f"override '{one_line(override)}', the value"))
    given = [*(flags or {}), *(override.partition("=")[0] for override in overrides)]
    return parse_config(tree if below is None else laid_over(below(tree), tree), where, given)


def laid_over(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees of settings in one; where both say something, `tree` counts."""
    merged = dict(base)
    for key, value in tree.items():
        under = base.get(key)
        merged[key] = laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def parse_config(tree: Mapping[str, Any], where: str, given: Iterable[str] = ()) -> RunConfig:
    """A RunConfig from plain data. where: its file, which is not blamed for the keys in `given`, set elsewhere.

    Raises ConfigError that names every wrong key, on one line."""
    for place, text in _texts(tree):
        _check_text(f"{where}: {place}" if where else place, text)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        wrong = error.errors()
        elsewhere = [tuple(key.split(".")) for key in given]
        ours = any(not _concerns(tuple(map(str, item["loc"])), elsewhere) for item in wrong)
        blamed = f"{where}: " if where and ours else ""
        raise ConfigError(blamed + "; ".join(_explain(item) for item in wrong)) from None


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a tree of plain data, keys too, with the dotted key that leads to it."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _texts(key, f"the key '{one_line(str(key))}'")
            yield from _texts(child, f"{place}.{key}" if place else str(key))
    elif isinstance(value, (list, tuple, set)):
        for child in value:
            yield from _texts(child, place)


def _check_text(place: str, text: str) -> None:
    """What a setting cannot be, whichever it is. The value is not repeated where it may hold a secret."""
    if "\0" in text:
        raise ConfigError(f"{one_line(place)}: a setting cannot hold a NUL character")
    if holds_password(text):
        raise ConfigError(
            f"{one_line(place)}: leave user and password out of the URL: settings are written into the run's folder. "
            "Keys belong into the environment (docs/coaches.md)"
        )


def _concerns(place: tuple[str, ...], keys: Iterable[tuple[str, ...]]) -> bool:
    """Whether one of `keys` set the value at `place`, a part of it, or what it is a part of."""
    return any(place[: len(key)] == key[: len(place)] for key in keys)


def dump_config(config: RunConfig) -> str:
    """YAML that `load_config` reads back to an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The same configuration for a reader in any folder: files and model folders by their whole paths. A prompt that is
    no file here is the name of a shipped one, and stays."""

    def model(name: str) -> str:
        # Path.is_dir() raises for a name that is too long for a path.
        return str(Path(name).resolve()) if os.path.isdir(name) else name  # noqa: PTH112

    def section(value: Section) -> Section:
        changed: dict[str, Any] = {}
        for name in type(value).model_fields:
            child = getattr(value, name)
            if isinstance(child, Path) and name != "out" and (name != "prompt" or child.is_file()):
                changed[name] = child.resolve()
            elif isinstance(child, Section):
                changed[name] = section(child)
            elif isinstance(child, tuple):
                changed[name] = tuple(section(v) if isinstance(v, Section) else v for v in child)
            elif isinstance(child, dict):
                changed[name] = {k: section(v) if isinstance(v, Section) else v for k, v in child.items()}
            elif name == "model" and isinstance(child, str):
                changed[name] = model(child)
        return value.model_copy(update=changed)

    absolute = section(config)
    assert isinstance(absolute, RunConfig)
    return absolute


def find_config(name: str) -> Path:
    """`name` as a path, or the shipped config of that name. Raises ConfigError naming the nearest."""
    try:
        path = usable_path(Path(name))
    except ValueError as error:
        raise ConfigError(f"config file {one_line(name)}: {error}") from error
    if path.is_file():
        return path
    folder = resource("configs")
    shipped = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    wanted = path.stem if path.parent.name in ("", "configs") else ""
    if wanted in shipped:
        return shipped[wanted]
    if path.is_dir():
        raise ConfigError(f"config file {name}: it is a folder; name a YAML file in it, or one of {', '.join(shipped)}")
    raise ConfigError(f"no config file {name}{nearest(path.stem, shipped)}; shipped: {', '.join(shipped)}")


def _read_yaml(path: Path) -> dict[str, Any]:
    where = f"config file {path}"
    tree = parse_yaml(read_text(path, where), where)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"config file {path}: it must be a mapping of keys, not a {type(tree).__name__}")
    return tree


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for key in parents:
        child = tree.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override '{one_line(dotted)}': '{one_line(key)}' is a value, not a section")
        tree = child
    tree[leaf] = value


def _explain(item: Any) -> str:
    dotted = ".".join(str(part) for part in item["loc"] if "[" not in str(part))  # what has one is a type's name
    if item["type"] == "extra_forbidden":
        *parents, leaf = item["loc"]
        known = _keys_at(tuple(str(part) for part in parents))
        return f"unknown key '{dotted}'{nearest(str(leaf), known)}"
    if item["type"] in ("model_type", "model_attributes_type"):
        return f"{dotted}: it is a section of keys ({', '.join(_keys_at(item['loc']))}), not {brief(item['input'])}"
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] in (FOREIGN_KEY, UNKNOWN_NAME):
        return message
    if item["type"] == "literal_error":
        message += nearest(brief(item["input"]).strip("'"), re.findall(r"'(.*?)'", item["ctx"]["expected"]))
    if not dotted or isinstance(item["input"], dict):  # what is wrong with a whole section is in the message
        return f"{dotted}: {message}" if dotted else message
    return f"{dotted}: {message} (got {brief(item['input'])})"


def _keys_at(parents: tuple[str, ...]) -> list[str]:
    """Names of the keys of the section at `parents`; dictionaries of sections count as one level."""
    section: type[BaseModel] = RunConfig
    for key in parents:
        if key in section.model_fields:
            annotation = section.model_fields[key].annotation
            candidates = [annotation, *get_args(annotation)]
            section = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), section)
    return list(section.model_fields)
