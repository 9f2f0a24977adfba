"""What an audit found, in plain sentences, each with its interval and its n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coachrl.audit.data.imported import is_imported
from coachrl.audit.findings import CrossRater, Findings, judged
from coachrl.audit.stats.calibration import Prediction
from coachrl.audit.stats.drift import ReferenceSetDrift
from coachrl.audit.topics.effect import FEWEST_TASKS, LEAST, Effect, Grade, TopicFinding
from coachrl.stats import Estimate

LOCALIZED = 0.8  # share of planted faults: an audit is content from here on
SMALLEST_GAP = LEAST["points"]  # a smaller difference is not accused, however certain
SMALLEST_RHO = LEAST["correlation"]
_LARGEST_UNSEEN_RISE, _LARGEST_UNSEEN_FALL = 2.0, 0.5  # points of score, share of episodes
INFORMATIVE_AUC = 0.6
TIED = 0.5
FAILED = 0.1
RETEST_ICC = 0.75
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
        own = [
            *_calls(found),
            *(
                said
                for topic in found.topics
                if topic.topic not in _SAID_ELSEWHERE
                for said in topic_verdicts(topic, found.pipeline, found.rater)
            ),
            *_calibration(found),
            *_saturation(found),
            *_drift(found),
        ]
        made += sorted(own, key=lambda verdict: -_ORDER.index(verdict.grade))
    for pair in between:
        made += _agreement(pair)
        made += [said for topic in pair.topics for said in topic_verdicts(topic, pair.pipeline, "all coaches")]
    return made


def topic_verdicts(topic: TopicFinding, pipeline: str, rater: str) -> list[AuditVerdict]:
    """Every effect that is certain; else what was not found, with the smallest effect that would have been seen."""
    if not topic.effects:
        if not topic.unmeasured:  # there is nothing that could differ
            return [AuditVerdict(topic.topic, "ok", pipeline, rater, topic.cleared, 0.0)]
        text = f"{topic.topic.replace('_', ' ')} could not be tested: {topic.unmeasured}"
        return [AuditVerdict(topic.topic, "unknown", pipeline, rater, text)]
    if topic.certain:
        return [
            AuditVerdict(topic.topic, topic.grade, pipeline, rater, effect.named, abs(effect.estimate.value))
            for effect in topic.certain
        ]
    nearest = topic.strongest
    largest = max(abs(effect.estimate.value) for effect in topic.effects)
    if nearest.unclear:
        return [AuditVerdict(topic.topic, "note", pipeline, rater, nearest.unclear, largest)]
    if nearest.rules_out:
        text = f"{topic.cleared}: {nearest.shown}; {nearest.visible_words}"
        return [AuditVerdict(topic.topic, "ok", pipeline, rater, text, largest)]
    few = nearest.estimate.tasks < nearest.fewest
    needed = f", {nearest.fewest} are needed" if few else ""
    text = f"{topic.unsure}{needed}: {nearest.shown}; {nearest.visible_words}"
    return [AuditVerdict(topic.topic, "unknown", pipeline, rater, text, None if few else largest)]


def reference_set_verdict(drifted: ReferenceSetDrift) -> AuditVerdict:
    """On the last time that a run's frozen actions were scored."""
    if drifted.shifts is None:
        return AuditVerdict("reference_set", "unknown", "", drifted.run, "; ".join(drifted.notes))
    step, shift = drifted.shifts.points[-1]
    first = drifted.shifts.points[0][0]
    shown = f"the same actions get {shift.interval(True)} points at step {step} against step {first} ({shift.size})"
    if shift.tasks < 2:
        text = f"one task is too few to say whether the coach drifts: {shown}"
        return AuditVerdict("reference_set", "unknown", "", drifted.run, text)
    moved = abs(shift.value) >= SMALLEST_GAP and (shift.low is None or shift.low > 0 or (shift.high or 0) < 0)
    what = "the coach drifts" if moved else "the coach does not drift"
    return AuditVerdict("reference_set", "warning" if moved else "ok", "", drifted.run, f"{what}: {shown}", shift.value)


def grade_of(estimate: Estimate, least: float) -> Grade:
    """Of a figure that ought to be `least` or more: a warning only where it is surely less."""
    if estimate.value >= least:
        return "ok"
    return "warning" if estimate.high is not None and estimate.high < least else "unknown"


_ORDER: tuple[Grade, ...] = ("ok", "unknown", "note", "warning", "alarm")


def _verdict(found: Findings, topic: str, grade: Grade, text: str, value: float | None = None) -> AuditVerdict:
    return AuditVerdict(topic, grade, found.pipeline, found.rater, text, value)


def _wide(estimate: Estimate, most: float) -> bool:
    """Whether it may well be farther from 0 than `most`: then nothing is said to be fine."""
    return estimate.low is None or estimate.high is None or max(-estimate.low, estimate.high) > most


def _calls(found: Findings) -> list[AuditVerdict]:
    counts = found.counts
    share = counts.failed / counts.actions
    abstained = f", {counts.abstained:,} abstained" if counts.abstained else ""
    text = f"{counts.failed:,} of {counts.actions:,} calls failed ({share:.0%}){abstained}"
    if counts.failed == 0:
        text = f"every one of its {counts.actions:,} calls was answered{abstained}"
    if counts.scored == 0:
        text = f"none of its {counts.actions:,} calls gave a score ({counts.failed:,} failed): nothing else can be said"
        return [_verdict(found, "failed", "alarm", text, share)]
    return [_verdict(found, "failed", "warning" if share > FAILED else "ok", text, share)]


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
        if prediction.of != "last action" and _is_inverted(found, prediction):
            text = f"scores {prediction.of} lower where the team succeeds: {_shown_auc(prediction, found.pipeline)}"
            made.append(_verdict(found, "auc", "alarm", text, auc.value))
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


def _auc(found: Findings, what: str, prediction: Prediction) -> AuditVerdict:
    auc, shown = prediction.auc, _shown_auc(prediction, found.pipeline)
    low, high = (auc.value if bound is None else bound for bound in (auc.low, auc.high))
    # 0.5 without any spread: all scores are equal.
    if auc.low is None and (auc.value != 0.5 or auc.tasks < FEWEST_TASKS):
        return _verdict(
            found, "auc", "unknown", f"too few episodes to say whether {what} predicts the outcome, {shown}"
        )
    if _is_inverted(found, prediction):
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
    if _topic(found, "reward_hacking"):
        text = f"the score rises while the outcome falls, second half of training minus first: {shown}"
        return [_verdict(found, "reward_hacking", "alarm", text, score.value)]
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
            grade = grade_of(pair.icc, RETEST_ICC)
            said = {"ok": "agrees", "warning": "does not agree"}.get(grade, "may not agree (too few actions to say)")
            text = f"the same coach asked twice {said} with itself: {shown}"
            made.append(AuditVerdict("agreement", grade, between.pipeline, who, text, pair.icc.value))
        else:
            text = f"agreement on the same actions: {shown}"
            if pair.differing_evidence:
                text = f"one coach that was shown different things ({', '.join(pair.differing_evidence)}): {shown}"
            made.append(AuditVerdict("coaches", "note", between.pipeline, who, text))
    return made
