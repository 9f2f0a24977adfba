"""Rules for agents that must leave files for the next one (MAPPA, App. C.4). The table is in `rules`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile

from coachrl.coach.base import CoachRequest
from coachrl.coach.rubric.caps import parse_caps
from coachrl.coach.rubric.points import Cap, RubricPoints, Rule, error_line, part_ends, same_code_failed_before
from coachrl.coach.rubric.text_features import KINDS_OF_ESTIMATORS, called_in, estimators_in
from coachrl.tasks.code.cooperation import parse_code
from coachrl.tasks.tabular.handover import MODEL, NO_MODEL, FileFault, read_faults
from coachrl.text import prose_in, visible
from coachrl.types import Action, Role, ran

_ABSENCE = re.compile(
    r"missing|absent|unavailable|no such|cannot|can't|"
    r"not (?:found|available|there|present|exist)|n't (?:exist|find|there)",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:no|not|none|nothing|if|whether)\b|n't\b", re.IGNORECASE)
_NOT_THERE = r"(?:missing|absent|unavailable|not (?:found|there|available|present)|(?:does not|doesn't) exist)\b"
_NO_COUNT = r"(?!\s*[:=]?\s*\d| +(?:value|data|entr|cell))"  # of gaps inside of a file
_FITS = re.compile(r"\w*fit\w*|train|lstsq|p?inv|solve|minimize|least_squares|cross_validate|backward")
_LOOKS = re.compile(
    r"read_\w+|open|load(?:txt)?|genfromtxt|listdir|scandir|walk|r?i?glob|iterdir|system|run|check_output"
)
_NO_MODEL = re.compile(r"NotFittedError|[Pp]ickl|EOFError|no attribute 'predict")
_EXCEPTION = re.compile(r"^[\w.]*(?:Error|Exception)\b", re.MULTILINE)
FILE_CAPS = parse_caps(
    {
        "caps": {
            "failed": 3,
            "nothing_saved": 3,
            "unfit_files": 4,
            "false_report": 2,
            "wrong_estimator": 3,
            "roc_auc": {"from": {0.85: 9, 0.75: 8, 0.65: 6, 0.55: 4}, "else": 3},
            "accuracy": {"from": {0.85: 9, 0.75: 8, 0.65: 6, 0.55: 4}, "else": 3},
            "rmse_pct_range": {"below": {10: 9, 25: 8}, "up_to": {50: 6}, "else": 4},
        }
    },
    "rules",
)
"""MAPPA's own caps; one for an estimator of the wrong kind, which the paper has a coach look for (Sec. 4.2); one for
features that no model can use: while they paid like others, engineers learned to leave out the work; one for a file
that is called missing and is there, which had paid as a look at the data."""


def file_rules(request: CoachRequest) -> list[Rule]:
    """The rubric level that the action reached, then what caps it."""
    rules: list[Rule] = []
    if request.action.code is None:
        rules.append(_without_code(request))
    elif ran(request.action.execution):
        rules.append(_code_ran(request))
    else:
        rules.append(_code_failed(request))
    if same_code_failed_before(request):
        rules.append(Cap(1, "ran the same failing code again"))
    if request.action.finish_reason == "length":
        rules.append(RubricPoints(-1, 0, "the reply hit the length limit"))
    rules += _false_report(request)
    rules += _others_outputs(request)
    rules += _unfit_outputs(request)
    rules += _wrong_estimator(request)
    rules += _unfitted_model(request)
    rules += _deliverables_owed(request)
    rules += _outcome_caps(request)
    return rules


def _without_code(request: CoachRequest) -> RubricPoints:
    text, missing = visible(request.action.text), _missing_inputs(request)
    reported = [name for name in missing if _says_missing(text, name)]
    if missing and reported == missing:
        return _reported_upstream("reported", request)
    if reported:
        return RubricPoints(
            5, 10, f"reported {', '.join(reported)}, but not every missing file: {_owed(request, missing)}"
        )
    if not _missing_outputs(request):
        return RubricPoints(7, 10, "no code, but all required files were saved before")
    return RubricPoints(1, 10, "no executable block") if text else RubricPoints(0, 10, "empty reply")


def _code_ran(request: CoachRequest) -> RubricPoints:
    missing = _missing_outputs(request)
    printed = bool(request.action.execution and request.action.execution.stdout.strip())
    if not missing:
        first = request.action.turn == 0
        said = f"{', printed a summary' if printed else ''}{', at the first attempt' if first else ''}"
        return RubricPoints(8 + 0.5 * printed + 0.5 * first, 10, f"code ran, all required files saved{said}")
    if _reported_by_code(request):
        return _reported_upstream("the code reported", request)
    share = 1 - len(missing) / len(request.role.required_files)
    names = ", ".join(missing)
    if share >= 0.5:
        return RubricPoints(6 + share, 10, f"code ran, most required files saved, not {names}")
    if share > 0:
        return RubricPoints(5 + share, 10, f"code ran, few required files saved, not {names}")
    if printed and any(map(_LOOKS.fullmatch, called_in(request.action.code or ""))):
        return RubricPoints(5, 10, f"code ran and looked at the data, saved nothing of {names}")
    did = "looked at no file" if printed else "printed nothing"
    return RubricPoints(4, 10, f"code ran, {did}, saved nothing of {names}")


def _code_failed(request: CoachRequest) -> RubricPoints:
    if _reported_by_code(request):
        return _reported_upstream("the code reported", request)
    if cause := _cause_upstream(request):
        return RubricPoints(5, 10, f"crashed on {cause}; not its own fault")
    how = error_line(request.action.execution)
    if parse_code(request.action.code or "") is None:
        return RubricPoints(4, 10, f"own bug, the code is not valid Python ({how})")
    share = 1 - len(_missing_outputs(request)) / len(request.role.required_files)
    return RubricPoints(4.5 + 0.5 * share, 10, f"own bug, the code failed ({how})")


def _reported_upstream(who: str, request: CoachRequest) -> RubricPoints:
    return RubricPoints(7, 10, f"{who} what upstream left out: {_owed(request, _missing_inputs(request))}")


def _cause_upstream(request: CoachRequest) -> str:
    """What an earlier agent left out or unfit for use, where the code crashed on that; else empty."""
    if blamed := _blamed_inputs(request):
        return f"what upstream left out: {_owed(request, blamed)}"
    if unfit := _blamed_faults(request):
        return f"what upstream left unfit: {'; '.join(map(str, unfit))}"
    return f"a {MODEL} that was never fitted" if _crashed_on_unfitted(request) else ""


def _deliverables_owed(request: CoachRequest) -> list[Rule]:
    """The agent that ends its part without a file which another one waits for pays, unless upstream owed it its own."""
    if not part_ends(request) or _reported_everything(request) or _cause_upstream(request):
        return []
    waiting = [
        f"{name} (needed by {', '.join(takers)})" if takers else f"{name} (the final deliverable)"
        for name in _missing_outputs(request)
        if (takers := [role.name for role in request.team if name in role.needed_files]) or request.is_last_role
    ]
    at_most = FILE_CAPS.of_situation("nothing_saved")
    return [Cap(at_most, f"ended its part without {', '.join(waiting)}")] if waiting else []


def _false_report(request: CoachRequest) -> list[Rule]:
    """The agent that was given all that it needs, saves nothing and prints that some of it is missing. Where something
    is missing indeed, a list of what is there and what is not is no lie."""
    execution = request.action.execution
    if execution is None or _missing_inputs(request):
        return []
    if len(_missing_outputs(request)) < len(request.role.required_files):
        return []
    named = [name for name in request.role.needed_files if _is_called_missing(name, execution.stdout)]
    if not named:
        return []
    return [Cap(FILE_CAPS.of_situation("false_report"), f"said that {', '.join(named)} is missing, which was there")]


def _is_called_missing(name: str, text: str) -> bool:
    """Whether a line says "missing: NAME" or "NAME is missing", and neither denies nor asks it. Gaps are no files."""
    name = re.escape(name)
    listed = rf"\bmissing(?: files?)?\s*:[^:]*{name}"
    said = rf"{name}\W{{0,3}}(?:(?:is|are|was) )?{_NOT_THERE}{_NO_COUNT}"
    report = re.compile(f"{listed}|{said}", re.IGNORECASE)
    found = (report.search(line) for line in text.splitlines())
    return any(match and not _DENIED.search(match.string[: match.start()]) for match in found)


def _unfit_outputs(request: CoachRequest) -> list[Rule]:
    """The agent that saves features on which no model can be fitted, or a model that cannot predict, pays, and not the
    one that crashes on them. So does one that spoils another's features, where somebody is still to use them."""
    own = set(request.role.required_files)
    faults = [fault for fault in read_faults(request.action.result) if fault.file in own or _spoilt(fault, request)]
    if not faults:
        return []
    no_model = any(fault.category == NO_MODEL for fault in faults)
    at_most = FILE_CAPS.of_situation("nothing_saved" if no_model else "unfit_files")
    return [Cap(at_most, f"saved what cannot be used as it is: {'; '.join(map(str, faults))}")]


def _spoilt(fault: FileFault, request: CoachRequest) -> bool:
    """Whether the agent has made this fault of another's features: when they were last looked at, it was not there. Of
    those that nobody has looked at, it answers for what it wrote itself."""
    execution, before = request.action.execution, _last_looks(request).get(False)
    if request.is_last_role or execution is None:
        return False
    if before is None:
        return fault.file in execution.files_written
    return (fault.file, fault.category) not in {(known.file, known.category) for known in read_faults(before)}


def _others_outputs(request: CoachRequest) -> list[Rule]:
    """The agent that saves what a later one owes pays: that one would be paid for nothing, or fail on it. Later is who
    is declared after it and has not acted yet."""
    role, execution = request.role, request.action.execution
    acted = {action.role for action in request.previous}
    after = list(dropwhile(lambda other: other.name != role.name, request.team))[1:]
    new = set(execution.files_written if execution is not None else ())
    new -= {*request.action.files_before, *role.required_files, *role.needed_files}
    owed = [(name, other) for other in after if other.name not in acted for name in other.required_files]
    taken = [f"{name} (owed by {other.name})" for name, other in owed if name in new]
    return [Cap(FILE_CAPS.of_situation("unfit_files"), f"saved in another's place {', '.join(taken)}")] if taken else []


def _wrong_estimator(request: CoachRequest) -> list[Rule]:
    """The agent that owes the model pays for one of the wrong kind, whether or not it could be fitted: a classifier
    takes whole numbers for classes without a word. A regressor may rank the rows of a task that asks for a ROC-AUC."""
    if MODEL not in request.role.required_files or request.task.category not in KINDS_OF_ESTIMATORS:
        return []
    used = estimators_in(request.action.code or "")
    other = next(kind for kind in KINDS_OF_ESTIMATORS if kind != request.task.category)
    ranks = other == "regression" and getattr(request.task.ground_truth, "metric", None) == "roc_auc"
    if used[request.task.category] or not used[other] or ranks:
        return []
    reason = f"{used[other][0]} is for {other}; the task is {request.task.category}"
    return [Cap(FILE_CAPS.of_situation("wrong_estimator"), reason)]


def _unfitted_model(request: CoachRequest) -> list[Rule]:
    """The agent that saves a model on which nothing was ever fitted pays, not the one that cannot predict with it."""
    if not _saves_unfitted(request.role, request.action, request.previous):
        return []
    return [Cap(FILE_CAPS.of_situation("unfit_files"), f"saved {MODEL} without fitting it")]


def _saves_unfitted(role: Role, action: Action, previous: Sequence[Action]) -> bool:
    """Whether code that ran left the model that its agent owes and made an estimator in it, or the file itself, and
    neither it nor the agent's programs before it fitted anything."""
    if MODEL not in role.required_files or MODEL not in action.files_after or not ran(action.execution):
        return False
    code = action.code or ""
    made = MODEL not in action.files_before or any(estimators_in(code).values())
    own = [earlier.code or "" for earlier in previous if earlier.role == role.name and earlier.index < action.index]
    return made and not any(_FITS.fullmatch(name) for program in (*own, code) for name in called_in(program))


def _crashed_on_unfitted(request: CoachRequest) -> bool:
    """Whether the action's code failed on a model that an earlier agent saved unfitted."""
    if MODEL not in request.role.needed_files or not _NO_MODEL.search(error_line(request.action.execution)):
        return False
    roles = {role.name: role for role in request.team}
    return any(
        _saves_unfitted(roles[earlier.role], earlier, request.previous)
        for earlier in request.previous
        if earlier.role in roles
    )


def _outcome_caps(request: CoachRequest) -> list[Rule]:
    """The measured outcome caps the last agent's score, once its deliverable exists."""
    outcome = request.outcome
    if outcome is None or not request.is_last_role or _missing_outputs(request):
        return []
    cap = FILE_CAPS.of_outcome(outcome)
    return [cap] if cap is not None else []


def _missing_inputs(request: CoachRequest) -> list[str]:
    """What the agent needs and was not given. What was there in an earlier turn of its own it took away itself."""
    own = (earlier for earlier in request.previous if earlier.role == request.role.name)
    given = {name for action in (*own, request.action) for name in action.files_before}
    return [name for name in request.role.needed_files if name not in given]


def _missing_outputs(request: CoachRequest) -> list[str]:
    return [name for name in request.role.required_files if name not in request.action.files_after]


def _blamed_inputs(request: CoachRequest) -> list[str]:
    """Missing inputs that the error message names: the crash is then upstream's doing."""
    execution = request.action.execution
    if execution is None or ran(execution):
        return []
    return [name for name in _missing_inputs(request) if name in execution.stderr]


def _blamed_faults(request: CoachRequest) -> list[FileFault]:
    """Faults of its inputs, as they were last looked at, by which the error may be explained."""
    execution = request.action.execution
    if execution is None or ran(execution):
        return []
    faults = [fault for said in _last_looks(request).values() for fault in read_faults(said)]
    # The exception and what it says, which may take several lines, without the code above it.
    starts = [match.start() for match in _EXCEPTION.finditer(execution.stderr)]
    message = execution.stderr[starts[-1] :] if starts else ""
    return [fault for fault in faults if fault.file in request.role.needed_files and fault.explains(message)]


def _last_looks(request: CoachRequest) -> dict[bool, str]:
    """What was said of a model (True) and of features (False) when other agents last left them to be looked at."""
    last: dict[bool, str] = {}
    for action in request.previous:
        if action.role != request.role.name:
            lines = action.result.splitlines()
            by_kind = {kind: [line for line in lines if line.startswith(MODEL) is kind] for kind in (True, False)}
            last |= {kind: "\n".join(found) for kind, found in by_kind.items() if found}
    return last


def _reported_by_code(request: CoachRequest) -> bool:
    """Whether there are missing inputs, and what the code printed, or the prose around it, names each as missing."""
    execution, prose = request.action.execution, prose_in(visible(request.action.text))
    return _all_said_missing(request, f"{prose}\n{execution.stdout}" if execution else prose)


def _reported_everything(request: CoachRequest) -> bool:
    """The same, or its reply does so anywhere, where none of it is code."""
    said = visible(request.action.text)
    return _reported_by_code(request) or (request.action.code is None and _all_said_missing(request, said))


def _all_said_missing(request: CoachRequest, said: str) -> bool:
    missing = _missing_inputs(request)
    return bool(missing) and all(_says_missing(said, name) for name in missing)


def _says_missing(text: str, name: str) -> bool:
    """Whether a line of `text` names the file and says that it is not there (lists may put the two a line apart)."""
    lines = text.splitlines()
    return any(
        name in line and any(_ABSENCE.search(near) for near in lines[max(0, index - 2) : index + 2])
        for index, line in enumerate(lines)
    )


def _owed(request: CoachRequest, names: list[str]) -> str:
    """'model.pkl (owed by modeler)' for each name."""
    owners = {name: role.name for role in request.team for name in role.required_files}
    return ", ".join(f"{name} (owed by {owners[name]})" if name in owners else name for name in names)
