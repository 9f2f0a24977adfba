"""Tasks from a user's own function: what it gives is checked before anything is played."""

import sys

import pytest

from coachrl.config import load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.tasks import load_tasks

MODULE = """
import numpy as np

from coachrl.errors import TaskError
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import Task

def numbered(first, last):
    return [Task(f"t{n}", "sum", f"What is {n} + 1?", ground_truth=n + 1) for n in range(first, last)]

def pair(config):
    return numbered(0, config.tasks.options.get("size", 8)), numbered(100, 104)

def one_list(config):
    return numbered(0, 30)

def overlapping(config):
    return numbered(0, 5), numbered(4, 6)

def alike(config):
    told = [Task(name, "sum", " what is 4 + 1?", ground_truth=truth) for name, truth in (("again", 5), ("other", 6))]
    return numbered(0, 4) + told, numbered(4, 6)

def three(config):
    return numbered(0, 1), numbered(1, 2), numbered(2, 3)

def twice(config):
    return numbered(0, 3) + numbered(2, 4)

def words(config):
    return ["What is 1 + 1?"]

def nameless(config):
    return [Task(3, "sum", "What is 3 + 1?")]

def cut(config):
    return [Task("one \\ud83d", "sums", "1 + 1?")]

def nothing(config):
    return None

def array(config):
    return np.array(numbered(0, 3))

def counted(config):
    return [Task("t", "sum", "What is 1 + 1?", ground_truth=MathTruth(2))]

def own_truth(config):
    return [Task(f"t{n}", "sum", f"{n}?", ground_truth=MathTruth({"least": n}, grader="mine:close")) for n in range(3)]

def empty(config):
    return [], numbered(0, 2)

def broken(config):
    raise KeyError("no such file")

def own_words(config):
    raise TaskError("the list is not there: fetch it first")

async def later(config):
    return numbered(0, 3)

def drawn(config):
    yield from numbered(0, 3)

def alone():
    return numbered(0, 3)

constant = 3
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the tasks of one function of a module in the current folder."""
    (tmp_path / "task_functions.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "task_functions", raising=False)

    def call(function, *overrides):
        return load_tasks(load_config(None, [f"tasks.source=task_functions:{function}", *overrides]))

    return call


def ids(tasks):
    return [task.id for task in tasks]


def test_a_function_gives_both_sets_and_reads_its_own_options(load):
    train, heldout = load("pair", "tasks.options.size=6", "tasks.train_count=3", "tasks.heldout_count=2")
    assert ids(train) == ["t0", "t1", "t2"] and ids(heldout) == ["t100", "t101"]
    assert len(load("pair", "tasks.options.size=6")[0]) == 6


def test_of_one_list_a_seeded_part_is_held_out(load):
    train, heldout = load("one_list")
    assert len(heldout) == 3 and sorted(ids(train) + ids(heldout)) == sorted(f"t{n}" for n in range(30))
    assert load("one_list")[1] == heldout != load("one_list", "seed=1")[1]
    train, heldout = load("one_list", "tasks.heldout_count=10", "tasks.train_count=4")
    assert (len(train), len(heldout)) == (4, 10) and not set(ids(train)) & set(ids(heldout))


def test_a_task_that_is_held_out_under_another_id_is_told(load, caplog):
    train, _ = load("alike")
    assert len(train) == 6 and [record.getMessage() for record in caplog.records] == [
        "tasks.source=task_functions:alike: 1 of 6 training tasks are held out under another id (again): what is "
        "measured on those was trained on"
    ]
    caplog.clear()
    load("pair")
    assert not caplog.records


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.05, 1), (0.1, 3), (0.13, 3), (0.5, 15)])
def test_of_any_share_one_task_is_held_out_at_least(load, share, count):
    train, heldout = load("one_list", f"tasks.heldout_share={share}")
    assert (len(train), len(heldout)) == (30 - count, count)


def test_a_share_of_tasks_that_come_divided_is_told(load, caplog):
    load("one_list", "tasks.heldout_share=0.5")
    assert not caplog.records
    load("pair", "tasks.heldout_share=0.5")
    load("one_list", "tasks.heldout_share=0.5", "tasks.heldout_count=3")
    assert caplog.messages == [
        "tasks.heldout_share=0.5 holds out nothing: held-out tasks are given",
        "tasks.heldout_share=0.5 is not read: tasks.heldout_count is given",
    ]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("overlapping", "1 training tasks are held-out tasks too: t4"),
        ("three", "gave 3 values; it must give"),
        ("twice", "entry 3: another task before it has the id 't2' too"),
        ("words", "entry 0 is 'What is 1 [+] 1[?]', and no coachrl.types.Task"),
        ("nameless", "the id of entry 0 is no text"),
        ("cut", "the id of entry 0 holds half a character"),
        ("nothing", "gave None; it must give a list"),
        ("array", "gave array.* it must give a list"),
        ("counted", "the answer of entry 0 is 2, no text"),
        ("empty", "the training task set of 'task_functions:empty' is empty"),
        (
            "broken",
            ":broken failed: KeyError: 'no such file' [(]task_functions.py, line 55",
        ),
        ("own_words", "^the list is not there: fetch it first$"),
    ],
)
def test_what_is_no_set_of_tasks_is_refused(load, function, words):
    with pytest.raises(TaskError, match=words):
        load(function)


def test_a_grader_of_ones_own_may_take_an_answer_that_is_no_text(load):
    train, _ = load("own_truth", "tasks.heldout_count=1")
    assert train[0].ground_truth.answer["least"] in range(3)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("task_functions:missing", "module 'task_functions' has no 'missing'"),
        ("no_such_module:load", "no module 'no_such_module' in the current folder, nor installed"),
        ("task_functions.py:pair", "no module 'task_functions.py', did you mean 'task_functions'"),
        (":", "is no module.s name"),
        ("task_functions:later", "later is async: it must be a plain function"),
        ("task_functions:drawn", "drawn is a generator: it must `return` its result"),
        ("task_functions:alone", "alone must take [(]config[)], and takes [(][)]"),
        ("task_functions:constant", "is no function"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_by_name(load, source, words):
    with pytest.raises(ConfigError, match=words):
        load_tasks(load_config(None, [f"tasks.source={source!r}"]))


def test_a_setting_of_a_shipped_source_belongs_into_the_options(load):
    with pytest.raises(ConfigError, match=r"your own reads no tasks\.levels, which only word-problems does"):
        load("pair", "tasks.levels=[1]")
    with pytest.raises(
        ConfigError, match=r'name the grader in each task: MathTruth\(answer, grader="my_module:same"\)'
    ):
        load("pair", "tasks.grader='mine:same'")
