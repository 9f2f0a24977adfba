"""A run's checkpoints: sealed with a list of what they hold, so that one cut short or made elsewhere is told apart."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from coachrl.config import RunConfig, TrainConfig
from coachrl.errors import CheckpointError
from coachrl.resources import process_runs
from coachrl.storage.atomic import reraise
from coachrl.storage.files import regular_file, whole_text
from coachrl.text import brief, one_line
from coachrl.types import Role, policy_names

log = logging.getLogger(__name__)

SEAL = "trainer.json"
MODEL, ADAPTER = "config.json", "adapter_config.json"  # what a policy's folder holds: a whole model, or an adapter
_NAME = re.compile(r"step-(\d+)")
_STATE = "algorithm.json"
_REMOVED = ".removed"
_MOST_BROKEN = 0.5  # of an evaluation's episodes: those that are left are then no measure of the weights


@dataclass(frozen=True)
class Checkpoint:
    """One folder under checkpoints/. problem: why it cannot be loaded; empty where it can. is_known: whether all of it
    could be read, so that the problem is its own. weights: what they have come of, see `KeptReplies`."""

    folder: Path
    step: int
    size_bytes: int
    problem: str = ""
    weights: str = ""
    is_known: bool = True


def made_with(config: RunConfig, roles: Sequence[Role], at_first: Mapping[str, str]) -> dict[str, str]:
    """What a run must have to load a checkpoint of the run of `config`: the same pipeline, and initial models.

    at_first: what these were called when the run began, by policy, as far as that is known: they may have been moved.
    """
    needed = {"pipeline": config.pipeline.name}
    for policy in policy_names(roles):
        needed[f"model of policy {policy}"] = at_first.get(policy) or whole_name(config.initial_model(policy))
    return needed


def whole_name(model: str) -> str:
    """A model folder by its whole path; any other model as it is called."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def seal(folder: Path, step: int, made_with: Mapping[str, str], weights: str = "") -> None:
    """Write down what the filled `folder` holds. made_with: what a run must have to load it (pipeline, models).
    weights: what they have come of."""
    files = {name: {"bytes": size, "blake2b": _digest(folder / name)} for name, size in _entries(folder).items()}
    record = {"step": step, "weights": weights, "made_with": dict(made_with), "files": files}
    sealed = {**record, "blake2b": _digest_of(record)}
    (folder / SEAL).write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")


def write_state(folder: Path, state: str) -> None:
    """What the algorithm carries from step to step, as JSON; nothing where that is ""."""
    if state:
        (folder / _STATE).write_text(state + "\n", encoding="utf-8")


def read_state(folder: Path) -> Any:
    """What `write_state` wrote into a checkpoint that has been verified; None where it was nothing."""
    path = folder / _STATE
    return json.loads(whole_text(path)) if path.exists() else None


def read(folder: Path, made_with: Mapping[str, str]) -> Checkpoint:
    """Verify a checkpoint, every byte of it, and give what it says of itself. Raises CheckpointError where it is not
    whole, holds other bytes or files than it was sealed with, or was made with other settings."""
    found = inspect(folder, contents=True)
    if found.problem:
        raise CheckpointError(f"checkpoint {folder} {found.problem}{_older(found)}")
    record = json.loads(whole_text(folder / SEAL))
    # What reads a model's folder goes by the names in it: a file more may change what is loaded.
    if foreign := sorted(name for name in _entries(folder).keys() - record["files"].keys() if name[0] != "."):
        raise CheckpointError(
            f"checkpoint {folder} holds {brief(foreign[0])}, which was not written with it: move it elsewhere"
        )
    made = record["made_with"]
    for name, value in made_with.items():
        if made.get(name) != value:
            raise CheckpointError(
                f"checkpoint {folder} was made with {name} {made.get(name)!r}, and this run has {value!r}: "
                "it belongs to another configuration"
            )
    return found


def inspect(folder: Path, contents: bool = False) -> Checkpoint:
    """What is known of a checkpoint. contents: read every file of it, too, and compare. Never raises for one that is
    not whole."""
    match = _NAME.match(folder.name.removeprefix("."))  # a dot: as it is written, or removed
    step, size_bytes, weights, is_known = int(match[1]) if match else -1, 0, "", True
    try:
        found = _entries(folder)
        size_bytes = sum(size or 0 for size in found.values())
        record = json.loads(whole_text(folder / SEAL))
        weights, files = _sealed(record, step)
        problem = _cut_short(found, files) or (_damaged(folder, files) if contents else "")
    except CheckpointError as error:
        problem = str(error)
    except FileNotFoundError:
        problem = f"has no {SEAL}: it was not written to its end"
    except KeyError as missing:  # a version that writes other seals may load it
        problem, is_known = f"has a {SEAL} of another version of coachrl: there is no {missing} in it", False
    except (IsADirectoryError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = f"has a {SEAL} that cannot be read ({error})"
    except OSError as error:  # whether it is whole can be said by who may read it, or once the disk answers again
        name = one_line(os.path.relpath(error.filename, folder)) if error.filename else folder.name
        problem, is_known = f"cannot be read: {name}: {error.strerror}", False
    return Checkpoint(folder, step, size_bytes, problem, "" if problem else weights, is_known)


def _sealed(record: Any, step: int) -> tuple[str, dict[str, tuple[int, str]]]:
    """What the weights of step `step` have come of, and size and digest of each file, by the record of its seal. Raises
    CheckpointError where that is another one's, and KeyError, TypeError, ValueError or AttributeError for no record."""
    if record.pop("blake2b") != _digest_of(record):
        raise CheckpointError(f"is damaged: {SEAL} is not as it was written")
    if record["step"] != step:
        raise CheckpointError(f"is of another step: {SEAL} says {brief(record['step'])}")
    weights, _ = str(record["weights"]), dict(record["made_with"])
    return weights, {name: (int(kept["bytes"]), str(kept["blake2b"])) for name, kept in record["files"].items()}


def listed(root: Path) -> list[Path]:
    """Folders of checkpoints under `root`, oldest first; what bears another name is none. Raises CheckpointError where
    nobody can say which there are."""
    try:
        return [path for path in sorted(root.iterdir()) if _NAME.fullmatch(path.name) and path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{root} cannot be read: {error.strerror}") from error


def best_step(steps: Mapping[int, Mapping[str, Any]], among: Container[int] | None = None) -> int | None:
    """The step of training with the highest success on held-out tasks, of equal ones the earliest; None where none was
    evaluated. An evaluation counts for nothing where more than half of its episodes broke, and so does the one before
    training. steps: the metrics of each. among: the steps to choose from; by default all of them."""
    successes = [
        (metrics["eval/success"], -step)
        for step, metrics in steps.items()
        if "eval/success" in metrics
        and step > 0
        and metrics.get("eval/faulty_fraction", 0.0) <= _MOST_BROKEN
        and (among is None or step in among)
    ]
    return -max(successes)[1] if successes else None


def first_due(settings: TrainConfig, steps: Mapping[int, Mapping[str, Any]], keep_best: bool) -> int:
    """The step by which a run has its first checkpoint, which comes after the metrics of its step, and before those of
    the next. steps: the metrics of each. keep_best: whether the first evaluation that counts has one."""
    evaluated = (step for step in sorted(steps) if keep_best and best_step(steps, {step}) is not None)
    return min(settings.checkpoint_every or settings.steps, next(evaluated, settings.steps))


def policies(folder: Path) -> list[Path]:
    """The folders of a checkpoint's policies: each holds a model, or an adapter over the one that it began from."""
    return sorted(p for p in folder.iterdir() if (p / MODEL).is_file() or (p / ADAPTER).is_file())


def drop_asides(root: Path) -> None:
    """Remove what a process left under `root` that was killed while it wrote or removed a checkpoint. One that was
    written to its end, and lacks its name alone, gets it. Raises OSError where something could not be removed, as
    another user's, once all else is done."""
    failed: OSError | None = None
    for left in [*root.glob(".resharded-*"), *root.glob(".step-*")]:
        try:
            _settle(left, root)
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def _settle(left: Path, root: Path) -> None:
    if left.name.startswith(".resharded-"):  # by a process of this machine; one that still loads keeps its own
        number = left.suffix[1:]
        if number.isdecimal() and not process_runs(int(number)):
            _delete(left)
        return
    final = root / left.stem[1:]
    found = None if left.suffix == _REMOVED or final.exists() else inspect(left)
    if found is None or (found.problem and found.is_known):
        _delete(left)
    elif found.problem:
        log.warning("%s stays: it %s", left, found.problem)
    else:
        left.rename(final)


def remove(folder: Path) -> None:
    """Remove a checkpoint so that a kill in between leaves none that looks whole."""
    aside = folder.with_name(f".{folder.name}{_REMOVED}")
    if os.path.lexists(aside):
        _delete(aside)
    folder.rename(aside)
    _delete(aside)


@contextlib.contextmanager
def kept(folder: Path) -> Iterator[bool]:
    """While the block reads a checkpoint, no run that goes on removes it, as far as the file system has locks. Gives
    whether it is there."""
    with _seal_locked(folder, fcntl.LOCK_SH):
        yield folder.is_dir()


def remove_unread(folder: Path) -> bool:
    """Remove a checkpoint, unless somebody reads it; whether it is gone."""
    try:
        with _seal_locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
            remove(folder)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _seal_locked(folder: Path, how: int) -> Iterator[None]:
    """Raises BlockingIOError where others hold it, and `how` is not to wait."""
    with contextlib.ExitStack() as stack:
        try:
            seal = stack.enter_context(regular_file(folder / SEAL).open("rb"))
            fcntl.flock(seal, how)
        except BlockingIOError:
            raise
        except (OSError, ValueError):  # what has no seal nobody reads; some file systems have no locks
            pass
        yield


def _delete(path: Path) -> None:
    """Whatever somebody has put there; of a link, the link alone. Raises OSError that names `path`."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        error.filename = str(path)  # else it names a file in it, without its folder
        raise


def prune(root: Path, keep: int, steps: Mapping[int, Mapping[str, Any]] | None = None) -> list[Checkpoint]:
    """Remove what cannot be loaded, and all but the newest `keep` of the others. Returns what was removed. What cannot
    be read stays, with a warning: it may be whole; so does what somebody reads. steps: the metrics of each, where
    the best stays, too, unless `keep` is 0."""
    try:
        drop_asides(root)
    except OSError as error:
        log.warning("%s stays, since it cannot be removed: %s", error.filename, error.strerror)
    found = [inspect(path, contents=True) for path in listed(root)]
    whole = [checkpoint for checkpoint in found if not checkpoint.problem]
    unknown = [checkpoint for checkpoint in found if not checkpoint.is_known]
    for checkpoint in unknown:
        log.warning("%s stays: it %s", checkpoint.folder.name, checkpoint.problem)
    best = best_step(steps or {}, {checkpoint.step for checkpoint in whole})
    newest = whole[-keep:] if keep else []
    staying = [*unknown, *newest, *(checkpoint for checkpoint in whole if newest and checkpoint.step == best)]
    removed = []
    for checkpoint in (one for one in found if one not in staying):
        if remove_unread(checkpoint.folder):
            removed.append(checkpoint)
        else:
            log.warning("%s stays: another process reads it", checkpoint.folder.name)
    return removed


def _older(than: Checkpoint) -> str:
    """How to go on where a checkpoint cannot be loaded. One that may be whole is not for `prune` to remove."""
    folder = than.folder
    older = [path for path in listed(folder.parent) if path.name < folder.name]
    whole = [path for path in older if not inspect(path, contents=True).problem]
    if not whole:
        return "; no older one is whole"
    if not than.is_known:
        return f"; move it elsewhere to resume from {whole[-1].name}"
    run = quote(str(folder.parent.parent))
    return f"; {whole[-1].name} is whole: coachrl checkpoints prune {run}, then resume from there"


def _cut_short(found: Mapping[str, int | None], files: Mapping[str, tuple[int, str]]) -> str:
    for name, (size, _) in files.items():
        if found.get(name) != size:
            has = "is missing" if found.get(name) is None else f"has {found[name]} of {size} bytes"
            return f"is cut short: {one_line(name)} {has}"
    return ""


def _damaged(folder: Path, files: Mapping[str, tuple[int, str]]) -> str:
    """Raises OSError."""
    for name, (_, digest) in files.items():
        if _digest(folder / name) != digest:
            return f"is damaged: {name} holds other bytes than were written"
    return ""


def _digest_of(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _entries(folder: Path) -> dict[str, int | None]:
    """What lies below the folder, the seal aside: the size of each file, None for what is neither file nor folder.
    Raises OSError."""
    found: dict[str, int | None] = {}
    for place, _, names in os.walk(folder, onerror=reraise):
        for path in (Path(place, name) for name in names):
            found[str(path.relative_to(folder))] = path.stat().st_size if path.is_file() else None
    found.pop(SEAL, None)
    return dict(sorted(found.items()))
