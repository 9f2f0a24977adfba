"""What a run was made with: packages, commit and hardware."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
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


@functools.cache  # of what this process has imported, whatever is installed meanwhile
def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
