"""How long `coachrl audit` takes for a million scored actions, all topics included.

    python benchmarks/audit_scale.py     # 1,000,000 actions, 1,000 resamples

It times everything from the table of actions to the page and the JSON, and a naive bootstrap beside it: resampling
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
from coachrl.audit.selftest.synthetic import PlantedBias, synthetic_scores

NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def scale(actions: int, resamples: int, tasks: int) -> None:
    rollouts = -(-actions // (3 * tasks))
    frame = synthetic_scores(PlantedBias(category_shift=0.5), tasks=tasks, rollouts=rollouts, steps=20)
    frame = frame.head(actions)
    data = AuditData(frame, NO_EVALUATIONS, {"planted": Scorer("", "planted", "")}, [], {}, task_texts(frame))
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


def task_texts(frame: pd.DataFrame) -> dict[str, str]:
    """A prompt of forty words for each task, of four subjects."""
    rng = np.random.default_rng(0)
    subjects = np.array([[f"{subject}{word}" for word in range(200)] for subject in ("ship", "fruit", "star", "book")])
    return {
        str(task): " ".join(rng.choice(subjects[number % 4], 40))
        for number, task in enumerate(frame["task"].cat.categories)
    }


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actions", type=int, default=1_000_000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=20_000)
    chosen = parser.parse_args()
    scale(chosen.actions, chosen.resamples, chosen.tasks)


if __name__ == "__main__":
    main()
