"""DeepSpeed's state of one number of trainers, loaded by another: by way of its universal checkpoints, which keep every
parameter's weights and moments in files of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint import ds_to_universal

_PROCESSES = 4  # that convert; each holds one trainer's part


def load_resharded(engine: Any, saved: Path, tag: str, scratch: Path, strict: bool) -> bool:
    """Load `saved`/`tag`, which trainers of another number wrote, into DeepSpeed's `engine`; whether it was there.
    All ranks call this together. scratch: a folder that they share, made here and removed afterwards; it takes as much
    room as the checkpoint."""
    first = torch.distributed.get_rank() == 0
    if first:
        _convert(saved / tag, scratch / tag)
    torch.distributed.barrier()
    engine._config.load_universal_checkpoint = True
    try:
        path, _ = engine.load_checkpoint(str(scratch), tag, load_module_strict=strict)
    finally:
        engine._config.load_universal_checkpoint = False
    torch.distributed.barrier()
    if first:
        shutil.rmtree(scratch)
    return path is not None


def _convert(saved: Path, target: Path) -> None:
    shutil.rmtree(target.parent, ignore_errors=True)  # of a process that was killed
    target.mkdir(parents=True)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):  # it tells each of its steps
        ds_to_universal.main(
            Namespace(
                input_folder=str(saved),
                output_folder=str(target),
                num_extract_workers=_PROCESSES,
                num_merge_workers=_PROCESSES,
                keep_temp_folder=False,
                strict=True,
                inject_missing_state=True,
            )
        )
