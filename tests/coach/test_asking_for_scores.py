"""What a coach is asked: whose names are whose, who sees the outcome, and what came before an action."""

import pytest
from coach_requests import MATHS_TEAM, WORD_PROBLEM, make_action

from coachrl.coach.base import (
    episode_requests,
    is_import_path,
    is_language_model,
    is_mistyped_rules,
    make_request,
    sees_outcome,
)
from coachrl.types import Outcome


@pytest.mark.parametrize(
    ("name", "own", "model", "mistyped"),
    [
        ("rules", False, False, False),
        ("my_package.my_module:MyCoach", True, False, False),
        ("_m:f2", True, False, False),
        ("gpt-4o", False, True, False),
        ("ollama/llama3:8b", False, True, False),
        ("a:b:c", False, True, False),
        ("2m:f", False, True, False),
        ("rule", False, True, True),
        (" Rules ", False, True, True),
        ("mules", False, True, True),
        ("r1", False, True, False),
    ],
)
def test_a_name_is_that_of_rules_of_a_class_or_of_a_model(name: str, own: bool, model: bool, mistyped: bool) -> None:
    assert (is_import_path(name), is_language_model(name), is_mistyped_rules(name)) == (own, model, mistyped)


@pytest.mark.parametrize(
    ("to", "seen"), [("last", ["verifier"]), ("none", []), ("all", ["solver", "executor", "verifier"])]
)
def test_the_outcome_is_shown_with_the_last_agents_actions_with_all_or_with_none(to: str, seen: list[str]) -> None:
    assert [role.name for role in MATHS_TEAM if sees_outcome(role.name, MATHS_TEAM, to)] == seen  # type: ignore[arg-type]


def test_a_retrospective_pass_goes_over_every_action_with_those_before_it_and_the_outcome() -> None:
    actions = [make_action(role, "x", index=place) for place, role in enumerate(("verifier", "solver", "verifier"))]
    requests = episode_requests(WORD_PROBLEM, MATHS_TEAM, actions, Outcome(True))
    assert [request.action for request in requests] == actions
    assert [request.previous for request in requests] == [(), (actions[0],), (actions[0], actions[1])]
    assert [request.role.name for request in requests] == ["verifier", "solver", "verifier"]
    assert [request.is_last_role for request in requests] == [True, False, True]
    assert all(request.outcome == Outcome(True) and request.team == MATHS_TEAM for request in requests)
    one = make_request(WORD_PROBLEM, MATHS_TEAM, MATHS_TEAM[0], actions[1], actions[:1], None)
    assert one.previous == (actions[0],) and one.outcome is None and not one.is_last_role
