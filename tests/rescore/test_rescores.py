"""Rescored files: read back equal, appended to, and refused where they would mix two ways of judging."""

import dataclasses
import json

import pytest

from coachrl.errors import ConfigError
from coachrl.rescore.store import (
    RescoreMetadata,
    append_scores,
    find_rescore,
    open_rescore,
    read_rescore,
    read_rescores,
)
from coachrl.runs.records import scores_of_rescores
from coachrl.types import CoachScore, Usage

JUDGE = RescoreMetadata("openai/judge", None, "0123456789abcdef", 0, "2026-01-02T03:04:05Z", {"temperature": 0.0})


def changed(**values):
    """The text of a coach.json in which so much is another."""
    return json.dumps(dataclasses.asdict(JUDGE) | values)


def test_labels_name_coach_prompt_and_repeat():
    assert JUDGE.label == "openai-judge-01234567"
    assert dataclasses.replace(JUDGE, repeat=2).label == "openai-judge-01234567-r2"
    assert dataclasses.replace(JUDGE, coach="rules", prompt_hash="").label == "rules"
    assert dataclasses.replace(JUDGE, coach="../..//x").label == "x-01234567"


def test_a_label_is_a_folders_name_whatever_the_coach_is_called():
    assert dataclasses.replace(JUDGE, coach="судья:Строгий", prompt_hash="").label == "судья-Строгий"
    many = [f"mean of {', '.join(f'provider/a-judge-with-a-long-name-{n}' for n in range(count))}" for count in (9, 10)]
    labels = {dataclasses.replace(JUDGE, coach=coach).label for coach in (*many, "ж" * 200)}
    assert len(labels) == 3 and all(len(f"rescore-{label}-r10.lock".encode()) < 255 for label in labels)


def test_a_coach_is_not_taken_for_another_whose_folder_has_its_name(tmp_path):
    open_rescore(tmp_path, JUDGE)
    with pytest.raises(ConfigError, match=r"was scored by openai/judge, this is openai-judge: give another --repeat$"):
        open_rescore(tmp_path, dataclasses.replace(JUDGE, coach="openai-judge"))


def test_a_rescore_reads_back_and_the_last_line_of_an_action_counts(tmp_path):
    rescore = open_rescore(tmp_path, JUDGE)
    paid, again = Usage(2, tokens_in=10, cost_usd=0.5), Usage(1, tokens_in=4, cost_usd=0.25)
    append_scores(rescore, [CoachScore("e/0", "failed", usage=paid), CoachScore("e/1", "scored", 7.0)])
    append_scores(rescore, [CoachScore("e/0", "scored", 3.0, usage=again)])
    [found] = read_rescores(tmp_path)
    assert found.label == "openai-judge-01234567" and found.by == JUDGE
    assert [(score.action_id, score.process_0_10) for score in found.scores.values()] == [("e/0", 3.0), ("e/1", 7.0)]
    assert found.scores["e/0"].usage == Usage(3, tokens_in=14, cost_usd=0.75), "what failed was paid for, too"
    assert scores_of_rescores(tmp_path, []) == {found.label: found.scores}
    assert find_rescore(tmp_path, found.label) == found == open_rescore(tmp_path, JUDGE)


def test_each_line_holds_the_fields_of_a_coach_score_and_no_more(tmp_path):
    rescore = open_rescore(tmp_path, JUDGE)
    append_scores(rescore, [CoachScore("e/0", "scored", 7.0)])
    [line] = (rescore.folder / "scores.jsonl").read_text().splitlines()
    assert json.loads(line).keys() == {field.name for field in dataclasses.fields(CoachScore)}


def test_a_line_torn_by_a_kill_is_not_read_and_does_not_swallow_the_next(tmp_path):
    rescore = open_rescore(tmp_path, JUDGE)
    append_scores(rescore, [CoachScore("e/0", "scored", 7.0)])
    with (rescore.folder / "scores.jsonl").open("a") as file:
        file.write('{"action_id": "e/1", "sta')
    assert list(read_rescore(rescore.folder).scores) == ["e/0"]
    append_scores(open_rescore(tmp_path, JUDGE), [CoachScore("e/2", "scored", 1.0)])
    assert list(read_rescore(rescore.folder).scores) == ["e/0", "e/2"]


def test_one_folder_never_mixes_two_ways_of_judging(tmp_path):
    open_rescore(tmp_path, JUDGE)
    with pytest.raises(ConfigError, match=r"temperature=0\.0.*temperature=0\.7"):
        open_rescore(tmp_path, dataclasses.replace(JUDGE, settings={"temperature": 0.7}))


def test_an_unknown_label_names_the_nearest(tmp_path):
    open_rescore(tmp_path, JUDGE)
    with pytest.raises(ConfigError, match="did you mean 'openai-judge-01234567'"):
        find_rescore(tmp_path, "openai-juge")


@pytest.mark.parametrize("line", ['{"action_id": "e/0", "score": 7}', "{half", "[1]"])
def test_a_line_that_is_no_score_is_named_and_left_out(tmp_path, line, caplog):
    rescore = open_rescore(tmp_path, JUDGE)
    append_scores(rescore, [CoachScore("e/2", "scored", 7.0)])
    with (rescore.folder / "scores.jsonl").open("a") as file:
        file.write(line + "\n")
    assert list(read_rescore(rescore.folder).scores) == ["e/2"]
    assert "scores.jsonl: line 2 is left out" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("{}", "it does not say who scored: it has no coach"),
        ("[]", r"it is \[\], not a dictionary"),
        (changed(coach=5), "coach is 5, not a valid string"),
        (changed(prompt_hash=None), "prompt_hash is None, not a valid string"),
        (changed(settings="none"), "settings is 'none', not a valid dictionary"),
        (changed(mood="fine"), "it has mood, which is no field"),
    ],
)
def test_a_coach_file_that_names_nobody_is_refused(tmp_path, text, said):
    rescore = open_rescore(tmp_path, JUDGE)
    (rescore.folder / "coach.json").write_text(text)
    for read in (lambda: read_rescores(tmp_path), lambda: open_rescore(tmp_path, JUDGE)):
        with pytest.raises(ConfigError, match=rf"coach\.json.*{said}"):
            read()


def test_an_unknown_label_of_a_run_without_rescores_says_that_there_are_none(tmp_path):
    with pytest.raises(ConfigError, match=r"has no rescore 'rules'; rescores: none$"):
        find_rescore(tmp_path, "rules")


def test_a_setting_that_one_of_both_lacks_is_another_way_of_judging(tmp_path):
    open_rescore(tmp_path, JUDGE)
    for settings, said in (({}, "this is temperature=None"), (JUDGE.settings | {"top_p": 0.0}, "top_p=None")):
        with pytest.raises(ConfigError, match=f"{said}.*give the same, or another --repeat"):
            open_rescore(tmp_path, dataclasses.replace(JUDGE, settings=settings))
    assert open_rescore(tmp_path, dataclasses.replace(JUDGE, repeat=1, settings={})).label.endswith("-r1")
