"""`coachrl label`: people's scores out of a run and into one, whole or not at all."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import time
from pathlib import Path

import pytest
from command_line import start
from saved_runs import save_run
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.errors import ConfigError
from coachrl.export.labels import export_labels, import_labels
from coachrl.runs.labels import LABELS, add_labels, adding_labels, label_from_record, read_labels
from coachrl.runs.reading import training_episodes


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return asyncio.run(save_run(tmp_path_factory.mktemp("labels")))


@pytest.fixture
def run(saved):
    (saved.folder / LABELS).unlink(missing_ok=True)
    return saved


@pytest.fixture
def ids(run):
    return [action.id for scored in training_episodes(run) for action in scored.episode.actions]


def jsonl(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8")
    return path


def test_scores_of_replies_that_are_gone_are_left_out_and_hide_none_of_those_that_are_there(run, ids, tmp_path):
    gone = {"action_id": ids[0], "rater": "Ann", "score": 7.5, "time": "2030-01-01T00:00:00", "action_digest": "d000"}
    add_labels(run, [label_from_record(gone)])
    fresh = {"action_id": ids[0], "rater": "Ann", "score": 7.5, "time": "2026-01-01T00:00:00"}
    other = {"action_id": ids[1], "rater": "Ann", "score": 3, "action_digest": "d000"}
    further = {**other, "action_id": "step-000001.gone/0"}  # the run that went on has no action of that number
    done = import_labels(run, jsonl(tmp_path / "in.jsonl", gone, fresh, gone, other, further))
    assert (done.added + done.changed, done.known, done.older, done.gone) == (1, 0, 0, 4)


def test_the_file_of_another_run_is_refused(run, tmp_path):
    others = {"action_id": "step-000009.other/0", "rater": "Ann", "score": 7.5, "action_digest": "d000"}
    with pytest.raises(ConfigError, match=r"holds no label of an action of .*: it is another run's"):
        import_labels(run, jsonl(tmp_path / "in.jsonl", others, {**others, "rater": "Ben"}))


@pytest.mark.parametrize("name", ["labels.csv", "LABELS.CSV", "labels.jsonl"])
def test_what_goes_out_comes_in_again(run, ids, tmp_path, name):
    remark = '=1+1, "quoted"\nsecond line \u2028 ü'
    given = [
        {"action_id": ids[0], "rater": "Ann", "score": 7.5, "remark": remark},
        {"action_id": ids[0], "rater": "Ben", "score": 3},
        {"action_id": ids[1], "rater": "Ann", "score": 0},
    ]
    assert import_labels(run, jsonl(tmp_path / "in.jsonl", *given)).added == 3
    before = read_labels(run)
    assert export_labels(run, tmp_path / name) == 3
    (run.folder / LABELS).unlink()
    import_labels(run, tmp_path / name)
    assert read_labels(run) == before and before[0].remark == remark
    again = import_labels(run, tmp_path / name)
    assert (again.added, again.changed, again.known) == (0, 0, 3)
    with pytest.raises(ConfigError, match="exists already"):
        export_labels(run, tmp_path / name)
    with pytest.raises(ConfigError, match=r"not packed: leave out \.gz$"):
        export_labels(run, tmp_path / f"{name}.gz")


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl"])
def test_a_remark_that_ends_in_half_a_character_goes_out(run, ids, tmp_path, name):
    import_labels(run, jsonl(tmp_path / "in.jsonl", {"action_id": ids[0], "rater": "A", "score": 1, "remark": "a"}))
    (run.folder / LABELS).write_text((run.folder / LABELS).read_text().replace('"remark": "a"', '"remark": "a\\ud800"'))
    assert read_labels(run)[0].remark == "a\ud800"
    assert export_labels(run, tmp_path / name) == 1
    assert "a\\ud800" in (tmp_path / name).read_text()


def test_no_cell_of_a_csv_is_a_formula_to_a_spreadsheet_and_all_come_in_as_they_were(run, ids, tmp_path):
    remarks = ['=HYPERLINK("http://x")', "-5 for this", "'=1", "'quoted'", "@SUM(1)", "\t=1", "＝1", "a\rb", "fine"]
    given = [
        {"action_id": action_id, "rater": f"={number}", "score": 5, "remark": remark}
        for number, (action_id, remark) in enumerate(zip(ids, remarks, strict=False))
    ]
    import_labels(run, jsonl(tmp_path / "in.jsonl", *given))
    before = read_labels(run)
    export_labels(run, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+-@\t＝" and cell]
    (run.folder / LABELS).unlink()
    import_labels(run, tmp_path / "out.csv")
    assert read_labels(run) == before and [label.remark for label in before] == remarks


def test_an_excel_file_with_a_mark_at_its_head_is_read_and_a_new_score_counts(run, ids, tmp_path):
    (tmp_path / "one.csv").write_text(f"\ufeffrater,score,action_id\r\nAnn,4,{ids[0]}\r\n\r\n", encoding="utf-8")
    import_labels(run, tmp_path / "one.csv")
    (tmp_path / "two.csv").write_text(f"rater,score,action_id\nAnn,5,{ids[0]}\n", encoding="utf-8")
    done = import_labels(run, tmp_path / "two.csv")
    assert (done.added, done.changed) == (0, 1) and [label.score for label in read_labels(run)] == [5.0]


def test_a_spreadsheet_with_semicolons_and_remarks_of_several_lines_is_read(run, ids, tmp_path):
    rows = f'action_id;rater;score;remark\n{ids[0]};Ann;4;"right,\nbut long"\n{ids[1]};Ann;5;\n'
    (tmp_path / "own.csv").write_text(rows)
    assert import_labels(run, tmp_path / "own.csv").added == 2
    assert {label.remark for label in read_labels(run)} == {"right,\nbut long", ""}
    (tmp_path / "bad.csv").write_text(rows.replace(";5;", ";50;"))
    with pytest.raises(ConfigError, match="line 4: score is"):
        import_labels(run, tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("name", "last", "said"),
    [
        ("x.jsonl", '{"action_id": "ID1", "rater": "Ann", "score": 11}', r"line 2: score is 11, not a number"),
        ("x.jsonl", '{"action_id": "ID0", "rater": "Ann", "score": 3}', r"line 2: Ann scored .* in line 1 already"),
        ("x.jsonl", '{"action_id": "no/1", "rater": "Ann", "score": 3}', r"line 2: 'no/1' is no action"),
        ("x.jsonl", '{"action_id": "ID1", "rat', r"line 2: "),
        ("x.jsonl", "[1]", r"line 2: "),
        ("x.csv", "ID1,Ann,eight", r"line 3: score is 'eight'"),
        ("x.csv", "ID1,Ann", r"line 3: 2 fields; the header has 3"),
        ("x.csv", 'ID1,Ann,"8', r"line 3: not CSV"),
    ],
)
def test_one_wrong_line_keeps_all_out_and_is_named(run, ids, tmp_path, name, last, said):
    good = f"action_id,rater,score\n{ids[0]},Ann,3\n"
    if name.endswith("jsonl"):
        good = json.dumps({"action_id": ids[0], "rater": "Ann", "score": 4}) + "\n"
    (tmp_path / name).write_text(good + last.replace("ID1", ids[1]).replace("ID0", ids[0]) + "\n")
    with pytest.raises(ConfigError, match=said):
        import_labels(run, tmp_path / name)
    assert not (run.folder / LABELS).exists()


def test_other_files_are_refused_in_one_line(run, ids, tmp_path):
    (tmp_path / "actions.csv").write_text("action,rater,score\n1,Ann,3\n")
    (tmp_path / "twice.csv").write_text(f"action_id,rater,score,score\n{ids[0]},Ann,3,8\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, said in (
        ("actions.csv", r"line 1: no column action_id, did you mean 'action'\?"),
        ("twice.csv", "the column 'score' stands twice"),
        ("empty.jsonl", "holds no label"),
    ):
        with pytest.raises(ConfigError, match=said):
            import_labels(run, tmp_path / name)
    with pytest.raises(ConfigError, match="has no label to export: people give them in"):
        export_labels(run, tmp_path / "out.csv")


def test_labels_that_cannot_be_read_are_told_of_as_they_are_left_out(run, ids, tmp_path, caplog):
    add_labels(run, [label_from_record({"action_id": ids[0], "rater": name, "score": 3}) for name in ("Ann", "Ben")])
    damaged = (run.folder / LABELS).read_text(encoding="utf-8").replace('"score": 3', '"score": 33', 1)
    (run.folder / LABELS).write_text(damaged, encoding="utf-8")
    assert export_labels(run, tmp_path / "out.csv") == 1
    assert "labels.jsonl: line 1 is left out" in caplog.text
    (run.folder / LABELS).unlink()
    (run.folder / LABELS).mkdir()
    try:
        with pytest.raises(ConfigError, match="has no label to export"):
            export_labels(run, tmp_path / "none.csv")
    finally:
        (run.folder / LABELS).rmdir()
    assert "labels.jsonl cannot be read: Is a directory" in caplog.text


def test_what_somebody_gives_while_a_file_is_imported_is_known_to_the_import(run, ids, tmp_path):
    given = {"action_id": ids[0], "rater": "Ann", "score": 4, "time": "2026-01-31T12:00:00"}
    place = jsonl(tmp_path / "in.jsonl", given)
    with adding_labels(run) as add:
        importing = start("label", "import", run.folder, place, cwd=tmp_path)
        deadline = time.monotonic() + 60
        while not re.search(rf"-> FLOCK +ADVISORY +WRITE {importing.pid} ", Path("/proc/locks").read_text()):
            assert importing.running and time.monotonic() < deadline, "it must wait for its turn"
            time.sleep(0.01)
        add([label_from_record(given)])
    done = importing.finish()
    assert "0 labels added" in done.stdout and "1 known already" in done.stdout, done.stderr
    assert len((run.folder / LABELS).read_text().splitlines()) == 1


@pytest.mark.parametrize("time", ["2026-01-31T12:00:00", "2026-01-31T12:00:00+00:00", "2026-01-31T11:00:00-04:00"])
def test_a_file_that_comes_back_takes_no_score_away_that_was_given_meanwhile(run, ids, tmp_path, time):
    """Ann changes her mind in `coachrl view` while a colleague fills the table in that holds her first score, too."""
    before = {"action_id": ids[0], "rater": "Ann", "score": 4, "time": time}
    ben = {"action_id": ids[1], "rater": "Ben", "score": 2}
    import_labels(run, jsonl(tmp_path / "in.jsonl", before))
    export_labels(run, tmp_path / "out.jsonl")
    add_labels(run, [label_from_record({**before, "score": 9, "time": "2026-01-31T19:00:00+00:00"})])
    table = (tmp_path / "out.jsonl").read_text() + json.dumps(ben) + "\n"
    (tmp_path / "out.jsonl").write_text(table)
    done = CliRunner().invoke(app, ["label", "import", str(run.folder), str(tmp_path / "out.jsonl")])
    assert "1 label added, 0 in place" in done.output and "0 known already, 1 older than the run's" in done.output
    assert {(label.rater, label.score) for label in read_labels(run)} == {("Ann", 9.0), ("Ben", 2.0)}
    import_labels(run, jsonl(tmp_path / "new.jsonl", {**before, "score": 3, "time": "2026-02-01T00:00:00"}))
    import_labels(run, jsonl(tmp_path / "newest.jsonl", {"action_id": ids[1], "rater": "Ben", "score": 5}))
    assert {(label.rater, label.score) for label in read_labels(run)} == {("Ann", 3.0), ("Ben", 5.0)}


def test_the_commands(run, ids, tmp_path):
    place = jsonl(tmp_path / "in.jsonl", {"action_id": ids[0], "rater": "Ann", "score": 4})
    done = CliRunner().invoke(app, ["label", "import", str(run.folder), str(place)])
    assert done.exit_code == 0 and "1 label added, 0 in place of the same person's earlier score" in done.output
    done = CliRunner().invoke(app, ["label", "export", str(run.folder), "--out", str(tmp_path / "out.csv")])
    assert done.exit_code == 0 and (tmp_path / "out.csv").read_text().startswith(
        "action_id,rater,score,remark,time,action_digest\n"
    )
