"""People's scores in a run's folder: what is one, two writers at once, a write that fails."""

from __future__ import annotations

import fcntl
import json
import math
import os
from datetime import UTC, datetime

import pytest
from full_disk import room_for

from coachrl.config import parse_config
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.labels import LABELS, Label, add_labels, adding_labels, label_from_record, read_labels


@pytest.fixture
def run(tmp_path):
    return Run.create(parse_config({"name": "run", "out": str(tmp_path)}, ""))


def record(**changed):
    return {"action_id": "e/0", "rater": "Ann", "score": 7, "remark": "", "time": "2026-01-31T12:00:00", **changed}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"score": 10.5}, "score is 10.5, not a number from 0 to 10"),
        ({"score": -1}, "score is -1, not"),
        ({"score": math.nan}, "score is nan, not"),
        ({"score": "8/10"}, "score is '8/10', not"),
        ({"score": "1_0"}, "score is '1_0', not"),
        ({"score": True}, "score is True, not"),
        ({"score": [7]}, "score is [7], not"),
        ({"score": 10**400}, "score is 1000"),
        ({"score": ""}, "it has no score"),
        ({"rater": " "}, "rater is ' ', not a name"),
        ({"rater": "\u202enn"}, "rater is '\\u202enn', not a name"),
        ({"rater": 3}, "rater is 3, not text"),
        ({"rater": "x" * 61}, "rater is"),
        ({"remark": "x" * 4001}, "remark has 4,001 characters; 4,000 are kept"),
        ({"time": "yesterday"}, "time is 'yesterday', not a date"),
        ({"scores": 3}, "it has 'scores', which is no field, did you mean 'score'?"),
    ],
)
def test_what_is_no_label_is_refused_with_what_would_be_right(changed, said):
    with pytest.raises(ValueError) as refused:
        label_from_record(record(**changed))
    assert str(refused.value).startswith(said)


def test_the_least_and_the_most_that_a_label_may_hold():
    for score in (0, 10, "0", "10.0"):
        assert label_from_record(record(score=score)).score == float(score)
    longest = label_from_record(record(rater="x" * 60, remark="y" * 4000))
    assert (len(longest.rater), len(longest.remark)) == (60, 4000)
    assert label_from_record(record(rater="  Ann \t B. ")).key == ("Ann B.", "e/0")


def test_a_label_needs_no_remark_and_has_the_time_at_which_it_was_made():
    before = datetime.now(UTC).replace(microsecond=0)
    for unsaid in ({}, {"remark": None, "time": None}, {"remark": "", "time": ""}):
        label = label_from_record({"action_id": "e/0", "rater": "Ann", "score": 7, **unsaid})
        assert (label.remark, label.score) == ("", 7.0)
        assert before <= datetime.fromisoformat(label.time) <= datetime.now(UTC)
    for missing in ("action_id", "rater", "score"):
        with pytest.raises(ValueError, match=f"^it has no {missing}$"):
            label_from_record(record(**{missing: None}))


def test_of_a_person_and_an_action_the_last_score_counts(run):
    ann, ben = label_from_record(record()), label_from_record(record(rater="Ben", score="3,5".replace(",", ".")))
    add_labels(run, [ann, ben])
    again = label_from_record(record(score=2, remark="on reflection\u2028 \ud800"))
    add_labels(run, [again])
    problems = []
    assert [(label.rater, label.score) for label in read_labels(run, problems)] == [("Ann", 2.0), ("Ben", 3.5)]
    assert (run.folder / LABELS).read_text().count("\n") == 3 and not problems  # nothing is taken away


def test_a_line_that_a_kill_left_torn_costs_itself_alone(run):
    add_labels(run, [label_from_record(record())])
    with (run.folder / LABELS).open("a") as file:
        file.write('{"action_id": "e/1", "ra')
    add_labels(run, [label_from_record(record(action_id="e/2"))])
    problems = []
    assert [label.action_id for label in read_labels(run, problems)] == ["e/0", "e/2"]
    assert len(problems) == 1 and problems[0].startswith("labels.jsonl: line 2 is left out: not JSON")


def test_processes_write_at_once_and_no_line_is_lost_or_torn(run):
    def write(name):
        for i in range(50):
            add_labels(run, [Label(f"e/{i}", name, 5.0, "x" * 3000, "2026-01-31T12:00:00")])

    writers = [in_a_child(write, name) for name in ("Ann", "Ben", "Cleo")]
    assert [os.waitpid(pid, 0)[1] for pid in writers] == [0, 0, 0]
    lines = [json.loads(line) for line in (run.folder / LABELS).read_text().splitlines()]
    assert len(lines) == 150 and len(read_labels(run)) == 150


def test_nobody_else_appends_while_somebody_does(run):
    with adding_labels(run) as add, (run.folder / LABELS).open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        add([label_from_record(record())])
    with (run.folder / LABELS).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_copy_made_of_hard_links_does_not_get_the_labels_of_the_run(run):
    add_labels(run, [label_from_record(record())])
    (copy := run.folder / "copy").hardlink_to(run.folder / LABELS)
    before = copy.read_bytes()
    add_labels(run, [label_from_record(record(action_id="e/1"))])
    assert copy.read_bytes() == before and len(read_labels(run)) == 2


def in_a_child(function, *arguments):
    """The number of the process."""
    if (pid := os.fork()) == 0:
        try:
            function(*arguments)
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def test_where_the_folder_cannot_be_written_one_line_says_so(run):
    (run.folder / LABELS).mkdir()  # as root may write anywhere else
    with pytest.raises(ConfigError, match=r"labels.jsonl cannot be written: Is a directory; .* copy the run"):
        add_labels(run, [Label("e/0", "Ann", 5.0)])


def test_a_disk_that_fills_up_leaves_none_of_several_labels(run):
    add_labels(run, [label_from_record(record())])
    before = (run.folder / LABELS).read_bytes()
    labels = [Label(f"e/{i}", "Ann", 5.0, "x" * 3000) for i in range(4)]
    with pytest.raises(ConfigError, match="File too large"), room_for(len(before) + 5000):
        add_labels(run, labels)
    assert (run.folder / LABELS).read_bytes() == before
