"""Caps that a prompt's header declares: what is read, what is refused, what a model is told, what they come to."""

import pytest

from coachrl.coach.rubric.caps import SITUATIONS, Caps, parse_caps
from coachrl.coach.rubric.points import Cap
from coachrl.errors import ConfigError
from coachrl.types import Outcome

CAPS = parse_caps(
    {
        "caps": {
            "failed": 3,
            "cut": 4.5,
            "f1": {"from": {0.5: 6, 0.8: 9}, "else": 2},
            "rmse_pct_range": {"up_to": {25: 7, 10: 8}, "below": {10: 9}, "else": 4},
        }
    },
    "p",
)


@pytest.mark.parametrize(
    ("outcome", "cap"),
    [
        (Outcome(False, {"f1": 0.9}, reason="no file"), Cap(3, "the outcome is a failure: no file")),
        (Outcome(True, {"f1": 0.8}), Cap(9, "F1 is 0.8")),
        (Outcome(True, {"f1": 0.79999}), Cap(6, "F1 is 0.8")),
        (Outcome(True, {"f1": 0.49}), Cap(2, "F1 is 0.49")),
        (Outcome(True, {"rmse_pct_range": 5.0, "f1": 0.6}), Cap(6, "F1 is 0.6")),  # the first that the header names
        (Outcome(True, {"rmse_pct_range": 25.0}), Cap(7, "RMSE in % of the range of the targets is 25")),
        (Outcome(True, {"rmse_pct_range": 10.0}), Cap(8, "RMSE in % of the range of the targets is 10")),
        (Outcome(True, {"rmse_pct_range": 9.99}), Cap(9, "RMSE in % of the range of the targets is 9.99")),
        (Outcome(True, {"rmse_pct_range": 25.1}), Cap(4, "RMSE in % of the range of the targets is 25.1")),
        (Outcome(True, {"mae": 1.0}), None),
    ],
)
def test_an_outcome_is_capped_by_the_first_level_that_it_reaches(outcome: Outcome, cap: Cap | None) -> None:
    assert CAPS.of_outcome(outcome) == cap


def test_a_situation_that_is_not_named_leaves_all_ten_points() -> None:
    assert [CAPS.of_situation(name) for name in ("failed", "cut", "no_code")] == [3, 4.5, 10]
    assert parse_caps({}, "p") == Caps({}) and Caps({}).of_outcome(Outcome(False)) is None


def test_a_model_is_told_each_cap_on_a_line_from_the_best_value_down() -> None:
    assert CAPS.words().splitlines() == [
        "- The measured outcome is a failure, and the cause is this agent's: at most 3.",
        "- The reply was cut off at its length limit: at most 4.5.",
        "- F1 0.8 and up: at most 9; 0.5 and up: at most 6; otherwise: at most 2.",
        "- RMSE in % of the range of the targets below 10: at most 9; up to 10: at most 8; up to 25: at most 7; "
        "otherwise: at most 4.",
    ]
    assert Caps({}).words() == "None."


@pytest.mark.parametrize(
    ("caps", "said"),
    [
        ([], "'caps' must be a mapping such as {failed: 3}"),
        ({"failed": True}, "caps.failed: True is no score from 0 to 10"),
        ({"failed": -0.5}, "caps.failed: -0.5 is no score from 0 to 10"),
        ({"failed": "3"}, "caps.failed: '3' is no score from 0 to 10"),
        ({"f2": 3}, "caps.f2: unknown, did you mean 'f1'?; caps may name failed, "),
        ({"f1": 3}, "caps.f1: must read {from: {VALUE: SCORE, …}, else: SCORE}"),
        ({"f1": {"from": {0.5: 9}}}, "caps.f1: must read {from: "),
        ({"f1": {"from": {0.5: 9}, "above": {1: 2}, "else": 3}}, "caps.f1: must read {from: "),
        ({"f1": {"else": 3}}, "caps.f1: 'from' (more is better), or 'below' and 'up_to'"),
        ({"f1": {"from": {1: 2}, "up_to": {3: 4}, "else": 3}}, "caps.f1: 'from' (more is better), or 'below'"),
        ({"f1": {"from": {}, "else": 3}}, "caps.f1.from: must be a mapping of values to scores"),
        ({"f1": {"from": [0.5], "else": 3}}, "caps.f1.from: must be a mapping of values to scores"),
        ({"f1": {"below": {"a": 9}, "else": 3}}, "caps.f1.below: must be a mapping of values to scores"),
        ({"f1": {"up_to": {True: 3}, "else": 3}}, "caps.f1.up_to: must be a mapping of values to scores"),
        ({"f1": {"from": {0.5: 10.5}, "else": 3}}, "caps.f1.from: 10.5 is no score from 0 to 10"),
        ({"f1": {"from": {0.5: 9}, "else": 11}}, "caps.f1.else: 11 is no score from 0 to 10"),
    ],
)
def test_what_is_no_cap_is_named_by_its_place(caps: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_caps({"caps": caps}, "p")
    assert str(caught.value).startswith(f"coach prompt p: {said}")


def test_a_cap_may_be_any_score() -> None:
    caps = parse_caps({"caps": {"failed": 0, "f1": {"from": {0.5: 10}, "else": 0}}}, "p")
    assert caps.of_situation("failed") == 0
    assert [caps.of_outcome(Outcome(True, {"f1": f1})).at_most for f1 in (0.5, 0.4)] == [10, 0]


def test_every_situation_and_bound_is_told_in_words_of_its_own() -> None:
    steps = {"below": {10: 9}, "up_to": {50: 6}, "else": 4}
    caps = dict.fromkeys(SITUATIONS, 3) | {"f1": {"from": {0.85: 9}, "else": 3}, "mae_pct_iqr": steps}
    lines = parse_caps({"caps": caps}, "p").words().splitlines()
    assert lines[-2:] == [
        "- F1 0.85 and up: at most 9; otherwise: at most 3.",
        "- MAE in % of the interquartile range of the targets below 10: at most 9; up to 50: at most 6; "
        "otherwise: at most 4.",
    ]
    told = {"no_answer": "answer", "no_code": "could be run", "wrong_estimator": "wrong kind", "cut": "length limit"}
    for name, words in told.items():
        assert words in lines[list(SITUATIONS).index(name)]
    assert Caps({}).words() == "None." and Caps({}).of_situation("cut") == 10
