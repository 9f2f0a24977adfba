"""A grader of the user's own in place of math-verify."""

import json

import numpy as np
import pytest

from coachrl.config import load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.tasks import load_tasks
from coachrl.tasks.math.problems import MathTruth, grade_math


def backwards(answer, reference):
    return answer == reference[::-1]


def near(answer, reference):
    return np.isclose(float(answer), float(reference), rtol=0.01)


def unsure(answer, reference):
    return 1.0


def broken(answer, reference):
    return answer / reference


def of_one(answer):
    return True


@pytest.fixture
def settings(tmp_path):
    for name in ("train", "heldout"):
        (tmp_path / f"{name}.json").write_text(json.dumps([{"problem": f"Say {name}.", "answer": "abc"}]))
    return ["tasks.source=math", *(f"tasks.{name}={tmp_path / name}.json" for name in ("train", "heldout"))]


def test_it_says_what_is_right_in_training_and_held_out(settings):
    config = load_config(None, [*settings, f"tasks.grader={__name__}:backwards"])
    for [task] in load_tasks(config):
        assert grade_math("\\boxed{cba}", task.ground_truth).success
        assert grade_math("\\boxed{abc}", task.ground_truth).reason == "wrong answer"
        assert grade_math("abc", task.ground_truth).reason == "no \\boxed answer"
    for [task] in load_tasks(load_config(None, settings)):
        assert grade_math("\\boxed{abc}", task.ground_truth).success


def test_it_may_answer_with_a_bool_of_numpy():
    right, wrong = (
        grade_math(f"\\boxed{{{said}}}", MathTruth("100", grader=f"{__name__}:near")) for said in (99.5, 98)
    )
    assert (right.success, wrong.success) == (True, False)


@pytest.mark.parametrize(
    ("name", "words"), [("unsure", "gave 1.0, neither True nor False"), ("broken", "failed: TypeError: unsupported")]
)
def test_a_grader_that_fails_is_no_verdict(name, words):
    with pytest.raises(TaskError, match=words):
        grade_math("\\boxed{abc}", MathTruth("abc", grader=f"{__name__}:{name}"))


def test_a_mistyped_grader_names_the_nearest_before_anything_is_played(settings):
    with pytest.raises(ConfigError, match=r"grader '.*:backward': .* did you mean 'backwards'\?"):
        load_tasks(load_config(None, [*settings, f"tasks.grader={__name__}:backward"]))


def test_a_grader_that_does_not_take_both_is_refused_before_anything_is_played(settings):
    with pytest.raises(ConfigError, match=r"of_one' must take \(answer, reference\), and takes \(answer\)"):
        load_tasks(load_config(None, [*settings, f"tasks.grader={__name__}:of_one"]))
