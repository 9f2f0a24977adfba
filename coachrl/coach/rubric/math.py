"""Rules for teams that answer a question: draft, code, final answer (MAPPA, App. B.4). The table is in
`coachrl.coach.rubric.rules`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.points import (
    Cap,
    RubricPoints,
    Rule,
    all_or_none,
    checked,
    cut,
    error_line,
    nothing_written,
    same_code_failed_before,
    unread,
)
from coachrl.coach.rubric.text_features import (
    after_last_box,
    answer_of,
    computes,
    evaluate,
    expressions_in,
    first_invented_number,
    first_wrong_equation,
    last_number,
    numbers_given,
    numbers_in,
    same_number,
    stated_result,
)
from coachrl.tasks.code.cooperation import parse_code
from coachrl.tasks.math.plain_numbers import read_number
from coachrl.tasks.math.problems import MathTruth, boxed_spans, last_box
from coachrl.text import fences_in, visible
from coachrl.types import Action, ran

_RATIO = re.compile(r"-?\s*(?:\d+\s*/\s*\d+|\\[dt]?frac\s*\{\d+\}\s*\{\d+\})")
_SHORT_OUTPUT_CHARS = 400
_WRONG_STEP_CAP = 4.0
_DEPARTURE_CAP = 4.0
_NUMBERS_OF_A_CHAIN = 3


def draft_rules(request: CoachRequest) -> list[Rule]:
    """An agent that hands text on: can the next one use it?"""
    text = visible(request.action.text)
    if not text:
        return [nothing_written(request)]
    rules: list[Rule] = [RubricPoints(1, 1, "wrote a draft"), *_length(request), _brevity(request), *unread(request)]
    own = _own_answer(request, answer_of(text))
    if not numbers_in(request.task.prompt):
        return [*rules, *(own or [Cap(7, "the task holds no numbers: rules cannot judge what the draft says")])]
    rules += [_usable(text), _grounded(text, request.task.prompt), _covers(text, request.task.prompt)]
    rules += _wrong_step(text, request.task.prompt)
    return rules + own


def argument_rules(request: CoachRequest) -> list[Rule]:
    """An agent that argues for an answer which others read, or vote on."""
    return [*draft_rules(request), *_one_box(visible(request.action.text), of=2, cap=3.0)]


def code_rules(request: CoachRequest) -> list[Rule]:
    """An agent that writes and runs code, and need not leave files."""
    action = request.action
    if action.code is None:
        return _without_code(request)
    valid = parse_code(action.code) is not None
    rules: list[Rule] = [
        _block(action),
        all_or_none(valid, 1, "valid Python", "not valid Python"),
        all_or_none(ran(action.execution), 2, "ran without error", error_line(action.execution)),
        _printed(action),
        all_or_none(computes(action.code), 2, "the code computes", "the code only states a constant"),
    ]
    known = request.task.prompt + "\n" + "\n".join(visible(earlier.text) for earlier in request.previous)
    if numbers_in(known):
        rules.append(_grounded_code(action.code, known))
    rules += _follows_draft(request)
    rules += cut(request)
    rules += unread(request)
    if not valid:
        rules.append(Cap(3, "the code is not valid Python"))
    elif not ran(action.execution):
        rules.append(Cap(5.0, "tried, but the code failed"))
    elif not action.execution.stdout.strip():
        rules.append(Cap(6.0, "printed nothing, so no result reaches the next agent"))
    if same_code_failed_before(request):
        rules.append(Cap(1, "ran the same failing code again"))
    if ran(action.execution):
        rules += _own_answer(request, last_number(action.execution.stdout))
    return rules


def answer_rules(request: CoachRequest) -> list[Rule]:
    """The last agent, which states the team's answer."""
    text = visible(request.action.text)
    if not text:
        return [nothing_written(request)]
    rules: list[Rule] = [*_correct(request), *_length(request), *unread(request)]
    if not asks_for_box(request):
        return rules
    rules += _one_box(text, of=1, cap=1)
    boxed = last_box(text)
    if boxed is not None:
        goes_on = bool(after_last_box(text).strip(" \t\n.$*)]"))
        rules.append(all_or_none(not goes_on, 1, "nothing follows the answer", "goes on after the answer"))
        rules += _consistent(request, boxed)
    return rules


def _one_box(text: str, of: float, cap: float) -> list[Rule]:
    spans, answer = boxed_spans(text), last_box(text)
    if answer and all(text[begin:end].strip() == answer for begin, end in spans):
        return [RubricPoints(of, of, f"one boxed answer: {answer[:60]}")]
    if spans:
        return [RubricPoints(of / 2, of, f"{len(spans)} boxed answers that differ or are empty")]
    return [RubricPoints(0, of, "no boxed answer"), Cap(cap, "no boxed answer")]


def _length(request: CoachRequest) -> list[Rule]:
    ended = request.action.finish_reason == "stop"
    return [all_or_none(ended, 1, "ended by itself", "hit the length limit"), *cut(request)]


def _brevity(request: CoachRequest) -> RubricPoints:
    """Full up to half of the length limit, then falling to nothing at the limit."""
    used = len(request.action.response_ids) / request.role.max_new_tokens
    return RubricPoints(round(max(0.0, min(1.0, 2 * (1 - used))), 2), 1, f"used {used:.0%} of its tokens")


def _usable(text: str) -> RubricPoints:
    expressions = expressions_in(text)
    if expressions:
        return RubricPoints(3, 3, f"states arithmetic that can be worked out: {expressions[-1][:60]}")
    if boxed_spans(text):
        return RubricPoints(2, 3, "states an answer, but no arithmetic")
    if numbers_in(text):
        return RubricPoints(1, 3, "holds numbers, but no arithmetic")
    return RubricPoints(0, 3, "holds no number")


def _grounded(text: str, problem: str) -> RubricPoints:
    """Do the numbers of the draft's arithmetic come from the problem, or from arithmetic before it?"""
    expressions = expressions_in(text)
    if not expressions:
        return RubricPoints(0, 3, "no arithmetic whose numbers could come from the problem")
    known = numbers_given(problem) | {value for found in expressions[:-1] if (value := evaluate(found)) is not None}
    used = numbers_in(expressions[-1])
    share = sum(number in known for number in used) / len(used)
    return RubricPoints(round(3 * share, 2), 3, f"{share:.0%} of its arithmetic's numbers come from the problem")


def _wrong_step(text: str, problem: str) -> list[Rule]:
    """The first of several steps whose arithmetic does not hold, or that works with a number from nowhere. A problem of
    two numbers takes one step, which the executor works out anew."""
    if not _takes_several_steps(problem):
        return []
    if wrong := first_wrong_equation(text):
        return [Cap(_WRONG_STEP_CAP, f"a step does not hold: {wrong}")]
    if invented := first_invented_number(text, problem):
        return [Cap(_WRONG_STEP_CAP, f"a number that nobody gave: {invented}")]
    return []


def _takes_several_steps(problem: str) -> bool:
    return len(numbers_in(problem)) >= _NUMBERS_OF_A_CHAIN


def _covers(text: str, problem: str) -> RubricPoints:
    wanted, used = set(numbers_in(problem)), set(numbers_in(text))
    share = len(wanted & used) / len(wanted)
    return RubricPoints(round(share, 2), 1, f"uses {share:.0%} of the problem's numbers")


def _without_code(request: CoachRequest) -> list[Rule]:
    """No block: a closing report after code that ran is fine; before that it leaves the job undone."""
    text = visible(request.action.text)
    own = [earlier for earlier in _own_before(request) if earlier.execution is not None]
    printed = _last_output(own)
    if not text:
        return [RubricPoints(0, 10, "empty reply")]
    if printed is None:
        reason = "gave up after its code failed" if own else "no closed code block, so nothing was run"
        if not numbers_in(text):
            return [RubricPoints(1, 10, f"{reason}; names no number"), *cut(request)]
        return [RubricPoints(2, 10, reason), *cut(request)]
    result = last_number(printed)
    rules: list[Rule] = [*_length(request), RubricPoints(2, 2, "closed its part after code that ran")]
    if result is not None:
        reports = same_number(answer_of(text), result) or same_number(last_number(text), result)
        points = 7 if reports else 2
        rules.append(RubricPoints(points, 7, f"{'reports' if reports else 'does not report'} what the code printed"))
        if not reports and last_number(text) is not None and _takes_several_steps(request.task.prompt):
            rules.append(Cap(_DEPARTURE_CAP, "reports another number than its code printed"))
    return rules + _own_answer(request, answer_of(text))


def _block(action: Action) -> RubricPoints:
    fences = fences_in(visible(action.text))
    if fences == 2:
        return RubricPoints(2, 2, "one closed code block")
    return RubricPoints(1, 2, "several code blocks" if fences % 2 == 0 else "a code block that is never closed")


def _printed(action: Action) -> RubricPoints:
    output = action.execution.stdout.strip() if action.execution else ""
    if not output:
        return RubricPoints(0, 1, "printed nothing")
    if len(output) > _SHORT_OUTPUT_CHARS:
        return RubricPoints(0.5, 1, f"printed {len(output)} characters; a result is shorter")
    return RubricPoints(1, 1, "printed a short result")


def _grounded_code(code: str, known: str) -> RubricPoints:
    """0, 1 and 2 stand in every loop, and tell nothing: code that has no others uses what it was given only where that
    has no others either."""
    used, given = {number for number in numbers_in(code) if number > 2}, numbers_given(known)
    if not used:
        ignores_all = given.isdisjoint(numbers_in(code)) and max(given) > 2
        return all_or_none(not ignores_all, 1, "uses no number that is not known", "uses no number that is known")
    share = len(used & given) / len(used)
    return RubricPoints(round(share, 2), 1, f"{share:.0%} of its numbers come from the task or the draft")


def _follows_draft(request: CoachRequest) -> list[Rule]:
    """Does the code print the result that the draft ends in? It may depart from one that is known to be wrong."""
    value, execution = stated_result(_draft(request)), request.action.execution
    if value is None or not ran(execution):
        return []
    printed = last_number(execution.stdout)
    if same_number(printed, value):
        return [RubricPoints(1, 1, "prints what the draft comes to")]
    if request.outcome is not None and same_number(printed, _reference(request)):
        return [RubricPoints(1, 1, "rightly departs from the draft")]
    departs: list[Rule] = [RubricPoints(0, 1, "does not print what the draft comes to")]
    if _is_sound(_draft(request), request.task.prompt):
        departs.append(Cap(_DEPARTURE_CAP, "departs from a draft of which every step holds and no number is left out"))
    return departs


def _is_sound(draft: str, problem: str) -> bool:
    """Whether nothing can be said against a draft of several steps without understanding it."""
    several = _takes_several_steps(problem) and len(expressions_in(draft)) > 1
    whole = set(numbers_in(problem)) <= set(numbers_in(draft))
    return several and whole and not _wrong_step(draft, problem)


def _draft(request: CoachRequest) -> str:
    """The last text of another agent, empty where there is none."""
    for earlier in reversed(request.previous):
        if earlier.role != request.role.name and earlier.execution is None:
            return visible(earlier.text)
    return ""


def _own_answer(request: CoachRequest, value: Fraction | None) -> list[Rule]:
    """Where the outcome is in view: is this agent's own result the reference answer?

    An agent that worked out a wrong draft faithfully is capped higher: the draft's author pays. Not so where the
    environment takes each agent's answer for its own, as in a debate: there copying a wrong one is as wrong.
    """
    if request.outcome is None:
        return []
    right = _is_right(request)
    if right is not None:
        return [RubricPoints(1, 1, "its answer is right") if right else Cap(4.0, "its answer is not right")]
    reference = _reference(request)
    if reference is None or (request.is_last_role and request.outcome.success):
        return []  # what was graded as right may be written in another way than the reference
    if same_number(value, reference):
        return [RubricPoints(1, 1, "its result is the reference answer")]
    if request.action.code is None and same_number(value, last_number(_last_output(_own_before(request)) or "")):
        return [Cap(7, "its result is not the reference answer, but it is what its code printed")]
    if same_number(value, stated_result(_draft(request))):
        return [Cap(7, "its result is not the reference answer, but it is what the draft comes to")]
    return [Cap(4.0, "its result is not the reference answer")]


def _is_right(request: CoachRequest) -> bool | None:
    """What the environment found of the answer in this very reply; None where it takes none from this agent."""
    right = checked(request, "right") if isinstance(request.task.ground_truth, MathTruth) else None
    return None if right is None else right == 1


def _succeeds(request: CoachRequest) -> bool:
    """Whether this reply is right, as far as the coach is shown; an outcome tells of the team's last answer alone."""
    if request.outcome is None:
        return False
    right = _is_right(request)
    return request.outcome.success if right is None else right


def _reference(request: CoachRequest) -> Fraction | None:
    """The reference answer as a number, or None where it is something else: "2\\pi" and "(3, 4)" only hold numbers."""
    truth = request.task.ground_truth
    if not isinstance(truth, MathTruth):
        return None
    is_number = read_number(truth.answer) is not None or _RATIO.fullmatch(truth.answer.strip("$ "))
    return answer_of(truth.answer) if is_number else None


def _correct(request: CoachRequest) -> list[Rule]:
    outcome = request.outcome
    if outcome is None:
        return [RubricPoints(0, 6, "correctness is not known here")]
    if _succeeds(request):
        return [RubricPoints(6, 6, "the final answer is correct")]
    why = outcome.reason or "the final answer is wrong"
    if _takes_over(request):
        return [RubricPoints(2, 6, f"{why}, as it was handed on"), Cap(5.0, why)]
    return [RubricPoints(0, 6, why), Cap(3.0, why)]


def _takes_over(request: CoachRequest) -> bool:
    """Whether a wrong answer is what the code upstream printed, or was said to: whoever made the mistake pays more. A
    problem of one step anybody can check."""
    boxed = last_box(visible(request.action.text))
    if not _takes_several_steps(request.task.prompt) or boxed is None or not request.previous:
        return False
    handed = (_printed_before(request), answer_of(visible(request.previous[-1].text)))
    return any(same_number(answer_of(boxed), value) for value in handed)


def asks_for_box(request: CoachRequest) -> bool:
    """Whether the agent's prompt or its examples hold a box."""
    shown = [request.role.prompt.body, *(example.assistant for example in request.role.examples)]
    return any("\\boxed" in text for text in shown)


def _consistent(request: CoachRequest, boxed: str) -> list[Rule]:
    """Agreement with what the code upstream printed. Overruling it earns the same where that made the answer right."""
    result = _printed_before(request)
    if result is None:
        return []
    if same_number(answer_of(boxed), result):
        return [RubricPoints(1, 1, "agrees with what the code printed")]
    if _succeeds(request):
        return [RubricPoints(1, 1, "rightly overruled what the code printed")]
    contradicts: list[Rule] = [RubricPoints(0, 1, "contradicts what the code printed")]
    if request.outcome is not None and not _takes_over(request):
        contradicts.append(Cap(1.5, "wrong, and against what the code printed"))
    return contradicts


def _printed_before(request: CoachRequest) -> Fraction | None:
    """The number that the last code which ran came to."""
    return last_number(_last_output(request.previous) or "")


def _own_before(request: CoachRequest) -> list[Action]:
    return [earlier for earlier in request.previous if earlier.role == request.role.name]


def _last_output(actions: Sequence[Action]) -> str | None:
    """What the last code that ran has printed; None where none did."""
    return next((a.execution.stdout for a in reversed(actions) if ran(a.execution)), None)
