"""DSBench (MAPPA, Sec. 3.2 and App. C): a data engineer, a modeler and an analyst hand files on to a submission."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Agent, AgentTrajectory, Environment, Pipeline, StepResult, Team
from coachrl.sandbox.base import Workspace
from coachrl.tasks.tabular.columns import COLUMN_FIELDS, column_fields, read_columns
from coachrl.tasks.tabular.grading import SUBMISSION, TabularTruth, grade_submission, read_answers
from coachrl.tasks.tabular.handover import FEATURES, MODEL, inspect_features, inspect_model
from coachrl.text import clip_middle, listed, listed_files
from coachrl.types import Action, Outcome, Role, Task

_SUMMARY_CHARS = 300  # of what an agent printed, for those after it

ROLES = (
    Role(
        name="data_engineer",
        policy="data_engineer",
        description="Turns train.csv and test.csv into numeric features without gaps, alike for both, and saves "
        "X_train.pkl, y_train.pkl and X_test.pkl for the modeler and the analyst.",
        python=True,
        max_turns=3,
        stop_when="saved",
        required_files=FEATURES,
        needed_files=("train.csv", "test.csv"),
    ),
    Role(
        name="modeler",
        policy="modeler",
        description="Loads X_train.pkl and y_train.pkl, chooses and fits a model, and saves it for the analyst as "
        "model.pkl",
        python=True,
        max_turns=5,
        stop_when="saved",
        required_files=(MODEL,),
        needed_files=("X_train.pkl", "y_train.pkl"),
    ),
    Role(
        name="analyst",
        policy="analyst",
        description="Loads X_test.pkl and model.pkl, predicts every row of test.csv and saves submission.csv "
        "with its ids.",
        python=True,
        max_turns=2,
        stop_when="saved",
        required_files=(SUBMISSION,),
        needed_files=("X_test.pkl", MODEL),
    ),
)

_COMMON_FIELDS = COLUMN_FIELDS | {"task", "category", "metric", "files", "missing", "required", "token_limit"}
_FIELDS = {
    "data_engineer": _COMMON_FIELDS,
    "modeler": _COMMON_FIELDS | {"data_summary", "previous"},
    "analyst": _COMMON_FIELDS | {"data_summary", "model_summary", "previous"},
}


@dataclass(frozen=True)
class Handover(Environment):
    """It gives no rewards: it looks at features and model as soon as they are saved, for the coach to know.

    test_rows: those of the task's test.csv.
    """

    test_rows: int

    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """What is wrong with the files that an agent owes, after an action of its own that leaves all of them, and with
        the features where it is another agent that has written one."""
        if workspace is None or action.execution is None:
            return StepResult("")
        owed = next((role.required_files for role in ROLES if role.name == action.role), ())
        left, found = set(action.files_after), []
        if set(FEATURES) <= left and (owed == FEATURES or not set(FEATURES).isdisjoint(action.execution.files_written)):
            found.append(await inspect_features(workspace, self.test_rows))
        if owed == (MODEL,) and MODEL in left:
            found.append(await inspect_model(workspace))
        return StepResult("\n".join(filter(None, found)))

    def copy(self) -> Handover:
        """It has no state beside the workspace."""
        return replace(self)

    def render(self) -> str:
        return ""


class DSBench(Pipeline):
    """Three agents in a row; what each one needs and does not find in the workspace is said in its prompt."""

    name = "dsbench"
    roles = ROLES
    task_sources = ("dsbench-lite", "dsbench")
    ground_truth = TabularTruth
    small_model = PipelineConfig(max_new_tokens=288, roles={role.name: RoleConfig(max_turns=2) for role in ROLES})
    warm_start = "scripts/dsbench_lite.sh"

    def prompt_fields(self, kind: str) -> Collection[str]:
        return _FIELDS[kind]

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        if workspace is None:
            raise ConfigError(f"pipeline {self.name} runs code: pipeline.roles.*.python must be true for its roles")
        truth = self.truth(task, TabularTruth)
        team.environment = Handover(len(read_answers(truth)))
        known = {"task": task.prompt, "category": truth.category, "metric": truth.metric}
        known |= column_fields(read_columns(task.files, truth))
        engineered = _summary(await _act(team.data_engineer, known, workspace))
        known |= {"data_summary": engineered, "previous": engineered}
        modelled = _summary(await _act(team.modeler, known, workspace))
        known |= {"model_summary": modelled, "previous": modelled}
        await _act(team.analyst, known, workspace)
        return await _grade(workspace, truth)


async def _act(agent: Agent, known: Mapping[str, str], workspace: Workspace) -> AgentTrajectory:
    role, files = agent.role, await workspace.files()
    now = {
        "files": listed_files(files, (*role.required_files, *role.needed_files)),
        "missing": listed([name for name in role.needed_files if name not in files]),
        "required": listed(role.required_files),
    }
    return await agent.act_on({**known, **now})


def _summary(part: AgentTrajectory) -> str:
    """What the agent's last program printed, for those after it."""
    return clip_middle(part.output, _SUMMARY_CHARS) or "(nothing printed)"


async def _grade(workspace: Workspace, truth: TabularTruth) -> Outcome:
    try:
        return grade_submission(await workspace.read(SUBMISSION), truth)
    except FileNotFoundError:
        return grade_submission(None, truth)
    except ValueError as error:
        return replace(grade_submission(None, truth), reason=str(error), summary=f"ERROR: {error}")
