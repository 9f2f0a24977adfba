"""Tables of a few scored actions, each of which says what matters to a test and is plain in all else."""

from __future__ import annotations

import pandas as pd

from coachrl.audit.data.frame import make_frame
from coachrl.audit.data.sample import Sample

RESAMPLES = 20
PLAIN = {
    "run": "r",
    "pipeline": "p",
    "step": 1,
    "episode": "e",
    "task": "t",
    "category": "k",
    "action": "e/0",
    "role": "solver",
    "turn": 0,
    "last": True,
    "rater": "own",
    "coach": "own",
    "prompt": "",
    "status": "scored",
    "score": 5.0,
    "outcome": 1.0,
    "tokens": 100,
    "code_share": 0.0,
    "markdown": 0.0,
    "hedging": 0.0,
    "has_code": False,
    "state": "no code",
}


def table(*rows: dict) -> pd.DataFrame:
    """A row for each, with what it says and the plainest of all else; actions are numbered."""
    return make_frame(tuple((PLAIN | {"action": f"a{n}"} | row).values()) for n, row in enumerate(rows))


def sample(*rows: dict) -> Sample:
    return Sample.of(table(*rows), RESAMPLES)
