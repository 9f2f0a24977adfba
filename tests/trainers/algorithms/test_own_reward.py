"""A reward of the user's own: what it may give, what is refused, and that the coach is asked only where it is read."""

from dataclasses import replace

import numpy as np
import pytest

from coachrl.config import RewardConfig, load_config
from coachrl.errors import ConfigError
from coachrl.testing.actions import make_action
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.advantages.rewards import source_rewards
from coachrl.types import CoachScore, Episode, Outcome

ACTIONS = tuple(make_action(text="five", index=index, turn=index) for index in range(2))
EPISODE = Episode("e", "task", "sums", "ask", ACTIONS, Outcome(True))
SCORES = {"e/1": CoachScore("e/1", "scored", 7.0), "other": CoachScore("other", "scored", 1.0)}


def success(episode):
    return np.float32(episode.outcome.success)


def first_only(episode):
    return {"e/0": 2}


def with_scores(episode, scores):
    return {key: score.process_0_10 * 2 for key, score in scores.items()}


def broken(episode):
    raise ValueError("no\nluck")


def beyond_floats(episode):
    return 10**400


def not_a_number(episode):
    return float("nan")


def nothing(episode):
    return None


def yes(episode):
    return True


def misnamed(episode):
    return {"e/11": 1.0}


def of_three(episode, scores, run):
    return 0.0


def by_keyword(episode, *, scores):
    return 0.0


def any_number(*episodes):
    return 0.0


async def later(episode):
    return 0.0


def named(name):
    return RewardConfig(source=f"{__name__}:{name}")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("success", {"e/0": 1.0, "e/1": 1.0}),
        ("first_only", {"e/0": 2.0, "e/1": None}),
        ("nothing", {"e/0": None, "e/1": None}),
        ("with_scores", {"e/0": None, "e/1": 14.0}),
    ],
)
def test_it_gives_a_number_for_all_actions_or_one_for_each(name, expected):
    assert source_rewards(EPISODE, SCORES, named(name)) == expected


def test_one_number_is_of_the_candidates_too():
    played = replace(EPISODE, rejected_candidates=(replace(ACTIONS[1], id="e/1.0", candidate=1),))
    assert source_rewards(played, {}, named("success")) == {"e/0": 1.0, "e/1": 1.0, "e/1.0": 1.0}


def test_it_is_given_the_scores_of_candidates_and_rewards_them_too():
    drawn = replace(ACTIONS[1], id="e/1.0", candidate=1)
    rewards = source_rewards(
        replace(EPISODE, rejected_candidates=(drawn,)),
        {**SCORES, "e/1.0": CoachScore("e/1.0", "scored", 4.0)},
        named("with_scores"),
    )
    assert rewards == {"e/0": None, "e/1": 14.0, "e/1.0": 8.0}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "failed on episode e: ValueError: no luck"),
        ("beyond_floats", "for e: a reward is a finite number, or None"),
        ("not_a_number", "gave nan for e: a reward is a finite number, or None"),
        ("yes", "gave True for e: a reward is a finite number, or None"),
        ("misnamed", "episode e has no action 'e/11', did you mean 'e/1'"),
        ("of_three", "must be a function of \\(episode\\) or of \\(episode, scores\\)"),
        ("by_keyword", "must be a function of \\(episode\\) or of \\(episode, scores\\)"),
        ("any_number", "must be a function of \\(episode\\) or of \\(episode, scores\\)"),
        ("later", ":later is async: it must be a plain function"),
        ("sucess", "did you mean 'success'"),
    ],
)
def test_what_is_no_reward_is_one_line(name, words):
    with pytest.raises(ConfigError, match=words) as caught:
        source_rewards(EPISODE, SCORES, named(name))
    assert len(str(caught.value).splitlines()) == 1


def test_the_coach_is_asked_only_by_a_function_that_reads_its_scores():
    algorithm = make_algorithm(load_config().algorithm)
    assert algorithm.needs_coach(named("with_scores")) and not algorithm.needs_coach(named("success"))
    assert not algorithm.needs_environment(named("success"))


def test_a_wrong_source_names_the_nearest():
    with pytest.raises(ConfigError, match=r"reward.source: no reward 'enviroment', did you mean 'environment'\?"):
        load_config(None, ["reward.source=enviroment"])


def test_it_cannot_reward_candidates_of_an_episode_that_has_not_ended():
    tree = ["algorithm.name=at_grpo", "sampling.scheme=tree", "sampling.candidates=2"]
    with pytest.raises(ConfigError, match=r"take reward\.source=coach or environment"):
        load_config(None, [*tree, f"reward.source={__name__}:success"])
