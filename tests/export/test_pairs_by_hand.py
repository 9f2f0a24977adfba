"""Which reply is preferred to which, on replies of one agent to two tasks that nobody had to play."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from coachrl.config import parse_config
from coachrl.errors import ConfigError
from coachrl.export.preferences import preferences
from coachrl.export.replies import ExportFilter
from coachrl.export.trl import demonstrations, export_run
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.testing.actions import make_action
from coachrl.types import CoachScore, Episode, Outcome

Reply = tuple[str, str, float | None]  # task, what was said, score


def replied(out: Path, *replies: Reply, suggestions: dict[int, str] | None = None, cut: tuple[int, ...] = ()) -> Run:
    run = Run.create(parse_config({"name": "run", "out": str(out), "pipeline": {"name": "mathchat"}}, ""))
    run.write_roles(make_pipeline(run.config().pipeline).roles)
    episodes, scores = [], {}
    for n, (task, text, score) in enumerate(replies):
        reason = "length" if n in cut else "stop"
        action = make_action("problem_solver", text, episode=f"e{n}", prompt_text=f"{task}?", finish_reason=reason)
        episodes.append(Episode(f"e{n}", task, "k", "mathchat", (action,), Outcome(True)))
        status = "failed" if score is None else "scored"
        scores[action.id] = CoachScore(action.id, status, score, suggestion=(suggestions or {}).get(n, ""))
    run.write_episodes("step-000001", episodes, scores)
    return run


def pairs(run: Run, **which) -> tuple[list[tuple[str, str, float | None, float]], dict[str, int]]:
    left_out: Counter[str] = Counter()
    records = [record for _, record in preferences(run, ExportFilter(**which), left_out)]
    return [
        (one["chosen"][0]["content"], one["rejected"][0]["content"], one["score_chosen"], one["score_rejected"])
        for one in records
    ], dict(left_out)


def test_each_reply_is_paired_with_the_best_to_its_own_prompt(tmp_path):
    run = replied(
        tmp_path, ("t", "bad", 0.0), ("u", "best", 10.0), ("t", "good", 6.0), ("t", "fair", 5.0), ("t", "lost", None)
    )
    assert pairs(run) == (
        [("good", "bad", 6.0, 0.0), ("good", "fair", 6.0, 5.0)], {"failed": 1, "without a better reply": 2}
    )  # fmt: skip
    assert pairs(run, min_gap=1.01)[0] == [("good", "bad", 6.0, 0.0)]
    assert pairs(run, min_score=6.0)[0] == pairs(run)[0] and pairs(run, min_score=6.1)[0] == []
    assert pairs(run, roles=("verifier",)) == ([], {})


def test_a_reply_that_was_cut_off_is_worse_than_others_and_never_better(tmp_path):
    run = replied(tmp_path, ("t", "cut", 9.0), ("t", "ended", 5.0), ("t", "cut too", 2.0), cut=(0, 2))
    assert pairs(run) == ([("ended", "cut too", 5.0, 2.0)], {"without a better reply": 2})


def test_a_correction_counts_as_ten_and_comes_before_a_sibling(tmp_path):
    run = replied(
        tmp_path,
        ("t", "good", 9.0),
        ("t", "bad", 2.0),
        ("t", "fair", 9.5),
        suggestions={0: "mended", 1: "better", 2: "no"},
    )
    assert pairs(run) == ([("mended", "good", None, 9.0), ("better", "bad", None, 2.0)], {"without a better reply": 1})
    assert pairs(run, min_gap=0.5)[0][-1] == ("no", "fair", None, 9.5)
    own = replied(tmp_path / "own", ("t", "bad \n", 2.0), suggestions={0: "bad"})
    assert pairs(own) == ([], {"without a better reply": 1}), "it is what the agent said"


def test_the_same_pair_stands_once_and_words_are_not_preferred_to_themselves(tmp_path):
    run = replied(tmp_path, ("t", "good", 8.0), ("t", "bad", 1.0), ("t", "bad", 2.0), ("t", "good", 3.0))
    assert pairs(run) == (
        [("good", "bad", 8.0, 1.0)], {"the same as another": 1, "without a better reply": 2}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("least", "kinds"), [(None, ["reply", "correction"]), (8.1, ["correction"] * 2), (0.0, ["reply"] * 3)]
)
def test_what_scored_well_is_shown_as_it_is_and_what_did_not_as_it_was_mended(tmp_path, least, kinds):
    """Scores of 8 and 7.9, each with a correction, and of 0 without one; a reply that was cut off is mended, too."""
    mended = {0: "mended", 1: "mended", 3: ""}
    run = replied(
        tmp_path, ("t", "a", 8.0), ("t", "b", 7.9), ("t", "c", 0.0), ("t", "d", 10.0), suggestions=mended, cut=(3,)
    )
    left_out: Counter[str] = Counter()
    made = list(demonstrations(run, ExportFilter(min_score=least), left_out))
    assert [kind for kind, _ in made] == kinds
    assert [record["score"] for kind, record in made if kind == "reply"] == ([8.0, 7.9, 0.0] if least == 0 else [8.0])[
        : kinds.count("reply")
    ]
    below = {} if least == 0 else {f"scored below {8.0 if least is None else least:g}": 1}
    assert dict(left_out) == {**below, "cut off": 1}


def test_equal_scores_make_no_pair_whatever_the_gap(tmp_path):
    run = replied(tmp_path, ("t", "one", 6.0), ("t", "two", 6.0), ("t", "best", 10.0), suggestions={2: "other words"})
    assert pairs(run, min_gap=0.0)[0] == [("best", "one", 10.0, 6.0), ("best", "two", 10.0, 6.0)]
    assert pairs(replied(tmp_path / "two", ("t", "one", 6.0), ("t", "two", 6.0)), min_gap=0.0)[0] == []


def test_datasets_reads_a_file_however_late_a_score_comes_and_half_a_character(tmp_path):
    """It reads ten megabytes at once, here a line, and takes the types of columns from the first."""
    datasets = pytest.importorskip("datasets")
    replies = [("t", "a", 1.0), ("t", "b", 1.0), ("t", "c", 9.0)]
    run = replied(tmp_path, *replies, suggestions={0: "mended \ud83d", 1: "mended"})
    for form, column, values in (("sft", "score", [9.0, None, None]), ("dpo", "score_rejected", [1.0, 1.0])):
        export_run(run, form, tmp_path / form, ExportFilter())
        read = datasets.load_dataset("json", data_files=str(tmp_path / form), chunksize=1, cache_dir=str(tmp_path))
        assert list(read["train"][column]) == values
    assert read["train"][0]["chosen"] == [{"role": "assistant", "content": "mended ?"}]


def test_where_no_pair_comes_out_it_is_said_what_one_is_and_not_to_set_what_may_be_set(tmp_path):
    run = replied(tmp_path, ("t", "one", 5.0), ("t", "two", 5.0))
    with pytest.raises(ConfigError, match=r"the better scored at least --min-gap .* above the other") as told:
        export_run(run, "dpo", tmp_path / "dpo.jsonl", ExportFilter())
    assert "train with" not in str(told.value)
