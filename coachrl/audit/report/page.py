"""An audit as one offline HTML page, as JSON with a stable schema, and as lines for the terminal."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from coachrl import __version__
from coachrl.audit.data.frame import AuditData, read_audit_data
from coachrl.audit.data.lookup import ActionText, find_texts
from coachrl.audit.findings import CrossRater, Findings, examine
from coachrl.audit.probes.asked import Asked, asked_verdicts
from coachrl.audit.report.plots import curve_chart, forest, gap_chart, reliability
from coachrl.audit.stats.drift import ReferenceSetDrift, reference_set_drift
from coachrl.audit.stats.style import FEATURES
from coachrl.audit.verdicts import CIRCULAR, AuditVerdict, reference_set_verdict, verdicts
from coachrl.errors import ConfigError
from coachrl.jsonl import write_aside
from coachrl.report.curves import Chart
from coachrl.stats import COVERAGE, RESAMPLES, Estimate
from coachrl.text import clip_middle, counted

SCHEMA = "coachrl-audit/1"
_GRADES = {"ok": "fine", "unknown": "not measured", "note": "note", "warning": "warning", "alarm": "alarm"}


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

    @property
    def pipelines(self) -> list[str]:
        return list(dict.fromkeys(found.pipeline for found in self.findings))


def audit_runs(folders: Sequence[Path], resamples: int = RESAMPLES, seed: int = 0) -> Audit:
    """The audit of some runs together. Raises ConfigError where a folder is no run."""
    return audit_data(read_audit_data(folders), resamples, seed)


def audit_data(data: AuditData, resamples: int = RESAMPLES, seed: int = 0) -> Audit:
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
    made = [*verdicts(found, between), *(reference_set_verdict(one) for one in reference_sets)]
    return Audit(data.runs, resamples, found, between, made, notes, reference_sets)


def _reference_sets(data: AuditData, resamples: int) -> list[ReferenceSetDrift]:
    found = []
    for run, folder in data.runs.items():
        rows = data.actions[data.actions["run"] == run]
        tasks = dict(zip(rows["action"].astype(str), rows["task"].astype(str), strict=True))
        if (drifted := reference_set_drift(run, folder, tasks, resamples)) is not None:
            found.append(drifted)
    return found


def with_asked(audit: Audit, asked: Asked) -> Audit:
    """The audit with what was asked of a coach for it."""
    return dataclasses.replace(audit, asked=asked, verdicts=[*audit.verdicts, *asked_verdicts(asked)])


def lines(audit: Audit) -> list[str]:
    """The audit for the terminal: verdicts, then what could not be done."""
    made = []
    for found in audit.findings:
        counts = found.counts
        made.append(
            f"{found.rater} in {found.pipeline}: {counts.scored:,} of {counts.actions:,} actions scored, "
            f"{counted(counts.episodes, 'episode')}, {counted(counts.tasks, 'task')}"
            + (f"; mean {found.mean.interval()}" if found.mean is not None else "")
        )
        said = [v for v in audit.verdicts if (v.pipeline, v.rater) == (found.pipeline, found.rater)]
        made += [f"  {_GRADES[v.grade]:<13} {v.text}" for v in said]
        told = [note for note in found.notes if counts.scored and not any(note in v.text for v in said)]
        made += [f"  {'note':<13} {note}" for note in told]
    raters = {(found.pipeline, found.rater) for found in audit.findings}
    others = [v for v in audit.verdicts if (v.pipeline, v.rater) not in raters]
    made += [f"{_GRADES[v.grade]:<13} {v.line}" for v in others]
    return made + [f"note: {note}" for note in audit.notes]


def as_json(audit: Audit) -> str:
    """One object: schema, coachrl, coverage, resamples, runs, verdicts, findings, between, reference_sets, asked
    (probes and planted faults), notes. Fields are those of the dataclasses; what was not measured is null."""
    tree = {
        "schema": SCHEMA,
        "coachrl": __version__,
        "coverage": COVERAGE,
        "resamples": audit.resamples,
        "runs": {name: str(folder) for name, folder in audit.runs.items()},
        **{
            name: getattr(audit, name)
            for name in ("verdicts", "findings", "between", "reference_sets", "asked", "notes")
        },
    }
    return json.dumps(_plain(tree), indent=1, allow_nan=False) + "\n"


def check_place(path: Path) -> None:
    """Raises ConfigError where no file can stand at `path`, so that nothing is asked and counted in vain."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file")


def write_whole(path: Path, text: str) -> None:
    """Write a file aside, then rename it. Raises OSError."""
    # What agents wrote may hold halves of characters, which UTF-8 has no place for.
    write_aside(path, text.encode("utf-8", "replace").decode("utf-8"))


def as_html(audit: Audit) -> str:
    """The page: no script, nothing from the network."""
    folders = [Path(__file__).parent, Path(__file__).parents[2] / "report"]  # the report's style sheet is shared
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(clip=clip_middle, grade=_GRADES.__getitem__, p=_p_value)
    texts = find_texts(audit.runs, _shown_actions(audit))
    return environment.get_template("audit.html.j2").render(
        audit=audit,
        version=__version__,
        circular=CIRCULAR,
        features=FEATURES,
        charts_of=_charts,
        forest=forest,
        reference_set_chart=lambda curves: curve_chart(
            "Change of score since the first time", curves, "points", zero=True
        ),
        reliability=reliability,
        category_rows=category_rows,
        probe_rows=lambda probes: [(probe.name, probe.shift) for probe in probes if probe.shift is not None],
        table3=_table3,
        text_of=lambda run, action: texts.get((run, action)),
        rationale=_rationale,
        of=lambda found: [v for v in audit.verdicts if (v.pipeline, v.rater) == (found.pipeline, found.rater)],
        others=[
            v for v in audit.verdicts if all((v.pipeline, v.rater) != (f.pipeline, f.rater) for f in audit.findings)
        ],
    )


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and numpy numbers as JSON; NaN as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _p_value(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _charts(found: Findings) -> list[Chart]:
    """Figures over training."""
    made = []
    if found.drift is not None:
        units = {
            "score": ("Coach score", "points"),
            "outcome": ("Outcome", "share"),
            "code": ("Replies with code", "share"),
        }
        for name, curves in found.drift.curves.items():
            title, unit = units.get(name, ("Response length", "tokens"))
            made.append(curve_chart(title, curves, unit))
    gaps = gap_chart(found.gaps)
    if gaps is not None and len({gap.within[1] for gap in found.gaps}) > 1:
        made.insert(0, gaps)
    return made


def category_rows(found: Findings) -> list[tuple[str, Estimate]]:
    """What the forest plot of category gaps shows: at equal outcome, overall and by role."""
    family = found.contrasts.get("category", ())
    several = len({contrast.level for contrast in family}) > 1
    return [
        (f"{c.within[0] if c.within else 'all roles'}{f': {c.level}' if several else ''}", c.adjusted)
        for c in family
        if c.adjusted is not None
    ]


def _table3(found: Findings) -> tuple[list[str], dict[str, dict[str, Estimate]]]:
    """(first steps of the parts of training, role and level -> first step -> raw gap)."""
    several = len({gap.level for gap in found.gaps}) > 1
    bins = sorted({gap.within[1] for gap in found.gaps}, key=int)
    rows: dict[str, dict[str, Estimate]] = {}
    for gap in found.gaps:
        name = f"{gap.within[0]}{f': {gap.level}' if several else ''}"
        rows.setdefault(name, {})[gap.within[1]] = gap.raw
    return bins, rows


def _shown_actions(audit: Audit) -> set[tuple[str, str]]:
    return {
        (example.run, example.action)
        for between in audit.between
        for pair in between.agreement.pairs
        for example in pair.examples
    }


def _rationale(text: ActionText, rater: str) -> str:
    """A rescore's own word, else the run's."""
    return text.rationales.get(rater, text.rationales.get("", ""))
