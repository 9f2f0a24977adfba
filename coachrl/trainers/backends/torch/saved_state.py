"""Whether what a checkpoint holds of a policy is whole and belongs to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coachrl.errors import CheckpointError
from coachrl.text import brief, first_line


def is_finite(weights: Tensor) -> bool:
    """The extremes tell, and need no memory: NaN is both of them."""
    return not weights.numel() or bool(torch.isfinite(torch.stack(weights.detach().aminmax())).all())


def count(value: object) -> int:
    """A number of steps. Raises ValueError where it is none."""
    if type(value) is not int or value < 0:
        raise ValueError(f"state.json says {brief(value)} where a number of steps is needed")
    return value


def saved_version(folder: Path) -> int:
    """Of the weights that a backend saved of a policy in `folder`. Raises CheckpointError."""
    try:
        return count(json.loads((folder / "state.json").read_text(encoding="utf-8"))["weights_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {folder}: {first_line(error)}") from error


def fits(moments: Any, parameters: list[Tensor]) -> bool:
    """Whether the optimizer's state belongs to these parameters. Before the first step it is empty."""
    if not isinstance(moments, dict):
        return False
    return not moments or (
        set(moments) == set(range(len(parameters)))
        and all(_are_moments(moments[i], parameter.shape) for i, parameter in enumerate(parameters))
    )


def _are_moments(kept: Any, shape: torch.Size) -> bool:
    """Whether AdamW has kept this of a parameter of such a shape."""
    shapes = {"step": torch.Size(), "exp_avg": shape, "exp_avg_sq": shape}
    return isinstance(kept, dict) and shapes == {
        name: value.shape for name, value in kept.items() if isinstance(value, Tensor)
    }
