"""Small builders of coach requests: one team that answers a question, one that hands files on."""

from dataclasses import replace

from coachrl.coach.base import CoachRequest
from coachrl.prompts import parse_prompt
from coachrl.tasks.math.problems import MathTruth
from coachrl.testing.actions import make_action as plain_action
from coachrl.types import Action, Execution, Outcome, Role, Task

WORD_PROBLEM = Task("w1", "one-step", "Ann has 3 boxes of 4 apples. How many apples?", ground_truth=MathTruth("12"))
TABLE = Task("t1", "classification", "Predict the target column of test.csv.")

SOLVER = Role("solver", "solver", description="Write the arithmetic.", max_new_tokens=100)
EXECUTOR = Role("executor", "executor", description="Compute it.", python=True, max_turns=3, stop_when="answered")
VERIFIER = Role(
    "verifier",
    "verifier",
    prompt=parse_prompt("---\nfields: []\n---\nAnswer as \\boxed{n}.", "verifier"),
    max_new_tokens=100,
)
MATHS_TEAM = (SOLVER, EXECUTOR, VERIFIER)
FEATURES = ("X_train.pkl", "y_train.pkl", "X_test.pkl")


def saver(name: str, makes: tuple[str, ...], needs: tuple[str, ...] = ()) -> Role:
    """Writes code that saves files for those after it."""
    return Role(name, name, python=True, max_turns=2, stop_when="saved", required_files=makes, needed_files=needs)


ENGINEER = saver("engineer", FEATURES)
MODELER = saver("modeler", ("model.pkl",), FEATURES[:2])
ANALYST = saver("analyst", ("submission.csv",), ("X_test.pkl", "model.pkl"))
FILE_TEAM = (ENGINEER, MODELER, ANALYST)


def make_action(
    role: str,
    text: str,
    *,
    code: str | None = None,
    execution: Execution | None = None,
    before: tuple[str, ...] = (),
    after: tuple[str, ...] | None = None,
    turn: int = 0,
    index: int = 0,
    finish: str = "stop",
    tokens: int = 10,
    episode: str = "e1",
) -> Action:
    return plain_action(
        role,
        text,
        episode=episode,
        index=index,
        turn=turn,
        response_ids=(2,) * tokens,
        finish_reason=finish,
        prompt_text="What is asked",
        code=code,
        execution=execution,
        files_before=before,
        files_after=before if after is None else after,
    )


def coded(role: str, code: str, execution: Execution, **more: object) -> Action:
    """An action whose reply is one closed block of `code`."""
    return make_action(role, f"```python\n{code}\n```", code=code + "\n", execution=execution, **more)  # type: ignore[arg-type]


def request_for(
    action: Action, previous: tuple[Action, ...] = (), outcome: Outcome | None = None, **role_changes: object
) -> CoachRequest:
    """A request for `action`; the team follows from its role."""
    team = MATHS_TEAM if action.role in {role.name for role in MATHS_TEAM} else FILE_TEAM
    role = replace(next(role for role in team if role.name == action.role), **role_changes)  # type: ignore[arg-type]
    return CoachRequest(
        task=WORD_PROBLEM if team is MATHS_TEAM else TABLE,
        role=role,
        team=tuple(role if member.name == role.name else member for member in team),
        action=action,
        previous=previous,
        is_last_role=role.name == team[-1].name,
        outcome=outcome,
    )
