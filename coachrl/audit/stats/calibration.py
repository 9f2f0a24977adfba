"""Is the coach right? How well scores tell success from failure, and whether they differ at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from coachrl.audit.data.sample import Floats, Ints, Sample
from coachrl.stats import CORRELATION, POSITIVE, SHARE, Estimate, estimate, ratio

_TENTHS = 100  # scores are resampled to a hundredth of a point
_BINS = 10
LAST_ACTION = "last action"  # whose score a prediction is of, where it is no role's


@dataclass(frozen=True)
class Prediction:
    """How well one score of each episode predicts its success. of: whose score ("last action", or a role: its last
    action). category: empty for all tasks. brier: of score / 10 read as a probability; brier_base: of the plain
    success rate. circular: the coach was shown the outcome with these actions, so that the figures say how well it
    repeats what it was told, not how well it judges."""

    of: str
    category: str
    auc: Estimate
    tau: Estimate
    brier: Estimate
    brier_base: float
    successes: int
    circular: bool = False


@dataclass(frozen=True)
class ReliabilityBin:
    """Success rate of the episodes whose last score lies in [low, high)."""

    low: float
    high: float
    mean_score: float
    success: Estimate


@dataclass(frozen=True)
class Saturation:
    """How far a role's scores differ. modal_share: share of the most frequent score. entropy_bits: of the distribution
    of scores. tied_groups: share of the groups of actions that are compared with each other (same task, role, turn and
    step) whose scores are all equal, and so give no gradient; None where there is no group of two."""

    role: str
    modal_score: float
    modal_share: Estimate
    entropy_bits: Estimate
    tied_groups: Estimate | None


@dataclass(frozen=True)
class Calibration:
    """predictions: the last action first. circular: of the reliability, as in `Prediction`. notes: what could not be
    measured, and why."""

    predictions: Sequence[Prediction]
    reliability: Sequence[ReliabilityBin]
    saturation: Sequence[Saturation]
    notes: Sequence[str]
    circular: bool = False

    @property
    def last_action(self) -> Prediction | None:
        """Of all tasks together; None where it could not be measured."""
        return next((p for p in self.predictions if p.of == LAST_ACTION and not p.category), None)


def calibrate(sample: Sample, outcome_to: str = "none") -> Calibration:
    """Every figure of this page of the audit. outcome_to: whose actions the coach was shown the outcome with."""
    notes: list[str] = []
    measured = sample.where(sample.frame["outcome"].notna())
    last = measured.where(measured.frame["last"])
    told = _told_the_outcome(sample, outcome_to)
    predictions = []
    if len(measured.frame) == 0:
        notes.append(
            "no scored action belongs to an episode whose outcome was measured: calibration cannot be measured"
        )
    elif len(last.frame) == 0:
        notes.append("no episode's last action has a score: calibration of the last action cannot be measured")
    for of, category, part in _parts(measured, last):
        if (found := _predict(part, of, category, notes)) is not None:
            predictions.append(replace(found, circular=of in told))
    reliability = _reliability(last) if len(last.frame) else []
    saturation = [_saturation(part, role) for role, part in sample.by("role").items()]
    return Calibration(predictions, reliability, saturation, notes, circular=LAST_ACTION in told)


def _told_the_outcome(sample: Sample, outcome_to: str) -> set[str]:
    """Whose scores were given with the outcome in sight: "last action", and roles."""
    if outcome_to == "none":
        return set()
    if outcome_to == "all":
        return {LAST_ACTION, *sample.levels("role")}
    return {LAST_ACTION, *sample.where(sample.frame["last"]).frame["role"].astype(str).mode()}


def _parts(measured: Sample, last: Sample) -> list[tuple[str, str, Sample]]:
    parts = [(LAST_ACTION, "", last)] if len(last.frame) else []
    if measured.frame["outcome"].nunique() < 2:  # which is said once, and not of each role
        return parts
    categories = last.by("category")
    if len(categories) > 1:
        parts += [(LAST_ACTION, category, of_category) for category, of_category in categories.items()]
    final = measured.where(~measured.frame.duplicated(["run", "episode", "role"], keep="last"))
    return [*parts, *((role, "", of_role) for role, of_role in final.by("role").items())]


def _predict(sample: Sample, of: str, category: str, notes: list[str]) -> Prediction | None:
    success_N = sample.frame["outcome"].to_numpy(np.int64)
    n, successes = len(success_N), int(success_N.sum())
    where = f"{of}{f', {category}' if category else ''}"
    if successes in (0, n):
        notes.append(
            f"{where}: {'the only episode' if n == 1 else f'all {n} episodes'} "
            f"{'failed' if successes == 0 else 'succeeded'}, so no score can tell them apart"
        )
        return None
    score_N = np.round(sample.scores * _TENTHS) / _TENTHS
    grid, value_N = np.unique(score_N, return_inverse=True)
    sums_RCV = sample.sums(value_N.astype(np.int64) * 2 + success_N, 2 * len(grid))
    auc_R, tau_R = _auc_and_tau(sums_RCV[..., 0].reshape(-1, len(grid), 2))
    tasks, sides = sample.tasks, _smaller_side(sample, success_N)
    tau = float(tau_R[0]) if len(grid) > 1 else 0.0
    return Prediction(
        of=of,
        category=category,
        auc=estimate(float(auc_R[0]), auc_R[1:], n, tasks, of="episodes", null=0.5, limits=SHARE, clusters=sides),
        tau=estimate(tau, tau_R[1:], n, tasks, of="episodes", limits=CORRELATION, clusters=sides),
        brier=sample.mean((sample.scores / 10 - success_N) ** 2, of="episodes", limits=SHARE),
        brier_base=successes / n * (1 - successes / n),
        successes=successes,
    )


def _smaller_side(sample: Sample, success_N: Ints) -> float:
    """Successes and failures are compared: the tasks that carry the comparison are those of the rarer one, where one
    task may hold all of it."""
    return min(sample.equal_tasks((success_N == outcome).astype(np.float64)) for outcome in (0, 1))


def _auc_and_tau(counts_RUY: Floats) -> tuple[Floats, Floats]:
    """ROC-AUC and Kendall's tau-b of resamples, from how often each score U came with failure and success."""
    failed_RU, succeeded_RU = counts_RUY[..., 0], counts_RUY[..., 1]
    below_RU = np.cumsum(failed_RU, axis=1) - failed_RU
    failures_R, successes_R = failed_RU.sum(axis=1), succeeded_RU.sum(axis=1)
    auc_R = ratio((succeeded_RU * (below_RU + failed_RU / 2)).sum(axis=1), failures_R * successes_R)
    n_R, tied_RU = failures_R + successes_R, counts_RUY.sum(axis=2)
    pairs_R = n_R * (n_R - 1) / 2
    untied_score_R = pairs_R - (tied_RU * (tied_RU - 1) / 2).sum(axis=1)
    untied_outcome_R = failures_R * successes_R
    tau_R = ratio((2 * auc_R - 1) * untied_outcome_R, np.sqrt(untied_score_R * untied_outcome_R))
    return auc_R, tau_R


def _reliability(last: Sample) -> list[ReliabilityBin]:
    bin_N = np.minimum(last.scores, 10 - 1e-9).astype(np.int64)
    part = last.assign(bin=bin_N)
    rates = part.means(("bin",), part.values("outcome"), of="episodes", limits=SHARE)
    scores = part.frame.groupby("bin")["score"].mean()
    return [
        ReliabilityBin(float(low), float(low) + 10 / _BINS, float(mean), rate)
        for low, mean, rate in zip(np.unique(bin_N), scores, rates.values(), strict=True)
    ]


def _saturation(part: Sample, role: str) -> Saturation:
    score_N = np.round(part.scores * _TENTHS) / _TENTHS
    grid, value_N, counts_U = np.unique(score_N, return_inverse=True, return_counts=True)
    mode = counts_U.argmax()
    return Saturation(
        role=role,
        modal_score=float(grid[mode]),
        modal_share=part.mean((value_N == mode).astype(np.float64), limits=SHARE),
        entropy_bits=part.total(_entropy, cells=(value_N.astype(np.int64), len(grid)), limits=POSITIVE),
        tied_groups=_tied_groups(part),
    )


def _entropy(sums_RUV: Floats) -> Floats:
    return np.asarray(stats.entropy(np.maximum(sums_RUV[..., 0], 1e-12), base=2, axis=1))


def _tied_groups(part: Sample) -> Estimate | None:
    keys = ["run", "step", "task", "turn"]
    groups = part.frame.assign(code=part.task_codes_N).groupby(keys, observed=True)
    table = groups.agg(low=("score", "min"), high=("score", "max"), n=("score", "size"), code=("code", "first"))
    table = table[table["n"] > 1]
    if table.empty:
        return None
    tied_G = np.asarray(table["high"] - table["low"] <= 1e-9, np.float64)
    of_groups = replace(part, frame=table, task_codes_N=np.asarray(table["code"], np.int64))
    return of_groups.mean(tied_G, of="groups", limits=SHARE)
