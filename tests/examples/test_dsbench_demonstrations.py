"""Demonstrations of the DSBench team: run for real, in the pipeline's own words, with the stated share of faults."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import pytest_asyncio

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxUnavailable, TaskError
from coachrl.sandbox import make_sandbox
from coachrl.tasks.tabular.columns import column_fields, read_columns
from coachrl.tasks.tabular.dsbench_lite_sets import TASKS
from coachrl.tasks.tabular.grading import read_answers
from coachrl.tasks.tabular.handover import inspect_features, read_faults
from coachrl.text import extract_code
from examples.dsbench_demonstrations.analyst import ANALYST
from examples.dsbench_demonstrations.demonstrations import CRAFTS, make_demos, short_pipeline, write_demos
from examples.dsbench_demonstrations.engineer import ENGINEER
from examples.dsbench_demonstrations.modeler import MODELER
from examples.dsbench_demonstrations.programs import Fault, swapped, write_program
from examples.dsbench_demonstrations.tables import make_table

pytestmark = pytest.mark.asyncio(loop_scope="module")
COUNT, FAULT_SHARE, SEED = 4, 0.5, 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    box = make_sandbox(SandboxConfig(disk_mb=32))
    try:
        await (await box.open({})).close()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield box
    await box.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demos(sandbox):
    """Made with every check on: each sound chain was graded, each faulty program ended as it was written to."""
    return await make_demos(sandbox, COUNT, FAULT_SHARE, SEED)


async def test_every_role_has_its_count_and_the_stated_share_of_faults(demos):
    for role in CRAFTS:
        own = [demo for demo in demos if demo.role == role]
        assert len(own) == COUNT
        assert sum(demo.fault is not None for demo in own) == round(FAULT_SHARE * COUNT)


async def test_prompts_are_the_pipelines_own(demos):
    heads = {role.name: role.prompt.body.split("{{")[0] for role in short_pipeline().roles}
    for demo in demos:
        assert demo.messages[0]["role"] == "user"
        assert demo.messages[0]["content"].startswith(heads[demo.role])
        assert [message["role"] for message in demo.messages] == ["user", "assistant"] * (len(demo.messages) // 2)


async def test_a_second_turn_answers_the_feedback_with_another_program(demos):
    repairs = [demo for demo in demos if len(demo.messages) > 2]
    assert repairs
    for demo in repairs:
        assert demo.fault is not None
        assert "unsaved: " in demo.messages[2]["content"]
        assert demo.messages[3]["content"] != demo.messages[1]["content"]
        compile(extract_code(demo.messages[3]["content"]), "repair", "exec")


async def test_an_agent_without_its_files_reports_them(demos):
    reports = [demo for demo in demos if demo.style == "report"]
    assert reports
    for demo in reports:
        missing = next(line for line in demo.messages[0]["content"].splitlines() if line.startswith("missing: "))
        assert missing != "missing: none"
        assert missing in demo.messages[1]["content"]


async def test_files_hold_one_auditable_record_a_line_and_are_the_same_for_the_same_seed(sandbox, tmp_path):
    first = await write_demos(tmp_path / "a", sandbox, 2, 0.5, seed=3, roles=["analyst"])
    second = await write_demos(tmp_path / "b", sandbox, 2, 0.5, seed=3, roles=["analyst"])
    assert list(first) == ["analyst"]
    assert first["analyst"].read_bytes() == second["analyst"].read_bytes()
    records = [json.loads(line) for line in first["analyst"].read_text().splitlines()]
    assert [set(record) for record in records] == [{"messages", "role", "style", "fault", "table"}] * 2
    assert [record["fault"] is None for record in records].count(True) == 1


@pytest.mark.parametrize(
    "wrong", [{"roles": ["modler"]}, {"fault_share": 1.5}, {"count_per_role": 0}], ids=["role", "share", "count"]
)
async def test_wrong_requests_are_refused(sandbox, wrong):
    with pytest.raises(TaskError, match="demonstrations need"):
        await make_demos(sandbox, **({"count_per_role": 1, "fault_share": 0.5, "seed": 0} | wrong))


@pytest.mark.parametrize("role", list(CRAFTS))
async def test_every_fault_of_a_role_can_be_written_and_differs_from_the_sound_program(role, tmp_path):
    """Over some tables each fault and each style turns up; only a syntax slip does not parse."""
    faults, styles = set(), set()
    for number in range(150):
        rng = np.random.default_rng(number)
        program = write_program(CRAFTS[role], make_table(f"t{number}", tmp_path / str(number), rng), True, rng)
        faults.add(program.fault)
        styles.add(program.style)
        compile(program.sound, "sound", "exec")
        assert program.code != program.sound
        if program.fault == "syntax":
            with pytest.raises(SyntaxError):
                compile(program.code, "faulty", "exec")
        else:
            compile(program.code, "faulty", "exec")
    assert faults == set(CRAFTS[role].faults)
    assert styles == set(CRAFTS[role].styles)


async def test_neighbors_of_the_wrong_category_are_scored_by_what_fails_loudly(tmp_path):
    """They fit any labels, and cross-validation only warns of scores that fail: the program would end well."""
    craft, programs = replace(MODELER, faults={"wrong category": MODELER.faults["wrong category"]}), []
    for number in range(150):
        rng = np.random.default_rng(number)
        table = make_table(f"t{number}", tmp_path / str(number), rng)
        with contextlib.suppress(AssertionError):  # it does not apply to this table, or to this program
            programs.append(write_program(craft, table, True, rng).code)
    neighbors = [code for code in programs if "KNeighbors" in code]
    assert neighbors
    assert not [code for code in neighbors if "cross_val_score" in code]


@pytest.mark.filterwarnings("error::DeprecationWarning")
async def test_tables_differ_and_hold_what_careless_programs_trip_over(tmp_path):
    tables = [make_table(f"t{n}", tmp_path / str(n), np.random.default_rng(n)) for n in range(40)]
    assert {table.truth.category for table in tables} == {"classification", "regression"}
    assert {table.truth.metric for table in tables} >= {"accuracy", "f1", "roc_auc", "rmse", "mae", "rmsle"}
    assert any(table.text_labels for table in tables)
    assert len({(table.truth.id_column, table.target) for table in tables}) > 30
    for table in tables:
        train, test = (pd.read_csv(table.task.files[name]) for name in ("train.csv", "test.csv"))
        assert table.target not in test
        assert not np.array_equal(test[table.truth.id_column].astype(str), np.arange(len(test)).astype(str))
        if table.text:
            assert any(set(train[name].dropna()) - set(test[name].dropna()) for name in table.text)
        for name in table.gaps:
            assert train[name].isna().any()
            assert test[name].isna().any()
        fields = column_fields(read_columns(table.task.files, table.truth))
        assert fields["target"] == table.target
        assert fields["text_columns"] == (", ".join(table.text) or "none")


async def test_no_table_has_the_id_and_target_of_a_benchmark_task(tmp_path):
    tasks = {(task.id_column.lower(), task.target.lower()) for task in TASKS}
    for number in range(200):
        table = make_table(f"t{number}", tmp_path / str(number), np.random.default_rng(number))
        assert (table.truth.id_column.lower(), table.target.lower()) not in tasks


async def test_a_program_that_does_not_end_as_it_was_written_to_is_an_error(sandbox, monkeypatch):
    mislabelled = replace(ANALYST, faults={"late": Fault("later", swapped("submission.csv", "predictions.csv"))})
    monkeypatch.setitem(CRAFTS, "analyst", mislabelled)
    with pytest.raises(TaskError, match="was to end as 'later' and ended as 'missing'"):
        await make_demos(sandbox, 1, 1.0, seed=0, roles=["analyst"])


HIDDEN = {name for name, fault in ENGINEER.faults.items() if fault.effect == "later"}
UNSEEN = {"labels coded"}  # numbers like others: only the submission's grade tells


@pytest.mark.parametrize("fault", sorted(HIDDEN))
async def test_what_an_engineer_hides_is_seen_when_it_is_handed_on(sandbox, tmp_path, fault):
    """Features of the sound program have no fault; those of the spoiled one, which saves all files too, have one."""
    craft = replace(ENGINEER, faults={fault: ENGINEER.faults[fault]})
    table, program = _spoiled(craft, tmp_path)
    sound, faulty = [await _features_of(sandbox, table, code) for code in (program.sound, program.code)]
    assert sound == ()
    assert bool(faulty) == (fault not in UNSEEN)


def _spoiled(craft, folder):
    """The first table, of many, to which the craft's one fault applies."""
    for number in range(100):
        rng = np.random.default_rng(number)
        table = make_table(f"t{number}", folder / str(number), rng)
        with contextlib.suppress(AssertionError):  # it does not apply to this table, or in this style
            return table, write_program(craft, table, True, rng)
    raise AssertionError("no table for it")


async def _features_of(sandbox, table, code):
    workspace = await sandbox.open(table.task.files)
    try:
        execution = await workspace.run(code)
        assert execution.state == "ok", execution.stderr
        said = await inspect_features(workspace, len(read_answers(table.task.ground_truth)))
        assert said
        return read_faults(said)
    finally:
        await workspace.close()
