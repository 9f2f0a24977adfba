"""Which models can share one engine: those whose configurations differ in nothing that the computation depends on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from coachrl.errors import ConfigError
from coachrl.trainers.backends.torch.models.sources import read_config

# Of where a model came from, how its weights are stored, and which tokens mean what.
_NOT_SHAPE = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def check_shapes(folders: Sequence[Path], share_base: bool = False) -> None:
    """Raises ConfigError where two of these models cannot take turns in one engine, or are no base to share."""
    for first, folder in pairwise(dict.fromkeys(folders)):
        if share_base:
            raise ConfigError(
                f"policies: {first} and {folder} are two models, and the engine keeps one frozen base for all: "
                "give them one model, set torch.share_base=false, or set backend=torch, which keeps one for each model"
            )
        shape, other = _shape(first), _shape(folder)
        different = sorted(key for key in {*shape, *other} if shape.get(key) != other.get(key))
        if different:
            raise ConfigError(
                f"policies: {first} and {folder} differ in {', '.join(different[:3])} and cannot take turns in one "
                "engine: give all policies models of one shape, or set backend=torch or backend=openrlhf"
            )


def _shape(folder: Path) -> dict[str, Any]:
    return {key: value for key, value in read_config(folder).to_dict().items() if key not in _NOT_SHAPE}
