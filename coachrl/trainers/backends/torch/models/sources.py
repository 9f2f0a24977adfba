"""Where a policy's initial weights come from: the bundled model, a Hugging Face folder, or a name on the hub."""

from __future__ import annotations

import difflib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

from coachrl.errors import PolicyError
from coachrl.parsing import read_json
from coachrl.resources import quiet
from coachrl.storage.files import at_home
from coachrl.text import first_line, one_line, said
from coachrl.trainers.backends.torch.models import smollm2, tiny_random

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_BUNDLED = {smollm2.NAME: smollm2.smollm2_folder, tiny_random.NAME: tiny_random.tiny_random_folder}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "generation_config.json",
)


def model_folder(model: str | Path) -> Path:
    """The local Hugging Face folder of `model`: "smollm2-135m", "tiny-random", a folder, or a hub name.

    Raises PolicyError at once where a path is missing; only a name that can be nothing but a hub name is looked up.
    """
    name = str(model)
    if name in _BUNDLED:
        return _BUNDLED[name]()
    folder = at_home(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise PolicyError(
                f"model {name}: the folder holds no config.json, so it is not a Hugging Face model folder"
            )
        if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
            raise PolicyError(
                f"model {name}: its weights are pickled (.bin), which may hold programs and is not read; save them as "
                "model.safetensors"
            )
        return folder
    if not is_hub_name(name):
        near = difflib.get_close_matches(name, _BUNDLED, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        bundled = " or ".join(_BUNDLED)
        raise PolicyError(
            f"model {name}: no such folder{hint} (a model is {bundled}, a Hugging Face folder, or owner/name)"
        )
    return _from_hub(name)


def read_config(folder: Path) -> Any:
    """The configuration of the model in `folder`, as transformers reads it. Raises PolicyError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a library makes of a file that is not as it expects it
        raise PolicyError(f"model {folder}: its config.json cannot be read: {why_not_loaded(error)}") from error


def files_state(folder: Path) -> tuple[object, ...]:
    """Of a model's files as they are now: another one where a file was changed, or gave way to another."""
    found = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.is_file()]
    return tuple((name, of.st_dev, of.st_ino, of.st_size, of.st_ctime_ns) for name, of in found)


def why_not_loaded(error: Exception) -> str:
    """What is wrong with files of a model, in one line of what a library says of them."""
    if "trust_remote_code" in said(error):
        return "it needs code that comes with it, which is not run"
    words = first_line(error)
    return one_line(said(error)) if words.endswith(":") else words


def check_brings_no_code(folder: Path) -> None:
    """Raises PolicyError where a model's files name code of its own: OpenRLHF would run it. The other backends do
    not, and load the model where transformers knows its kind."""
    for file in sorted(folder.glob("*config.json")):
        settings = read_json(file, str(file), PolicyError)
        if isinstance(settings, dict) and "auto_map" in settings:
            raise PolicyError(
                f"model {folder}: {file.name} names code of the model's own, which OpenRLHF would run; where "
                "transformers knows this kind of model, take auto_map out of the file"
            )


def parameter_count(model: str | Path) -> int | None:
    """Weights of `model`, read from its files' headers, or counted by its config.json where that is alone; None for a
    hub name, which would have to be fetched first, and for a kind whose weights cannot be counted.

    Raises PolicyError where there is no such model."""
    if is_hub_name(str(model)):
        return None
    folder = model_folder(model)
    sizes = [entry["size"] for file in folder.glob("*.safetensors") for entry in _tensors(file)]
    return sum(sizes) or _counted(folder / "config.json")


def _counted(file: Path) -> int | None:
    """Of the kind that most are: attention over heads and an MLP of three matrices in each layer. Biases, and norms of
    heads, are too few to count."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        if any("expert" in key for key in config):
            return None
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head = config.get("head_dim") or hidden // heads
        attention = 2 * hidden * head * (heads + (config.get("num_key_value_heads") or heads))
        layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden
        vocabularies = 1 if config.get("tie_word_embeddings") else 2
        return int(vocabularies * config["vocab_size"] * hidden + config["num_hidden_layers"] * layer + hidden)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError):
        return None


def holds_only(folder: Path, dtype: str) -> bool:
    """Whether all tensors of the folder's safetensors files are of one type, such as "BF16". Raises PolicyError."""
    return all(entry["dtype"] == dtype for file in folder.glob("*.safetensors") for entry in _tensors(file))


def _tensors(file: Path) -> list[dict[str, Any]]:
    """What the header of a safetensors file says of each: 8 bytes of length, then JSON."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        return [{"dtype": e["dtype"], "size": math.prod(e["shape"])} for n, e in header.items() if n != "__metadata__"]
    except Exception as error:  # a header may say anything of itself, its length included
        raise PolicyError(f"model {file.parent}: {file.name} is not a safetensors file") from error


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer files of one model folder into another, as they are. Where there is no generation_config.json,
    none stays: transformers writes one beside weights, and it may end replies at other tokens."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
        elif name == "generation_config.json":
            (target / name).unlink(missing_ok=True)


def is_hub_name(name: str) -> bool:
    """Whether `name` can be nothing but a model on the Hugging Face hub ("owner/name")."""
    folder = at_home(name)
    return not folder.is_absolute() and bool(_HUB_NAME.fullmatch(name)) and not folder.parent.exists()


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        with quiet("huggingface_hub"):
            return Path(snapshot_download(name, allow_patterns=_MODEL_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise PolicyError(
            f"model {name}: neither a folder here nor available from the hub ({first_line(error)})"
        ) from error
