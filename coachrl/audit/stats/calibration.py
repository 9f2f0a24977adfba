"""Is the coach right? How well scores tell success from failure, and whether they differ at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import brier_score_loss, roc_auc_score

from coachrl.audit.data.sample import Sample
from coachrl.stats import CORRELATION, POSITIVE, SHARE, Estimate, estimate, ratio

_TENTHS = 100  # scores are resampled to a hundredth of a point
_BINS = 10


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
    saturation = [_saturation(sample, role) for role in sample.levels("role")]
    return Calibration(predictions, reliability, saturation, notes, circular="last action" in told)


def _told_the_outcome(sample: Sample, outcome_to: str) -> set[str]:
    """Whose scores were given with the outcome in sight: "last action", and roles."""
    if outcome_to == "none":
        return set()
    if outcome_to == "all":
        return {"last action", *sample.levels("role")}
    return {"last action", *sample.where(sample.frame["last"]).frame["role"].astype(str).mode()}


def _parts(measured: Sample, last: Sample) -> list[tuple[str, str, Sample]]:
    parts = [("last action", "", last)] if len(last.frame) else []
    if measured.frame["outcome"].nunique() < 2:  # which is said once, and not of each role
        return parts
    categories = last.levels("category") if len(last.frame) else []
    if len(categories) > 1:
        parts += [("last action", category, last.where(last.frame["category"] == category)) for category in categories]
    if len(measured.frame):
        final = ~measured.frame.duplicated(["run", "episode", "role"], keep="last")
        parts += [
            (role, "", measured.where(final & (measured.frame["role"] == role))) for role in measured.levels("role")
        ]
    return parts


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
    found = sample.sums(value_N.astype(np.int64) * 2 + success_N, 2 * len(grid))
    auc_R, tau_R = _auc_and_tau(found.boot_RKV[:, :, 0].reshape(-1, len(grid), 2))
    share_N = sample.scores / 10
    squared = sample.sums(np.zeros(n, np.int64), 1, (share_N - success_N) ** 2)
    tasks = sample.tasks
    auc, sides = float(roc_auc_score(success_N, score_N)), _smaller_side(sample, success_N)
    tau = float(stats.kendalltau(score_N, success_N).statistic) if len(grid) > 1 else 0.0
    return Prediction(
        of=of,
        category=category,
        auc=estimate(auc, auc_R, n, tasks, of="episodes", null=0.5, limits=SHARE, clusters=sides),
        tau=estimate(tau, tau_R, n, tasks, of="episodes", limits=CORRELATION, clusters=sides),
        brier=estimate(
            brier_score_loss(success_N, share_N),
            ratio(squared.boot_RKV[:, 0, 1], squared.boot_RKV[:, 0, 0]),
            n,
            tasks,
            of="episodes",
            limits=SHARE,
            clusters=sample.equal_tasks(),
        ),
        brier_base=successes / n * (1 - successes / n),
        successes=successes,
    )


def _smaller_side(sample: Sample, success_N: NDArray[np.int64]) -> float:
    """Successes and failures are compared: the tasks that carry the comparison are those of the rarer one, where one
    task may hold all of it."""
    return min(sample.equal_tasks((success_N == outcome).astype(np.float64)) for outcome in (0, 1))


def _auc_and_tau(counts_RUY: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    part = replace(last, frame=last.frame.assign(bin=bin_N))
    rates = part.means(("bin",), part.frame["outcome"].to_numpy(np.float64), of="episodes", limits=SHARE)
    scores = part.frame.groupby("bin")["score"].mean()
    return [
        ReliabilityBin(float(low), float(low) + 10 / _BINS, float(mean), rate)
        for low, mean, rate in zip(np.unique(bin_N), scores, rates, strict=True)
    ]


def _saturation(sample: Sample, role: str) -> Saturation:
    part = sample.where(sample.frame["role"] == role)
    score_N = np.round(part.scores * _TENTHS) / _TENTHS
    grid, value_N, counts_U = np.unique(score_N, return_inverse=True, return_counts=True)
    found = part.sums(value_N.astype(np.int64), len(grid))
    counts_RU = found.boot_RKV[:, :, 0]
    mode, n, tasks, equal = int(counts_U.argmax()), len(score_N), part.tasks, part.equal_tasks()
    share_R = ratio(counts_RU[:, mode], counts_RU.sum(axis=1))
    entropy = float(stats.entropy(counts_U, base=2))
    entropy_R = stats.entropy(np.maximum(counts_RU, 1e-12), base=2, axis=1)
    return Saturation(
        role=role,
        modal_score=float(grid[mode]),
        modal_share=estimate(float(counts_U[mode] / n), share_R, n, tasks, limits=SHARE, clusters=equal),
        entropy_bits=estimate(entropy, entropy_R, n, tasks, limits=POSITIVE, clusters=equal),
        tied_groups=_tied_groups(part),
    )


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
