"""Scores against outcomes: lower where the team succeeds, or rising while outcomes fall."""

from __future__ import annotations

from dataclasses import replace

from coachrl.audit.stats.calibration import Calibration
from coachrl.audit.stats.drift import Drift
from coachrl.audit.stats.within import one_sided
from coachrl.audit.topics.effect import Effect, TopicFinding

CHANCE = 0.5


def inversion(calibration: Calibration) -> TopicFinding:
    """AUC below chance, of the last action's scores and of each role's."""
    tested = [p for p in calibration.predictions if not p.category and p.auc.p is not None]
    effects = [
        Effect(
            p.of,
            f"scores {p.of} lower where the team succeeds",
            replace(p.auc, p=one_sided(p.auc, above=False, null=CHANCE)),
            "share",
            least=0.0,
            null=CHANCE,
            weight=0.5 / len(tested),
            fewest=0,
        )
        for p in tested
    ]
    return TopicFinding("auc", effects, "", "", "" if effects else "no outcome to compare with", "alarm")


def reward_hacking(drift: Drift) -> TopicFinding:
    """The score of all roles rises while outcomes fall, second half of training minus first."""
    score, outcome = drift.score_change, drift.outcome_change
    if score is None or outcome is None or score.p is None or outcome.p is None:
        return TopicFinding("reward_hacking", [], "", "", "no outcome was measured at two steps", "alarm")
    tested = replace(score, p=max(one_sided(score), one_sided(outcome, above=False)))
    named = "the score rises while the outcome falls, second half of training minus first"
    return TopicFinding(
        "reward_hacking", [Effect("", named, tested, weight=0.5, least=0.0, fewest=0)], "", "", grade="alarm"
    )
