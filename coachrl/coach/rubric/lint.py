"""Scores what needs no skill under a rubric's own caps, for each task category, and says where one category is
favoured.

MAPPA's caps (App. C.4) are why: predicting the mean of a bell-shaped target has an RMSE of 10 to 15 % of its range and
may score 8, while predicting the majority class has a ROC-AUC of 0.5 and may score 3. Agents learn the difference.

A language model's prompt is taken at its declared caps: the highest score that it leaves. The rules coach scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coachrl.coach.base import CoachRequest
from coachrl.coach.prompt_rendering import CATEGORIES
from coachrl.coach.rubric.caps import Caps, parse_caps
from coachrl.coach.rubric.points import total
from coachrl.coach.rubric.rules import rubric
from coachrl.pipelines.team.trajectory import ReadPrompt, action_of
from coachrl.prompts import Prompt, parse_prompt
from coachrl.seeding import generator
from coachrl.tasks.math.problems import MathTruth
from coachrl.tasks.tabular.grading import SUBMISSION, TabularTruth, grade_submission, read_answers
from coachrl.tasks.tabular.metrics import Classified, Regressed, classification_metrics, regression_metrics
from coachrl.types import HIGHEST_SCORE, Execution, Generation, Outcome, Role, Task

ROWS = 1000  # of a drawn test set
FAVOURED = 1.0  # points between task categories, from which on agents are paid for the category
WITHOUT_SKILL = 5.0  # "a real try with errors": more than that for no skill at all is a fault of the rubric

_ANALYST = Role("analyst", "analyst", python=True, stop_when="saved", required_files=(SUBMISSION,))
_VERIFIER = Role(
    "verifier",
    "verifier",
    prompt=parse_prompt("---\nfields: []\n---\nAnswer inside \\boxed{}.", "verifier"),
)
_FAILED = Outcome(False, reason="no predictions found")
_WRONG = Outcome(False, reason="the final answer is wrong")


@dataclass(frozen=True)
class Baseline:
    """Work without skill: what it did, what was measured, and which situations of `coachrl.coach.rubric.caps` it is in.

    shape: which targets it was measured on, where that matters.
    """

    name: str
    category: str
    shape: str
    outcome: Outcome
    situations: tuple[str, ...]
    text: str
    saved: bool = False


@dataclass(frozen=True)
class Row:
    """What a rubric gives to one baseline in one task category: a score for each shape of the targets."""

    coach: str
    baseline: str
    category: str
    scores: Mapping[str, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))


def lint_prompt(prompt: Prompt, baselines: Iterable[Baseline]) -> list[Row]:
    """The highest scores that the prompt's caps leave, for the task categories that its header says it is for."""
    caps, categories = parse_caps(prompt.header, prompt.name), prompt.header.get("categories", CATEGORIES)
    return _rows(prompt.name, [(b, _allowed(caps, b)) for b in baselines if b.category in categories])


def lint_rules(baselines: Iterable[Baseline]) -> list[Row]:
    """The scores that the rules coach gives."""
    return _rows("rules", [(b, total(rubric(_request(b)))[0]) for b in baselines])


def findings(rows: Sequence[Row]) -> list[str]:
    """Sentences about what is wrong with one rubric; none where nothing is."""
    said = []
    for name in dict.fromkeys(row.baseline for row in rows):
        tabular = [row for row in rows if row.baseline == name and row.category != "math"]
        if len(tabular) > 1:
            low, high = (chosen(tabular, key=lambda row: row.mean) for chosen in (min, max))
            if high.mean - low.mean >= FAVOURED:
                said.append(
                    f"{high.category} is favoured: {name} may score {_span(high)} there, {_span(low)} in {low.category}"
                )
        too_high: dict[str, list[str]] = {}
        for row in rows:
            if row.baseline == name and row.mean > WITHOUT_SKILL:
                too_high.setdefault(_span(row), []).append(row.category)
        said += [
            f"{name} in {' and '.join(categories)} may score {span} without any skill: declare caps that hold it down"
            for span, categories in too_high.items()
        ]
    return said


def drawn_baselines() -> list[Baseline]:
    """Constant predictions on targets of several shapes, code that does nothing of use, and constant answers."""
    constants = [
        *(_constant("classification", shape, _majority(truth_N)) for shape, truth_N in _classes().items()),
        *(_constant("regression", shape, _mean(truth_N)) for shape, truth_N in _targets().items()),
    ]
    return [*constants, *idle_baselines()]


def task_baselines(tasks: Iterable[Task]) -> list[Baseline]:
    """The same for given tabular tasks: the constant that is best for each one's answers, graded as a submission is."""
    constants = []
    for task in tasks:
        truth = task.ground_truth
        if isinstance(truth, TabularTruth):
            answers = read_answers(truth).copy()  # what is read is kept for later gradings
            for column in truth.target_columns:
                values = answers[column]
                answers[column] = (
                    values.mode()[0] if truth.category == "classification" else values.astype(float).mean()
                )
            submission = answers.rename_axis(truth.id_column).to_csv().encode()
            constants.append(_constant(truth.category, task.id, grade_submission(submission, truth)))
    return [*constants, *idle_baselines()]


def idle_baselines() -> list[Baseline]:
    """Replies that do nothing of use, for every category of task."""
    nothing, only_prints, printing = "an empty reply", "code that only prints", "```python\nprint('done')\n```"
    made = []
    for category in ("classification", "regression"):
        made.append(Baseline(nothing, category, "", _FAILED, ("failed", "no_code", "nothing_saved"), ""))
        made.append(Baseline(only_prints, category, "", _FAILED, ("failed", "nothing_saved"), printing))
    return [
        *made,
        Baseline(nothing, "math", "", _WRONG, ("failed", "no_answer"), ""),
        Baseline(only_prints, "math", "", _WRONG, ("failed", "no_answer"), "```python\nprint(7)\n```"),
        Baseline("a constant answer", "math", "", _WRONG, ("failed",), "\\boxed{7}"),
    ]


def _constant(category: str, shape: str, outcome: Outcome) -> Baseline:
    code = f"```python\nframe.to_csv('{SUBMISSION}')\n```"
    return Baseline("a constant prediction", category, shape, outcome, (), code, saved=True)


def _classes() -> dict[str, list[str]]:
    """Labels of ROWS rows, by how they are balanced."""
    shares = {"balanced": (0.5, 0.5), "three to seven": (0.7, 0.3), "one in ten": (0.9, 0.1), "three": (0.5, 0.3, 0.2)}
    return {
        shape: [str(label) for label, share in enumerate(given) for _ in range(round(share * ROWS))]
        for shape, given in shares.items()
    }


def _targets() -> dict[str, np.ndarray]:
    """ROWS targets, by their distribution."""
    rng = generator("lint", "targets")
    return {
        "normal": rng.normal(size=ROWS),
        "lognormal": rng.lognormal(size=ROWS),
        "exponential": rng.exponential(size=ROWS),
        "uniform": rng.uniform(size=ROWS),
    }


def _majority(truth_N: list[str]) -> Outcome:
    labels = tuple(sorted(set(truth_N)))
    score_N = np.zeros(len(truth_N)) if len(labels) == 2 else None
    measured = classification_metrics(
        Classified(np.array(truth_N), np.full(len(truth_N), labels[0]), labels, score_N), "roc_auc"
    )
    return Outcome(True, measured)


def _mean(truth_N: np.ndarray) -> Outcome:
    measured = regression_metrics(Regressed(truth_N, np.full(len(truth_N), truth_N.mean())), "rmse")
    return Outcome(True, {name: value for name, value in measured.items() if not np.isnan(value)})


def _allowed(caps: Caps, baseline: Baseline) -> float:
    by_outcome = caps.of_outcome(baseline.outcome)
    situations = [caps.of_situation(name) for name in baseline.situations]
    return min([HIGHEST_SCORE, *situations, *([by_outcome.at_most] if by_outcome is not None else [])])


def _request(baseline: Baseline) -> CoachRequest:
    """The baseline as an action of a pipeline's last agent, with its outcome in view."""
    tabular = baseline.category != "math"
    role = _ANALYST if tabular else _VERIFIER
    action = action_of(role, 0, ReadPrompt((), ""), Generation((), (), "stop", 0), baseline.text)
    if action.code is not None:
        after = (SUBMISSION,) if baseline.saved else ()
        ran = Execution("ok", stdout="done", files_written=after)
        action = replace(action, execution=ran, files_after=after)
    task = Task("lint", baseline.category, "What is 3 times 4?", ground_truth=None if tabular else MathTruth("12"))
    return CoachRequest(task, role, (role,), action, is_last_role=True, outcome=baseline.outcome)


def _rows(coach: str, scored: Iterable[tuple[Baseline, float]]) -> list[Row]:
    grouped: dict[tuple[str, str], dict[str, float]] = {}
    for baseline, score in scored:
        grouped.setdefault((baseline.name, baseline.category), {})[baseline.shape] = score
    return [Row(coach, name, category, scores) for (name, category), scores in grouped.items()]


def _span(row: Row) -> str:
    """'3', or '4 to 8 (6.5 on average)'."""
    low, high = min(row.scores.values()), max(row.scores.values())
    return f"{high:g}" if low == high else f"{low:g} to {high:g} ({row.mean:.1f} on average)"
