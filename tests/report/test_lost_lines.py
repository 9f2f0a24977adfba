"""Whole lines and files that are gone from a run leave no torn line behind, and are told all the same."""

from __future__ import annotations

from pathlib import Path

from report_runs import synthetic_run

from coachrl.audit.data.frame import read_audit_data
from coachrl.report.contents import read_contents


def drop_line(path: Path, place: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:place] + lines[place + 1 :]))


def test_lines_and_files_that_are_gone_are_told(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=4, planned=4, tasks=3)
    assert read_contents(run).problems == []
    first, *_, last = run.episode_files("eval")
    drop_line(first, 1)
    last.unlink()
    drop_line(run.folder / "metrics.jsonl", 2)
    assert read_contents(run).problems == [
        "metrics.jsonl: steps are missing after step 1",
        f"{last.name}: gone, and metrics.jsonl tells of episodes there",
        f"{first.name}: 2 of the 3 episodes that metrics.jsonl tells of are there",
    ]


def test_metrics_that_are_gone_from_the_end_are_told(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=4, planned=4, tasks=3)
    metrics, last = run.folder / "metrics.jsonl", run.episode_files("step")[-1]
    drop_line(metrics, 4)
    assert read_contents(run).problems == [], "a step that was not finished may have episodes, and no metrics"
    drop_line(metrics, 3)
    assert read_contents(run).problems == ["metrics.jsonl: steps are missing after step 2"]
    last.unlink()
    assert read_contents(run).problems == []
    (run.folder / "checkpoints" / "step-000003").mkdir(parents=True)
    assert read_contents(run).problems == ["metrics.jsonl: steps are missing after step 2"]
    metrics.write_text("")
    assert read_contents(run).problems == ["metrics.jsonl is empty: there are no curves and no costs"]


def test_an_audit_tells_what_is_gone_from_any_step(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=4, planned=4, tasks=3)
    assert read_audit_data([run.folder]).notes == []
    _, second, third, _ = run.episode_files("step")
    drop_line(second, 0)
    third.unlink()
    drop_line(run.folder / "metrics.jsonl", 1)
    assert read_audit_data([run.folder]).notes == [
        "run synthetic: metrics.jsonl: steps are missing after step 0",
        f"run synthetic: {third.name}: gone, and metrics.jsonl tells of episodes there",
        f"run synthetic: {second.name}: 7 of the 8 episodes that metrics.jsonl tells of are there",
    ]
    run.episode_files("step")[0].write_text("{")
    assert [note for note in read_audit_data([run.folder]).notes if "step-000001" in note] == [
        "run synthetic: step-000001.jsonl: line 1 is left out: cut short"
    ]


def test_of_many_files_that_were_thinned_out_the_first_are_named(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=7, planned=7, tasks=3)
    for file in run.episode_files("step"):
        drop_line(file, 0)
    notes = read_audit_data([run.folder]).notes
    assert len(notes) == 5 and notes[3].endswith(
        "step-000004.jsonl: 7 of the 8 episodes that metrics.jsonl tells of are there"
    )
    assert notes[4].endswith("tells of are there; fewer, too, in others: 7 files in all")


def test_a_line_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=4, planned=4, tasks=3)
    first = run.episode_files("eval")[0]
    first.write_text(first.read_text()[:-20])
    assert read_contents(run).problems == ["eval-000000.jsonl: line 3 is left out: cut short"]


def test_however_much_is_gone_is_told_in_one_line(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=14, planned=14, tasks=1)
    for path in run.episode_files():
        path.unlink()
    for place in range(12, 0, -2):
        drop_line(run.folder / "metrics.jsonl", place)
    assert read_contents(run).problems == [
        "metrics.jsonl: steps are missing after step 1, 3, 5, 7, 9, … (6 in all)",
        "eval-000000.jsonl, eval-000007.jsonl, eval-000014.jsonl: gone, and metrics.jsonl tells of episodes there",
    ]
