"""A run's checkpoints: sealed with a list of what they hold, so that one cut short or made elsewhere is told apart."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coachrl.errors import CheckpointError
from coachrl.parsing import regular_file

SEAL = "trainer.json"
MODEL, ADAPTER = "config.json", "adapter_config.json"  # what a policy's folder holds: a whole model, or an adapter
_NAME = re.compile(r"step-(\d+)")
_REMOVED = ".removed"


@dataclass(frozen=True)
class Checkpoint:
    """One folder under checkpoints/. problem: why it cannot be loaded; empty where it can. weights: what they have come
    of, see `KeptReplies`."""

    folder: Path
    step: int
    size_bytes: int
    problem: str = ""
    weights: str = ""


def seal(folder: Path, step: int, made_with: Mapping[str, str], weights: str = "") -> None:
    """Write down what the filled `folder` holds. made_with: what a run must have to load it (pipeline, models).
    weights: what they have come of."""
    files = {name: {"bytes": size, "blake2b": _digest(folder / name)} for name, size in _sizes(folder).items()}
    record = {"step": step, "weights": weights, "made_with": dict(made_with), "files": files}
    sealed = {**record, "blake2b": _digest_of(record)}
    (folder / SEAL).write_text(json.dumps(sealed, indent=1) + "\n", encoding="utf-8")


def read(folder: Path, made_with: Mapping[str, str]) -> Checkpoint:
    """What a checkpoint that can be loaded says of itself. Raises CheckpointError where it is not whole, holds other
    bytes than it was sealed with, or was made with other settings."""
    found = inspect(folder, contents=True)
    if found.problem:
        raise CheckpointError(f"checkpoint {folder} {found.problem}{_older(folder)}")
    made = json.loads(regular_file(folder / SEAL).read_text(encoding="utf-8"))["made_with"]
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
    match = _NAME.fullmatch(folder.name)
    step, sizes = int(match[1]) if match else -1, _sizes(folder)
    size_bytes = sum(sizes.values())
    try:
        record = json.loads(regular_file(folder / SEAL).read_text(encoding="utf-8"))
        if record.pop("blake2b") != _digest_of(record):
            return Checkpoint(folder, step, size_bytes, f"is damaged: {SEAL} is not as it was written")
        step, weights, _ = int(record["step"]), str(record["weights"]), dict(record["made_with"])
        files = {name: (int(kept["bytes"]), str(kept["blake2b"])) for name, kept in record["files"].items()}
    except FileNotFoundError:
        return Checkpoint(folder, step, size_bytes, f"has no {SEAL}: it was not written to its end")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Checkpoint(folder, step, size_bytes, f"has a {SEAL} that cannot be read ({error})")
    for name, (size, _) in files.items():
        if sizes.get(name) != size:
            has = "is missing" if name not in sizes else f"has {sizes[name]} of {size} bytes"
            return Checkpoint(folder, step, size_bytes, f"is cut short: {name} {has}")
    if contents:
        for name, (_, digest) in files.items():
            if _digest(folder / name) != digest:
                return Checkpoint(folder, step, size_bytes, f"is damaged: {name} holds other bytes than were written")
    return Checkpoint(folder, step, size_bytes, weights=weights)


def listed(root: Path) -> list[Path]:
    """Folders of checkpoints under `root`, oldest first; what bears another name is none."""
    return sorted(path for path in root.glob("step-*") if path.is_dir() and _NAME.fullmatch(path.name))


def policies(folder: Path) -> list[Path]:
    """The folders of a checkpoint's policies: each holds a model, or an adapter over the one that it began from."""
    return sorted(p for p in folder.iterdir() if (p / MODEL).is_file() or (p / ADAPTER).is_file())


def drop_asides(root: Path) -> None:
    """Remove what a process left under `root` that was killed while it wrote or removed a checkpoint. One that was
    written to its end, and lacks its name alone, gets it."""
    for left in root.glob(".step-*"):
        final = root / left.stem[1:]
        if left.suffix != _REMOVED and not final.exists() and not inspect(left).problem:
            left.rename(final)
        else:
            shutil.rmtree(left)


def remove(folder: Path) -> None:
    """Remove a checkpoint so that a kill in between leaves none that looks whole."""
    aside = folder.with_name(f".{folder.name}{_REMOVED}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def prune(root: Path, keep: int) -> list[Checkpoint]:
    """Remove what cannot be loaded, and all but the newest `keep` of the others. Returns what was removed."""
    drop_asides(root)
    found = [inspect(path, contents=True) for path in listed(root)]
    whole = [checkpoint for checkpoint in found if not checkpoint.problem]
    kept = whole[len(whole) - keep :] if keep else []
    removed = [checkpoint for checkpoint in found if checkpoint not in kept]
    for checkpoint in removed:
        remove(checkpoint.folder)
    return removed


def _older(folder: Path) -> str:
    older = [path for path in listed(folder.parent) if path.name < folder.name]
    whole = [path for path in older if not inspect(path, contents=True).problem]
    if not whole:
        return "; no older one is whole"
    return f"; {whole[-1].name} is whole: coachrl checkpoints prune {folder.parent.parent}, then resume from there"


def _digest_of(record: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != SEAL
    }
