"""Faults without any noise: a coach that is wrong in every single score leaves no spread to make an interval of, and is
named all the same."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from audit_runs import Judge, write_run

from coachrl.audit.audit import audit_runs
from coachrl.audit.stats.within import first_over_second, over_tasks
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.audit.verdicts import AuditVerdict, topic_verdicts
from coachrl.stats import CORRELATION, SCORE_CHANGE, Estimate, estimate
from coachrl.types import Action, Episode


def one_for_all(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    """One score for all actions of an episode, whatever came of it."""
    return float(hashlib.sha256(episode.id.encode()).digest()[0] % 11)


def the_outcome(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return 10.0 * episode.outcome.success


def the_length(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return min(10.0, len(action.response_ids) / 40)


def the_category(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return 8.0 if episode.task_category == "product" else 6.0


def the_step(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return 8.0 if episode.id.startswith("step-000002") else 6.0


def never_the_verifier(episode: Episode, action: Action, rng: np.random.Generator) -> float | None:
    return None if action.role == "verifier" else float(rng.integers(0, 11))


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    def audited(judge: Judge, topic: str) -> AuditVerdict:
        run = write_run(tmp_path_factory.mktemp("runs"), judge, tasks=24, draws=2)
        return next(one for one in audit_runs([run.folder], resamples=100).verdicts if one.topic == topic)

    return audited


@pytest.mark.parametrize(
    ("judge", "topic", "words"),
    [
        (one_for_all, "halo", "in 100% of 96 episodes all scores are equal"),
        (the_outcome, "copying", "explains 100% of the variance"),
        (the_length, "length", "prefers more response tokens"),
        (the_category, "category", "scores product 2.0 points higher than sum at equal outcome"),
        (the_step, "leniency", "becomes more lenient"),
        (never_the_verifier, "failures", "calls on actions of verifier fail more often"),
    ],
)
def test_a_fault_in_every_single_score_is_named(said, judge: Judge, topic: str, words: str) -> None:  # type: ignore[no-untyped-def]
    verdict = said(judge, topic)
    assert verdict.grade == "warning" and words in verdict.text


def test_what_is_surely_below_its_limit_is_cleared_though_no_effect_could_have_been_seen() -> None:
    share = Estimate(0.1, 0.02, 0.5, 96, 24, p=0.001)
    effect = Effect("share explained", "copies", share, "correlation", least=0.0, null=0.64, visible=1.2)
    (verdict,) = topic_verdicts(TopicFinding("copying", [effect], "says more", "too few tasks"), "p", "coach")
    assert verdict.grade == "ok" and verdict.text.endswith("surely below 0.64, from where on it would be named")


def test_a_constant_that_few_tasks_carry_accuses_nobody() -> None:
    """Of 30 tasks three differ in x, all by the same: three turns of a sign agree in every fourth case."""
    sums_TV = np.zeros((30, 2))
    sums_TV[:3] = 2.0, 1.0
    assert over_tasks(sums_TV, first_over_second, 90, limits=SCORE_CHANGE).p == 0.25
    boot_R = np.where(np.arange(1000) % 20 == 0, np.nan, 2.0)  # where none of the three was drawn there is no value
    assert estimate(2.0, boot_R, 90, 30, limits=SCORE_CHANGE).p is None
    assert estimate(0.0, np.zeros(1000), 90, 30, limits=CORRELATION).p is None
