"""An audit as one offline HTML page, as JSON with a stable schema, and as lines for the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import jinja2
from pydantic_core import to_jsonable_python

from coachrl import __version__
from coachrl.audit.audit import Audit
from coachrl.audit.data.imported import is_imported
from coachrl.audit.data.lookup import find_texts
from coachrl.audit.findings import Findings
from coachrl.audit.report.figures import category_rows, charts_of, curve_chart, reliability_chart, table3
from coachrl.audit.stats.people import People
from coachrl.audit.stats.style import FEATURES
from coachrl.audit.verdicts import AuditVerdict, circular_words
from coachrl.report import page as report_page
from coachrl.report.agents import agent_colors
from coachrl.report.charts import forest
from coachrl.report.page import page_environment
from coachrl.runs.folder import Run
from coachrl.stats import COVERAGE, Estimate
from coachrl.text import clip_middle, counted, unbroken

SCHEMA = "coachrl-audit/1"
_TOLD_UNMEASURED = 3  # questions without an answer whose reasons are told beside the answers; of more the page tells
_ASKED_FOR = ("probe", "fault_localization", "replay")  # these are told in any case: they took calls, or hours
_TOLD_NOTES = 6
_GRADES = {"ok": "fine", "unknown": "not measured", "note": "note", "warning": "warning", "alarm": "alarm"}


def lines(audit: Audit) -> list[str]:
    """The audit for the terminal: verdicts, then what could not be done."""
    made = [line for found in audit.findings for line in _rater_lines(found, audit.verdicts_of(found))]
    made += [f"{_GRADES[v.grade]:<13} {v.line}" for v in audit.other_verdicts]
    made += _people_lines(audit.people) if audit.people is not None else []
    return [unbroken(line) for line in (*made, *(f"note: {note}" for note in audit.notes))]


def _rater_lines(found: Findings, said: Sequence[AuditVerdict]) -> list[str]:
    counts = found.counts
    of = f", {found.pipeline}" if is_imported(found.pipeline) else f" in {found.pipeline}"
    mean = f"; mean {found.mean.interval()}" if found.mean is not None else ""
    made = [
        f"{found.rater}{of}: {counts.scored:,} of {counts.actions:,} actions scored, "
        f"{counted(counts.episodes, 'episode')}, {counted(counts.tasks, 'task')}{mean}"
    ]
    unknown = [v for v in said if v.grade == "unknown" and v.topic not in _ASKED_FOR]
    is_long = len(unknown) > _TOLD_UNMEASURED
    made += [f"  {_GRADES[v.grade]:<13} {v.text}" for v in said if not (is_long and v in unknown)]
    if is_long:
        topics = ", ".join(dict.fromkeys(v.topic for v in unknown))
        made.append(f"  {_GRADES['unknown']:<13} {topics}: the page says why of each, and what would have been seen")
    told = [note for note in found.notes if counts.scored and not any(note in v.text for v in said)]
    if len(told) > _TOLD_NOTES:  # as of hundreds of categories, each with its own
        told[_TOLD_NOTES:] = [f"and {len(told) - _TOLD_NOTES:,} more, which the page has"]
    return [*made, *(f"  {'note':<13} {note}" for note in told)]


def _people_lines(people: People) -> list[str]:
    made = []
    for one in (*people.coaches, *people.persons):
        together = one.rows[0]
        made.append(
            f"{'people':<13} {one.second} against {one.first} in {one.pipeline}: kappa {_or_dash(together.kappa)}, "
            f"ICC {_or_dash(together.icc)}, {together.shift.interval(signed=True)} points ({together.shift.size})"
        )
    return made + [f"note: {note}" for note in people.notes]


def _or_dash(value: Estimate | None) -> str:
    return "not defined" if value is None else value.interval()


def as_json(audit: Audit) -> str:
    """One object: schema, coachrl, coverage, resamples, runs, verdicts, findings, between, reference_sets, asked
    (probes and planted faults), replayed, notes. Fields are those of the dataclasses; what was not measured is null."""
    tree = {
        "schema": SCHEMA,
        "coachrl": __version__,
        "coverage": COVERAGE,
        "resamples": audit.resamples,
        "runs": {name: str(folder) for name, folder in audit.runs.items()},
        **{
            name: getattr(audit, name)
            for name in ("verdicts", "findings", "between", "reference_sets", "asked", "replayed", "people", "notes")
        },
    }
    plain = to_jsonable_python(tree, inf_nan_mode="null", fallback=lambda number: number.item())  # numpy's own
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


@cache  # compiling a page takes as long as filling it
def environment() -> jinja2.Environment:
    made = page_environment(Path(__file__).parent, Path(report_page.__file__).parent)  # the style is shared
    made.filters.update(clip=clip_middle, grade=_GRADES.__getitem__, p=_p_value)
    return made


def as_html(audit: Audit) -> str:
    """The page: no script, nothing from the network."""
    texts = find_texts(audit.runs, _shown_actions(audit))
    page = environment().get_template("audit.html.j2")
    return page.render(
        audit=audit,
        version=__version__,
        circular_words=circular_words,
        told_unmeasured=_TOLD_UNMEASURED,
        features=FEATURES,
        charts_of=partial(charts_of, colors=_colors(audit)),
        forest=forest,
        reference_set_chart=lambda curves: curve_chart(
            "Change of score since the first time", curves, "points", zero=True
        ),
        reliability=reliability_chart,
        category_rows=category_rows,
        probe_rows=lambda probes: [(probe.name, probe.shift) for probe in probes if probe.shift is not None],
        table3=table3,
        text_of=lambda run, action: texts.get((run, action)),
    )


def _colors(audit: Audit) -> dict[str, int]:
    """Agents have the colors that the reports of their runs give them; of a name in several teams, the first one's."""
    colors: dict[str, int] = {}
    for folder in audit.runs.values():
        colors = agent_colors(Run(folder)) | colors
    return colors


def _p_value(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _shown_actions(audit: Audit) -> set[tuple[str, str]]:
    return {
        (example.run, example.action)
        for between in audit.between
        for pair in between.agreement.pairs
        for example in pair.examples
    }
