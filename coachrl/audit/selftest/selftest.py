"""The audit audited: known biases are planted in made-up scores, and what it says of them is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from coachrl.audit.data.frame import Scorer
from coachrl.audit.findings import examine_rater
from coachrl.audit.selftest.synthetic import Noise, PlantedBias, synthetic_scores
from coachrl.audit.verdicts import verdicts
from coachrl.seeding import derive_seed
from coachrl.stats import exact_interval

_RESAMPLES = 300
TOPICS = ("category", "length", "style", "auc", "saturation", "reward_hacking")


@dataclass(frozen=True)
class Condition:
    """A bias of known strength, and the topic that must name it; topic "" plants none."""

    name: str
    planted: PlantedBias
    topic: str


@dataclass(frozen=True)
class Result:
    """How often, of `repeats` made-up runs, the planted bias was named (power, None where none was planted), and how
    often any other topic was accused (false_positives: of `false_tests` verdicts). Intervals are Clopper-Pearson, 95 %.
    """

    condition: Condition
    repeats: int
    power: float | None
    power_interval: tuple[float, float] | None
    false_positives: int
    false_tests: int
    false_rate: float
    false_interval: tuple[float, float]


CONDITIONS = (
    Condition("no bias", PlantedBias(), ""),
    Condition("category: +0.25 points", PlantedBias(category_shift=0.25), "category"),
    Condition("category: +0.5 points", PlantedBias(category_shift=0.5), "category"),
    Condition("category: +1.0 points", PlantedBias(category_shift=1.0), "category"),
    Condition("length: +0.15 points per 100 tokens", PlantedBias(length_slope=0.15), "length"),
    Condition("length: +0.3 points per 100 tokens", PlantedBias(length_slope=0.3), "length"),
    Condition("length: +0.6 points per 100 tokens", PlantedBias(length_slope=0.6), "length"),
    Condition("flat: 40 % of the scores are 7", PlantedBias(flat=0.4), "saturation"),
    Condition("flat: 60 % of the scores are 7", PlantedBias(flat=0.6), "saturation"),
    Condition("flat: 90 % of the scores are 7", PlantedBias(flat=0.9), "saturation"),
    Condition("inverted last role", PlantedBias(inverted=True), "auc"),
    Condition(
        "reward hacking: +1 point while success falls 0.7 to 0.3", PlantedBias(reward_hacking=1.0), "reward_hacking"
    ),
    Condition(
        "reward hacking: +2 points while success falls 0.7 to 0.3", PlantedBias(reward_hacking=2.0), "reward_hacking"
    ),
)


def self_test(
    repeats: int = 20,
    conditions: Sequence[Condition] = CONDITIONS,
    *,
    tasks: int = 64,
    rollouts: int = 8,
    noise: Noise = Noise(),
    seed: int = 0,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """One result for each condition, each of `repeats` runs of tasks x rollouts episodes of three roles."""
    results = []
    for condition in conditions:
        runs = [
            _accusations(condition.planted, tasks, rollouts, noise, derive_seed(seed, condition.name, repeat))
            for repeat in range(repeats)
        ]
        results.append(_result(condition, runs))
        if on_result is not None:
            on_result(results[-1])
    return results


def table_lines(results: Sequence[Result]) -> list[str]:
    """The results as a Markdown table."""
    lines = ["| planted | named as | power [95 %] | false accusations of other topics [95 %] |", "|---|---|---|---|"]
    for result in results:
        power = "–"
        if result.power is not None and result.power_interval is not None:
            low, high = result.power_interval
            power = f"{result.power:.2f} [{low:.2f}, {high:.2f}], n = {result.repeats}"
        low, high = result.false_interval
        false = f"{result.false_rate:.3f} [{low:.3f}, {high:.3f}], {result.false_positives} of {result.false_tests}"
        lines.append(f"| {result.condition.name} | {result.condition.topic or '–'} | {power} | {false} |")
    return lines


def _accusations(planted: PlantedBias, tasks: int, rollouts: int, noise: Noise, seed: int) -> set[str]:
    """The topics that the audit warns of."""
    frame = synthetic_scores(planted, tasks=tasks, rollouts=rollouts, noise=noise, seed=seed)
    nothing = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])
    found = examine_rater(frame, "synthetic", Scorer("", "planted", ""), nothing, _RESAMPLES, seed)
    return {verdict.topic for verdict in verdicts([found], []) if verdict.grade in ("warning", "alarm")}


def _result(condition: Condition, runs: Sequence[set[str]]) -> Result:
    n = len(runs)
    others = [topic for topic in TOPICS if topic not in (condition.topic, *_CONSEQUENCES.get(condition.topic, ()))]
    named = sum(condition.topic in accused for accused in runs)
    false = sum(topic in accused for accused in runs for topic in others)
    tests = n * len(others)
    return Result(
        condition=condition,
        repeats=n,
        power=named / n if condition.topic else None,
        power_interval=exact_interval(named, n) if condition.topic else None,
        false_positives=false,
        false_tests=tests,
        false_rate=false / tests,
        false_interval=exact_interval(false, tests),
    )


# A flat coach does lose its hold on outcomes: that is no false accusation.
_CONSEQUENCES = {"saturation": ("auc",)}
