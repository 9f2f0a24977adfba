"""The one definition of what a run's files hold: what is written reads back, and what is wrong is named."""

import json
import math
from dataclasses import replace

import pytest

from coachrl.runs.records import episode_from_record, episode_line, read_episodes, read_scores
from coachrl.testing.actions import make_action
from coachrl.types import CoachScore, Episode, Execution, Outcome, Reward


def make_episode():
    ran = {"code": "print(7)\n", "execution": Execution("ok", "7\n", exit_code=0), "files_after": ("a.csv",)}
    action = make_action(text="7", prompt_ids=(1, 2), logprobs=(-0.5,), reward=Reward(1.0, 0.5, {"form": 1.0}), **ran)
    rejected = replace(action, id="e/0.1", candidate=1, execution=None, reward=None)
    return Episode("e", "t", "sum", "duo", (action,), Outcome(True, {"rmse": 2}), rejected_candidates=(rejected,))


SCORES = {"e/0": CoachScore("e/0", "scored", 7.0), "e/0.1": CoachScore("e/0.1", "failed")}


def record_with(place, value):
    """The record of an episode whose value at a dotted place is another; `...` removes it."""
    record = json.loads(episode_line(make_episode(), SCORES))
    *parents, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    parent = record
    for part in parents:
        parent = parent[part]
    if value is ...:
        del parent[last]
    else:
        parent[last] = value
    return record


def test_an_episode_with_everything_reads_back_equal():
    assert episode_from_record(json.loads(episode_line(make_episode(), SCORES))) == (make_episode(), SCORES)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("actions.0.finish_reason", "banana", "actions.0.finish_reason is 'banana', not 'stop' or 'length'"),
        ("actions.0.execution.state", "fine", "actions.0.execution.state is 'fine', not 'ok', 'error'"),
        ("actions.0.score.status", "great", "actions.0.score.status is 'great', not 'scored', 'abstained' or 'failed'"),
        ("rejected_candidates.0.score.status", 1, "rejected_candidates.0.score.status is 1, not 'scored'"),
        ("actions.0.score.process_0_10", "8", "actions.0.score.process_0_10 is '8', not a valid number"),
        ("actions.0.score.process_0_10", True, "actions.0.score.process_0_10 is True, not a valid number"),
        ("actions.0.score.process_0_10", 11, "actions.0.score.process_0_10 is 11.0, not a number from 0 to 10"),
        ("actions.0.score.process_0_10", -0.1, "actions.0.score.process_0_10 is -0.1, not a number from 0 to 10"),
        ("actions.0.score.process_0_10", math.inf, "actions.0.score.process_0_10 is inf, not a finite number"),
        ("actions.0.turn", "0", "actions.0.turn is '0', not a valid integer"),
        ("actions.0.turn", 0.5, "actions.0.turn is 0.5, not a valid integer"),
        ("actions.0.prompt_ids", [1, "2"], "actions.0.prompt_ids.1 is '2', not a valid integer"),
        ("actions.0.text", None, "actions.0.text is None, not a valid string"),
        ("actions.0.text", ..., "it has no actions.0.text"),
        ("actions.0.reward.checks", {"form": "good"}, "actions.0.reward.checks.form is 'good', not a valid number"),
        ("outcome.success", "yes", "outcome.success is 'yes', not a valid boolean"),
        ("outcome.mood", "fine", "it has outcome.mood, which is no field"),
        ("infra_error", 3, "infra_error is 3, not a valid string"),
        ("actions", ..., "it has no actions"),
        ("actions", None, "actions is None, not a valid tuple"),
        ("actions", 3, "actions is 3, not a valid tuple"),
        ("actions.0", None, "actions.0 is None, not a dictionary"),
        ("actions.0", "text", "actions.0 is 'text', not a dictionary"),
        ("actions.0.reward", "text", "actions.0.reward is 'text', not a dictionary"),
        ("outcome", [1, 2], "outcome is [1, 2], not a dictionary"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_what_would_be_right(place, value, said):
    with pytest.raises(ValueError) as refused:
        episode_from_record(record_with(place, value))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("record", [None, 3, [], [1, 2], "text", {}, {"actions": 3}, {"actions": [[]], "outcome": []}])
def test_what_is_no_episode_at_all_is_refused(record):
    with pytest.raises(ValueError, match=r"^(it|actions|outcome)(\.0)? (is|has no) "):
        episode_from_record(record)


def test_a_number_that_json_could_not_write_is_left_out():
    again = episode_from_record(record_with("outcome.metrics", {"rmse": None, "r2": 0.5})).episode
    assert again.outcome.metrics == {"r2": 0.5}


def test_damaged_lines_are_left_out_and_said(tmp_path):
    path = tmp_path / "step-000001.jsonl"
    wrong = json.dumps(record_with("actions.0.finish_reason", "banana"))
    path.write_text(f"{episode_line(make_episode(), SCORES)}{wrong}\n[1]\n{wrong[:50]}")
    problems = []
    assert list(read_episodes(path, problems)) == [(make_episode(), SCORES)]
    assert problems == [
        "step-000001.jsonl: lines 2, 3, 4 (3 of 4) are left out: not as coachrl writes it: "
        "actions.0.finish_reason is 'banana', not 'stop' or 'length'"
    ]


@pytest.mark.parametrize("other", ["step-000002", "eval-000001", "step-000010"])
def test_episodes_of_another_step_or_evaluation_are_left_out_and_said(tmp_path, other):
    """Files that changed places would else swap what was measured before training and after it."""
    own, foreign = (replace(make_episode(), id=f"{name}.t.0") for name in ("step-000001", other))
    path = tmp_path / "step-000001.jsonl"
    path.write_text(episode_line(own, {}) + episode_line(foreign, {}))
    problems = []
    assert [found.episode.id for found in read_episodes(path, problems)] == ["step-000001.t.0"]
    assert problems == [
        f"step-000001.jsonl: line 2 is left out: not as coachrl writes it: it is an episode of {other}.jsonl"
    ]
    elsewhere = path.rename(tmp_path / "collected.jsonl")
    assert len(list(read_episodes(elsewhere, problems))) == 2


def test_halves_of_characters_are_read_and_numbers_that_are_none_are_not(tmp_path):
    path = tmp_path / "scores.jsonl"
    path.write_text(
        '{"action_id": "a", "status": "scored", "rationale": "cut \\ud83d"}\n'
        '{"action_id": "b", "status": "scored", "process_0_10": NaN}\n'
    )
    problems = []
    [score] = read_scores(path, problems)
    assert score.rationale == "cut \ud83d"
    assert problems == [
        "scores.jsonl: line 2 is left out: not as coachrl writes it: process_0_10 is nan, not a finite number"
    ]


def test_a_file_that_is_not_there_holds_nothing(tmp_path):
    problems = []
    assert list(read_episodes(tmp_path / "step-000009.jsonl", problems)) == [] and problems == []
