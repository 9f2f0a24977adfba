"""Where agents' code runs. `make_sandbox` gives one by its name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from coachrl.errors import ConfigError
from coachrl.sandbox.base import Limits, Sandbox, Workspace

__all__ = ["KINDS", "Limits", "Sandbox", "Workspace", "make_sandbox"]

KINDS = ("local", "local-unsafe", "fusion")


def make_sandbox(
    kind: str,
    limits: Limits | None = None,
    concurrency: int | None = None,
    packages: Sequence[str] | None = None,
    url: str | None = None,
) -> Sandbox:
    """The sandbox named `kind`; nothing is started before its first use.

    concurrency: executions at once (default: the number of processors). packages: distributions that agents may import
    (default: those of `coachrl.sandbox.packages.DEFAULT_PACKAGES` that are installed); "local-unsafe" hides none,
    and "fusion" has those of its server. url: of the "fusion" server.
    Raises ConfigError for an unknown kind, or for a package that is not installed.
    """
    if kind == "local":
        from coachrl.sandbox.local import LocalSandbox

        return LocalSandbox(limits, concurrency, packages)
    if kind == "local-unsafe":
        from coachrl.sandbox.unsafe import UnsafeSandbox

        return UnsafeSandbox(limits, concurrency)
    if kind == "fusion":
        from coachrl.sandbox.fusion import FusionSandbox

        if url is None or not url.startswith(("http://", "https://")):
            raise ConfigError(f"sandbox 'fusion' needs sandbox.url, e.g. http://127.0.0.1:8080 (got {url!r})")
        return FusionSandbox(url, limits, concurrency)
    near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.0)[0]
    raise ConfigError(f"no sandbox {kind!r}; did you mean {near!r}? Known: {', '.join(KINDS)}")
