"""An audit's figures as a pandas table, for a notebook or a paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from coachrl.audit.findings import CrossRater, Findings
from coachrl.audit.stats.people import PeopleAgreement
from coachrl.audit.topics.effect import TopicFinding
from coachrl.audit.verdicts import ALL_COACHES
from coachrl.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

    from coachrl.audit.audit import Audit

DTYPES = {
    **dict.fromkeys(("pipeline", "rater", "topic", "figure", "unit"), "object"),
    **dict.fromkeys(("value", "low", "high"), "float64"),
    **dict.fromkeys(("n", "tasks"), "int64"),
    "of": "object",
    "p": "float64",
    "named": "bool",
}
_HALVES = "second half of training minus first"  # of topics whose one figure has no name beside theirs
Row = tuple[Any, ...]


def table_of(audit: Audit) -> pd.DataFrame:
    """A row for each figure with its 95 % interval: mean scores (topic "mean"), what was tested (by topic, with the p
    value of the whole audit), coaches with each other ("agreement") and with people ("people"). NaN where there is
    none.

    unit: points, share, or correlation, as ICC and kappa are too. of: what `n` counts. named: whether a warning or an
    alarm of the audit says it. What could not be measured has no row.
    """
    import pandas as pd

    accused = {(v.pipeline, v.rater, v.topic) for v in audit.verdicts if v.grade in ("warning", "alarm")}
    rows = [row for found in audit.findings for row in _of_rater(found)]
    rows += [row for between in audit.between for row in _of_raters(between)]
    if audit.people is not None:
        rows += [row for agreement in audit.people.coaches for row in _of_people(agreement)]
    rows = [(*row[:-1], row[-1] and row[:3] in accused) for row in rows]
    return pd.DataFrame(rows, columns=list(DTYPES)).astype(DTYPES)


def _row(
    place: tuple[str, str, str], figure: str, unit: str, of: Estimate, p: float | None = None, certain: bool = False
) -> Row:
    return (*place, figure, unit, of.value, of.low, of.high, of.n, of.tasks, of.of, p, certain)


def _of_rater(found: Findings) -> Iterator[Row]:
    place = (found.pipeline, found.rater, "mean")
    if found.mean is not None:
        yield _row(place, "mean score", "points", found.mean)
    for level in found.levels:
        if level.dimension == "role":
            yield _row(place, f"mean score of {level.name}", "points", level.mean)
    yield from _of_topics(found.pipeline, found.rater, found.topics)


def _of_topics(pipeline: str, rater: str, topics: Sequence[TopicFinding]) -> Iterator[Row]:
    for topic in topics:
        certain = topic.certain
        for effect in topic.effects:
            figure = effect.what.rstrip(",") or _HALVES
            place = (pipeline, rater, topic.topic)
            yield _row(place, figure, effect.unit, effect.estimate, effect.p, effect in certain)


def _of_raters(between: CrossRater) -> Iterator[Row]:
    for pair in between.agreement.pairs:
        place = (between.pipeline, pair.second, "agreement")
        if pair.icc is not None:
            yield _row(place, f"ICC with {pair.first}", "correlation", pair.icc)
        yield _row(place, f"points more than {pair.first}", "points", pair.shift)
    yield from _of_topics(between.pipeline, ALL_COACHES, between.topics)


def _of_people(agreement: PeopleAgreement) -> Iterator[Row]:
    place = (agreement.pipeline, agreement.second, "people")
    for row in agreement.rows:
        role = f", {row.role}" if row.role else ""
        for name, unit, figure in (
            ("kappa", "correlation", row.kappa),
            ("ICC", "correlation", row.icc),
            ("points more", "points", row.shift),
        ):
            if figure is not None:
                yield _row(place, f"{name}{role}", unit, figure)
