"""An adapter folder (of peft's form) as a policy's model: its base, with the adapter added to the weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from coachrl.errors import CheckpointError, PolicyError
from coachrl.resources import cache_folder
from coachrl.storage.atomic import folder_aside
from coachrl.storage.files import at_home
from coachrl.trainers.backends.torch.models.sources import ADAPTER_CONFIG, ADAPTER_WEIGHTS, model_folder

# What an adapter here is: B A, scaled by lora_alpha / r, in every linear layer. peft knows many more kinds.
_PLAIN = {
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "fan_in_fan_out": False,
}


def whole_model(model: str | Path) -> Path:
    """The local Hugging Face folder of `model`, as of `model_folder`. Of an adapter folder it is one with its base and
    the adapter added to it, made once for each pair. Raises PolicyError, also where the adapter is of another kind, or
    its base is not named or not there."""
    adapter = at_home(model)
    if not (adapter / ADAPTER_CONFIG).is_file() or (adapter / "config.json").is_file():
        return model_folder(model)
    base = _base_of(adapter, _read(adapter))
    merged = cache_folder() / "merged" / _digest(adapter, base)
    if not merged.exists():
        _merge(base, adapter, merged)
    return merged


def _read(adapter: Path) -> dict[str, Any]:
    try:
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"adapter {adapter}: {ADAPTER_CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise PolicyError(f"adapter {adapter}: {ADAPTER_CONFIG} holds no settings")
    for name, plain in _PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise PolicyError(
                f"adapter {adapter}: {name} is {config[name]!r}; LoRA with {name} {plain!r} alone is read"
            )
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise PolicyError(f"adapter {adapter}: there is no {ADAPTER_WEIGHTS}")
    return config


def _base_of(adapter: Path, config: dict[str, Any]) -> Path:
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise PolicyError(
            f"adapter {adapter}: name the model that it belongs to as base_model_name_or_path in {ADAPTER_CONFIG}"
        )
    try:
        base = model_folder(named)
    except PolicyError as error:
        raise PolicyError(f"adapter {adapter}: its base: {error}; {ADAPTER_CONFIG} names it") from error
    if (base / ADAPTER_CONFIG).is_file():
        raise PolicyError(f"adapter {adapter}: its base {named} is an adapter too")
    return base


def _digest(adapter: Path, base: Path) -> str:
    """Of the adapter's bytes, and of the base's files as they are now."""
    found = hashlib.blake2b(digest_size=12)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        found.update((adapter / name).read_bytes())
    for file in sorted(base.iterdir()):
        state = file.stat()
        found.update(f"{file.resolve()} {state.st_size} {state.st_mtime_ns}\n".encode())
    return found.hexdigest()


def _merge(base: Path, adapter: Path, merged: Path) -> None:
    """Written aside and renamed: several processes may ask at once, and one may be killed."""
    from coachrl.trainers.backends.torch.policy import merge_adapter  # it imports torch

    try:
        with folder_aside(merged, may_exist=True) as aside:
            merge_adapter(base, adapter, aside)
    except OSError as error:
        raise PolicyError(f"adapter {adapter}: it cannot be merged into {merged}: {error}") from error
    except CheckpointError as error:
        raise PolicyError(str(error)) from error
