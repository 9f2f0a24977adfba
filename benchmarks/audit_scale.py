"""Two figures of `coachrl audit`: how long a million scored actions take, and how often a planted gap is found.

    python benchmarks/audit_scale.py scale                 # 1,000,000 actions, 1,000 resamples
    python benchmarks/audit_scale.py power --repeats 200   # 64 tasks x 8 rollouts, a gap of 0.5 points and none

`scale` times everything from the table of actions to the page and the JSON, and a naive bootstrap beside it: resampling
the rows themselves, for one difference of means, extrapolated from ten resamples.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import numpy as np
import pandas as pd

from coachrl.audit.audit import Audit, audit_data
from coachrl.audit.data.frame import AuditData, Scorer
from coachrl.audit.report.page import as_html, as_json
from coachrl.audit.selftest.selftest import Condition, self_test
from coachrl.audit.selftest.synthetic import Noise, PlantedBias, synthetic_scores
from coachrl.stats import exact_interval

NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def scale(actions: int, resamples: int, tasks: int) -> None:
    rollouts = -(-actions // (3 * tasks))
    frame = synthetic_scores(PlantedBias(category_shift=0.5), tasks=tasks, rollouts=rollouts, steps=20)
    frame = frame.head(actions)
    data = AuditData(frame, NO_EVALUATIONS, {"planted": Scorer("", "planted", "")}, [], {})
    print(f"{len(frame):,} actions, {tasks:,} tasks, {resamples:,} resamples, {os.cpu_count()} cores", flush=True)
    began, cpu = time.perf_counter(), time.process_time()
    audit: Audit = audit_data(data, resamples)
    page, figures = as_html(audit), as_json(audit)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"audit, page and JSON: {wall:.1f} s of wall clock, {used:.1f} s of processor time, at most {peak_gb:.2f} GB")
    print(f"page {len(page) / 1024:.0f} KiB, JSON {len(figures) / 1024:.0f} KiB")
    began, cpu = time.perf_counter(), time.process_time()
    naive(frame, 10)
    per_resample = (time.process_time() - cpu) / 10
    print(f"naive bootstrap of one difference: {per_resample * resamples:.0f} s of processor time (from 10 resamples)")


def naive(frame: pd.DataFrame, resamples: int) -> list[float]:
    """The category gap of resampled rows."""
    rng = np.random.default_rng(0)
    codes = frame["task"].cat.codes.to_numpy()
    rows_of = np.split(np.argsort(codes, kind="stable"), np.cumsum(np.bincount(codes))[:-1])
    score, category = frame["score"].to_numpy(), frame["category"].cat.codes.to_numpy()
    gaps = []
    for _ in range(resamples):
        rows = np.concatenate([rows_of[task] for task in rng.integers(0, len(rows_of), len(rows_of))])
        gaps.append(score[rows][category[rows] == 1].mean() - score[rows][category[rows] == 0].mean())
    return gaps


def power(repeats: int, seed: int) -> None:
    conditions = (
        Condition("no gap", PlantedBias(), ""),
        Condition("gap of 0.5", PlantedBias(category_shift=0.5), "category"),
    )
    for noise in (Noise(), Noise(task=0.5)):
        print(f"\n64 tasks x 8 rollouts x 3 roles; standard deviations in points: {noise}")
        for result in self_test(repeats, conditions, noise=noise, seed=seed):
            named = result.accused["category"]
            low, high = exact_interval(named, repeats)
            print(
                f"{result.condition.name}: a gap between categories is named in {named} of {repeats} runs, "
                f"{named / repeats:.3f} [{low:.3f}, {high:.3f}]; other topics: {result.accused}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["scale", "power"])
    parser.add_argument("--actions", type=int, default=1_000_000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.what == "scale":
        scale(chosen.actions, chosen.resamples, chosen.tasks)
    else:
        power(chosen.repeats, chosen.seed)


if __name__ == "__main__":
    main()
