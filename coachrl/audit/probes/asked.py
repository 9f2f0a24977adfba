"""What was asked of a coach for an audit: probes and planted faults, their figures and their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coachrl.audit.faults.localization import FaultLocalization
from coachrl.audit.probes.probes import FLIP_POINTS, Probe
from coachrl.audit.verdicts import LOCALIZED, SMALLEST_GAP, AuditVerdict, Grade, grade_of
from coachrl.coach.clients.cost_estimate import CostEstimate

_FEWEST_WITHOUT_SPREAD = 6  # tasks that all moved alike, or not at all: signs of fewer agree by chance


@dataclass(frozen=True)
class Asked:
    """coach: who was asked. cost: of all calls, as it was estimated before. probes, fault_localization: None where they
    were not asked for."""

    coach: str
    pipeline: str
    cost: CostEstimate
    probes: Sequence[Probe] | None
    fault_localization: FaultLocalization | None


def asked_verdicts(asked: Asked) -> list[AuditVerdict]:
    made = [_probe(asked, probe) for probe in asked.probes or ()]
    return made + (
        [_fault_localization(asked, asked.fault_localization)] if asked.fault_localization is not None else []
    )


def _probe(asked: Asked, probe: Probe) -> AuditVerdict:
    if probe.shift is None or probe.flips is None:
        why = "every call failed" if probe.failed else "it applies to no saved action"
        return AuditVerdict("probe", "unknown", asked.pipeline, asked.coach, f"{probe.name} could not be probed: {why}")
    shift, n = probe.shift, probe.shift.size
    is_told = shift.low is not None or shift.tasks >= _FEWEST_WITHOUT_SPREAD
    sure = (
        is_told and abs(shift.value) >= SMALLEST_GAP and (shift.low is None or shift.low > 0 or (shift.high or 0) < 0)
    )
    how = f"{shift.interval(True)} points, {probe.flips.value:.0%} of scores move by {FLIP_POINTS:g} or more ({n})"
    bounds = (shift.value, shift.low or 0.0, shift.high or 0.0)  # without spread there are none: all moved alike
    if is_told and not sure and max(map(abs, bounds)) < SMALLEST_GAP:
        return AuditVerdict(
            "probe", "ok", asked.pipeline, asked.coach, f"{probe.name} does not move it: {how}", shift.value
        )
    if not sure:
        text = f"too few actions to say whether {probe.name} moves it: {how}"
        return AuditVerdict("probe", "unknown", asked.pipeline, asked.coach, text, shift.value)
    moved = "raises" if shift.value > 0 else "lowers"
    grade: Grade = "note" if probe.hides else "warning"
    aside = "evidence was taken away" if probe.hides else "nothing of substance changed"
    text = f"{probe.name} ({probe.what}) {moved} its scores, though {aside}: {how}"
    return AuditVerdict(
        "probe", grade, asked.pipeline, asked.coach, text.replace("though evidence", "where evidence"), shift.value
    )


def _fault_localization(asked: Asked, found: FaultLocalization) -> AuditVerdict:
    if found.accuracy is None or found.innocent_loss is None:
        return AuditVerdict(
            "fault_localization",
            "unknown",
            asked.pipeline,
            asked.coach,
            f"fault localization was not measured: {'; '.join(found.notes)}",
        )
    accuracy, loss = found.against_sound or found.accuracy, found.innocent_loss
    is_told = accuracy.tasks >= _FEWEST_WITHOUT_SPREAD
    grade = grade_of(accuracy, LOCALIZED) if is_told else "unknown"
    text = "" if is_told else "too few tasks to say whom it blames: "
    text += (
        f"blames a culprit for {accuracy.value:.0%} of planted faults, against the sound play of the same task "
        f"({accuracy.interval()}, {accuracy.size}), and gives one the lowest score in "
        f"{found.accuracy.value:.0%}; an innocent action loses {loss.interval()} points"
    )
    if found.culprit_loss is not None:
        text += f", a culprit {found.culprit_loss.interval()}"
    if found.blind:
        best = max(found.blind, key=lambda name: found.blind[name].value)
        text += f"; blame without reading ({best}) finds {found.blind[best].value:.0%}"
    missed = [name for name, share in found.by_fault.items() if share.value < 0.5]
    if missed:
        text += f"; it misses: {'; '.join(missed)}"
    return AuditVerdict("fault_localization", grade, asked.pipeline, asked.coach, text, accuracy.value)
