"""A frozen set of actions that a coach scores again at each audit of its run: the agents are out of it, so that what
moves is the coach."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.probes import ask, draw_requests
from coachrl.audit.stats.drift import Curve
from coachrl.coach.base import CoachRequest, OutcomeTo
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.parsing import is_finite
from coachrl.runs.folder import Run
from coachrl.runs.reading import requests_of, tell_of_last_steps
from coachrl.runs.records import read_episodes, step_name
from coachrl.stats import SCORE_CHANGE, Estimate
from coachrl.storage.atomic import write_aside
from coachrl.storage.jsonl import readable_jsonl
from coachrl.types import CoachScore, Role, Task, Usage, is_still

log = logging.getLogger(__name__)

_FILE = Path("coach") / "reference_set.jsonl"  # of a run's folder: lines of a step and the fields of a score


class ReferenceSet:
    """Some actions of the first audited step, as they are scored again while the run trains.

    make_pool: a coach as the run's, without its cache.
    """

    def __init__(
        self,
        config: RunConfig,
        run: Run,
        team: tuple[Role, ...],
        tasks: Sequence[Task],
        make_pool: Callable[[], CoachPool],
    ) -> None:
        self._config, self._run, self._team = config, run, team
        self._tasks, self._make_pool = {task.id: task for task in tasks}, make_pool

    async def metrics(self, step: int) -> dict[str, float]:
        """`audit/reference_set/…` and its cost. Raises CoachUnavailable, BudgetExceeded."""
        problems: list[str] = []
        lines = _lines(self._run.folder, problems)
        kept = [line for line in lines if line["step"] < step]  # a resumed step is scored again
        requests, first = self._frozen([line["action_id"] for line in kept], problems)
        for problem in problems:
            log.warning("reference set: %s", problem)
        if not requests:
            return {}
        spent: dict[str, float] = {}
        if step == self._config.audit.every:
            scores: Mapping[str, CoachScore] = {
                r.action.id: first[r.action.id] for r in requests if r.action.id in first
            }
        else:
            pool = self._make_pool()
            tell_of_last_steps(pool, self._run, step)
            scores = await _ask_again(pool, requests, step)
            spent = _spent(scores.values())
        digests = {request.action.id: request.action.digest for request in requests}
        now = [replace(score, action_digest=digests[key]) for key, score in scores.items()]
        kept += [{"step": step, **asdict(score)} for score in now]
        path = self._run.folder / _FILE
        path.parent.mkdir(exist_ok=True)
        write_aside(path, "".join(json.dumps(line) + "\n" for line in kept))
        return reference_set_metrics(first, scores) | spent

    def _frozen(self, drawn: Sequence[str], problems: list[str]) -> tuple[list[CoachRequest], dict[str, CoachScore]]:
        """The reference set, and what was said of the first audited step's actions then. drawn: the ids of its actions;
        without any it is drawn from that step. problems: gets what of the step's episodes cannot be read."""
        outcome_to: OutcomeTo = self._config.coach.evidence.ground_truth
        requests: dict[str, CoachRequest] = {}
        scores: dict[str, CoachScore] = {}
        first_step = self._run.folder / "episodes" / f"{step_name(self._config.audit.every)}.jsonl"
        for episode, given in read_episodes(first_step, problems):
            requests |= {r.action.id: r for r in requests_of(episode, self._tasks, self._team, outcome_to)}
            scores |= given
        if drawn:
            return [requests[key] for key in dict.fromkeys(drawn) if key in requests], scores
        return draw_requests(list(requests.values()), self._config.audit.reference_set, self._config.seed), scores


def reference_set_metrics(first: Mapping[str, CoachScore], now: Mapping[str, CoachScore]) -> dict[str, float]:
    """`audit/reference_set/n`, `mean` (0 to 10), `shift` and `change`: mean and mean absolute difference from the first
    scores, over the actions that have both."""
    pairs = [
        (before.process_0_10, score.process_0_10)
        for action_id, score in now.items()
        if (before := first.get(action_id)) is not None
    ]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return {}
    before_N, now_N = np.array(known).T
    return {
        "audit/reference_set/n": float(len(known)),
        "audit/reference_set/mean": float(now_N.mean()),
        "audit/reference_set/shift": float((now_N - before_N).mean()),
        "audit/reference_set/change": float(np.abs(now_N - before_N).mean()),
    }


def _spent(scores: Collection[CoachScore]) -> dict[str, float]:
    """`cost/reference_set/calls`, and `usd` where all prices are known: `cost/usd` is of the step's actions alone."""
    usage = sum((score.usage for score in scores), Usage())
    calls = {"cost/reference_set/calls": float(usage.attempts)}
    return calls if usage.cost_usd is None else {**calls, "cost/reference_set/usd": usage.cost_usd}


async def _ask_again(pool: CoachPool, requests: Sequence[CoachRequest], step: int) -> dict[str, CoachScore]:
    marked = [replace(r, action=replace(r.action, id=f"{r.action.id}#reference-{step}")) for r in requests]
    try:
        scores = await ask(pool, marked)
    finally:
        await pool.close()
    return {
        request.action.id: replace(scores[again.action.id], action_id=request.action.id)
        for request, again in zip(requests, marked, strict=True)
    }


@dataclass(frozen=True)
class ReferenceSetDrift:
    """The change of the scores since the first time. notes: what could not be read."""

    run: str
    shifts: Curve | None
    notes: Sequence[str]


def reference_set_drift(run: str, folder: Path, actions: pd.DataFrame, resamples: int) -> ReferenceSetDrift | None:
    """None where the run has no reference set. actions: of the run, with the columns action, task, action_digest."""
    if not (folder / _FILE).is_file():
        return None
    problems: list[str] = []
    ids = actions["action"].astype(str)
    tasks = dict(zip(ids, actions["task"].astype(str), strict=True))
    digests = dict(zip(ids, actions["action_digest"], strict=True))
    held = [
        (line["step"], action, line["process_0_10"])
        for line in _lines(folder, problems)
        if (action := line["action_id"]) in tasks and is_still(line.get("action_digest", ""), digests[action])
    ]
    notes = [f"run {run}: {problem}" for problem in problems]
    frame = pd.DataFrame(held, columns=["step", "action", "score"]).dropna()
    wide = frame.pivot_table(index="action", columns="step", values="score")
    # A call that failed at one step takes its action out of that step alone: else a long run would be left with none.
    changes = wide.sub(wide.iloc[:, 0], axis=0) if len(wide) else wide
    points = [(int(step), _mean_change(changes[step].dropna(), tasks, resamples)) for step in wide.columns]
    measured = [(step, mean) for step, mean in points if mean is not None]
    if len(measured) < 2:
        why = "was scored at one step only" if len(points) < 2 else "has no action with a first score and a later one"
        return ReferenceSetDrift(run, None, [*notes, f"run {run}: its reference set {why}: no drift to measure"])
    return ReferenceSetDrift(run, Curve(run, measured), notes)


def _mean_change(changes: pd.Series, tasks: Mapping[str, str], resamples: int) -> Estimate | None:
    if changes.empty:
        return None
    sample = Sample.of_tasks([tasks[str(action)] for action in changes.index], resamples)
    return sample.mean(changes.to_numpy(np.float64), "actions", SCORE_CHANGE)


def _lines(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The lines of a run's reference set. Those that cannot be read are left out, and told in `problems`."""
    return list(readable_jsonl(folder / _FILE, _reference_line, problems))


def _reference_line(raw: Any) -> dict[str, Any]:
    score = raw["process_0_10"]
    if type(raw["step"]) is not int or not isinstance(raw["action_id"], str) or not (score is None or is_finite(score)):
        raise ValueError("it is no score of an action at a step")
    return dict(raw)
