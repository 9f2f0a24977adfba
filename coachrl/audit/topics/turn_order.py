"""Is an action paid for its place? Later turns of one agent in one episode, and roles whose place changes between
episodes.

An agent that may stop early stops after a good turn and goes on after a bad one: its last turn is picked for being
good, and would be found to be paid by a coach that sees nothing but quality (regression to the mean). It is left out
where the agent's turns are not as many in every episode.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Floats, Ints, Sample
from coachrl.audit.stats.within import slope
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.stats import Estimate

_FROM_SCORES = "scores alone cannot say whether it is deserved"


def turn_order(sample: Sample) -> TopicFinding:
    """Points for one turn, and for one place, more."""
    going_on = sample.where(~sample.frame["picked"])
    turn = None
    if len(going_on.frame):
        turns_N = going_on.values("turn")
        turn = slope(going_on, turns_N, going_on.scores, ("run", "episode", "role"), (("role", "state"),))
    circumstances = (("role", "result", "state"), ("turn",))
    place = slope(sample, sample.values("place"), sample.scores, ("task", "role"), circumstances)
    effects = []
    if turn is not None:
        equal = f"for each later turn of an agent in one episode, at equal exit state, {_FROM_SCORES}"
        equal += " (--probe asks again under another turn's number)"
        effects.append(_effect("points for each later turn", turn, equal))
    if place is not None:
        equal = (
            f"for each place later in the episode, at equal task, role, outcome, exit state and turn; {_FROM_SCORES}"
        )
        effects.append(_effect("points for each later place", place, equal))
    why = "every role has one turn, and always the same place"
    if sample.frame["picked"].any():
        why = "no agent that may stop early has two turns before its last, which may be its last for being good"
    return TopicFinding(
        "turn_order",
        effects,
        cleared="no pay for the place of an action found",
        unsure="too few tasks to say whether an action's place is paid",
        unmeasured="" if effects else why,
    )


def _effect(what: str, found: Estimate, equal: str) -> Effect:
    how = "more" if found.value > 0 else "less"
    named = f"pays {abs(found.value):.2f} points {how} ({found.interval(True)}, {found.size}) {equal}"
    return Effect(what, named, found, weight=0.5, fewest=8)


def with_places(rows: pd.DataFrame) -> pd.DataFrame:
    """All actions of one rater, those without a score too. place: how many parts of other agents were before each;
    picked: whether it is the last turn of an agent that may stop early."""
    last = rows.groupby(["run", "episode", "role"], observed=True)["turn"].transform("max")
    varies = last.groupby([rows["run"], rows["role"]], observed=True).transform("nunique") > 1
    return rows.assign(place=_places(rows), picked=varies & (rows["turn"] == last))


def _places(rows: pd.DataFrame) -> Floats:
    order_N, episode_N, part_N = by_parts(rows)
    _, first_E = np.unique(episode_N, return_index=True)
    places_N = np.empty(len(rows))
    places_N[order_N] = part_N - part_N[first_E][episode_N]
    return places_N


def by_parts(rows: pd.DataFrame) -> tuple[Ints, Ints, Ints]:
    """The rows episode by episode: where each stands in the table, the number of its episode, and of its part there. A
    part is what one agent does until another acts, or the episode ends; both numbers count over the whole table."""
    episode_N = np.asarray(rows.groupby(["run", "episode"], observed=True, sort=False).ngroup(), np.int64)
    order_N = np.argsort(episode_N, kind="stable").astype(np.int64)
    episode_N, role_N = episode_N[order_N], rows["role"].cat.codes.to_numpy()[order_N]
    begins_N = (np.diff(episode_N, prepend=-1) != 0) | (np.diff(role_N, prepend=-1) != 0)
    return order_N, episode_N, np.cumsum(begins_N).astype(np.int64) - 1
