"""What cooperation is worth, and how two parts become one program."""

import pytest
from pydantic import ValidationError

from coachrl.tasks.code.cooperation import Cooperation
from coachrl.tasks.code.joint_reward import LEVELS, JointReward, JointWeights, _cooperation, join_code
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import parse_suite


@pytest.mark.parametrize(
    ("called", "used", "wrapper", "points"),
    [(False, False, False, 0.0), (True, False, False, 0.25), (True, True, True, 0.75), (True, True, False, 2.75)],
)
def test_a_helper_that_is_called_used_and_more_than_passed_on(called, used, wrapper, points):
    weights = JointWeights(calls_aux=0.75, beyond_wrapper=2.0, ignores_aux=0.5)
    assert _cooperation(Cooperation(called, used, wrapper, ()), weights) == points


def test_a_joint_reward_is_the_sum_of_its_levels_and_nothing_that_ran_solved_nothing():
    reward = JointReward(
        dict(zip(LEVELS, (1.0, 0.5, 0.25, 0.0), strict=True)), Cooperation(True, True, False, ()), None
    )
    assert (reward.total, reward.solved, reward.tests_passed) == (1.75, False, 0.0)


@pytest.mark.parametrize("name", JointWeights.model_fields)
def test_no_part_takes_points_away_by_its_weight(name):
    assert getattr(JointWeights(**{name: 0.0}), name) == 0.0
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        JointWeights(**{name: -0.1})


def test_four_points_are_the_most():
    given = JointWeights()
    assert given.aux + given.main + given.syntax + given.tests + given.calls_aux + given.beyond_wrapper == 4.0


def test_the_given_stands_first_then_the_helper_then_the_main_agent():
    truth = CodeTruth("f", parse_suite("assert f(1)"), "import math\n")
    assert join_code(truth, " aux = 1\n", "\nmain = 2") == "import math\n\n\naux = 1\n\n\nmain = 2\n"
    assert join_code(truth, None, "main = 2") == "import math\n\n\nmain = 2\n"
