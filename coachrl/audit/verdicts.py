"""What an audit found, in plain sentences, each with its interval and its n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coachrl.audit.data.imported import is_imported
from coachrl.audit.findings import CrossRater, Findings, judged
from coachrl.audit.reference_set import ReferenceSetDrift
from coachrl.audit.stats.calibration import LAST_ACTION, Calibration, Prediction
from coachrl.audit.stats.drift import Drift
from coachrl.audit.topics.effect import FEWEST_TASKS, LEAST, Effect, Grade, TopicFinding, alone
from coachrl.stats import Estimate

LOCALIZED = 0.8  # share of planted faults: an audit is content from here on
SMALLEST_GAP = LEAST["points"]  # a smaller difference is not accused, however certain
SMALLEST_RHO = LEAST["correlation"]
_LARGEST_UNSEEN_RISE, _LARGEST_UNSEEN_FALL = 2.0, 0.5  # points of score, share of episodes
INFORMATIVE_AUC = 0.6
UNINFORMATIVE_AUC = 0.7  # where the whole interval lies below it and holds 0.5
TIED = 0.5
FAILED = 0.1
RETEST_ICC = 0.75
ALL_COACHES = "all coaches"  # the rater of what is said of them together
CIRCULAR = "circular: the coach was shown this outcome"
_PERHAPS_CIRCULAR = "circular if the judge was shown this outcome, which its log does not say"
_SAID_ELSEWHERE = ("auc", "reward_hacking")  # topics whose sentences hold more than one figure


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
    findings, between = judged(findings, between)
    made: list[AuditVerdict] = []
    for found in findings:
        own = [_calls(found)]
        for topic in found.topics:
            if topic.topic not in _SAID_ELSEWHERE:
                own += topic_verdicts(topic, found.pipeline, found.rater)
        if found.calibration is not None:
            own += [*_calibration(found, found.calibration), _saturation(found, found.calibration)]
        if found.drift is not None:
            own.append(_drift(found, found.drift))
        made += sorted(own, key=lambda verdict: -_ORDER.index(verdict.grade))
    for pair in between:
        made += _agreement(pair)
        made += [said for topic in pair.topics for said in topic_verdicts(topic, pair.pipeline, ALL_COACHES)]
    return made


def topic_verdicts(topic: TopicFinding, pipeline: str, rater: str) -> list[AuditVerdict]:
    """Every effect that is certain; else what was not found, with the smallest effect that would have been seen."""
    say = partial(AuditVerdict, topic.topic, pipeline=pipeline, rater=rater)
    if not topic.effects and not topic.unmeasured:  # there is nothing that could differ
        return [say("ok", text=topic.cleared, value=0.0)]
    if not topic.effects:
        return [say("unknown", text=f"{topic.topic.replace('_', ' ')} could not be tested: {topic.unmeasured}")]
    if topic.certain:
        return [say(topic.grade, text=effect.named, value=abs(effect.estimate.value)) for effect in topic.certain]
    nearest = topic.strongest
    largest = max(abs(effect.estimate.value) for effect in topic.effects)
    if nearest.unclear:
        return [say("note", text=nearest.unclear, value=largest)]
    seen = f"{nearest.shown}; {nearest.visible_words}"
    if nearest.rules_out:
        return [say("ok", text=f"{topic.cleared}: {seen}", value=largest)]
    if not nearest.has_enough_tasks:
        return [say("unknown", text=f"{topic.unsure}, {nearest.fewest} are needed: {seen}")]
    return [say("unknown", text=f"{topic.unsure}: {seen}", value=largest)]


def reference_set_verdict(drifted: ReferenceSetDrift) -> AuditVerdict:
    """On the last time that a run's frozen actions were scored."""
    say = partial(AuditVerdict, "reference_set", pipeline="", rater=drifted.run)
    if drifted.shifts is None:
        return say("unknown", text="; ".join(drifted.notes))
    step, shift = drifted.shifts.points[-1]
    first, _ = drifted.shifts.points[0]
    shown = f"the same actions get {shift.interval(True)} points at step {step} against step {first} ({shift.size})"
    if shift.tasks < 2:
        return say("unknown", text=f"one task is too few to say whether the coach drifts: {shown}")
    if abs(shift.value) >= SMALLEST_GAP and shift.is_off_zero:
        return say("warning", text=f"the coach drifts: {shown}", value=shift.value)
    is_constant = shift.low is None and abs(shift.value) < SMALLEST_GAP and shift.tasks >= FEWEST_TASKS
    moved = alone(Effect("", "", shift, fewest=2))
    if is_constant or moved.rules_out:
        seen = "" if moved.visible is None else f"; {moved.visible_words}"
        return say("ok", text=f"the coach does not drift: {shown}{seen}", value=shift.value)
    text = f"too few tasks to say whether the coach drifts: {shown}; {moved.visible_words}"
    return say("unknown", text=text, value=shift.value)


def grade_of(estimate: Estimate, least: float) -> Grade:
    """Of a figure that ought to be `least` or more: a warning only where it is surely less."""
    if estimate.value >= least:
        return "ok"
    return "warning" if estimate.high is not None and estimate.high < least else "unknown"


_ORDER: tuple[Grade, ...] = ("ok", "unknown", "note", "warning", "alarm")


def _speaker(found: Findings, topic: str) -> Callable[..., AuditVerdict]:
    return partial(AuditVerdict, topic, pipeline=found.pipeline, rater=found.rater)


def _wide(estimate: Estimate, most: float) -> bool:
    """Whether it may well be farther from 0 than `most`: then nothing is said to be fine."""
    return estimate.low is None or estimate.high is None or max(-estimate.low, estimate.high) > most


def _calls(found: Findings) -> AuditVerdict:
    say, counts = _speaker(found, "failed"), found.counts
    share = counts.failed / counts.actions
    if counts.scored == 0:
        failed = f"({counts.failed:,} failed)"
        text = f"none of its {counts.actions:,} calls gave a score {failed}: nothing else can be said"
        return say("alarm", text=text, value=share)
    text = f"{counts.failed:,} of {counts.actions:,} calls failed ({share:.0%})"
    if counts.failed == 0:
        text = f"every one of its {counts.actions:,} calls was answered"
    if counts.abstained:
        text += f", {counts.abstained:,} abstained"
    return say("warning" if share > FAILED else "ok", text=text, value=share)


def _calibration(found: Findings, calibration: Calibration) -> list[AuditVerdict]:
    say = _speaker(found, "auc")
    overall = calibration.last_action
    if overall is None:
        why = next(iter(calibration.notes), "no last action has a score")
        return [say("unknown", text=f"how well scores predict the outcome could not be measured: {why}")]
    made = [_auc(found, overall)]
    for prediction in calibration.predictions:
        if prediction.of != LAST_ACTION and _is_inverted(found, prediction):
            text = f"scores {prediction.of} lower where the team succeeds: {_shown_auc(prediction, found.pipeline)}"
            made.append(say("alarm", text=text, value=prediction.auc.value))
    return made


def _topic(found: Findings, name: str) -> list[Effect]:
    """The certain effects of a topic."""
    return [effect for topic in found.topics if topic.topic == name for effect in topic.certain]


def _is_inverted(found: Findings, prediction: Prediction) -> bool:
    return not prediction.category and prediction.of in {effect.what for effect in _topic(found, "auc")}


def circular_words(pipeline: str) -> str:
    """What is said of a figure that may only show how well a coach copies. Of scores of other trainers nobody knows."""
    return _PERHAPS_CIRCULAR if is_imported(pipeline) else CIRCULAR


def _shown_auc(prediction: Prediction, pipeline: str) -> str:
    auc = prediction.auc
    return f"AUC {auc.interval()} ({auc.size})" + (f"; {circular_words(pipeline)}" if prediction.circular else "")


def _auc(found: Findings, prediction: Prediction) -> AuditVerdict:
    say, auc, shown = _speaker(found, "auc"), prediction.auc, _shown_auc(prediction, found.pipeline)
    what = "the last action's score"
    low, high = auc.bounds
    too_few = f"too few episodes to say whether {what} predicts the outcome, {shown}"
    # 0.5 without any spread: all scores are equal.
    if auc.low is None and (auc.value != 0.5 or auc.tasks < FEWEST_TASKS):
        return say("unknown", text=too_few)
    if _is_inverted(found, prediction):
        return say("alarm", text=f"inverted: {what} is lower where the team succeeds, {shown}", value=auc.value)
    if low > 0.5 and auc.value < INFORMATIVE_AUC:
        return say("note", text=f"{what} hardly predicts the outcome, {shown}", value=auc.value)
    if low > 0.5:
        grade = "note" if prediction.circular else "ok"
        return say(grade, text=f"{what} predicts the outcome, {shown}", value=auc.value)
    if high <= UNINFORMATIVE_AUC:
        text = f"uninformative: {what} does not tell success from failure, {shown}"
        return say("warning", text=text, value=auc.value)
    return say("unknown", text=too_few, value=auc.value)


def _saturation(found: Findings, calibration: Calibration) -> AuditVerdict:
    say = _speaker(found, "saturation")
    worst = max(calibration.saturation, key=lambda s: s.modal_share.value)
    share, tied = worst.modal_share, worst.tied_groups
    text = (
        f"{share.value:.0%} of the scores of {worst.role} are {worst.modal_score:g} ({share.interval()}, {share.size})"
    )
    if tied is not None:
        text += f"; all scores are equal in {tied.value:.0%} of {tied.n:,} groups of the same task and step"
    if share.value < TIED:
        return say("ok", text=text, value=share.value)
    text += ": ties carry no gradient"
    if share.low is None or share.low < TIED / 2:
        return say("unknown", text=f"too few actions to say whether scores differ: {text}", value=share.value)
    return say("warning", text=text, value=share.value)


def _drift(found: Findings, drift: Drift) -> AuditVerdict:
    say = _speaker(found, "reward_hacking")
    score, outcome = drift.score_change, drift.outcome_change
    if score is None or outcome is None:
        why = next(iter(drift.notes), "no outcome was measured at two steps")
        return say("unknown", text=f"reward hacking over training could not be measured: {why}")
    shown = (
        f", second half of training minus first: score {score.interval(True)} ({score.size}), "
        f"{drift.outcome_source} success {outcome.interval(True)} ({outcome.size})"
    )
    if _topic(found, "reward_hacking"):
        return say("alarm", text=f"the score rises while the outcome falls{shown}", value=score.value)
    if _wide(score, _LARGEST_UNSEEN_RISE) or _wide(outcome, _LARGEST_UNSEEN_FALL):
        return say("unknown", text=f"too few tasks to say whether the score is gamed{shown}")
    # Neither is wide, so both have an interval.
    if score.bounds[0] > 0 and outcome.bounds[0] <= 0:
        return say("note", text=f"the score rises and the outcome does not{shown}", value=0.0)
    return say("ok", text=f"no sign of reward hacking{shown}", value=0.0)


def _agreement(between: CrossRater) -> list[AuditVerdict]:
    made = []
    for pair in between.agreement.pairs:
        who = f"{pair.first} and {pair.second}"
        icc = "not defined where scores do not differ" if pair.icc is None else pair.icc.interval()
        shown = f"ICC {icc}, {pair.second} minus {pair.first} {pair.shift.interval(True)} ({pair.shift.size})"
        if pair.retest:
            grade: Grade = "unknown" if pair.icc is None else grade_of(pair.icc, RETEST_ICC)
            why = "no spread to agree on" if pair.icc is None else "too few actions to say"
            said = {"ok": "agrees", "warning": "does not agree"}.get(grade, f"may not agree ({why})")
            text = f"the same coach asked twice {said} with itself: {shown}"
            value = None if pair.icc is None else pair.icc.value
            made.append(AuditVerdict("agreement", grade, between.pipeline, who, text, value))
        else:
            text = f"agreement on the same actions: {shown}"
            if pair.differing_evidence:
                text = f"one coach that was shown different things ({', '.join(pair.differing_evidence)}): {shown}"
            made.append(AuditVerdict("coaches", "note", between.pipeline, who, text))
    return made
