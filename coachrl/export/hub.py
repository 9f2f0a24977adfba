"""A checkpoint of a run as folders that load anywhere, one for each policy, and their way to the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from coachrl.errors import CheckpointError, CoachrlError, ConfigError, PackageMissing, lacking
from coachrl.runs import checkpoints
from coachrl.runs.chosen import LAST, checkpoint_kept
from coachrl.runs.folder import Run
from coachrl.runs.initial_models import changed_models
from coachrl.runs.model_card import CARD
from coachrl.storage.atomic import folder_aside
from coachrl.text import one_line

# What belongs to a model: weights, tokenizer, card. Optimizers, counters and adapters are for resuming alone.
_KINDS = {".json", ".safetensors", ".txt", ".model", ".jinja"}
_FOR_RESUMING = {"state.json", "adapters.safetensors"}


def export_hub(run: Run, folder: Path, which: str = LAST) -> list[Path]:
    """Write `folder`/<policy>/ for each policy of a checkpoint, whole or not at all: adapters are added to the
    weights that they began from. Returns these folders. which: as for `chosen_checkpoint`.

    Raises ConfigError where `folder` exists or cannot be written, CheckpointError where there is no whole checkpoint,
    PolicyError where an adapter's model is gone.
    """
    if os.path.lexists(folder):
        raise ConfigError(f"{folder} exists already: name another folder, or remove it first")
    with checkpoint_kept(run, which) as checkpoint:
        checkpoints.read(checkpoint, {})
        policies = checkpoints.policies(checkpoint)
        if not policies:
            raise CheckpointError(f"checkpoint {checkpoint} holds no model")
        config = run.config()
        try:
            with folder_aside(folder) as aside:
                for policy in policies:
                    _write_whole(run, policy, config.initial_model(policy.name), aside / policy.name)
        except OSError as error:
            raise ConfigError(f"--out {folder} cannot be written: {error.strerror}") from error
        return [folder / policy.name for policy in policies]


def _write_whole(run: Run, policy: Path, initial: str, folder: Path) -> None:
    """A model as it was saved; an adapter as the model that it makes of the initial one, with a warning where that is
    not what the run began with."""
    if (policy / checkpoints.MODEL).is_file():
        folder.mkdir()
        files = [path for path in sorted(policy.iterdir()) if path.is_file() and path.name not in _FOR_RESUMING]
        kept = [path for path in files if path.name == CARD or path.suffix in _KINDS]
    else:
        try:
            from coachrl.trainers.backends.torch.models.adapter_folders import whole_model
            from coachrl.trainers.backends.torch.policy import merge_adapter
        except ImportError as error:
            raise PackageMissing(f"merging adapters needs {lacking(error)}: pip install 'coachrl[torch]'") from error
        base = whole_model(initial)  # which may be an adapter's folder, too
        if changed := changed_models(run, {policy.name: (checkpoints.whole_name(initial), base)}):
            run.warn(changed)
        merge_adapter(base, policy, folder)
        kept = [policy / CARD]
    for path in kept:
        shutil.copyfile(path, folder / path.name)


def check_push(repo: str) -> None:
    """Raises ConfigError where `repo` is no name of a repository, or a token or the hub's package is missing."""
    try:
        from huggingface_hub.utils import HFValidationError, validate_repo_id
    except ImportError as error:
        raise ConfigError(f"--push needs {lacking(error)}: pip install 'coachrl[torch]'") from error
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {one_line(repo)}: {one_line(str(error))}") from error
    if repo.count("/") != 1:
        raise ConfigError(f"--push {one_line(repo)}: write NAME/REPOSITORY")
    if not os.environ.get("HF_TOKEN"):
        raise ConfigError("--push needs a token that may write: set HF_TOKEN, or leave --push out for the folder alone")


def push(folders: Sequence[Path], repo: str) -> list[str]:
    """Upload each folder to a private repository of its own: `repo`, or `repo`-<policy> where there are several.

    Returns their addresses. Raises CoachrlError where the hub refuses or cannot be reached."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    check_push(repo)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=os.environ["HF_TOKEN"])
    addresses: list[str] = []
    for folder in folders:
        name = repo if len(folders) == 1 else f"{repo}-{folder.name}"
        try:
            api.create_repo(name, private=True, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload from coachrl")
        except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:  # the last for an odd HF_ENDPOINT
            done = f"; done before it: {', '.join(addresses)}" if addresses else ""
            reason = one_line(f"{type(error).__name__}: {error}")
            raise CoachrlError(f"--push {name}: the hub did not take it: {reason}{done}") from error
        addresses.append(f"{api.endpoint}/{name}")
    return addresses
