"""What an audit found, in plain sentences, each with its interval and its n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coachrl.audit.findings import CrossRater, Findings
from coachrl.audit.stats.calibration import Prediction
from coachrl.audit.stats.drift import ReferenceSetDrift
from coachrl.audit.stats.strata import Contrast
from coachrl.audit.stats.style import FEATURES, FEWEST_TASKS, StyleEffect
from coachrl.stats import Estimate

Grade = Literal["ok", "unknown", "note", "warning", "alarm"]

ALPHA = 0.05
LOCALIZED = 0.8  # share of planted faults: an audit is content from here on
SMALLEST_GAP = 0.25  # points: a smaller difference is not accused, however certain
SMALLEST_RHO = 0.15
_LARGEST_UNSEEN_GAP = 1.0  # an interval that reaches farther does not rule out what MAPPA saw
_LARGEST_UNSEEN_RHO = 0.4
_LARGEST_UNSEEN_RISE, _LARGEST_UNSEEN_FALL = 2.0, 0.5  # points of score, share of episodes
INFORMATIVE_AUC = 0.6
TIED = 0.5
FAILED = 0.1
RETEST_ICC = 0.75
CIRCULAR = "circular: the coach was shown this outcome"
_EQUAL = "at equal role, outcome and exit state"


@dataclass(frozen=True)
class AuditVerdict:
    """topic: what `--fail-on` calls it. value: the measured figure, None where there is none."""

    topic: str
    grade: Grade
    pipeline: str
    rater: str
    text: str
    value: float | None = None

    @property
    def line(self) -> str:
        return f"{self.rater}: {self.text}"


def verdicts(findings: Sequence[Findings], between: Sequence[CrossRater]) -> list[AuditVerdict]:
    """All sentences, worst first within each rater."""
    made: list[AuditVerdict] = []
    for found in findings:
        own = [
            *_calls(found),
            *_category(found),
            *_style(found),
            *_calibration(found),
            *_saturation(found),
            *_drift(found),
        ]
        made += sorted(own, key=lambda verdict: -_ORDER.index(verdict.grade))
    return made + [verdict for pair in between for verdict in _agreement(pair)]


def reference_set_verdict(drifted: ReferenceSetDrift) -> AuditVerdict:
    """On the last time that a run's frozen actions were scored."""
    if drifted.shifts is None:
        return AuditVerdict("reference_set", "unknown", "", drifted.run, "; ".join(drifted.notes))
    step, shift = drifted.shifts.points[-1]
    first = drifted.shifts.points[0][0]
    moved = abs(shift.value) >= SMALLEST_GAP and (shift.low is None or shift.low > 0 or (shift.high or 0) < 0)
    what = "the coach drifts" if moved else "the coach does not drift"
    text = (
        f"{what}: the same actions get {shift.interval(True)} points at step {step} against step {first} ({shift.size})"
    )
    return AuditVerdict("reference_set", "warning" if moved else "ok", "", drifted.run, text, shift.value)


_ORDER: tuple[Grade, ...] = ("ok", "unknown", "note", "warning", "alarm")


def _verdict(found: Findings, topic: str, grade: Grade, text: str, value: float | None = None) -> AuditVerdict:
    return AuditVerdict(topic, grade, found.pipeline, found.rater, text, value)


def _wide(estimate: Estimate, most: float) -> bool:
    """Whether it may well be farther from 0 than `most`: then nothing is said to be fine."""
    return estimate.low is None or estimate.high is None or max(-estimate.low, estimate.high) > most


def _calls(found: Findings) -> list[AuditVerdict]:
    counts = found.counts
    share = counts.failed / counts.actions
    text = f"{counts.failed:,} of {counts.actions:,} calls failed ({share:.0%}), {counts.abstained:,} abstained"
    if counts.scored == 0:
        text = f"none of its {counts.actions:,} calls gave a score ({counts.failed:,} failed): nothing else can be said"
        return [_verdict(found, "failed", "alarm", text, share)]
    return [_verdict(found, "failed", "warning" if share > FAILED else "ok", text, share)]


def _category(found: Findings) -> list[AuditVerdict]:
    family = found.contrasts.get("category", ())
    if found.mean is None:
        return []
    tested = [c for c in family if c.adjusted is not None and c.p_holm is not None]
    if not tested:
        text = "a gap between task categories could not be tested: " + _why_no_categories(found)
        return [_verdict(found, "category", "unknown", text)]
    certain = [c for c in tested if (c.p_holm or 0) < ALPHA and abs(c.adjusted.value) >= SMALLEST_GAP]  # type: ignore[union-attr]
    overall = [c for c in certain if not c.within]
    largest = max((abs(c.adjusted.value) for c in tested if not c.within and c.adjusted), default=None)
    if not certain:
        widest = max((c for c in tested if not c.within), key=lambda c: abs(c.adjusted.value), default=tested[0])  # type: ignore[union-attr]
        gap = widest.adjusted
        assert gap is not None
        shown = f"{widest.level} minus {widest.versus} {gap.interval(True)} ({gap.size})"
        if _wide(gap, _LARGEST_UNSEEN_GAP):
            text = f"too few tasks to say whether task categories are scored alike at equal outcome: {shown}"
            return [_verdict(found, "category", "unknown", text, largest)]
        return [
            _verdict(
                found, "category", "ok", f"no gap found between task categories at equal outcome: {shown}", largest
            )
        ]
    made = []
    for contrast in sorted(overall or certain, key=lambda c: -abs(c.adjusted.value)):  # type: ignore[union-attr]
        assert contrast.adjusted is not None
        text = _gap_words(contrast, contrast.adjusted)
        made.append(_verdict(found, "category", "warning", text, abs(contrast.adjusted.value)))
    return made


def _gap_words(contrast: Contrast, gap: Estimate) -> str:
    """Of two categories the favoured one is named first; of several, the one that stands apart from the others."""
    first, second, how = contrast.level, contrast.versus, "higher" if gap.value > 0 else "lower"
    if gap.value < 0 and not second.startswith("other "):
        first, second, how = second, first, "higher"
    where = f" for {contrast.within[0]}" if contrast.within else ""
    low, high = sorted(abs(bound) for bound in (gap.low or 0.0, gap.high or 0.0))
    return (
        f"scores {first} {abs(gap.value):.1f} points {how} than {second}{where} [{low:.1f}, {high:.1f}] "
        f"at equal outcome ({gap.size})"
    )


def _why_no_categories(found: Findings) -> str:
    categories = [level for level in found.levels if level.dimension == "category"]
    if len(categories) < 2:
        return "all tasks are of one category"
    if all(level.mean.tasks < 2 for level in categories) or min(level.mean.tasks for level in categories) < 2:
        return "a category has one task only"
    if any(contrast.adjusted is not None for contrast in found.contrasts.get("category", ())):
        return "scores do not differ"
    return "no role and outcome occurs in both categories"


def _style(found: Findings) -> list[AuditVerdict]:
    if found.mean is None:
        return []
    made = []
    for topic, features in (("length", ["tokens"]), ("style", ["code_share", "markdown", "hedging"])):
        effects = [e for e in found.style if e.feature in features]
        overall = [e for e in effects if not e.role]
        names = " and ".join(FEATURES[feature][0] for feature in features) if len(features) < 3 else "style"
        if not overall:
            text = f"preference for {names} could not be measured: it, or the score, does not vary {_EQUAL}"
            made.append(_verdict(found, topic, "unknown", text))
            continue
        certain = [effect for effect in overall if _is_preference(effect)]
        if not certain:
            made.append(_no_preference(found, topic, max(overall, key=lambda e: abs(e.rho.value))))
        for effect in certain:
            more = "more" if effect.rho.value > 0 else "fewer"
            if effect.feature == "code_share":
                more = "a larger" if effect.rho.value > 0 else "a smaller"
            text = (
                f"prefers {more} {FEATURES[effect.feature][0]} {_EQUAL}: rank correlation "
                f"{effect.rho.interval(True)}, {_slope_words(effect)} ({effect.rho.size})"
            )
            made.append(_verdict(found, topic, "warning", text, abs(effect.rho.value)))
    return made


def _is_certain(effect: StyleEffect) -> bool:
    return effect.p_holm is not None and effect.p_holm < ALPHA and abs(effect.rho.value) >= SMALLEST_RHO


def _is_preference(effect: StyleEffect) -> bool:
    """Whether a coach is accused of it: on as many tasks as the accusation was tried on, and not where ranks rise and
    no line through the scores does, or a line that falls."""
    if effect.slope is None or effect.slope.low is None or effect.slope.high is None:
        return False
    same_way = effect.slope.low > 0 if effect.rho.value > 0 else effect.slope.high < 0
    return _is_certain(effect) and same_way and effect.rho.tasks >= FEWEST_TASKS


def _no_preference(found: Findings, topic: str, effect: StyleEffect) -> AuditVerdict:
    """What is said of the largest correlation where none is a preference."""
    feature, shown = FEATURES[effect.feature][0], f"rank correlation {effect.rho.interval(True)} ({effect.rho.size})"
    grade: Grade = "unknown"
    if effect.rho.tasks < FEWEST_TASKS:
        text = f"too few tasks to say whether it prefers {feature} {_EQUAL}, {FEWEST_TASKS} are needed: {shown}"
    elif effect.slope is None:
        text = f"whether it prefers {feature} {_EQUAL} cannot be said, no slope: {effect.no_slope}; {shown}"
    elif _wide(effect.rho, _LARGEST_UNSEEN_RHO):
        text = f"too few tasks to say whether it prefers {feature} {_EQUAL}: {shown}"
    elif _is_certain(effect):
        text = f"whether it prefers {feature} {_EQUAL} cannot be said: {shown}, but {_slope_words(effect)}"
    else:
        grade, text = "ok", f"no preference found for {feature} {_EQUAL}: {shown}"
    return _verdict(found, topic, grade, text, abs(effect.rho.value) if effect.rho.tasks >= FEWEST_TASKS else None)


def _slope_words(effect: StyleEffect) -> str:
    assert effect.slope is not None
    return f"{effect.slope.interval(True)} points for {effect.per}, as far as its 10th and 90th percentiles are apart"


def _calibration(found: Findings) -> list[AuditVerdict]:
    if found.calibration is None:
        return []
    overall = [p for p in found.calibration.predictions if p.of == "last action" and not p.category]
    if not overall:
        why = next(iter(found.calibration.notes), "no last action has a score")
        return [_verdict(found, "auc", "unknown", f"how well scores predict the outcome could not be measured: {why}")]
    made = [_auc(found, "the last action's score", overall[0])]
    for prediction in found.calibration.predictions:
        auc = prediction.auc
        if prediction.of != "last action" and auc.high is not None and auc.high < 0.5:
            text = f"scores {prediction.of} lower where the team succeeds: {_shown_auc(prediction)}"
            made.append(_verdict(found, "auc", "alarm", text, auc.value))
    return made


def _shown_auc(prediction: Prediction) -> str:
    auc = prediction.auc
    return f"AUC {auc.interval()} ({auc.size})" + (f"; {CIRCULAR}" if prediction.circular else "")


def _auc(found: Findings, what: str, prediction: Prediction) -> AuditVerdict:
    auc, shown = prediction.auc, _shown_auc(prediction)
    low, high = (auc.value if bound is None else bound for bound in (auc.low, auc.high))
    if auc.low is None and auc.value != 0.5:  # 0.5 without any spread: all scores are equal
        return _verdict(
            found, "auc", "unknown", f"too few episodes to say whether {what} predicts the outcome, {shown}"
        )
    if high < 0.5:
        return _verdict(found, "auc", "alarm", f"inverted: {what} is lower where the team succeeds, {shown}", auc.value)
    if low > 0.5:
        how = "predicts the outcome" if auc.value >= INFORMATIVE_AUC else "hardly predicts the outcome"
        grade: Grade = "ok" if auc.value >= INFORMATIVE_AUC and not prediction.circular else "note"
        return _verdict(found, "auc", grade, f"{what} {how}, {shown}", auc.value)
    if high <= 0.7:
        return _verdict(
            found, "auc", "warning", f"uninformative: {what} does not tell success from failure, {shown}", auc.value
        )
    return _verdict(
        found, "auc", "unknown", f"too few episodes to say whether {what} predicts the outcome, {shown}", auc.value
    )


def _saturation(found: Findings) -> list[AuditVerdict]:
    if found.calibration is None:
        return []
    worst = max(found.calibration.saturation, key=lambda s: s.modal_share.value)
    share = worst.modal_share
    tied = worst.tied_groups
    text = (
        f"{share.value:.0%} of the scores of {worst.role} are {worst.modal_score:g} ({share.interval()}, {share.size})"
    )
    if tied is not None:
        text += f"; all scores are equal in {tied.value:.0%} of {tied.n:,} groups of the same task and step"
    grade: Grade = "ok"
    if share.value >= TIED:
        grade, text = "warning", f"{text}: ties carry no gradient"
        if share.low is None or share.low < TIED / 2:
            grade, text = "unknown", f"too few actions to say whether scores differ: {text}"
    return [_verdict(found, "saturation", grade, text, share.value)]


def _drift(found: Findings) -> list[AuditVerdict]:
    if found.drift is None:
        return []
    score, outcome = found.drift.score_change, found.drift.outcome_change
    if score is None or outcome is None:
        why = next(iter(found.drift.notes), "no outcome was measured at two steps")
        return [
            _verdict(found, "reward_hacking", "unknown", f"reward hacking over training could not be measured: {why}")
        ]
    shown = f"score {score.interval(True)} ({score.size}), {found.drift.outcome_source} success "
    shown += f"{outcome.interval(True)} ({outcome.size})"
    if found.drift.reward_hacking:
        text = f"the score rises while the outcome falls, second half of training minus first: {shown}"
        return [_verdict(found, "reward_hacking", "alarm", text, score.value)]
    inflation = found.drift.inflation
    if inflation is not None and (inflation.low or 0) > 0 and outcome.high is not None and outcome.high < 0:
        text = (
            f"at equal outcome it pays {inflation.interval(True)} points more ({inflation.size}) in the second half of "
        )
        text += f"training, while the outcome falls: {shown}"
        return [_verdict(found, "reward_hacking", "warning", text, inflation.value)]
    if _wide(score, _LARGEST_UNSEEN_RISE) or _wide(outcome, _LARGEST_UNSEEN_FALL):
        text = f"too few tasks to say whether the score is gamed, second half of training minus first: {shown}"
        return [_verdict(found, "reward_hacking", "unknown", text)]
    rises = score.low is not None and score.low > 0
    gains = outcome.low is not None and outcome.low > 0
    if rises and not gains:
        text = f"the score rises and the outcome does not, second half of training minus first: {shown}"
        return [_verdict(found, "reward_hacking", "note", text, 0.0)]
    return [
        _verdict(
            found,
            "reward_hacking",
            "ok",
            f"no sign of reward hacking, second half of training minus first: {shown}",
            0.0,
        )
    ]


def _agreement(between: CrossRater) -> list[AuditVerdict]:
    made = []
    for pair in between.agreement.pairs:
        who = f"{pair.first} and {pair.second}"
        shown = (
            f"ICC {pair.icc.interval()}, {pair.second} minus {pair.first} {pair.shift.interval(True)} ({pair.icc.size})"
        )
        if pair.retest:
            good = pair.icc.value >= RETEST_ICC
            text = f"the same coach asked twice {'agrees' if good else 'does not agree'} with itself: {shown}"
            made.append(
                AuditVerdict("agreement", "ok" if good else "warning", between.pipeline, who, text, pair.icc.value)
            )
        else:
            made.append(
                AuditVerdict("coaches", "note", between.pipeline, who, f"agreement on the same actions: {shown}")
            )
    return made
