"""Progress bars that vLLM draws as it starts, in the midst of a run's own display."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


def wanted() -> bool:
    """Whether the user asked vLLM for its notices (`VLLM_LOGGING_LEVEL`)."""
    return os.environ.get("VLLM_LOGGING_LEVEL", "").upper() in ("DEBUG", "INFO")


@contextmanager
def hidden(hide: bool = True) -> Iterator[None]:
    """No bar that begins in this block is drawn. vLLM's own switch, `use_tqdm_on_load`, reaches some of them alone: not
    those of CUDA graphs in its second runner, nor those of kernels that are compiled (0.29.0). tqdm's variable of the
    environment is read before coachrl could set it."""
    if not hide:
        yield
        return
    plain: Any = tqdm.__init__

    def disabled(bar: Any, *arguments: Any, **settings: Any) -> None:
        plain(bar, *arguments, **{**settings, "disable": True})

    setattr(tqdm, "__init__", disabled)  # noqa: B010  mypy knows methods that cannot be assigned to
    try:
        yield
    finally:
        setattr(tqdm, "__init__", plain)  # noqa: B010
