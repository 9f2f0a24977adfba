"""Everything an audit measures, from a table of scored actions to one record for each pipeline and rater."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from coachrl.audit.data.frame import AuditData, Scorer
from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.agreement import Agreement, agree
from coachrl.audit.stats.calibration import Calibration, calibrate
from coachrl.audit.stats.criteria import Criteria, examine_criteria
from coachrl.audit.stats.drift import Drift, drift
from coachrl.audit.stats.strata import (
    DIMENSIONS,
    Contrast,
    StratumMean,
    TaskSpread,
    category_contrasts,
    contrasts,
    small_strata,
    stratum_means,
    table3,
    task_spread,
    with_bins,
    with_holm,
)
from coachrl.audit.stats.style import StyleEffect, style_effects
from coachrl.audit.topics.category import category_gaps
from coachrl.audit.topics.criteria import criteria_told_apart
from coachrl.audit.topics.effect import TopicFinding, adjusted
from coachrl.audit.topics.failures import missing_scores
from coachrl.audit.topics.halo import copying, halo
from coachrl.audit.topics.handover import handover_gaming
from coachrl.audit.topics.leniency import leniency
from coachrl.audit.topics.outcomes import inversion, reward_hacking
from coachrl.audit.topics.self_preference import self_preference
from coachrl.audit.topics.style import style_topics
from coachrl.audit.topics.subjects import subject_gaps, with_topics
from coachrl.audit.topics.turn_order import turn_order, with_places
from coachrl.stats import SCORE, Estimate
from coachrl.text import counted

_MOST_SHOWN_LEVELS = 24


@dataclass(frozen=True)
class Counts:
    """What a rater was asked and what it answered."""

    actions: int
    scored: int
    abstained: int
    failed: int
    episodes: int
    tasks: int
    runs: int


@dataclass(frozen=True)
class Findings:
    """What was found about one rater in one pipeline. The analyses are None where no action has a score.

    contrasts: by question ("category", "turn", ...), each with Holm's p-values inside of it. gaps: MAPPA's Table 3.
    topics: what the coach may be accused of, with p-values that hold for all topics of all raters together.
    criteria: None where no score was given by criteria.
    notes: one sentence for each figure that could not be computed, with the reason.
    """

    pipeline: str
    rater: str
    scorer: Scorer
    counts: Counts
    mean: Estimate | None = None
    levels: Sequence[StratumMean] = ()
    contrasts: Mapping[str, Sequence[Contrast]] = field(default_factory=dict)
    gaps: Sequence[Contrast] = ()
    tasks: TaskSpread | None = None
    style: Sequence[StyleEffect] = ()
    calibration: Calibration | None = None
    drift: Drift | None = None
    notes: Sequence[str] = ()
    topics: Sequence[TopicFinding] = ()
    criteria: Criteria | None = None


@dataclass(frozen=True)
class CrossRater:
    """What raters of one pipeline are to each other."""

    pipeline: str
    agreement: Agreement
    coaches: Sequence[Contrast]
    topics: Sequence[TopicFinding] = ()


def examine(data: AuditData, resamples: int, seed: int) -> tuple[list[Findings], list[CrossRater]]:
    """The findings of each rater of each pipeline, and what stands between raters. Pipelines are never pooled."""
    found, between = [], []
    frame = with_topics(data.actions, data.texts, seed)
    for pipeline in frame["pipeline"].cat.categories:
        inside = frame[frame["pipeline"] == pipeline]
        heldout = data.heldout[data.heldout["pipeline"] == pipeline]
        raters = [rater for rater in data.scorers if (inside["rater"] == rater).any()]
        for rater in raters:
            rows = inside[inside["rater"] == rater]
            evaluated = heldout[heldout["run"].isin(rows["run"].unique())]
            found.append(examine_rater(rows, str(pipeline), data.scorers[rater], evaluated, resamples, seed))
        if len(raters) > 1:
            agreement = agree(inside, data.scorers, resamples, seed)
            coaches = _between_coaches(inside, resamples, seed)
            between.append(CrossRater(str(pipeline), agreement, coaches, [self_preference(inside)]))
    return judged(found, between)


def judged(found: Sequence[Findings], between: Sequence[CrossRater]) -> tuple[list[Findings], list[CrossRater]]:
    """The same with p-values that hold for all of them together."""
    topics = adjusted([*(one.topics for one in found), *(one.topics for one in between)])
    return (
        [replace(one, topics=made) for one, made in zip(found, topics, strict=False)],
        [replace(one, topics=made) for one, made in zip(between, topics[len(found) :], strict=True)],
    )


def examine_rater(
    rows: pd.DataFrame, pipeline: str, scorer: Scorer, heldout: pd.DataFrame, resamples: int, seed: int = 0
) -> Findings:
    """rows: all rows of one rater in one pipeline."""
    counts, rater = _counts(rows), str(rows["rater"].iloc[0])
    if counts.scored == 0:
        why = f"none of its {counts.actions} calls gave a score ({counts.failed} failed, {counts.abstained} abstained)"
        return Findings(pipeline, rater, scorer, counts, notes=[f"{why}: nothing to measure"])
    sample = with_bins(Sample.of(with_places(rows), resamples, seed))
    notes = _sample_notes(sample)
    calibration, drifted = calibrate(sample, scorer.outcome_to), drift(sample, heldout)
    found = Findings(
        pipeline=pipeline,
        rater=rater,
        scorer=scorer,
        counts=counts,
        mean=sample.mean(sample.scores, limits=SCORE),
        levels=[
            level
            for dimension in DIMENSIONS
            if dimension in sample.frame
            for level in stratum_means(sample, dimension)[:_MOST_SHOWN_LEVELS]
        ],
        contrasts=_questions(sample),
        gaps=table3(sample),
        tasks=task_spread(sample),
        style=style_effects(sample),
        calibration=calibration,
        drift=drifted,
        notes=[*notes, *calibration.notes, *drifted.notes],
        criteria=examine_criteria(sample),
    )
    topics = [
        category_gaps(found.contrasts.get("category", ()), found.levels),
        subject_gaps(sample, found.contrasts.get("topic", ())),
        *style_topics(found.style),
        halo(sample),
        copying(sample),
        *criteria_told_apart(found.criteria),
        leniency(sample),
        handover_gaming(rows),
        turn_order(sample),
        missing_scores(rows),
        inversion(calibration),
        reward_hacking(drifted),
    ]
    return replace(found, topics=topics)


def _counts(rows: pd.DataFrame) -> Counts:
    statuses = rows["status"].value_counts()
    return Counts(
        actions=len(rows),
        scored=int(rows["score"].notna().sum()),
        abstained=int(statuses.get("abstained", 0)),
        failed=int(statuses.get("failed", 0)),
        episodes=len(rows.drop_duplicates(["run", "episode"])),
        tasks=int(rows["task"].nunique()),
        runs=int(rows["run"].nunique()),
    )


def _questions(sample: Sample) -> dict[str, list[Contrast]]:
    """Category, overall and inside each role, is one question; every other dimension is one."""
    families = {"category": category_contrasts(sample)}
    for column in ("role", "turn", "result", "period", "coach", "prompt", "policy", "topic"):
        if column in sample.frame:
            families["outcome" if column == "result" else column] = contrasts(sample, column)
    return {question: with_holm(family) for question, family in families.items() if family}


def _between_coaches(inside: pd.DataFrame, resamples: int, seed: int) -> list[Contrast]:
    """Differences of level between raters over all that each of them scored, at equal role, category and outcome."""
    if inside["score"].notna().sum() == 0:
        return []
    return with_holm(contrasts(Sample.of(inside, resamples, seed), "rater", adjust=("role", "category", "result")))


def _sample_notes(sample: Sample) -> list[str]:
    notes = []
    scores = sample.frame["score"]
    if scores.nunique() == 1:
        notes.append(
            f"all {len(scores)} scores are {scores.iloc[0]:g}: differences are zero by definition, and no interval, "
            "correlation or prediction can be computed"
        )
    if sample.resampler.tasks == 1:
        notes.append("all actions are of one task: intervals over tasks cannot be computed")
    categories = sample.levels("category")
    if len(categories) < 2:
        notes.append(
            f"one task category only ({categories[0] or 'unnamed'}): a gap between categories cannot be measured"
        )
    unmeasured = int(sample.frame["outcome"].isna().sum())
    if unmeasured:
        notes.append(f"no outcome is known of {counted(unmeasured, 'scored action')}: a stratum of their own")
    return notes + [note for dimension in ("category", "role") for note in small_strata(sample, dimension)]
