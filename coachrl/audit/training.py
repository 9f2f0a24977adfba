"""The cheap part of an audit while a run trains, as metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coachrl.audit.data.frame import read_audit_data
from coachrl.audit.data.sample import Sample
from coachrl.audit.reference_set import ReferenceSet
from coachrl.audit.stats.calibration import calibrate
from coachrl.audit.stats.strata import category_contrasts
from coachrl.audit.stats.style import style_effects
from coachrl.coach.pool import CoachPool
from coachrl.config import RunConfig
from coachrl.config.training import is_due
from coachrl.runs.folder import Run
from coachrl.types import Role, Task

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
        self._config, self._run = config, run
        self._reference_set = ReferenceSet(config, run, team, tasks, make_pool)

    def is_due(self, step: int) -> bool:
        return is_due(step, self._config.audit.every)

    async def metrics(self, step: int) -> dict[str, float]:
        """`audit/...` of the steps since the last audit. Raises CoachUnavailable, BudgetExceeded for the
        reference set."""
        found = score_audit(self._run, step - self._config.audit.every + 1, step)
        if self._config.audit.reference_set:
            found |= await self._reference_set.metrics(step)
        return found


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
