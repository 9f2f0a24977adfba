"""What cooperation is worth, and how two parts become one program."""

import pytest

from coachrl.tasks.code.cooperation import Cooperation
from coachrl.tasks.code.joint_reward import LEVELS, JointReward, JointWeights, _cooperation


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
