"""Which tasks are held out, and seeds by name."""

from __future__ import annotations

import pytest

from coachrl.config.tasks import DividedTasks
from coachrl.errors import TaskError
from coachrl.seeding import derive_seed, generator
from coachrl.tasks.split import check_apart, divided, of_own_id, split_of
from coachrl.types import Task


def tasks(count):
    return [Task(f"t{number}", "k", "p") for number in range(count)]


def ids(found):
    return [int(task.id[1:]) for task in found]


def test_a_generated_task_belongs_where_its_words_say_on_every_machine():
    heldout = [number for number in range(1000) if split_of(f"task {number}") == "heldout"]
    assert heldout[:2] == [1, 3] and len(heldout) == 227


@pytest.mark.parametrize(
    ("count", "settings", "held_out"),
    [
        (2, {}, 1),
        (29, {}, 2),
        (30, {}, 3),
        (7, {"heldout_share": 0.5}, 3),
        (7, {"heldout_share": 0.01}, 1),
        (7, {"heldout_count": 6}, 6),
    ],
)
def test_both_parts_keep_the_order_and_hold_every_task_once(count, settings, held_out):
    train, heldout = map(ids, divided(tasks(count), DividedTasks(**settings), 0))
    assert len(heldout) == held_out and train == sorted(train) and heldout == sorted(heldout)
    assert sorted(train + heldout) == list(range(count))


def test_a_division_that_leaves_nothing_to_train_on_is_refused():
    with pytest.raises(TaskError, match=r"3 of 3 tasks would be held out.*set a smaller tasks.heldout_count"):
        divided(tasks(3), DividedTasks(heldout_count=3), 0)
    with pytest.raises(TaskError, match="1 of 1 tasks would be held out, and none left to train on; give more of them"):
        divided(tasks(1), DividedTasks(), 0)


def test_tasks_of_both_parts_and_ids_that_come_twice_are_named():
    check_apart(tasks(3), tasks(6)[3:])
    with pytest.raises(TaskError, match="2 training tasks are held-out tasks too: t1, t2"):
        check_apart(tasks(3), tasks(6)[1:])
    assert ids(of_own_id([("line 1", tasks(2)[1]), ("line 2", tasks(1)[0])])) == [1, 0]
    with pytest.raises(TaskError, match="line 3: another task before it has the id 't0' too"):
        of_own_id([("line 1", tasks(1)[0]), ("line 2", tasks(2)[1]), ("line 3", tasks(1)[0])])


def test_an_id_with_half_a_character_has_a_seed_of_its_own():
    assert len({derive_seed(1, f"{half}a") for half in ("\ud800", "\udfff", "")}) == 3


def test_a_seed_depends_on_every_part_in_its_order_and_on_no_platform():
    seeds = [derive_seed(0, "train", 1), derive_seed("train", 0, 1), derive_seed(-1), derive_seed()]
    assert seeds == [9041398139401251707, 3567448371095931744, 6295558014972089990, 7896617691693857887]
    assert generator(0, "a").random() == generator(0, "a").random() != generator(0, "b").random()
