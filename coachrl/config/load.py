"""Reads configurations: a YAML file that holds only what differs from the defaults, flags and overrides.

Precedence: defaults < what the pipeline says < the config file < command-line flags and `key.sub=value` overrides. An
unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from coachrl.config.algorithm import SAVED
from coachrl.config.explain import explain, place_of
from coachrl.config.run import RunConfig
from coachrl.config.section import Section, flat_settings, is_resumable, sections_in
from coachrl.errors import ConfigError
from coachrl.parsing import parse_yaml
from coachrl.resources import resource
from coachrl.storage.files import at_home, named_path, read_text
from coachrl.text import brief, holds_password, nearest, one_line

_CHOOSE = ("name", "source")  # keys of a section that say which other keys it has
Below = Callable[[Mapping[str, Any]], Mapping[str, Any]]
S = TypeVar("S", bound=Section)


def load_config(
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    below: Below | None = None,
    saved: bool = False,
) -> RunConfig:
    """The resolved configuration.

    config: YAML file, or what would stand in one. overrides: `key.sub=value`, value read as YAML.
    flags: dotted key -> value, set by named command-line options; they count as overrides.
    below: gives the tree that stands below all of these, made from what they say. saved: whether it is that of a run's
    folder, for which the code of an algorithm of the user's own need not be at hand. Raises ConfigError.
    """
    config = Path(config) if isinstance(config, str) else config
    tree = _tree_of(config)
    given = _lay_given(tree, overrides, flags)
    whole = tree if below is None else laid_over(below(tree), tree)
    return parse_config(whole, str(config) if isinstance(config, Path) else "", given, saved)


def given_settings(overrides: Iterable[str], flags: Mapping[str, Any] | None = None) -> list[str]:
    """The dotted keys of what the command line sets. Raises ConfigError."""
    return _lay_given({}, overrides, flags)


def _where_named(override: str) -> str:
    """Of what is no override but the name of something else, whatever was typed: by which option that is named."""
    name, suffix = override.rstrip(":"), os.path.splitext(override)[1]  # noqa: PTH122
    if os.path.isfile(os.path.join(override, "config.yaml")) or override.startswith("runs/"):  # noqa: PTH113, PTH118
        return "; a run's folder is named by --run, or --resume"
    if override in {file.stem for file in resource("configs").glob("*.yaml")} or suffix in (".yaml", ".yml"):
        return "; a configuration is named by --config"
    if suffix in (".json", ".jsonl", ".csv", ".parquet"):
        return "; a file of tasks is named by tasks.train"
    if suffix == ".py":
        return "; a team of your own is named by --pipeline my_module:MyTeam, and tasks by tasks.source=my_module:load"
    if name in flat_settings(RunConfig().model_dump()):
        return f", as {name}=VALUE"
    if "/" in override:
        return "; a model is named by --model, a run's folder by --run or --resume"
    return "; a configuration is named by --config, a team by --pipeline" if override.isidentifier() else ""


def _lay_given(tree: dict[str, Any], overrides: Iterable[str], flags: Mapping[str, Any] | None) -> list[str]:
    """Set in `tree` what the command line says, and return its keys. Raises ConfigError where an override says
    something else than a flag: one of them would be lost."""
    flags = dict(flags or {})
    given = list(flags.items())
    for override in overrides:
        dotted, separator, text = override.partition("=")
        if not separator or not dotted:
            raise ConfigError(f"override '{one_line(override)}' must read key.sub=value{_where_named(override)}")
        given.append((dotted, parse_yaml(text, f"override '{one_line(override)}', the value")))
    for dotted, value in given:
        _set(tree, dotted, value)
    for dotted, value in flags.items():
        now = _at(tree, dotted)
        # A flag that empties a setting makes room for an override; NaN is unlike itself.
        if now is not value and now != value and value not in (None, [], {}):
            raise ConfigError(f"{dotted} is given twice, by an option and by an override: leave one of them out")
    keys: list[str] = []
    for dotted, value in given:
        keys += flat_settings({dotted: value}) or [dotted]
    return keys


def sources_of(
    config: Path | Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    below: Below | None = None,
) -> dict[str, str]:
    """Dotted key -> where `load_config`, given the same, takes its value from; defaults are left out."""
    tree = _tree_of(config)
    file = dict.fromkeys(flat_settings(tree), config.name if isinstance(config, Path) else "given")
    places = [tuple(key.split(".")) for key in _lay_given(tree, overrides, flags)]
    given = [key for key in flat_settings(tree) if _concerns(tuple(key.split(".")), places)]
    under = flat_settings(below(tree)) if below is not None else {}
    return dict.fromkeys(under, "pipeline") | file | dict.fromkeys(given, "command line")


def laid_over(base: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees of settings in one; where both say something, `tree` counts."""
    merged = dict(base)
    for key, value in tree.items():
        under = base.get(key)
        merged[key] = laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def parse_config(tree: Mapping[str, Any], where: str, given: Iterable[str] = (), saved: bool = False) -> RunConfig:
    """A RunConfig from plain data. where: its file, which is not blamed for the keys in `given`, set elsewhere.

    Raises ConfigError that names every wrong key, on one line."""
    for place, text in _texts(tree):
        _check_text(f"{where}: {place}" if where else place, text)
    try:
        config = RunConfig.model_validate(tree, context=SAVED if saved else None)
    except ValidationError as error:
        wrong = error.errors()
        elsewhere = [tuple(key.split(".")) for key in given]
        ours = any(not _concerns(place_of(item), elsewhere) for item in wrong)
        blamed = f"{where}: " if where and ours else ""
        raise ConfigError(blamed + "; ".join(explain(item) for item in wrong)) from None
    _check_written(config)
    return config


def _check_written(config: RunConfig) -> None:
    """Raises ConfigError for what a run's folder cannot keep: an open section, as pipeline.options, takes any value."""
    try:
        config.model_dump(mode="json")
    except (ValueError, RecursionError):  # pydantic's own is a ValueError
        for key, value in flat_settings(config.model_dump()).items():
            try:
                to_jsonable_python(value)
            except (ValueError, RecursionError):
                raise ConfigError(
                    f"{one_line(key)} is {brief(value)}: a setting is text, a number, true or false, or a list or a "
                    "section of these"
                ) from None
        raise


def _texts(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a tree of plain data, keys too, with the dotted key that leads to it."""
    if isinstance(value, (str, Path)):
        yield place, str(value)
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
    if any("\ud800" <= character <= "\udfff" for character in text):  # as of a path that is not UTF-8
        raise ConfigError(f"{one_line(place)}: a setting is UTF-8 text, and {brief(text)} is none")
    if holds_password(text):
        raise ConfigError(
            f"{one_line(place)}: leave user, password and keys out of the URL: settings are written into the run's "
            "folder. Keys belong into the environment (docs/coaches.md)"
        )


def make_section(kind: type[S], **values: Any) -> S:
    """A section that stands alone, of values from the command line. Raises ConfigError for wrong ones."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(explain(item) for item in error.errors())) from None


def _concerns(place: tuple[str, ...], keys: Iterable[tuple[str, ...]]) -> bool:
    """Whether one of `keys` set the value at `place`, a part of it, or what it is a part of."""
    return any(place[: len(key)] == key[: len(place)] for key in keys)


def dump_config(config: RunConfig) -> str:
    """YAML that `load_config` reads back to an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def kept_config(config: RunConfig) -> RunConfig:
    """What a run's folder keeps of its configuration, for a reader in any folder. Raises ConfigError where a path is,
    as a whole, no UTF-8 text: it could not be read back."""
    whole = with_absolute_paths(config)
    for place, text in _texts(whole.model_dump(mode="json")):
        _check_text(place, text)
    return whole


def with_absolute_paths(section: S) -> S:
    """The same section for a reader in any folder: files and model folders by their whole paths. A prompt that is no
    file here is the name of a shipped one, and stays."""
    changed = {name: _absolute(name, getattr(section, name)) for name in type(section).model_fields}
    return section.model_copy(update=changed)


def _absolute(name: str, value: Any) -> Any:
    """The value of the setting `name`, and what is in it."""
    if isinstance(value, Section):
        return with_absolute_paths(value)
    if isinstance(value, tuple):
        return tuple(_absolute("", part) for part in value)
    if isinstance(value, dict):
        return {key: with_absolute_paths(part) if isinstance(part, Section) else part for key, part in value.items()}
    if isinstance(value, Path):
        is_shipped = name == "prompt" and not value.is_file()
        # realpath, since resolve raises for links that go in circles, which whoever opens them can name.
        return value if name == "out" or is_shipped else Path(os.path.realpath(value))
    # os.path.exists, since that of Path raises for a name that is too long for a path. A name that is no file or folder
    # here is one on the hub.
    if name in ("model", "train", "heldout") and isinstance(value, str) and os.path.exists(at_home(value)):  # noqa: PTH110
        return str(at_home(value).resolve())
    return value


def resumable_settings(section: type[BaseModel] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted keys of the settings that a resumed run may change."""
    keys = []
    for name, field in section.model_fields.items():
        if is_resumable(field):
            keys.append(prefix + name)
        for part in sections_in(field.annotation):
            keys += resumable_settings(part, f"{prefix}{name}.")
    return keys


def find_config(name: str) -> Path:
    """`name` as a path, or the shipped config of that name. Raises ConfigError naming the nearest."""
    path = named_path(at_home(name), "config file")
    if path.is_file():
        return path
    folder = resource("configs")
    shipped = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    wanted = path.stem if path.parent.name in ("", "configs") else ""
    if wanted in shipped:
        return shipped[wanted]
    if path.is_dir():
        raise ConfigError(f"config file {name}: it is a folder; name a YAML file in it, or one of {', '.join(shipped)}")
    if os.path.lexists(path):
        raise ConfigError(f"config file {name}: it is no file, or a link that leads to none")
    beside = [str(file) for file in path.parent.glob("*.y*ml")] if path.suffix else []
    close = nearest(str(path), beside) or (nearest(wanted, shipped) if wanted else "")
    raise ConfigError(f"no config file {name}{close} (shipped: {', '.join(shipped)})")


def _tree_of(config: Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """What a YAML file says, or a copy of what would stand in one."""
    if not isinstance(config, Path):
        return copy.deepcopy(dict(config or {}))
    where = f"config file {config}"
    tree = parse_yaml(read_text(config, where), where)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: it must be a mapping of keys, not a {type(tree).__name__}")
    return tree


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """A section that is given whole is laid over the one that stands there, as a config file is. It begins anew where
    it is `{}`, or makes another choice by name, whose keys are others."""
    *parents, leaf = dotted.split(".")
    for key in parents:
        child = tree.setdefault(key, {})
        if not isinstance(child, dict):
            raise ConfigError(f"override '{one_line(dotted)}': '{one_line(key)}' is a value, not a section")
        tree = child
    under = tree.get(leaf)
    if isinstance(under, dict) and isinstance(value, dict) and value and not _chooses_anew(under, value):
        value = laid_over(under, value)
    tree[leaf] = value


def _chooses_anew(under: Mapping[str, Any], section: Mapping[str, Any]) -> bool:
    return any(key in section and section[key] != under.get(key) for key in _CHOOSE)


def _at(tree: Any, dotted: str) -> Any:
    """The value of a dotted key, None where there is none."""
    for key in dotted.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
