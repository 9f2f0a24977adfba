"""coachrl: train teams of language-model agents with process rewards from a coach.

    import coachrl

    run = coachrl.train("quickstart", train={"steps": 1}, coach="rules")
    run.frames.metrics

What this package offers from Python is imported on first use, so that `import coachrl` takes no time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Two of the functions are called as rooms of the package are. Python names an attribute of a package after a module
# when it first imports that: done here, it cannot put the room in the place of the function later.
import coachrl.audit
import coachrl.rescore

del coachrl

if TYPE_CHECKING:
    from coachrl.api import Rescoring as Rescoring
    from coachrl.api import Rollout as Rollout
    from coachrl.api import audit as audit
    from coachrl.api import configure as configure
    from coachrl.api import evaluate as evaluate
    from coachrl.api import rescore as rescore
    from coachrl.api import rollout as rollout
    from coachrl.api import train as train
    from coachrl.runs.folder import Run as Run

__version__ = "0.1.0"

__all__ = ["Rescoring", "Rollout", "Run", "audit", "configure", "evaluate", "rescore", "rollout", "train"]

for _name in ("audit", "rescore"):
    globals().pop(_name)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        import difflib  # half of what importing this package would take

        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f", did you mean '{close[0]}'?" if close else ""
        raise AttributeError(f"module 'coachrl' has no attribute '{name}'{hint}")
    home = "coachrl.runs.folder" if name == "Run" else "coachrl.api"  # which takes longer to import
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    own = (name for name, found in globals().items() if getattr(found, "__name__", "").startswith("coachrl."))
    return sorted({*__all__, *own, "__doc__", "__version__"})  # and nothing that is imported here for our own use
