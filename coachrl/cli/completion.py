"""Values that a shell completes, for options that take a name: `coachrl --install-completion`."""

from __future__ import annotations

from collections.abc import Iterable

from coachrl.resources import resource


def configs(incomplete: str) -> list[str]:
    """Shipped ones; where none begins like this, the shell goes on with files."""

    return _beginning(sorted(path.stem for path in resource("configs").glob("*.yaml")), incomplete)


def pipelines(incomplete: str) -> list[str]:
    from coachrl.pipelines import SHIPPED

    return _beginning(SHIPPED, incomplete)


def backends(incomplete: str) -> list[str]:
    return _beginning(("torch", "vllm", "openrlhf"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
