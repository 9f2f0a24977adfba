"""What a run was made with: packages, commit and hardware."""

from __future__ import annotations

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
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "coachrl": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": _git_commit(),
        "packages": packages,
    }


def _git_commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
