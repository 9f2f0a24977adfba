"""What a run was made with: packages, commit and hardware."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from coachrl import __version__

_PACKAGES = ("numpy", "pandas", "scikit-learn", "torch", "transformers", "litellm", "google-genai", "math-verify")


def versions() -> dict[str, Any]:
    """Packages, git commit and hardware: what a reader needs to repeat the run."""
    return {
        "coachrl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": _git_commit(),
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = _version(name)
    return found


@functools.cache  # it is looked up in files; what is missing may be installed yet
def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
