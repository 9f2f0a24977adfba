"""The rubric of MAPPA (App. B.4 and C.4) as code: deterministic, free, offline. Every score carries its reasons.

A rule gives points out of a maximum, or a cap. Score = 10 * points / maximum over the rules that apply, then the lowest
cap. Six rubrics, by what the role is:

**Agents that must save files** (`role.required_files`, `files`), one level each:

    9, 8.5, 8   code ran, all required files saved (+0.5 printed a summary, +0.5 at the first attempt)
    7           reported each missing upstream file by name, in words or in what the code printed
    6.5-7       code ran, most files saved          5-5.5  code ran, few saved        5  ran, looked at the data
    5           crashed on a file that an upstream agent owed, or saved unfit for use
    4-5         own bug                             4      ran, saved nothing, and printed nothing or looked at no file
    0-1         no code
    caps: 3 for ending the part without a file that a later agent needs (or the final deliverable), unless its own
    inputs were missing or unfit, and for a model.pkl in which nothing predicts; 4 for features that hold text or gaps,
    or whose rows or columns differ, also for another agent's that it spoiled, for a model on
    which nothing was fitted, and for saving what a later agent owes; 2 for saying that a file is missing which is
    there, and saving nothing; 1 for the same failing code again; for the last agent its outcome: failed submission 3,
    ROC-AUC (or accuracy) >= 0.85: 9, >= 0.75: 8, >= 0.65: 6, >= 0.55: 4, else 3;
    RMSE < 10 % of the range of the targets: 9, < 25: 8, <= 50: 6, else 4

**Agents that run code** (`math.code_rules`): one closed block 2, valid 1, ran 2, short output 1, computes 2, its
numbers come from the task or the draft 1, prints what the draft comes to 1; caps: silent 6, crashed 5, cut 4,
not Python 3, the same failing code again 1; on a problem of several steps 4 for departing from a draft whose steps
all hold, with all the problem's numbers and no other, and 4 for reporting another number than was printed.

**Agents that write a draft** (`draft_rules`): written 1, ended by itself 1, brief 1, states arithmetic 3, with the
problem's numbers 3, all of them 1; caps: cut 4, on a problem of several steps 4 for a step that does not hold or has
a number from nowhere.

**The last agent's answer** (`answer_rules`): correct 6, ended by itself 1, one boxed answer 1, nothing after it 1,
agrees with the code's output 1; caps: wrong 3 (5 where the code printed it, on a problem of several steps), wrong
against the code's output 1.5, no box 1, cut 4.

**Agents that argue for an answer of their own** (`argument_rules`: asked for a box, and not the one agent that ends the
episode, as in a debate): as a draft, and one boxed answer 2; cap: no box 3.

**Agents that write programs which others run** (`programs`, on programming tasks): one closed block 1, valid 2; a
function: defined 3, works with `aux` where that is asked for 2, share of tests passed 4 where the outcome is given; a
helper: `aux` with a return 5; tests: call the function 2, state a value 2, four of them 1, where the outcome is given
share of them that the reference solution alone passes 4; caps: not Python, or not what was asked for 2, tests that
never call the function 3, an `aux` that uses none of its arguments 3, where no outcome is given a function that does
so, or takes none and may not, 3, tests that contradict the task's examples or each other, only repeat the examples, or
fail the reference solution 4, tests that a wrong program passes 4 to 10 by their share, cut 4, failed 3 to 6 by the
share of tests passed.

The outcome counts for an action where `request.outcome` is given: the last agent's (MAPPA), or everyone's, when each
agent's own result is compared with a reference answer that is one number (right 1 more, wrong at most 4, faithful to a
wrong draft 7; in a debate each answers for itself, and a copy is as wrong). Where the environment can read no answer,
at most 3.

Where the paper's table and its text differ, the text is followed: the table gives 2-3 to an agent that crashes on a
missing upstream file, less than to one with a bug of its own, while the text says that it is not to be penalised.
"""

from __future__ import annotations

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.files import file_rules
from coachrl.coach.rubric.math import answer_rules, argument_rules, asks_for_box, code_rules, draft_rules
from coachrl.coach.rubric.points import Rule, total
from coachrl.coach.rubric.programs import is_programming, program_rules
from coachrl.types import CoachScore

_UNREADABLE = 2.0


class RulesCoach:
    """Scores by the rules above. Abstains where the sandbox broke: that is not the agent's doing."""

    name = "rules"

    async def check(self) -> None:
        """Rules are always there."""

    async def score(self, request: CoachRequest) -> CoachScore:
        action = request.action
        if action.execution is not None and action.execution.state == "infrastructure":
            return CoachScore(action.id, "abstained", rationale="the sandbox broke during this action", model=self.name)
        try:
            process_0_10, reasons = total(rubric(request))
        except RecursionError:  # of code of some depths one reading comes to its end and another does not
            process_0_10, reasons = _UNREADABLE, "what it wrote nests too deeply to be read"
        return CoachScore(action.id, "scored", process_0_10, rationale=reasons, model=self.name)

    async def close(self) -> None:
        """Nothing to close."""


def rubric(request: CoachRequest) -> list[Rule]:
    """The rules that apply to the action, with what each of them gave."""
    if request.role.required_files:
        return file_rules(request)
    if request.role.python:
        return code_rules(request)
    if is_programming(request):
        return program_rules(request)
    # Which of a debate's agents comes last tells nothing: they all have the same prompt.
    same_prompt = [role for role in request.team if role.prompt.sha256 == request.role.prompt.sha256]
    if request.is_last_role and len(same_prompt) <= 1:
        return answer_rules(request)
    return argument_rules(request) if asks_for_box(request) else draft_rules(request)
