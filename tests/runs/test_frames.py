"""Each column of a run's tables by itself: every field has a value that no other has."""

import math

import pytest

from coachrl.runs.folder import Run
from coachrl.runs.frames import EpisodeFrames, PlacedEpisode
from coachrl.runs.records import ScoredEpisode
from coachrl.testing.actions import make_action
from coachrl.types import ActionCredit, CoachScore, Episode, Execution, Outcome, Reward, Usage

ACTED = make_action(
    "r", "said", policy="p", index=3, turn=4, candidate=1, id="e/3.1", response_ids=(1,) * 5, finish_reason="length",
    code="print(1)", execution=Execution("error"), result="moved", reward=Reward(team=6.0, local=0.7),
    credit=ActionCredit(reward=0.8, advantage=-0.9, left_out="why"),
)  # fmt: skip
OTHER = make_action("r", "", id="e/3.0", index=3, credit=ActionCredit(0.0, None))
SCORED = CoachScore(
    "e/3.1", "abstained", 1.5, rationale="because", model="judge", contribution=-2.5, suggestion="rather",
    usage=Usage(tokens_in=11, tokens_out=12, tokens_cached=13, tokens_thinking=14, cost_usd=0.15),
)  # fmt: skip
PLAYED = Episode(
    "e",
    "t",
    "kind",
    "line",
    (ACTED,),
    Outcome(True, {"rmse": 2.0}, reason="so"),
    9.0,
    "broke",
    rejected_candidates=(OTHER,),
)
PLACE = {"split": "eval", "step": 21, "episode": "e", "task": "t"}


def rows(frame):
    """Each row as a dictionary, with None where there is no number."""
    return [
        {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}
        for row in frame.to_dict("records")
    ]


@pytest.fixture
def frames():
    return EpisodeFrames([PlacedEpisode("eval", 21, ScoredEpisode(PLAYED, {"e/3.1": SCORED}))])


def test_a_row_of_an_episode(frames):
    made = {
        "category": "kind",
        "pipeline": "line",
        "success": True,
        "reason": "so",
        "infra_error": "broke",
        "actions": 1,
    }
    assert rows(frames.episodes) == [{**PLACE, **made, "metric/rmse": 2.0}]


def test_a_row_of_an_action_and_of_one_that_the_episode_did_not_go_on_from(frames):
    other, acted = rows(frames.actions)
    assert acted == {
        **PLACE, "action": "e/3.1", "index": 3, "role": "r", "policy": "p", "turn": 4, "candidate": 1, "chosen": True,
        "score": 1.5, "score_status": "abstained", "reward": 0.8, "advantage": -0.9, "left_out": "why",
        "environment_reward": 0.7, "team_reward": 6.0, "tokens": 5, "finish_reason": "length", "text": "said",
        "code": "print(1)", "code_state": "error", "result": "moved",
    }  # fmt: skip
    unknown = (
        "score",
        "score_status",
        "advantage",
        "left_out",
        "environment_reward",
        "team_reward",
        "code",
        "code_state",
    )
    assert [other[key] for key in unknown] == [None] * len(unknown)
    assert (other["chosen"], other["reward"], other["tokens"], other["candidate"]) == (False, 0.0, 1, 0)


def test_a_row_of_a_score(frames):
    [row] = rows(frames.scores)
    assert row == {
        **PLACE, "action": "e/3.1", "role": "r", "rater": "run", "model": "judge", "status": "abstained", "score": 1.5,
        "contribution": -2.5, "rationale": "because", "suggestion": "rather", "tokens_in": 11, "tokens_out": 12,
        "cost_usd": 0.15,
    }  # fmt: skip


def test_half_a_character_in_a_reply_keeps_no_table_from_being_made():
    cut = make_action("r", "said \ud83d")
    played = Episode("e", "t", "kind", "line", (cut,), Outcome(False, {}), 0.0)
    frame = EpisodeFrames([PlacedEpisode("train", 0, ScoredEpisode(played, {}))]).actions
    assert list(frame["text"]) == ["said \ufffd"]


def test_what_cannot_be_read_is_told_once_and_the_rest_is_shown(tmp_path, caplog):
    (tmp_path / "episodes").mkdir()
    run = Run(tmp_path)
    run.write_episodes("step-000007", [PLAYED], {})
    run.write_episodes("eval-000008", [PLAYED], {})
    with (tmp_path / "episodes" / "step-000007.jsonl").open("a") as file:
        file.write("{}\n")
    (tmp_path / "rescores" / "strict").mkdir(parents=True)
    (tmp_path / "rescores" / "strict" / "scores.jsonl").write_text(
        '{"action_id": "e/3.0", "status": "scored", "process_0_10": 4}\nno JSON\n'
        '{"action_id": "e/3.0", "status": "scored", "process_0_10": 5}\n'
    )
    for _ in range(2):
        assert run.frames.episodes[["split", "step"]].values.tolist() == [["eval", 8], ["train", 7]]
        assert [(row["rater"], row["action"], row["score"]) for row in rows(run.frames.scores)] == [
            ("strict", "e/3.0", 5)
        ] * 2
    assert sorted(record.message.partition(": ")[2] for record in caplog.records) == [
        "scores.jsonl: line 2 is left out: not JSON: Expecting value",
        "step-000007.jsonl: line 2 is left out: not as coachrl writes it: it has no id",
    ]


def test_a_notebook_shows_the_ten_newest_lines_of_metrics(tmp_path):
    run = Run(tmp_path)
    for step in range(101, 112):
        run.append_metrics({"step": step, "train/success": 0.5, "train/loss/p": 3.0})
    shown = run._repr_html_()
    assert [step for step in range(100, 113) if f"<td>{step}</td>" in shown] == list(range(102, 112))
    assert "train/success" in shown and "train/loss" not in shown and "report" not in shown


def test_a_line_of_metrics_that_a_kill_cut_short_is_left_out_with_a_warning(tmp_path, caplog):
    run = Run(tmp_path)
    run.append_metrics({"step": 1, "train/success": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('[2]\n{"step": 2, "train/succ')
    assert run.frames.metrics["step"].tolist() == [1] and "<td>1</td>" in run._repr_html_()
    assert "metrics.jsonl: lines 2, 3 (2 of 3) are left out: not as coachrl writes it: it is [2]" in caplog.text
