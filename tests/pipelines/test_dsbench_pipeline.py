"""The DSBench team: what is handed on, what is said to be missing, when parts end, and how the result is graded."""

from __future__ import annotations

import pytest

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.dsbench import ROLES
from coachrl.pipelines.team.team import Team
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import SamplingParams, Task

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "7319.25"  # an answer: no agent may ever see it
TRAIN = "room,rent,floor,heating\n1,500,2,gas\n2,610,,oil\n3,480,1,gas\n"
TEST = "room,floor,heating\n7,3,gas\n9,1,\n"
ANSWERS = f"room,rent\n7,{SECRET}\n9,480\n"
SUBMIT = 'open("submission.csv", "w").write("room,rent\\n9,490\\n7,7000\\n")'


@pytest.fixture
def task(tmp_path):
    for name, text in (("train.csv", TRAIN), ("test.csv", TEST), ("answers.csv", ANSWERS)):
        (tmp_path / name).write_text(text)
    return Task(
        id="rents",
        category="regression",
        prompt="Predict the rent of each room.",
        files={name: tmp_path / name for name in ("train.csv", "test.csv")},
        ground_truth=TabularTruth("regression", "rmse", "room", ("rent",), tmp_path / "answers.csv"),
    )


BOXES = {}


@pytest.fixture(autouse=True)
def warm(warm_code_sandbox):
    """Its programs import pandas, which takes seconds in any other."""
    BOXES["warm"] = warm_code_sandbox


def block(code):
    return f"```python\n{code}\n```"


def saves(*names, says=""):
    return block("\n".join([*(f'open("{name}", "w").write("x")' for name in names), f'print("{says}")']))


ENGINEER = saves("X_train.pkl", "y_train.pkl", "X_test.pkl", says="2 columns, floor filled with 1.5")
MODELER = saves("model.pkl", says="forest, rmse 12")


async def play(task, replies, **settings):
    """One episode in which each role says its replies in turn, the last one again and again."""
    pipeline = make_pipeline(PipelineConfig(name="dsbench", **settings))
    said = {role: list(texts) for role, texts in replies.items()}
    policy = ScriptedPolicy(
        lambda call: said[call.policy].pop(0) if len(said[call.policy]) > 1 else said[call.policy][0]
    )
    team = Team("e", task, pipeline.roles, policy, SamplingParams())
    try:
        outcome = await pipeline.run(task, team, await team.open(BOXES["warm"]))
    finally:
        await team.close()
    parts = {role.name: [a for a in team.actions if a.role == role.name] for role in pipeline.roles}
    return outcome, parts, policy


def sound(**others):
    return {"data_engineer": [ENGINEER], "modeler": [MODELER], "analyst": [block(SUBMIT)]} | others


@pytest.mark.parametrize("prompt_style", ["full", "short"])
@pytest.mark.parametrize("partial", [False, True])
async def test_files_and_reports_are_handed_on_to_a_graded_submission(task, prompt_style, partial):
    outcome, parts, _ = await play(task, sound(), prompt_style=prompt_style, partial_information=partial)
    assert outcome.success
    assert outcome.metrics["mae"] == pytest.approx((7319.25 - 7000 + 10) / 2)
    assert [len(part) for part in parts.values()] == [1, 1, 1]
    modeler, analyst = parts["modeler"][0].prompt_text, parts["analyst"][0].prompt_text
    assert "X_test.pkl, X_train.pkl, test.csv, train.csv, y_train.pkl" in modeler
    assert "2 columns, floor filled with 1.5" in modeler
    assert "forest, rmse 12" in analyst
    assert "model.pkl" in analyst


async def test_what_is_wrong_with_the_features_goes_to_the_coach_and_to_no_agent(task):
    lines = (
        "import pandas as pd",
        "train, test = pd.read_csv('train.csv'), pd.read_csv('test.csv')",
        "train['rent'].to_pickle('y_train.pkl')",
        "train[['floor', 'heating']].fillna(0).to_pickle('X_train.pkl')",
        "test[['floor']].to_pickle('X_test.pkl')",
    )
    early = block("import pandas as pd")
    _, parts, policy = await play(task, sound(data_engineer=[early, block("\n".join(lines))]))
    first, second = parts["data_engineer"]
    assert first.result == ""
    assert second.result == "X_train.pkl: not numbers: heating\nX_test.pkl: columns: 1, and 2 in X_train.pkl"
    assert parts["modeler"][0].result == "model.pkl: looked at, nothing known against it"
    assert parts["analyst"][0].result == ""
    assert not any("not numbers" in call.prompt for call in policy.calls)


async def test_features_that_another_agent_writes_anew_are_looked_at_again(task):
    lines = (
        "import pandas as pd",
        "train, test = pd.read_csv('train.csv'), pd.read_csv('test.csv')",
        "train['rent'].to_pickle('y_train.pkl')",
        "train[['floor']].fillna(0).to_pickle('X_train.pkl')",
        "test[['floor']].to_pickle('X_test.pkl')",
    )
    spoils = block("import pandas as pd\npd.DataFrame({'floor': ['3', 'x']}).to_pickle('X_test.pkl')")
    replies = sound(data_engineer=[block("\n".join(lines))], modeler=[spoils, MODELER])
    _, parts, _ = await play(task, replies)
    assert parts["data_engineer"][0].result == "X_train.pkl, y_train.pkl, X_test.pkl: looked at, nothing wrong"
    spoilt, saved = parts["modeler"]
    assert spoilt.result == "X_test.pkl: not numbers: floor"
    assert saved.result == "model.pkl: looked at, nothing known against it"


@pytest.mark.parametrize("prompt_style", ["full", "short"])
async def test_names_of_files_do_not_fill_another_agents_prompt(task, prompt_style):
    plain, _, _ = await play(task, sound(), prompt_style=prompt_style)
    litter = block("for n in range(200): open(f'{n:03}' + '\U0001f600' * 60, 'w').close()")
    outcome, parts, _ = await play(
        task, sound(data_engineer=[litter, ENGINEER], modeler=["no code", MODELER]), prompt_style=prompt_style
    )
    assert outcome == plain
    texts = [action.prompt_text for actions in parts.values() for action in actions]
    assert max(text.count("\U0001f600") for text in texts) <= 1000
    needed = [name for name in ("X_train.pkl", "y_train.pkl") if name in parts["modeler"][0].prompt_text]
    assert len(needed) == 2
    assert any("more" in text for text in texts)


@pytest.mark.parametrize("prompt_style", ["full", "short"])
async def test_no_agent_sees_an_answer(task, prompt_style):
    spy = block("import os\nfor name in os.listdir('.'): print(name, open(name).read())")
    _, parts, policy = await play(
        task, sound(data_engineer=[spy, ENGINEER], analyst=[spy, block(SUBMIT)]), prompt_style=prompt_style
    )
    assert "train.csv room,rent" in parts["data_engineer"][0].execution.stdout
    for call in policy.calls:
        assert SECRET not in call.prompt
        assert "answers" not in call.prompt
    for actions in parts.values():
        for action in actions:
            assert "answers.csv" not in action.files_before
            assert SECRET not in action.execution.stdout


async def test_the_engineer_is_told_what_the_columns_are(task):
    _, parts, _ = await play(task, sound(), prompt_style="short")
    lines = parts["data_engineer"][0].prompt_text.splitlines()
    assert {"id: room", "target: rent", "numbers: 1", "text: heating", "gaps: floor, heating"} <= set(lines)


async def test_the_full_voice_shows_the_task_and_the_table(task):
    _, parts, _ = await play(task, sound())
    for role in ("data_engineer", "analyst"):
        assert "Predict the rent of each room." in parts[role][0].prompt_text
        assert "missing values in: floor, heating" in parts[role][0].prompt_text


async def test_under_partial_information_only_the_engineer_sees_the_task(task):
    _, parts, _ = await play(task, sound(), partial_information=True)
    assert task.prompt in parts["data_engineer"][0].prompt_text
    assert task.prompt not in parts["modeler"][0].prompt_text + parts["analyst"][0].prompt_text
    assert "2 columns" not in parts["analyst"][0].prompt_text
    assert "room, rent" in parts["analyst"][0].prompt_text


@pytest.mark.parametrize("prompt_style", ["full", "short"])
async def test_what_upstream_left_out_is_said_to_the_one_who_needs_it(task, prompt_style):
    without = saves("X_train.pkl", "y_train.pkl", says="done")
    outcome, parts, _ = await play(task, sound(data_engineer=[without]), prompt_style=prompt_style)
    assert outcome.success  # the scripted analyst needs no features
    marker = "missing: " if prompt_style == "short" else "not there: "
    assert f"{marker}none" in parts["data_engineer"][0].prompt_text
    assert f"{marker}none" in parts["modeler"][0].prompt_text
    assert f"{marker}X_test.pkl\n" in parts["analyst"][0].prompt_text


async def test_a_part_goes_on_until_all_is_saved_and_the_feedback_names_what_is_not(task):
    first, crash = saves("X_train.pkl", says="one"), block("raise ValueError('no such column: rent2')")
    _, parts, _ = await play(task, sound(data_engineer=[first, crash, ENGINEER]))
    actions = parts["data_engineer"]
    assert [action.turn for action in actions] == [0, 1, 2]
    assert "still have to save: X_test.pkl, y_train.pkl" in actions[1].prompt_text.replace(
        "y_train.pkl, X_test.pkl", "X_test.pkl, y_train.pkl"
    )
    assert "Turns left: 2" in actions[1].prompt_text
    assert "ValueError: no such column: rent2" in actions[2].prompt_text
    assert len(parts["modeler"]) == 1


async def test_the_short_feedback_is_the_last_line_of_the_error(task):
    crash = block("print('before')\nraise ValueError('no such column: rent2')")
    _, parts, _ = await play(task, sound(modeler=[crash, MODELER]), prompt_style="short")
    assert parts["modeler"][1].prompt_text == "error: ValueError: no such column: rent2\nunsaved: model.pkl"


async def test_turn_limits_end_the_parts_and_no_submission_is_a_failure(task):
    idle = {role.name: ["I would rather not."] for role in ROLES}
    outcome, parts, _ = await play(task, idle)
    assert [len(part) for part in parts.values()] == [3, 5, 2]
    assert not outcome.success
    assert "submission.csv was not made" in outcome.reason
    assert outcome.summary.startswith("ERROR")


async def test_row_numbers_in_place_of_ids_are_refused(task):
    bad = block('open("submission.csv", "w").write("room,rent\\n0,490\\n1,7000\\n")')
    outcome, _, _ = await play(task, sound(analyst=[bad]))
    assert not outcome.success
    assert "column 'room': 2 ids" in outcome.reason


async def test_a_submission_too_large_to_read_is_a_failure(task):
    flood = block('open("submission.csv", "wb").truncate(65 * 2**20)')
    outcome, _, _ = await play(task, sound(analyst=[flood]))
    assert not outcome.success
    assert "submission.csv" in outcome.reason
    assert "not made" not in outcome.reason


async def test_long_reports_are_clipped_for_those_after_it(task):
    flood = ENGINEER.replace("print(", "print('start ' + 'z' * 5000); print(")
    _, parts, _ = await play(task, sound(data_engineer=[flood]), prompt_style="short")
    prompt = parts["modeler"][0].prompt_text
    assert len(prompt) < 700
    assert "start" in prompt
    assert "characters cut" in prompt


async def test_a_task_that_is_not_tabular_is_refused(task):
    with pytest.raises(
        TaskError, match=r"pipeline dsbench takes a TabularTruth, as those of tasks\.source=dsbench-lite or dsbench are"
    ):
        await play(Task("sum", "one-step", "1 + 1", ground_truth="2"), sound())


async def test_a_task_without_its_tables_is_refused(task, tmp_path):
    bare = Task("rents", "regression", "", {"test.csv": tmp_path / "test.csv"}, task.ground_truth)
    with pytest.raises(TaskError, match=r"needs train\.csv"):
        await play(bare, sound())


@pytest.mark.parametrize(
    ("field_of_roles", "field_of_feedback", "message"),
    [
        ("model_summary", "brief", "there is no field model_summary"),  # the first agents have none yet
        ("files", "turn_left", "did you mean 'turns_left'"),
    ],
)
async def test_a_prompt_with_a_field_that_it_does_not_get_is_refused(
    tmp_path, field_of_roles, field_of_feedback, message
):
    fields = {role.name: field_of_roles for role in ROLES} | {"feedback": field_of_feedback}
    for name, field in fields.items():
        (tmp_path / f"{name}.md").write_text(f"---\nfields: [{field}]\n---\n{{{{{field}}}}}\n")
    with pytest.raises(ConfigError, match=message):
        make_pipeline(PipelineConfig(name="dsbench", prompts=tmp_path))
