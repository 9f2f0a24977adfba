"""How many episodes the coach saves: what share of the outcome's episodes gives the same success with the coach.

    python benchmarks/learning/fewer_rollouts.py [--results benchmarks/learning/results/quickstart.json]

Reads the runs of `quickstart.py`. Each training step plays tasks that the run has not seen before, so that its share of
successes is that of the weights before the step: a learning curve against episodes, without a further evaluation. A
curve is made monotone by isotonic regression (Barlow et al. 1972), since 32 episodes a step make it jump. For each seed
the level is what outcome rewards reached in their last step; the ratio says by which share of their episodes the coach
was there. A seed in which the coach never gets there is named, and not in the mean, which is geometric.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from sklearn.isotonic import IsotonicRegression

from coachrl.stats import estimate_mean

EPISODES = 32  # of a step of the quickstart
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS / "quickstart.json")
    args = parser.parse_args()
    runs = json.loads(args.results.read_text(encoding="utf-8"))
    curves = {(run["condition"], run["seed"]): curve([share for _, share in run["train_success"]]) for run in runs}
    seeds = sorted({run["seed"] for run in runs})
    table = [
        "| seed | success with the outcome, last step | its episodes | the coach's for the same | ratio |",
        "|---|---|---|---|---|",
    ]
    logs = {}
    for seed in seeds:
        outcome, coach = curves["outcome", seed], curves["coach", seed]
        level = outcome[-1]
        reached, needed = episodes_to(outcome, level), episodes_to(coach, level)
        if needed is None or not reached:
            table.append(f"| {seed} | {level:.2f} | {reached:.0f} | not reached in {EPISODES * (len(coach) - 1)} | – |")
            continue
        logs[str(seed), str(seed)] = math.log(needed / reached)
        table.append(f"| {seed} | {level:.2f} | {reached:.0f} | {needed:.0f} | {needed / reached:.2f} |")
    if len(logs) > 1:
        mean = estimate_mean(logs)
        low, high = math.exp(mean.low), math.exp(mean.high)
        table.append(f"| geometric mean of {len(logs)} | | | | {math.exp(mean.value):.2f} [{low:.2f}, {high:.2f}] |")
    print("\n".join(table))


def curve(shares: list[float]) -> np.ndarray:
    """Success before each step, made monotone: what `EPISODES` times its index have taught."""
    return IsotonicRegression().fit_transform(np.arange(len(shares)), shares)


def episodes_to(monotone: np.ndarray, level: float) -> float | None:
    """The first number of episodes, between steps by a straight line, at which a curve is at `level`."""
    there = np.flatnonzero(monotone >= level - 1e-9)
    if not len(there):
        return None
    first = int(there[0])
    if first == 0:
        return 0.0
    low, high = monotone[first - 1], monotone[first]
    return EPISODES * (first - 1 + float((level - low) / (high - low)))


if __name__ == "__main__":
    main()
