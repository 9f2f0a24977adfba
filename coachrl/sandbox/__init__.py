"""Where agents' code runs. `make_sandbox` gives what the configuration names."""

from __future__ import annotations

from collections.abc import Sequence

from coachrl.config import SandboxConfig
from coachrl.sandbox.base import Sandbox, Workspace

__all__ = ["Sandbox", "Workspace", "make_sandbox"]


def make_sandbox(settings: SandboxConfig, packages: Sequence[str] | None = None, sharers: int = 1) -> Sandbox:
    """The sandbox of these settings; nothing is started before its first use.

    packages: distributions that agents may import (default: those of `coachrl.sandbox.packages.DEFAULT_PACKAGES` that
    are installed); "local-unsafe" hides none, and "fusion" has those of its server. sharers: how many "local" ones
    share this machine's memory, this one included.
    Raises ConfigError for a package that is not installed, and for "fusion" without a url.
    """
    if settings.kind == "fusion":
        from coachrl.sandbox.fusion import FusionSandbox

        return FusionSandbox(settings)
    if settings.kind == "local-unsafe":
        from coachrl.sandbox.unsafe import UnsafeSandbox

        return UnsafeSandbox(settings)
    from coachrl.sandbox.local import LocalSandbox

    return LocalSandbox(settings, packages, sharers)
