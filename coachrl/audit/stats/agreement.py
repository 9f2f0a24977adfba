"""Do coaches agree, with each other and with themselves? Needs actions that were scored more than once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from coachrl.audit.data.frame import Scorer
from coachrl.audit.data.sample import Floats, Sample
from coachrl.stats import CORRELATION, SCORE, SCORE_CHANGE, Estimate, ratio

_EXAMPLES = 3


@dataclass(frozen=True)
class Disagreement:
    """One action that two raters see most differently."""

    run: str
    action: str
    role: str
    first: float
    second: float


@dataclass(frozen=True)
class Pair:
    """Two raters on the actions that both scored. retest: one coach with one prompt and the same evidence, asked twice.
    differing_evidence: the settings in which one coach with one prompt was shown other things, or judged otherwise.

    shift: second minus first, mean. mean_change: mean absolute difference. icc: ICC(2,1), absolute agreement of single
    scores (Shrout & Fleiss 1979). alpha: Krippendorff's, interval scale. Both are None where scores have no spread to
    agree on. spearman: rank correlation.
    """

    first: str
    second: str
    retest: bool
    shift: Estimate
    mean_change: Estimate
    icc: Estimate | None
    alpha: Estimate | None
    spearman: float
    examples: Sequence[Disagreement]
    differing_evidence: Sequence[str] = ()


@dataclass(frozen=True)
class Agreement:
    """All pairs, and all raters together on the actions that every one of them scored (None for fewer than three, and
    where scores have no spread to agree on)."""

    pairs: Sequence[Pair]
    raters: Sequence[str]
    icc: Estimate | None
    alpha: Estimate | None
    notes: Sequence[str]


def agree(frame: pd.DataFrame, scorers: Mapping[str, Scorer], resamples: int, seed: int = 0) -> Agreement:
    """frame: rows of one pipeline, all raters."""
    scored = frame[frame["score"].notna()]
    raters = [str(rater) for rater in scored["rater"].unique()]
    notes: list[str] = []
    pairs: list[Pair] = []
    if len(raters) < 2:
        return Agreement([], raters, None, None, ["one rater: agreement needs a rescore (coachrl rescore)"])
    for first, second in combinations(raters, 2):
        table = _wide(scored, [first, second])
        if table.empty:
            notes.append(f"{first} and {second} scored no action in common: their agreement cannot be measured")
            continue
        pairs.append(_pair(table, first, second, scorers, resamples, seed))
    icc = alpha = None
    together = _wide(scored, raters) if len(raters) > 2 else pd.DataFrame()
    if not together.empty:
        icc, alpha = coefficients(together, raters, Sample.of_tasks(together["task"], resamples, seed))
    return Agreement(pairs, raters, icc, alpha, notes)


def icc_2_1(sums_RV: Floats, raters: int) -> Floats:
    """ICC(2,1): two-way random effects, absolute agreement, single scores.

    From sums over actions: of ones, of all squares, of the square of an action's sum, of each rater's scores."""
    n, total_squares, row_squares = sums_RV[:, 0], sums_RV[:, 1], sums_RV[:, 2]
    columns_RK = sums_RV[:, 3 : 3 + raters]
    grand = ratio(columns_RK.sum(axis=1) ** 2, n * raters)
    rows = row_squares / raters - grand
    between = ratio((columns_RK**2).sum(axis=1), n) - grand
    mean_rows, mean_columns = ratio(rows, n - 1), between / (raters - 1)
    mean_error = ratio(total_squares - grand - rows - between, (n - 1) * (raters - 1))
    spread = mean_rows + (raters - 1) * mean_error + raters * ratio(mean_columns - mean_error, n)
    return ratio(mean_rows - mean_error, spread)


def krippendorff_alpha(sums_RV: Floats, raters: int) -> Floats:
    """Krippendorff's alpha, interval scale, every unit scored by all raters: 1 - observed / expected disagreement,
    which for squared distances are twice the variance inside units and twice that of all scores together."""
    n, total_squares, row_squares = sums_RV[:, 0], sums_RV[:, 1], sums_RV[:, 2]
    total = sums_RV[:, 3 : 3 + raters].sum(axis=1)
    inside = ratio(total_squares - row_squares / raters, n * (raters - 1))
    overall = ratio(total_squares - ratio(total**2, n * raters), n * raters - 1)
    return 1 - ratio(inside, overall)


def _wide(scored: pd.DataFrame, raters: Sequence[str]) -> pd.DataFrame:
    """A row for each action that all `raters` scored, a column for each of them."""
    rows = scored[scored["rater"].isin(raters)]
    keys = ["run", "action", "task", "role"]
    table = rows.pivot_table(index=keys, columns="rater", values="score", observed=True)
    return table.dropna().reset_index() if set(raters) <= set(table.columns) else pd.DataFrame()


def coefficients(table: pd.DataFrame, raters: Sequence[str], sample: Sample) -> tuple[Estimate | None, Estimate | None]:
    """ICC(2,1) and Krippendorff's alpha, None where scores have no spread to agree on. table: a column of scores for
    each rater; sample: the tasks of its rows."""
    scores_NK = table[list(raters)].to_numpy(np.float64)
    products = ((scores_NK**2).sum(axis=1), scores_NK.sum(axis=1) ** 2, *scores_NK.T)
    icc, alpha = (
        sample.total(partial(statistic, raters=len(raters)), *products, limits=CORRELATION)
        for statistic in (icc_2_1, krippendorff_alpha)
    )
    return defined(icc), defined(alpha)


def defined(coefficient: Estimate) -> Estimate | None:
    """None where one action, or scores that are all the same, leave nothing to divide by."""
    return coefficient if coefficient.n > 1 and np.isfinite(coefficient.value) else None


def _pair(
    table: pd.DataFrame, first: str, second: str, scorers: Mapping[str, Scorer], resamples: int, seed: int
) -> Pair:
    sample = Sample.of_tasks(table["task"], resamples, seed)
    difference_N = (table[second] - table[first]).to_numpy(np.float64)
    icc, alpha = coefficients(table, [first, second], sample)
    a, b = scorers.get(first), scorers.get(second)
    constant = table[first].nunique() < 2 or table[second].nunique() < 2
    order = np.argsort(-np.abs(difference_N), kind="stable")[:_EXAMPLES]
    return Pair(
        first=first,
        second=second,
        retest=a is not None and b is not None and a.is_same_coach(b),
        differing_evidence=a.differences(b) if a is not None and b is not None and a.is_same_model(b) else (),
        shift=sample.mean(difference_N, limits=SCORE_CHANGE),
        mean_change=sample.mean(np.abs(difference_N), limits=SCORE),
        icc=icc,
        alpha=alpha,
        spearman=float("nan") if constant else float(stats.spearmanr(table[first], table[second]).statistic),
        examples=[
            Disagreement(str(row["run"]), str(row["action"]), str(row["role"]), float(row[first]), float(row[second]))
            for _, row in table.iloc[order].iterrows()
            if row[first] != row[second]
        ],
    )
