"""What ends a run that does not learn."""

import pytest

from coachrl.config import load_config
from coachrl.errors import NothingTrained
from coachrl.runs.folder import Run
from coachrl.trainers.limits import require_training, too_much_failed
from coachrl.trainers.masking import left_out_in_words

NOTHING_FAILED = {"train/faulty_fraction": 0.0, "train/overflowed_fraction": 0.0}


@pytest.fixture(scope="module")
def config():
    return load_config(None, ["coach.max_failed_fraction=0.2", "train.max_faulty_fraction=0.5"])


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"coach/failed_fraction": 0.25}, "25% of the coach's calls failed (coach.max_failed_fraction is 20%)"),
        ({"train/faulty_fraction": 0.75}, "75% of the episodes broke (train.max_faulty_fraction is 50%)"),
        ({"train/out_of_memory/a": 0.1, "train/out_of_memory/b": 0.75}, "75% of a policy's samples did not fit"),
        ({"train/overflowed_fraction": 0.75}, "in 75% of the episodes a prompt did not fit the model's context"),
    ],
)
def test_more_failures_than_are_allowed_are_said_in_words(config, metrics, words):
    assert too_much_failed(NOTHING_FAILED | metrics, config).startswith(words)


def test_why_the_last_call_failed_is_said(config):
    said = too_much_failed(NOTHING_FAILED | {"coach/failed_fraction": 1.0}, config, "coach mine:f gave\n11")
    assert (
        said
        == "100% of the coach's calls failed, the last with: coach mine:f gave 11 (coach.max_failed_fraction is 20%)"
    )


def test_as_many_failures_as_are_allowed_are_bearable(config):
    allowed = {"coach/failed_fraction": 0.2, "train/out_of_memory/a": 0.5}
    assert too_much_failed(dict.fromkeys(NOTHING_FAILED, 0.5) | allowed, config) is None
    assert too_much_failed(NOTHING_FAILED, config) is None  # a run without a coach has no share of its calls


def run_of(tmp_path, config, *steps):
    run = Run.create(config.model_copy(update={"out": tmp_path / "runs"}))
    for number, metrics in enumerate(steps):
        run.append_metrics({"step": number, **metrics})
    return run


def test_a_run_in_which_one_step_trained_something_is_let_be(tmp_path, config):
    evaluated = {"eval/success": 0.5}
    require_training(
        run_of(tmp_path, config, evaluated, {"train/trained_actions": 0.0}, {"train/trained_actions": 1.0})
    )
    require_training(run_of(tmp_path, config, evaluated))


def test_why_nothing_was_trained_is_summed_over_all_steps(tmp_path, config):
    first = {"train/trained_actions": 0.0, "train/masked/unscored": 2.0, "train/masked/mine": 1.0}
    run = run_of(tmp_path, config, {}, first, {"train/trained_actions": 0.0, "train/masked/unscored": 3.0})
    with pytest.raises(NothingTrained) as caught:
        require_training(run)
    said = str(caught.value)
    assert said.startswith(
        "nothing was trained in 2 steps, and the weights are what they were: 5 actions left out: no "
    )
    assert "; 1 action left out: mine (" in said


def test_a_run_in_which_nobody_acted_trained_nothing(tmp_path, config):
    with pytest.raises(NothingTrained, match="what they were: no episode had an action to train on"):
        require_training(run_of(tmp_path, config, {}, {"train/trained_actions": 0.0}))


def test_a_run_in_which_those_alone_acted_that_keep_their_weights_trained_nothing(tmp_path, config):
    with pytest.raises(NothingTrained, match="2 actions left out: their policy keeps its weights"):
        require_training(run_of(tmp_path, config, {}, {"train/trained_actions": 0.0, "train/masked/frozen": 2.0}))


def test_what_was_left_out_names_its_reasons_and_no_other_metric():
    metrics = {"train/masked/unscored": 0.0, "train/masked/mine": 3.0, "train/groups": 4.0}
    assert left_out_in_words(metrics) == ["3 actions left out: mine"]


def test_the_coachs_failures_are_told_first_and_the_last_of_them_in_200_characters(config):
    everything = {"coach/failed_fraction": 1.0, "train/faulty_fraction": 1.0, "train/overflowed_fraction": 1.0}
    assert too_much_failed(everything, config).startswith("100% of the coach's calls failed (coach.")
    broken = NOTHING_FAILED | {"train/faulty_fraction": 1.0, "train/out_of_memory/a": 1.0}
    assert too_much_failed(broken, config).startswith("100% of the episodes broke")
    long = too_much_failed(everything, config, "x" * 500)
    assert 190 <= long.count("x") - "max".count("x") <= 200


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("truncated", "cut at max_new_tokens of their role or pipeline; train.mask_truncated=false trains on them"),
        ("unscored", "no score of the coach (coach.max_failed_fraction says how many may fail), or None of your own"),
        ("group_of_one", "nothing to compare with; train.group_size=2 or more"),
        ("no_spread", "all of a group scored alike; a larger train.group_size, or sampling.candidates of a tree"),
    ],
)
def test_what_was_left_out_names_the_setting_that_decides_it(reason, words):
    [said] = left_out_in_words({f"train/masked/{reason}": 1.0})
    assert said.startswith(f"1 action left out: {words}")
