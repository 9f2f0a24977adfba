"""What a run began with, its settings, its team and its tasks: with others it would learn, and measure, something else.

Its initial weights are looked after by `initial_models`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coachrl.config import RunConfig, dump_config, flat_settings, resumable_settings, with_absolute_paths
from coachrl.errors import CheckpointError, ConfigError
from coachrl.parsing import parse_yaml, read_json
from coachrl.runs.folder import Run
from coachrl.runs.records import role_as_kept, role_record
from coachrl.storage.atomic import write_aside
from coachrl.text import counted, one_line
from coachrl.types import Role, Task

_SETTINGS, _FILE = "settings.json", "tasks.json"
_TRAINING, _HELDOUT = "training", "held-out"
_KNOWN_OTHERWISE = r"name|out|model|policies\..*\.(model|made_by)"
_ADDRESSES = r".*\.api_base|pipeline\.options\.(host|port)"  # of servers, and of the machine that the run goes on with
_MAY_DIFFER = re.compile("|".join([_KNOWN_OTHERWISE, _ADDRESSES, *map(re.escape, resumable_settings())]))
_KEEPS_BEST = "train.keep_best"
_SHOWN = 5


def keep_settings(run: Run, config: RunConfig) -> None:
    """`settings.json`: those that a resumed run may not change, by their keys, and whether it began to keep its best
    checkpoint; what is there stays."""
    path = run.folder / _SETTINGS
    if not path.exists():
        kept = {**_settings(config), _KEEPS_BEST: config.train.keep_best}
        write_aside(path, json.dumps(kept, indent=1) + "\n")


def began_to_keep_best(run: Run) -> bool:
    """Whether the run has kept its best checkpoint since it began; False where nobody can say."""
    try:
        kept = read_json(run.folder / _SETTINGS, _SETTINGS)
    except ConfigError:
        return False
    return isinstance(kept, Mapping) and kept.get(_KEEPS_BEST) is True


def check_settings(run: Run, config: RunConfig) -> None:
    """Raises CheckpointError where these are not the settings that the run began with, as far as it has kept them."""
    if changed := changed_settings(run, config):
        raise CheckpointError(
            f"{run.folder}: {changed}: put them back in its config.yaml. To go on with the settings as they are now, "
            f"remove {run.folder / _SETTINGS}; what was done before is then reported as if it was done with them"
        )


def changed_settings(run: Run, config: RunConfig) -> str:
    """How they differ from those that the run began with, as "key: was -> is", or why nobody can say; "" where they do
    not, or the run has kept none. One that a later version adds is none while it has its default."""
    path = run.folder / _SETTINGS
    if not path.exists():
        return ""
    try:
        kept = read_json(path, _SETTINGS)
    except ConfigError as error:
        return str(error)
    if not isinstance(kept, Mapping):
        return f"{_SETTINGS} does not hold the settings of a run"
    now, given = _settings(config), _flat(config.model_dump(mode="json", exclude_defaults=True))
    # Of those that were kept some may be free to change by now.
    known = [key for key in {**kept, **now} if (key in kept or key in given) and not _MAY_DIFFER.fullmatch(key)]
    changed = [key for key in known if _shown(kept, key) != _shown(now, key)]
    told = [one_line(f"{key}: {_shown(kept, key)} -> {_shown(now, key)}") for key in changed[:_SHOWN]]
    more = f"; and {len(changed) - _SHOWN:,} more" if len(changed) > _SHOWN else ""
    return f"not the settings that the run began with: {'; '.join(told)}{more}" if changed else ""


def _settings(config: RunConfig) -> dict[str, Any]:
    """As the run's config.yaml gives them back. A run may be moved: of a path its last name alone counts, and a model
    is known by its weights."""
    return {
        key: value.rpartition("/")[2] if isinstance(value, str) and value.startswith("/") else value
        for key, value in _flat(parse_yaml(dump_config(with_absolute_paths(config)), "settings")).items()
        if not _MAY_DIFFER.fullmatch(key)
    }


def _flat(tree: Any) -> dict[str, Any]:
    """The leaves of a tree of settings by their dotted keys; a section that stands in a list has its number for a name,
    from 1."""

    def named(value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(part, dict) for part in value):
            value = {str(number): part for number, part in enumerate(value, 1)}
        return {key: named(part) for key, part in value.items()} if isinstance(value, dict) else value

    return flat_settings(named(tree))


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key], ensure_ascii=False) if key in settings else "not set"


def keep_tasks(run: Run, train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """`tasks.json`: task id -> digest, of each set; what is there stays."""
    path = run.folder / _FILE
    if not path.exists():
        write_aside(path, json.dumps(_digests(train, heldout), indent=1) + "\n")


def check_tasks(run: Run, train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Raises CheckpointError where these are not the tasks that the run began with, as far as it has kept them."""
    if changed := changed_tasks(run, train, heldout):
        raise CheckpointError(
            f"{run.folder}: {changed}: put the task set back. To go on with the tasks as they are now, remove "
            f"{run.folder / _FILE}; what was measured before and after is then not of the same tasks"
        )


def check_team(run: Run, team: Sequence[Role]) -> None:
    """Raises CheckpointError where this is not the team of `roles.json`, which all that reads the run goes by."""
    if changed := changed_team(run, team):
        raise CheckpointError(
            f"{run.folder}: {changed}: put its prompts back. To go on with the team as it is now, remove "
            f"{run.folder / 'roles.json'}; what was played before is then read as if this team had"
        )


def changed_team(run: Run, team: Sequence[Role]) -> str:
    """How it differs from `roles.json`, in words, or why nobody can say; "" where it does not, or the run has none."""
    try:
        began = run.roles()
    except ConfigError as error:
        return str(error)
    kept, now = ({role.name: _role_text(role) for role in roles} for roles in (team if began is None else began, team))
    changed = [name for name in {**kept, **now} if kept.get(name) != now.get(name)]
    return f"not the team that the run began with (changed: {one_line(', '.join(changed))})" if changed else ""


def changed_tasks(run: Run, train: Sequence[Task], heldout: Sequence[Task]) -> str:
    """How they differ from those that the run began with, in words, or why nobody can say; "" where they do not, or
    the run has kept none."""
    if not (run.folder / _FILE).exists():
        return ""
    now = _digests(train, heldout)
    try:
        kept = _kept_tasks(run)
    except ConfigError as error:
        return str(error)
    found = [_change(name, kept[name], now[name]) for name in now if kept[name] != now[name]]
    return f"not the tasks that the run began with: {'; '.join(found)}" if found else ""


def tasks_measured_on(run: Run, tasks: Sequence[Task]) -> int:
    """How many of them are among the held-out tasks that the run began with; 0 where nobody can say."""
    try:
        kept = set(map(str, _kept_tasks(run)[_HELDOUT].values()))
    except ConfigError:
        return 0
    return sum(_digest(task) in kept for task in tasks)


def _kept_tasks(run: Run) -> dict[str, Mapping[str, str]]:
    """What `keep_tasks` wrote. Raises ConfigError."""
    kept = read_json(run.folder / _FILE, _FILE, half_characters=True)
    if not isinstance(kept, Mapping) or not all(isinstance(kept.get(name), Mapping) for name in (_TRAINING, _HELDOUT)):
        raise ConfigError(f"{_FILE} does not hold the tasks of a run")
    return {name: kept[name] for name in (_TRAINING, _HELDOUT)}


def _change(name: str, kept: Mapping[str, Any], now: Mapping[str, str]) -> str:
    """Of the set `name`, as "of its training tasks 2 are gone (a, b)"."""
    kinds = {
        "changed": [task for task in kept if task in now and kept[task] != now[task]],
        "gone": [task for task in kept if task not in now],
        "new": [task for task in now if task not in kept],
    }
    told = [f"{len(ids):,} {kind} ({one_line(', '.join(ids[:3]))})" for kind, ids in kinds.items() if ids]
    return f"of {counted(len(kept), f'{name} task')} {', '.join(told)}"


def _digests(train: Sequence[Task], heldout: Sequence[Task]) -> dict[str, dict[str, str]]:
    return {
        name: {task.id: _digest(task) for task in tasks} for name, tasks in ((_TRAINING, train), (_HELDOUT, heldout))
    }


def _digest(task: Task) -> str:
    """Where its files lie does not count, nor do parts of the ground truth that are no plain data."""
    try:
        truth = _plain(task.ground_truth)
    except (ValueError, RecursionError):  # a circle, or a number without end, in what a user's own function gave
        truth = ""
    return hashlib.blake2b(json.dumps([task.category, task.prompt, truth]).encode(), digest_size=8).hexdigest()


def _role_text(role: Role) -> str:
    """All that it plays by, and not how its prompt files are written."""
    record = role_record(role_as_kept(role))
    for key in ("prompt", "feedback"):
        record[key] = record[key]["body"]
    for key in ("required_files", "needed_files"):
        record[key] = sorted(record[key])
    return json.dumps(record)


def _plain(value: Any) -> str:
    return json.dumps(value, default=_fields, skipkeys=True)


def _fields(value: Any) -> Any:
    """Those that a later version adds have their defaults in what this one has made. Compared as text, since arrays and
    their like compare otherwise."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    fields = {field.name: (getattr(value, field.name, None), field.default) for field in dataclasses.fields(value)}
    return {name: given for name, (given, default) in fields.items() if _plain(given) != _plain(default)}
