"""Task sets by name: what a config asks for is what it gets, or one clear line."""

import json

import pytest

from coachrl.config import find_config, load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.tasks import load_tasks
from coachrl.tasks.code.problems import COOP_CODE
from coachrl.tasks.tabular.dsbench_lite import ensure_dsbench_lite


def load(*overrides):
    config = load_config(None, overrides)
    return load_tasks(config)


def problems(tmp_path, name, numbers):
    path = tmp_path / name
    path.write_text(json.dumps([{"prompt": f"What is {n} + 1?", "answer": n + 1} for n in numbers]))
    return path


def test_word_problems_have_the_sizes_that_were_asked_for():
    train, heldout = load("tasks.train_count=20", "tasks.heldout_count=10")
    assert (len(train), len(heldout)) == (20, 10)
    assert not {task.prompt for task in train} & {task.prompt for task in heldout}


def test_a_sample_of_problems_is_drawn_after_the_held_out_ones_are_dropped(tmp_path):
    train_path, heldout_path = problems(tmp_path, "a.json", range(40)), problems(tmp_path, "b.json", range(10))
    sources = [
        "tasks.source=math",
        f"tasks.train={train_path}",
        f"tasks.heldout={heldout_path}",
        "tasks.train_count=12",
    ]
    train, heldout = load(*sources)
    assert len(train) == 12 and len(heldout) == 10
    assert not {task.prompt for task in train} & {task.prompt for task in heldout}
    places = [int(task.id.removeprefix("a-")) for task in train]
    assert places == sorted(places) != list(range(11, 23)), "a sample, and not the first ones, in their order"
    assert [task.id for task in load(*sources)[0]] == [task.id for task in train]
    assert [task.id for task in load(*sources, "seed=1")[0]] != [task.id for task in train]


def test_a_source_that_needs_a_path_says_which_key(tmp_path):
    for source in ("math", "code"):
        with pytest.raises(ConfigError, match=r"tasks\.train=PATH"):
            load(f"tasks.source={source}", f"tasks.heldout={problems(tmp_path, 'a.json', [1])}")


def test_a_training_set_that_is_all_held_out_is_empty(tmp_path):
    path = problems(tmp_path, "a.json", range(3))
    with pytest.raises(TaskError, match="nothing is left to train on"):
        load("tasks.source=math", f"tasks.train={path}", f"tasks.heldout={path}")


def test_a_missing_list_is_named(tmp_path):
    missing = tmp_path / "nowhere.json"
    with pytest.raises(TaskError, match=r"nowhere\.json"):
        load("tasks.source=math", f"tasks.train={missing}", f"tasks.heldout={missing}")


@pytest.mark.parametrize("world", ["planpath", "sokoban", "sudoku"])
def test_the_config_of_one_world_serves_the_others(world):
    few = ["tasks.train_count=1", "tasks.heldout_count=1"]
    config = load_config(find_config("planpath"), [f"pipeline.name={world}", f"tasks.source={world}", *few])
    train, heldout = load_tasks(config)
    assert len(train) == len(heldout) == 1


def test_levels_are_of_word_problems_alone():
    with pytest.raises(ConfigError, match=r"planpath reads no tasks\.levels"):
        load("tasks.source=planpath", "tasks.levels=[3]")


def test_a_path_that_the_source_does_not_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"word-problems reads no tasks\.train"):
        load(f"tasks.train={problems(tmp_path, 'a.json', [1])}")


def test_a_data_task_on_both_sides_is_refused(tmp_path):
    pytest.importorskip("bokeh_sampledata", reason="needs the tabular extra")
    pytest.importorskip("lifelines", reason="needs the tabular extra")
    root = ensure_dsbench_lite(tmp_path)
    both = root / "eval.jsonl"
    paths = {"root": root, "train": both, "heldout": both, "cleaned_prompts": root / "cleaned_prompts.json"}
    with pytest.raises(TaskError, match="training tasks are held-out tasks too"):
        load("tasks.source=dsbench", *(f"tasks.{key}={path}" for key, path in paths.items()))


def test_a_part_of_own_programming_tasks_is_held_out_where_nobody_divided_them(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(COOP_CODE.read_text().splitlines(keepends=True)[:20]))
    train, heldout = load("tasks.source=code", f"tasks.train={path}")
    assert (len(train), len(heldout)) == (18, 2) and not {t.id for t in train} & {t.id for t in heldout}
