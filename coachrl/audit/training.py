"""The cheap part of an audit while a run trains, as metrics; and a frozen set of actions that is scored again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np

from coachrl.audit.data.frame import read_audit_data
from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.probes import ask, draw_requests
from coachrl.audit.stats.calibration import calibrate
from coachrl.audit.stats.drift import REFERENCE_SET, reference_set_lines
from coachrl.audit.stats.strata import category_contrasts
from coachrl.audit.stats.style import style_effects
from coachrl.coach.base import CoachRequest, OutcomeTo
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.runs.folder import Run
from coachrl.runs.reading import requests_of, tell_of_last_steps
from coachrl.runs.records import read_episodes
from coachrl.storage.atomic import write_aside
from coachrl.types import CoachScore, Role, Task, Usage

log = logging.getLogger(__name__)

_RESAMPLES = 200


class TrainingAudit:
    """What a run says of its coach every `config.audit.every` steps.

    make_pool: a coach as the run's, without its cache, for the reference set.
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

    def is_due(self, step: int) -> bool:
        every = self._config.audit.every
        return every > 0 and step % every == 0

    async def metrics(self, step: int) -> dict[str, float]:
        """`audit/...` of the steps since the last audit. Raises CoachUnavailable, BudgetExceeded for the
        reference set."""
        found = score_audit(self._run, step - self._config.audit.every + 1, step)
        if self._config.audit.reference_set:
            found |= await self._reference_set(step)
        return found

    async def _reference_set(self, step: int) -> dict[str, float]:
        problems: list[str] = []
        lines = reference_set_lines(self._run.folder, problems)
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
        path = self._run.folder / REFERENCE_SET
        path.parent.mkdir(exist_ok=True)
        write_aside(path, "".join(json.dumps(line) + "\n" for line in kept))
        return reference_set_metrics(first, scores) | spent

    def _frozen(self, drawn: Sequence[str], problems: list[str]) -> tuple[list[CoachRequest], dict[str, CoachScore]]:
        """The reference set, and what was said of the first audited step's actions then. drawn: the ids of its actions;
        without any it is drawn from that step. problems: gets what of the step's episodes cannot be read."""
        outcome_to: OutcomeTo = self._config.coach.evidence.ground_truth
        requests: dict[str, CoachRequest] = {}
        scores: dict[str, CoachScore] = {}
        for episode, given in read_episodes(
            self._run.folder / "episodes" / f"step-{self._config.audit.every:06d}.jsonl", problems
        ):
            requests |= {r.action.id: r for r in requests_of(episode, self._tasks, self._team, outcome_to)}
            scores |= given
        if drawn:
            return [requests[key] for key in dict.fromkeys(drawn) if key in requests], scores
        return draw_requests(list(requests.values()), self._config.audit.reference_set, self._config.seed), scores


def score_audit(run: Run, first_step: int, last_step: int) -> dict[str, float]:
    """`audit/n`, `audit/tasks`: scored actions of these steps and their tasks. `audit/category_gap`, `_low`, `_high`:
    the largest gap between task categories at equal outcome, in points. `audit/length_rho`: partial rank correlation of
    score and response tokens. `audit/auc`: of the last action's score; it is `audit/auc_of_shown_outcome` where the
    coach was shown the outcome with that action, and so says how well it repeats what it was told. `audit/modal_share`:
    of the role with the most ties. What cannot be measured is left out."""
    actions = read_audit_data([run.folder], range(first_step, last_step + 1)).actions
    own = actions[actions["rater"] == actions["rater"].iloc[0]] if len(actions) else actions
    if own["score"].notna().sum() == 0:
        return {}
    sample = Sample.of(own, _RESAMPLES, run.config().seed)
    found = {"audit/n": float(len(sample.frame)), "audit/tasks": float(sample.resampler.tasks)}
    gaps = [gap.adjusted for gap in category_contrasts(sample) if gap.adjusted is not None and not gap.within]
    if gaps:
        gap = max(gaps, key=lambda estimate: abs(estimate.value))
        found["audit/category_gap"] = gap.value
        if gap.low is not None:
            found["audit/category_gap_low"], found["audit/category_gap_high"] = gap.bounds
    length = [effect for effect in style_effects(sample) if effect.feature == "tokens" and not effect.role]
    if length:
        found["audit/length_rho"] = length[0].rho.value
    calibration = calibrate(sample, run.config().coach.evidence.ground_truth)
    if (last := calibration.last_action) is not None:
        found["audit/auc_of_shown_outcome" if last.circular else "audit/auc"] = last.auc.value
    found["audit/modal_share"] = max(s.modal_share.value for s in calibration.saturation)
    return found


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
