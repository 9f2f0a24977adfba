"""A coach's scores on people's scale."""

import pytest
from coach_requests import make_action, request_for

from coachrl.coach.kinds.calibrated import CalibratedCoach, CalibrationFile, RoleCurve
from coachrl.errors import CoachError
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import CoachScore

CURVE = {"actions": 30, "tasks": 5, "error_as_given": 1.0, "error_calibrated": 0.5}


def curve(given, people):
    return RoleCurve(given=given, people=people, **CURVE)


@pytest.mark.parametrize(("given", "people"), [(0, 1), (2, 1), (3, 2), (6, 5), (7, 5), (8, 5), (8.5, 7), (10, 9)])
def test_a_curve_is_straight_between_its_corners_and_level_beyond_them(given, people):
    assert curve((2, 6, 8, 9), (1, 5, 5, 9)).at(given) == people


@pytest.mark.parametrize(
    ("given", "people", "said"),
    [
        ((2, 2), (1, 3), "given must rise"),
        ((2, 4), (3, 1), "people must not fall"),
        ((1, 3, 3), (1, 2, 3), "given must rise"),
        ((1, 2, 3), (1, 3, 2), "people must not fall"),
        ((2, 4), (1,), "of one length"),
        ((0, 10.1), (0, 10), "less than or equal to 10"),
        ((0, 10), (-0.1, 10), "greater than or equal to 0"),
        ((), (), "at least 1 item"),
    ],
)
def test_what_is_no_curve_is_refused(given, people, said):
    with pytest.raises(ValueError, match=said):
        curve(given, people)


async def test_each_role_has_a_curve_of_its_own_and_an_abstention_goes_through_none():
    roles = {"solver": curve((0, 10), (5, 10)), "verifier": curve((0, 10), (0, 5))}
    coach = CalibratedCoach(
        ScriptedCoach(lambda request: 4.0), CalibrationFile(coach="scripted", raters=("ann",), roles=roles)
    )
    scores = [await coach.score(request_for(make_action(role, "x"))) for role in ("solver", "verifier")]
    assert [score.process_0_10 for score in scores] == [7.0, 2.0]
    assert scores[0].rationale == "7 on people's scale, where the coach gave 4"
    assert scores[0].model == "scripted (calibrated)"
    with pytest.raises(CoachError, match="no curve for role 'executor'; it has solver, verifier"):
        await coach.score(request_for(make_action("executor", "x")))

    class Silent(ScriptedCoach):
        async def score(self, request):
            return CoachScore(request.action.id, "abstained", prompt_hash="another")

    coach = CalibratedCoach(Silent(lambda request: 4.0), coach._calibration)
    assert (await coach.score(request_for(make_action("solver", "x")))).status == "abstained"


async def test_scores_of_another_prompt_than_the_curves_are_of_are_refused_and_check_and_close_reach_the_coach():
    class Hashed(ScriptedCoach):
        reached = ()

        async def score(self, request):
            return CoachScore(request.action.id, "scored", 2.0, rationale="Weak.", prompt_hash=request.action.text)

        async def check(self):
            self.reached += ("check",)

        async def close(self):
            self.reached += ("close",)

    inner = Hashed(lambda request: 4.0)
    file = CalibrationFile(coach="m", prompt_hash="a", raters=("ann",), roles={"solver": curve((2,), (3.456,))})
    coach = CalibratedCoach(inner, file)
    score = await coach.score(request_for(make_action("solver", "a")))
    assert (score.process_0_10, score.rationale) == (3.456, "3.5 on people's scale, where the coach gave 2\nWeak.")
    with pytest.raises(CoachError, match="fitted to scores of another prompt"):
        await coach.score(request_for(make_action("solver", "b")))
    await coach.check()
    await coach.close()
    assert inner.reached == ("check", "close") and coach.name == inner.name
