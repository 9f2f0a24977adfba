"""What an audit may accuse a coach of, as one list of tested effects whose error rate is controlled together.

All tests of all coaches of an audit are one family: Holm's correction (1979) keeps the chance that any of them is named
for nothing at 5 %. Its error rate is shared out by weight: a comparison between tasks is less certain than one inside
of tasks, and gets more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy import stats

from coachrl.audit.stats.within import one_sided
from coachrl.stats import COVERAGE, Estimate, holm

ALPHA = 0.05
POWER = 0.95
FEWEST_TASKS = 16  # on fewer, nobody is accused of what differs between tasks
Grade = Literal["ok", "unknown", "note", "warning", "alarm"]
Unit = Literal["points", "share", "correlation"]

# The smallest effect that is accused, however certain, and the largest that an audit may miss and still say that there
# is none.
LEAST: dict[Unit, float] = {"points": 0.25, "share": 0.03, "correlation": 0.15}
MOST_UNSEEN: dict[Unit, float] = {"points": 1.0, "share": 0.25, "correlation": 0.4}
_GREATEST: dict[Unit, float] = {"points": 10.0, "share": 1.0, "correlation": 1.0}
_WORDS: dict[Unit, str] = {"points": " points", "share": "", "correlation": ""}


@dataclass(frozen=True)
class Effect:
    """One tested effect. named: the sentence that is said when it is certain; what: its name beside the figure when it
    is not. least: the smallest value that is named; null: what it is tested against. second: another figure that the
    claim needs, with its name. fewest: tasks below which nobody is accused. part: it is
    named only where the effect over all is not. unclear: what is said in place of an all-clear where the figure is far
    from 0 and yet no accusation. p: as adjusted over the whole audit. visible: the smallest effect that
    this run would have shown with 95 % probability; None where that cannot be said."""

    what: str
    named: str
    estimate: Estimate
    unit: Unit = "points"
    weight: float = 1.0
    least: float | None = None
    null: float = 0.0
    second: tuple[str, Estimate] | None = None
    fewest: int = FEWEST_TASKS
    part: bool = False
    unclear: str = ""
    p: float | None = None
    visible: float | None = None

    @property
    def smallest(self) -> float:
        return LEAST[self.unit] if self.least is None else self.least

    @property
    def has_enough_tasks(self) -> bool:
        return self.estimate.tasks >= self.fewest

    @property
    def is_certain(self) -> bool:
        far = abs(self.estimate.value - self.null) >= self.smallest
        return self.has_enough_tasks and self.p is not None and self.p < ALPHA and far

    @property
    def shown(self) -> str:
        """'regression minus classification +0.15 [-0.28, +0.59] (n = 404 actions, 14 tasks)'."""
        said = f"{self.what} {self.estimate.interval(True)} ({self.estimate.size})".strip()
        return said if self.second is None else f"{said}, {self.second[0]} {self.second[1].interval(True)}"

    @property
    def is_visible(self) -> bool:
        """Whether there is an effect on this scale that the run would have shown."""
        return self.has_enough_tasks and self.visible is not None and self.visible <= _GREATEST[self.unit]

    @property
    def is_ruled_out(self) -> bool:
        """Whether the figure is surely on the harmless side of what it is tested against."""
        high = self.estimate.high
        return self.null > 0 and self.has_enough_tasks and high is not None and high < self.null

    @property
    def visible_words(self) -> str:
        """From where on it would have been seen."""
        if self.is_ruled_out and not self.is_visible:
            return f"surely below {self.null:g}, from where on it would be named"
        if self.visible is None and self.has_enough_tasks:
            return "how large it would have to be, to be seen, cannot be said"
        if not self.is_visible:
            return "on so few tasks it would not have been seen, however large"
        return f"from {self.visible:.2g}{_WORDS[self.unit]} on it would have been seen"

    @property
    def rules_out(self) -> bool:
        """Whether nothing large can have been missed."""
        if self.is_ruled_out or not self.has_enough_tasks or self.visible is None:
            return self.is_ruled_out
        return self.visible - self.null <= MOST_UNSEEN[self.unit]


@dataclass(frozen=True)
class TopicFinding:
    """What was found on one topic. cleared, unsure: the sentences for no effect, and for too few data. unmeasured: why
    nothing could be tested; effects are then empty. grade: of what is certain."""

    topic: str
    effects: Sequence[Effect]
    cleared: str
    unsure: str
    unmeasured: str = ""
    grade: Grade = "warning"

    @property
    def certain(self) -> list[Effect]:
        found = sorted((e for e in self.effects if e.is_certain), key=lambda e: -abs(e.estimate.value))
        return [effect for effect in found if not effect.part] or found

    @property
    def strongest(self) -> Effect:
        """The effect that comes nearest to being named. Raises ValueError where nothing was tested."""
        overall = [effect for effect in self.effects if not effect.part] or self.effects
        return min(overall, key=lambda e: 1.0 if e.estimate.p is None else e.estimate.p)


def surely_above(what: str, named: str, least: Estimate, every: Iterable[Estimate], null: float) -> Effect:
    """Claims that every one of some correlations or shares, of which `least` is the smallest, lies above `null`. All
    have to: the claim has the largest p of any."""
    p = None if least.p is None else max(one_sided(estimate, null=null) for estimate in every)
    return Effect(what, named, replace(least, p=p), "correlation", least=0.0, null=null, weight=0.5)


def adjusted(families: Sequence[Sequence[TopicFinding]]) -> list[list[TopicFinding]]:
    """The topics of all coaches, with p values that hold for the audit as a whole."""
    effects = [effect for family in families for topic in family for effect in topic.effects]
    tested = [effect for effect in effects if effect.estimate.p is not None]
    total = sum(effect.weight for effect in tested)
    p_values = iter(holm([effect.estimate.p for effect in effects], [effect.weight for effect in effects]))

    def judged(effect: Effect) -> Effect:
        return replace(effect, p=next(p_values), visible=_visible(effect, ALPHA * effect.weight / max(total, 1e-12)))

    return [
        [replace(topic, effects=[judged(effect) for effect in topic.effects]) for topic in family]
        for family in families
    ]


def alone(effect: Effect) -> Effect:
    """The effect as the only test of its family."""
    return replace(effect, p=effect.estimate.p, visible=_visible(effect, ALPHA))


def _visible(effect: Effect, alpha: float) -> float | None:
    """The effect whose estimate would pass its test at `alpha` with probability `POWER`: (t of alpha + t of the power)
    standard errors, and at least so much that it is larger than what is never named."""
    low, high = effect.estimate.low, effect.estimate.high
    freedom = effect.estimate.freedom
    if low is None or high is None or freedom <= 0:
        return None
    error = (high - low) / 2 / stats.t.ppf((1 + COVERAGE) / 2, freedom)
    by_power = float(stats.t.ppf(POWER, freedom)) * error
    return effect.null + max(float(stats.t.isf(alpha / 2, freedom)) * error, effect.smallest) + by_power
