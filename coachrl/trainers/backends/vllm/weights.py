"""What an engine of vLLM is given to generate with. Imports no vLLM."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """One set of weights. tensors: by their names in the Hugging Face model; of those that are tied, the first alone;
    None for those of the folder that the engine was started with, over which `adapters` lie: policy -> folder of its
    adapter. number: of this set, among all of the process."""

    tensors: Mapping[str, Tensor] | None
    adapters: Mapping[str, Path] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count().__next__)
