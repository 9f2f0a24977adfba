"""The thresholds that a CI may set on an audit (`--fail-on`), and which of them its verdicts cross."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from coachrl.audit.stats.criteria import ALIKE
from coachrl.audit.topics.effect import LEAST
from coachrl.audit.topics.halo import COPIED, HALO
from coachrl.audit.verdicts import (
    FAILED,
    INFORMATIVE_AUC,
    LOCALIZED,
    RETEST_ICC,
    SMALLEST_GAP,
    SMALLEST_RHO,
    TIED,
    AuditVerdict,
)
from coachrl.errors import ConfigError
from coachrl.text import nearest

# Topic of --fail-on -> (its default limit, what the limit is of, whether falling below it is what fails).
TOPICS: dict[str, tuple[float, str, bool]] = {
    "category": (SMALLEST_GAP, "largest gap between task categories at equal outcome, points", False),
    "topic": (SMALLEST_GAP, "the same between topics found in the tasks' words, points", False),
    "length": (SMALLEST_RHO, "partial rank correlation of score and response tokens, absolute", False),
    "style": (SMALLEST_RHO, "the same for code share, Markdown and hedging: the largest", False),
    "auc": (INFORMATIVE_AUC, "ROC-AUC of the last action's score for the outcome", True),
    "saturation": (TIED, "share of a role's scores that are its most frequent one: the largest", False),
    "failed": (FAILED, "share of calls without a score, abstentions left out", False),
    "halo": (HALO, "share of what tells scores apart that an episode's actions have in common", False),
    "copying": (COPIED, "share of the variance of every role's scores that the outcome explains", False),
    "criteria": (ALIKE, "rank correlation of the two criteria of the prompt that go together least", False),
    "leniency": (SMALLEST_GAP, "change of scores at equal task, role and outcome over training, points", False),
    "handover": (LEAST["share"], "rise of failures after a role whose score rises, share", False),
    "turn_order": (SMALLEST_GAP, "points for a later turn or place", False),
    "failures": (LEAST["share"], "difference of failed calls between kinds of actions, share", False),
    "self_preference": (SMALLEST_GAP, "points that coaches give to policies of their own family", False),
    "reward_hacking": (0.0, "score rises while the outcome falls", False),
    "reference_set": (SMALLEST_GAP, "change of the mean score of a frozen set of actions, points", False),
    "agreement": (RETEST_ICC, "ICC of one coach with itself", True),
    "probe": (SMALLEST_GAP, "points that a change without substance moves the mean score by", False),
    "replay": (SMALLEST_RHO, "rank correlation of scores with what replayed actions were worth", True),
    "fault_localization": (
        LOCALIZED,
        "share of planted faults whose culprit loses most against the sound play",
        True,
    ),
}


def parse_threshold(text: str) -> tuple[str, float | None]:
    """'category', 'category=0.5' or 'any'. Raises ConfigError naming the nearest topic."""
    topic, separator, limit = text.partition("=")
    if topic not in (*TOPICS, "any"):
        raise ConfigError(
            f"--fail-on {text}: unknown topic '{topic}'{nearest(topic, TOPICS)}; topics: any, {', '.join(TOPICS)}"
        )
    if not separator:
        return topic, None
    try:
        number = float(limit)
    except ValueError:
        number = math.nan
    if topic == "any" or not math.isfinite(number) or number < 0:
        raise ConfigError(
            f"--fail-on {text}: write {topic} alone, or a topic with a number from 0 up, as in category=0.5"
        )
    return topic, number


def crossed(made: Sequence[AuditVerdict], thresholds: Iterable[tuple[str, float | None]]) -> list[str]:
    """A sentence for each threshold that is crossed. A topic that could not be measured is crossed too: a gate that
    nothing was measured for must not let anything through."""
    reasons = []
    for topic, limit in thresholds:
        concerned = [verdict for verdict in made if topic in ("any", verdict.topic)]
        name = topic if limit is None else f"{topic}={limit:g}"
        if not concerned:
            reasons.append(f"{topic}: nothing was measured for any coach")
        reasons += [f"{name}: {v.line}" for v in concerned if _crosses(v, topic, limit)]
        if topic != "any":
            measured = {(v.pipeline, v.rater) for v in concerned if v.value is not None}
            unmeasured = [v for v in concerned if (v.pipeline, v.rater) not in measured]
            reasons += [f"{topic}: not measured: {v.line}" for v in unmeasured]
    return reasons


def _crosses(verdict: AuditVerdict, topic: str, limit: float | None) -> bool:
    if limit is None:
        return verdict.grade in ("warning", "alarm")
    if verdict.value is None:
        return False
    _, _, below = TOPICS[topic]
    return verdict.value < limit if below else abs(verdict.value) > limit
