"""The metrics that say what a gain is made of, against counts made by hand."""

import pytest

from coachrl.testing.actions import make_action
from coachrl.trainers.algorithms.advantages.batches import AdvantageBatch
from coachrl.trainers.metrics import (
    Clock,
    behavior_metrics,
    by_role,
    cost_metrics,
    outcome_metrics,
    reward_metrics,
    score_metrics,
)
from coachrl.trainers.samples import to_samples
from coachrl.types import GIVEN_UP, CoachScore, Episode, Execution, Outcome, Usage

OK, FAILED = Execution("ok"), Execution("error")


def action(name, role="a", *, tokens=1, finish_reason="stop", code=None, execution=None):
    episode_id, index = name.split("/")
    written = {"finish_reason": finish_reason, "code": code, "execution": execution}
    return make_action(role, episode=episode_id, index=int(index), response_ids=(2,) * tokens, **written)


def episode(name, *actions, success=True, category="k", metrics=None, infra_error=None, overflowed=False, rejected=()):
    outcome = Outcome(success, metrics or {})
    return Episode(
        name,
        "t",
        category,
        "p",
        actions,
        outcome,
        infra_error=infra_error,
        overflowed=overflowed,
        rejected_candidates=tuple(rejected),
    )


def test_behavior_is_counted_by_role():
    episodes = [
        episode("e", action("e/0", tokens=2), action("e/1", tokens=4, finish_reason="length"), action("e/2", "b")),
        episode("f", action("f/0", tokens=6)),
    ]
    metrics = behavior_metrics(episodes)
    assert metrics["behavior/response_tokens/a"] == 4
    assert metrics["behavior/finish_rate/a"] == pytest.approx(2 / 3)
    assert metrics["behavior/turns/a"] == 1.5
    assert metrics["behavior/turns/b"] == 1, "an episode in which a role never acts is not one of its own"
    assert "behavior/code/a" not in metrics, "a role that never ran code has no rate of it"


def test_a_call_that_its_app_left_is_no_reply_of_no_tokens():
    left = [
        make_action("a", episode="e", index=n, response_ids=(), finish_reason="length", result=GIVEN_UP) for n in (1, 2)
    ]
    metrics = behavior_metrics([episode("e", action("e/0", tokens=6), *left)])
    assert (metrics["behavior/response_tokens/a"], metrics["behavior/finish_rate/a"]) == (6, 1)
    assert metrics["behavior/turns/a"] == 3
    assert behavior_metrics([episode("e", *left)]) == {"behavior/turns/a": 2}


def test_code_that_was_never_run_counts_against_the_share_that_succeeds():
    actions = [
        action("e/0", code="1", execution=OK),
        action("e/1", code="2", execution=FAILED),
        action("e/2", code="3"),
        action("e/3"),
    ]
    metrics = behavior_metrics([episode("e", *actions)])
    assert (metrics["behavior/code/a"], metrics["behavior/code_success_rate/a"]) == (0.75, 0.25)


def test_what_agents_did_in_broken_episodes_is_not_measured():
    whole, broken = episode("e", action("e/0", tokens=2)), episode("f", action("f/0", tokens=9), infra_error="timeout")
    assert behavior_metrics([whole, broken]) == behavior_metrics([whole])
    scores = {"e/0": CoachScore("e/0", "scored", 8.0), "f/0": CoachScore("f/0", "scored", 2.0)}
    assert score_metrics([whole, broken], scores)["coach/score/a"] == 8


def test_broken_episodes_are_counted_and_left_out_of_success():
    episodes = [
        episode("e", category="easy", metrics={"m": 2.0}),
        episode("f", category="hard", success=False, metrics={"m": 4.0, "n": 1.0}, overflowed=True),
        episode("g", category="hard"),
        episode("h", category="easy", success=False, metrics={"m": 99.0}, infra_error="sandbox"),
    ]
    assert outcome_metrics(episodes) == {
        "episodes": 3,
        "faulty_fraction": 0.25,
        "overflowed_fraction": 0.25,
        "success": pytest.approx(2 / 3),
        "success/easy": 1,
        "success/hard": 0.5,
        "m": 3,
        "n": 1,
    }


def test_a_metric_of_ones_own_takes_the_place_of_no_figure_of_coachrl_and_is_warned_of_once(caplog):
    names = ("success", "success/k", "episodes", "faulty_fraction", "overflowed_fraction", "loss/a", "skipped/a")
    own = dict.fromkeys(names, 0.25)
    for _ in range(2):
        assert outcome_metrics([episode("e", metrics=own)]) == outcome_metrics([episode("e")])
    assert len(caplog.records) == len(names) and "the metric 'loss/a' is called as a figure" in caplog.text


@pytest.mark.parametrize("episodes", [[], [episode("e", infra_error="sandbox")]])
def test_without_a_valid_episode_there_is_no_success_rate(episodes):
    assert outcome_metrics(episodes) == {"episodes": 0, "faulty_fraction": len(episodes), "overflowed_fraction": 0}


def test_scores_that_nobody_gave_are_in_no_mean():
    played = episode("e", action("e/0"), action("e/1"), action("e/2"), action("e/3", "b"), rejected=[action("e/4")])
    scores = {
        "e/0": CoachScore("e/0", "scored", 8.0, usage=Usage(attempts=2, latency_s=1.0), contribution=4.0),
        "e/1": CoachScore("e/1", "failed", usage=Usage(attempts=3, latency_s=3.0)),
        "e/3": CoachScore("e/3", "abstained", usage=Usage(attempts=1, latency_s=2.0)),
        "e/4": CoachScore("e/4", "scored", 2.0, disagreement=1.5),
    }
    metrics = score_metrics([played], scores)
    assert metrics["coach/score/a"] == 5, "candidates that were not followed have scores too"
    assert metrics["coach/contribution/a"] == 4
    assert "coach/score/b" not in metrics
    assert (metrics["coach/calls"], metrics["coach/failed_fraction"], metrics["coach/latency_s"]) == (7, 0.25, 1.5)
    assert metrics["coach/disagreement"] == 1.5
    assert score_metrics([played], {}) == {}


def test_rejected_candidates_stand_under_their_role_only_where_they_are_asked_for():
    played = episode("e", action("e/0"), rejected=[action("e/1")])
    assert [a.id for a in by_role([played])["a"]] == ["e/0"]
    assert [a.id for a in by_role([played], all_actions=True)["a"]] == ["e/0", "e/1"]


def test_a_score_of_nothing_is_a_score():
    played = episode("e", action("e/0"), action("e/1"))
    scores = {
        "e/0": CoachScore("e/0", "scored", 0.0, disagreement=0.0, contribution=0.0),
        "e/1": CoachScore("e/1", "scored", 6.0, disagreement=1.0, contribution=-3.0),
    }
    metrics = score_metrics([played], scores)
    figures = [metrics[f"coach/{name}"] for name in ("score/a", "contribution/a", "disagreement", "failed_fraction")]
    assert figures == [3.0, -1.5, 0.5, 0.0]


def test_what_a_step_learned_from():
    """Five actions, of which two were left out; a reward of 0 counts in its role's mean, one that is None does not."""
    actions = [action("e/0"), action("e/1"), action("e/2"), action("e/3", "b")]
    played = episode("e", *actions, rejected=[action("e/4")])
    rewards = {"e/0": 0.0, "e/1": 4.0, "e/2": None, "e/3": None, "e/4": 5.0}
    batch = AdvantageBatch(
        to_samples([played]),
        masked={"unscored": 2},
        unknown_returns={"a": 1},
        metrics={"mine": 0.5},
        groups=4,
        groups_of_one=2,
        groups_without_spread=1,
    )
    assert reward_metrics([played], rewards, batch) == {
        "train/masked/unscored": 2.0,
        "train/trained_actions": 3.0,
        "train/unknown_returns/a": 1.0,
        "train/mine": 0.5,
        "train/groups": 4.0,
        "train/groups_of_one": 2.0,
        "train/groups_without_spread": 1.0,
        "train/reward/a": 3.0,
    }
    assert reward_metrics([], {}, AdvantageBatch({}, {}, {})) == {"train/trained_actions": 0.0}


def test_a_step_costs_the_tokens_of_candidates_too_and_what_its_calls_cost():
    paid = {"external/calls": 3.0, "external/usd": 0.5}
    played = episode("e", action("e/0", tokens=2), metrics=paid, rejected=[action("e/1", tokens=5)])
    other = episode("f", action("f/0", tokens=4), metrics={"external/calls": 1.0, "external/usd": 0.25})
    scores = {name: CoachScore(name, "scored", 1.0, usage=Usage(cost_usd=0.5)) for name in ("e/0", "e/1", "f/0")}
    assert cost_metrics([played, other], scores) == {
        "tokens/generated": 11.0,
        "tokens/prompt": 3.0,
        "cost/usd": 1.5,
        "cost/external/calls": 4.0,
        "cost/external/usd": 0.75,
    }
    of_unknown_price = episode("h", action("h/0"), metrics={"external/calls": 2.0})
    costs = cost_metrics([played, other, of_unknown_price, episode("g", action("g/0"))], {})
    assert costs["cost/external/calls"] == 6.0 and "cost/external/usd" not in costs, "it would say too little"
    unpriced = scores | {"f/0": CoachScore("f/0", "failed", usage=Usage(cost_usd=None))}
    assert "cost/usd" not in cost_metrics([played], unpriced)
    assert cost_metrics([episode("g", action("g/0"))], {}) == {
        "tokens/generated": 1.0,
        "tokens/prompt": 1.0,
        "cost/usd": 0.0,
    }


def test_a_clocks_laps_sum_to_the_step_and_each_begins_where_the_last_one_ended(monkeypatch):
    now = iter((10.0, 11.0, 15.0))
    monkeypatch.setattr("coachrl.trainers.metrics.time.monotonic", lambda: next(now))
    clock = Clock()
    clock.lap("rollout")
    clock.lap("score")
    assert clock.metrics() == {"time/rollout_s": 1.0, "time/score_s": 4.0, "time/step_s": 5.0}


def test_tokens_a_second_are_those_of_the_named_lap_and_a_lap_of_no_time_divides_by_none(monkeypatch):
    now = iter((10.0, 12.0, 12.0))
    monkeypatch.setattr("coachrl.trainers.metrics.time.monotonic", lambda: next(now))
    clock = Clock()
    clock.lap("rollout")
    clock.lap("score")
    assert clock.rate("rollout", 8) == {"time/rollout_tokens_per_s": 4.0}
    assert clock.rate("score", 0) == {"time/score_tokens_per_s": 0.0}
    assert clock.rate("score", 1)["time/score_tokens_per_s"] == pytest.approx(1e9)
    assert clock.rate("score", 8, beside=True) == {"time/score_tokens_per_s": 4.0}


def test_a_metric_of_a_model_that_diverges_has_a_mean():
    played = [episode(name, metrics={"mse": 1.5e308}) for name in ("e", "f")]
    assert outcome_metrics(played)["mse"] == pytest.approx(1.5e308)
