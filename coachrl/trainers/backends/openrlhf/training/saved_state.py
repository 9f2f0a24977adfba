"""What a checkpoint of the distributed backend says beside weights and DeepSpeed's state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from coachrl.errors import CheckpointError


@dataclass(frozen=True)
class SavedState:
    """Of one policy. layout: the number of its trainers, their ZeRO stage, and the rank and scale of an adapter.
    DeepSpeed's state is for that layout alone; for another number of trainers it is converted."""

    weights_version: int
    updates: int
    layout: Mapping[str, int]

    def write(self, folder: Path) -> None:
        record = {"backend": "openrlhf", **asdict(self)}
        (folder / "state.json").write_text(json.dumps(record) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, policy: str, folder: Path, layout: Mapping[str, int]) -> SavedState:
        """Raises CheckpointError where nothing was saved, or with another layout but for the number of trainers."""
        try:
            record = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            version, updates = int(record["weights_version"]), int(record.get("updates", 0))
            saved_with = None if record.get("layout") is None else dict(record["layout"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"checkpoint {folder}: nothing was saved there for policy {policy}") from error
        if saved_with is None:
            raise CheckpointError(
                f"checkpoint {folder}: the torch backend wrote it; give the folder as policies.{policy}.model instead"
            )
        if {**saved_with, "trainers": layout["trainers"]} != layout:
            raise CheckpointError(
                f"checkpoint {folder}: saved with {saved_with}, and this run has {dict(layout)}; "
                f"set openrlhf.zero_stage, torch.lora_rank and torch.lora_alpha alike"
            )
        return cls(version, updates, saved_with)
