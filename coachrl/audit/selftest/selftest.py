"""The audit audited: known biases are planted in made-up scores, and what it says of them is counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from coachrl.audit.data.frame import Scorer
from coachrl.audit.findings import examine_rater
from coachrl.audit.selftest.synthetic import PlantedBias, synthetic_scores
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
    """In how many of `repeats` made-up runs the planted bias was named, and how often any other topic was accused
    (false_positives: of `false_tests` verdicts)."""

    condition: Condition
    repeats: int
    named: int
    false_positives: int
    false_tests: int

    @property
    def power(self) -> float | None:
        """None where no bias was planted."""
        return self.named / self.repeats if self.condition.topic else None

    @property
    def false_rate(self) -> float:
        return self.false_positives / self.false_tests


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


# A flat coach does lose its hold on outcomes: that is no false accusation.
_CONSEQUENCES = {"saturation": ("auc",)}

TABLE_HEAD = "| planted | named as | power [95 %] | false accusations of other topics [95 %] |\n|---|---|---|---|"


def self_test(repeats: int = 20, conditions: Sequence[Condition] = CONDITIONS, seed: int = 0) -> Iterator[Result]:
    """One result for each condition, each of `repeats` runs of synthetic scores."""
    for condition in conditions:
        seeds = [derive_seed(seed, condition.name, repeat) for repeat in range(repeats)]
        runs = [_accusations(condition.planted, of_run) for of_run in seeds]
        others = [topic for topic in TOPICS if topic not in (condition.topic, *_CONSEQUENCES.get(condition.topic, ()))]
        named = sum(condition.topic in accused for accused in runs)
        false = sum(topic in accused for accused in runs for topic in others)
        yield Result(condition, repeats, named, false, repeats * len(others))


def table_line(result: Result) -> str:
    """The result as a line of a Markdown table; intervals are Clopper and Pearson's."""
    power = "–"
    if result.power is not None:
        low, high = exact_interval(result.named, result.repeats)
        power = f"{result.power:.2f} [{low:.2f}, {high:.2f}], n = {result.repeats}"
    low, high = exact_interval(result.false_positives, result.false_tests)
    false = f"{result.false_rate:.3f} [{low:.3f}, {high:.3f}], {result.false_positives} of {result.false_tests}"
    return f"| {result.condition.name} | {result.condition.topic or '–'} | {power} | {false} |"


def _accusations(planted: PlantedBias, seed: int) -> set[str]:
    """The topics that the audit warns of."""
    frame = synthetic_scores(planted, seed=seed)
    nothing = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])
    found = examine_rater(frame, "synthetic", Scorer("", "planted", ""), nothing, _RESAMPLES, seed)
    return {verdict.topic for verdict in verdicts([found], []) if verdict.grade in ("warning", "alarm")}
