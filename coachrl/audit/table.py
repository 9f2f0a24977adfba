"""An audit's figures as a pandas table, for a notebook or a paper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from coachrl.audit.findings import CrossRater, Findings
from coachrl.audit.stats.people import PeopleAgreement
from coachrl.stats import Estimate

if TYPE_CHECKING:
    import pandas as pd

    from coachrl.audit.audit import Audit

COLUMNS = ("pipeline", "rater", "topic", "figure", "value", "low", "high", "n", "tasks", "p", "named")
Row = tuple[Any, ...]


def table_of(audit: Audit) -> pd.DataFrame:
    """A row for each figure with its 95 % interval: mean scores (topic "mean"), what was tested (by topic, with the p
    value of the whole audit, and whether the coach is named for it), coaches with each other ("agreement") and with
    people ("people"). NaN where there is none."""
    import pandas as pd

    rows = [row for found in audit.findings for row in _of_rater(found)]
    rows += [row for between in audit.between for row in _of_raters(between)]
    if audit.people is not None:
        rows += [row for agreement in audit.people.coaches for row in _of_people(agreement)]
    made = pd.DataFrame(rows, columns=list(COLUMNS))
    return made.astype(dict.fromkeys(("value", "low", "high", "p"), "float64"))


def _row(
    pipeline: str, rater: str, topic: str, figure: str, of: Estimate, p: float | None = None, named: bool = False
) -> Row:
    return (pipeline, rater, topic, figure, of.value, of.low, of.high, of.n, of.tasks, p, named)


def _of_rater(found: Findings) -> Iterator[Row]:
    place = (found.pipeline, found.rater)
    if found.mean is not None:
        yield _row(*place, "mean", "mean score", found.mean)
    for level in found.levels:
        if level.dimension == "role":
            yield _row(*place, "mean", f"mean score of {level.name}", level.mean)
    for topic in found.topics:
        for effect in topic.effects:
            yield _row(*place, topic.topic, effect.what.rstrip(","), effect.estimate, effect.p, effect.is_certain)


def _of_raters(between: CrossRater) -> Iterator[Row]:
    for pair in between.agreement.pairs:
        place = (between.pipeline, pair.second, "agreement")
        if pair.icc is not None:
            yield _row(*place, f"ICC with {pair.first}", pair.icc)
        yield _row(*place, f"points more than {pair.first}", pair.shift)


def _of_people(agreement: PeopleAgreement) -> Iterator[Row]:
    for row in agreement.rows:
        place = (agreement.pipeline, agreement.second, "people")
        role = f", {row.role}" if row.role else ""
        for name, figure in (("kappa", row.kappa), ("ICC", row.icc), ("points more", row.shift)):
            if figure is not None:
                yield _row(*place, f"{name}{role}", figure)
