"""An audit of some runs: everything that was found about their coaches, with the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coachrl.audit.data.frame import AuditData, read_audit_data
from coachrl.audit.findings import CrossRater, Findings, examine
from coachrl.audit.probes.asked import Asked, asked_verdicts
from coachrl.audit.probes.perturbations import EXCHANGED
from coachrl.audit.probes.replay import ReplayFidelity, replay_verdict
from coachrl.audit.reference_set import ReferenceSetDrift, reference_set_drift
from coachrl.audit.stats.people import People, people_agreement
from coachrl.audit.table import table_of
from coachrl.audit.verdicts import AuditVerdict, reference_set_verdict, verdicts
from coachrl.stats import RESAMPLES

if TYPE_CHECKING:
    import pandas as pd

_STEADY = 0.5  # points: a reference set whose interval ends nearer to 0 clears a coach of drift


@dataclass(frozen=True)
class Audit:
    """Everything that was found. runs: name -> folder. notes: one sentence for each thing that could not be done."""

    runs: Mapping[str, Path]
    resamples: int
    findings: Sequence[Findings]
    between: Sequence[CrossRater]
    verdicts: Sequence[AuditVerdict]
    notes: Sequence[str] = field(default=())
    reference_sets: Sequence[ReferenceSetDrift] = field(default=())
    asked: Asked | None = None
    people: People | None = None
    replayed: ReplayFidelity | None = None

    @property
    def table(self) -> pd.DataFrame:
        """The figures, each with its interval, as `coachrl.audit.table` says."""
        return table_of(self)

    @property
    def pipelines(self) -> list[str]:
        return list(dict.fromkeys(found.pipeline for found in self.findings))

    def verdicts_of(self, found: Findings) -> list[AuditVerdict]:
        """What is said of one rater in one pipeline."""
        return [v for v in self.verdicts if (v.pipeline, v.rater) == (found.pipeline, found.rater)]

    @property
    def other_verdicts(self) -> list[AuditVerdict]:
        """What is said of several raters together, of reference sets and of a coach that was asked."""
        raters = {(found.pipeline, found.rater) for found in self.findings}
        return [v for v in self.verdicts if (v.pipeline, v.rater) not in raters]


def audit_runs(folders: Sequence[Path], resamples: int = RESAMPLES, seed: int = 0) -> Audit:
    """The audit of some runs together. Raises ConfigError where a folder is no run."""
    return audit_data(read_audit_data(folders), resamples, seed)


def audit_data(data: AuditData, resamples: int, seed: int = 0) -> Audit:
    found, between = examine(data, resamples, seed)
    notes = list(data.notes)
    pipelines = list(dict.fromkeys(one.pipeline for one in found))
    if len(pipelines) > 1:
        notes.append(
            f"runs of different pipelines ({', '.join(pipelines)}) are audited apart: their roles and tasks are "
            "not the same, so scores cannot be compared between them"
        )
    if not found:
        notes.append("no run has a scored action: there is nothing to audit")
    reference_sets = _reference_sets(data, resamples)
    notes += [note for one in reference_sets for note in one.notes]
    steady = bool(reference_sets) and all(map(_is_steady, reference_sets))
    said = [_replayed(verdict) if steady else verdict for verdict in verdicts(found, between)]
    made = [*said, *(reference_set_verdict(one) for one in reference_sets)]
    people = people_agreement(data, resamples, seed)
    return Audit(data.runs, resamples, found, between, made, notes, reference_sets, people=people)


def _is_steady(drifted: ReferenceSetDrift) -> bool:
    """Whether its last scores are surely near the first ones."""
    if drifted.shifts is None:
        return False
    _, last = drifted.shifts.points[-1]
    return all(abs(bound) < _STEADY for bound in last.bounds)


def _replayed(verdict: AuditVerdict) -> AuditVerdict:
    """Where the same actions, scored again, got the same scores, it is the work that changed and not the coach."""
    if verdict.topic != "leniency" or verdict.grade != "warning":
        return verdict
    return _as_note(verdict, "the same actions scored again get the same: it is the work that changed")


def _as_note(verdict: AuditVerdict, why: str) -> AuditVerdict:
    """An accusation that something else explains."""
    return replace(verdict, grade="note", text=f"{verdict.text.partition(';')[0]}; {why}")


def _reference_sets(data: AuditData, resamples: int) -> list[ReferenceSetDrift]:
    found = []
    for run, folder in data.runs.items():
        actions = data.actions[data.actions["run"] == run]
        if (drifted := reference_set_drift(run, folder, actions, resamples)) is not None:
            found.append(drifted)
    return found


def with_replayed(audit: Audit, replayed: ReplayFidelity) -> Audit:
    """The audit with what was measured by replay for it."""
    return replace(audit, replayed=replayed, verdicts=[*audit.verdicts, replay_verdict(replayed)])


def with_asked(audit: Audit, asked: Asked) -> Audit:
    """The audit with what was asked of a coach for it."""
    said = asked_verdicts(asked)
    return replace(audit, asked=asked, verdicts=[*(_answered(v, asked, said) for v in audit.verdicts), *said])


def _answered(verdict: AuditVerdict, asked: Asked, said: Sequence[AuditVerdict]) -> AuditVerdict:
    """A gap between categories is no accusation of a coach whose scores stay where they are under exchanged names."""
    concerned = verdict.topic == "category" and verdict.grade == "warning" and verdict.rater == asked.coach
    exchanged = [v for v in said if EXCHANGED in v.text]
    steady = bool(exchanged) and all(v.grade == "ok" for v in exchanged)
    if not concerned or not steady:
        return verdict
    return _as_note(verdict, "scores stay where they are under exchanged names: the work differs")
