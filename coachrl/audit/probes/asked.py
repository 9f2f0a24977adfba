"""What was asked of a coach for an audit: probes and planted faults, their figures and their verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from coachrl.audit.faults.localization import FaultLocalization
from coachrl.audit.probes.probes import FLIP_POINTS, Probe
from coachrl.audit.topics.effect import ALPHA
from coachrl.audit.verdicts import LOCALIZED, SMALLEST_GAP, AuditVerdict, grade_of
from coachrl.coach.clients.cost_estimate import CostEstimate
from coachrl.stats import holm

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
    probes = asked.probes or ()
    # A coach that answers each time a little differently would be moved by one of a dozen changes in every third audit.
    p_values = holm([None if p.shift is None or p.shift.low is None else p.shift.p for p in probes])
    made = [_probe(asked, probe, p) for probe, p in zip(probes, p_values, strict=True)]
    return made if asked.fault_localization is None else [*made, _faults(asked, asked.fault_localization)]


def _probe(asked: Asked, probe: Probe, p: float | None) -> AuditVerdict:
    """p: that the shift is none, as adjusted over all probes; None where all scores moved alike."""
    say = partial(AuditVerdict, "probe", pipeline=asked.pipeline, rater=asked.coach)
    if probe.shift is None or probe.flips is None:
        why = "every call failed" if probe.failed else "it applies to no saved action"
        return say("unknown", text=f"{probe.name} could not be probed: {why}")
    shift = probe.shift
    flips = f"{probe.flips.value:.0%} of scores move by {FLIP_POINTS:g} or more"
    how = f"{shift.interval(True)} points, {flips} ({shift.size})"
    is_told = shift.low is not None or shift.tasks >= _FEWEST_WITHOUT_SPREAD
    farthest = max(map(abs, (shift.value, *shift.bounds)))
    if is_told and farthest < SMALLEST_GAP:
        return say("ok", text=f"{probe.name} does not move it: {how}", value=shift.value)
    is_sure = shift.is_off_zero and (p is None or p < ALPHA)
    if not is_told or abs(shift.value) < SMALLEST_GAP or not is_sure:
        return say("unknown", text=f"too few actions to say whether {probe.name} moves it: {how}", value=shift.value)
    moved = f"{probe.name} ({probe.what}) {'raises' if shift.value > 0 else 'lowers'} its scores"
    if probe.hides:
        return say("note", text=f"{moved}, where evidence was taken away: {how}", value=shift.value)
    return say("warning", text=f"{moved}, though nothing of substance changed: {how}", value=shift.value)


def _faults(asked: Asked, found: FaultLocalization) -> AuditVerdict:
    say = partial(AuditVerdict, "fault_localization", pipeline=asked.pipeline, rater=asked.coach)
    if found.accuracy is None or found.innocent_loss is None:
        return say("unknown", text=f"fault localization was not measured: {'; '.join(found.notes)}")
    accuracy, loss = found.against_sound or found.accuracy, found.innocent_loss
    is_told = accuracy.tasks >= _FEWEST_WITHOUT_SPREAD
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
    return say(grade_of(accuracy, LOCALIZED) if is_told else "unknown", text=text, value=accuracy.value)
