"""A folder as Kaggle gives them becomes a task of DSBench by one command, or leaves nothing."""

import csv
import json
import os
import resource
import shutil
import time

import pandas as pd
import pytest
from command_line import coachrl
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.config import load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines.defaults import pipeline_defaults
from coachrl.storage import atomic
from coachrl.tasks import load_tasks
from coachrl.tasks.tabular import make
from coachrl.tasks.tabular.grading import grade_submission
from coachrl.tasks.tabular.make import Wanted, _category, _id_column, _tables, _with_target, make_task


def table(path, header, rows):
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([header, *rows])


def kaggle(folder, count=40):
    """Prices of houses; test.csv has no prices, and no number of sales, which is known afterwards only."""
    rows = [[n, n * 10, f'a "{n}", b', n * 1.5, 2 * n] for n in range(count)]
    table(folder / "train.csv", ["Id", "area", "text", "price", "sales"], rows)
    table(folder / "test.csv", ["Id", "area", "text"], [[n + count, 5, "x"] for n in range(9)])
    return folder


def test_two_folders_become_tasks_that_a_run_takes(tmp_path):
    pytest.importorskip("torch", reason="a dry run needs the torch extra")
    said = coachrl("tasks", "make", kaggle(tmp_path / "houses"), "--target", "price", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines() == [
        "houses: regression of price by rmse, rows named by Id, in data",
        "data has no held-out task yet: coachrl tasks make FOLDER … --heldout",
    ]
    kaggle(tmp_path / "flats")
    more = ("--target", "price", "--heldout", "--metric", "mae", "--name", "flats-2")
    said = coachrl("tasks", "make", "flats", *more, cwd=tmp_path)
    assert said.stdout.splitlines()[1] == "train on it: coachrl train --pipeline dsbench tasks.root=data"
    plan = coachrl("train", "--pipeline", "dsbench", "tasks.root=data", "--dry-run", cwd=tmp_path)
    assert "tasks             dsbench: 1 training, 1 held out" in plan.stdout, plan.stderr

    settings = ["pipeline.name=dsbench", f"tasks.root={tmp_path / 'data'}"]
    [task], [heldout] = load_tasks(load_config(None, settings, below=pipeline_defaults))
    assert (task.id, heldout.id, heldout.ground_truth.metric) == ("houses", "flats-2", "mae")
    with task.files["train.csv"].open() as file:
        train = list(csv.DictReader(file))
    with task.files["test.csv"].open() as file:
        test = list(csv.DictReader(file))
    assert (len(train), len(test)) == (30, 10) and list(test[0]) == ["Id", "area", "text"]
    assert {row["Id"] for row in train + test} == {str(n) for n in range(40)}
    assert all(row["text"] == f'a "{row["Id"]}", b' for row in train + test)
    right = "Id,price\n" + "".join(f"{row['Id']},{int(row['Id']) * 1.5}\n" for row in test)
    assert grade_submission(right.encode(), task.ground_truth).metrics["rmse"] == 0


def test_a_test_table_with_answers_is_taken_as_it_is_and_rows_without_names_get_some(tmp_path):
    table(tmp_path / "own" / "train.csv", ["x", "kind"], [[n, "ab"[n % 2]] for n in range(8)])
    table(tmp_path / "own" / "test.csv", ["x", "kind"], [[n, "ab"[n % 2]] for n in range(3)])
    truth = make_task(tmp_path / "own", tmp_path / "data", "train", Wanted("kind")).ground_truth
    assert (truth.category, truth.metric, truth.id_column) == ("classification", "accuracy", "row_id")
    assert (tmp_path / "data/data_resplit/own/train.csv").read_text().startswith("row_id,x,kind\n0,0,a\n1,1,b\n")
    assert (tmp_path / "data/answers/own/test_answer.csv").read_text() == "row_id,kind\n8,a\n9,b\n10,a\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--target", "price"], "nowhere/train.csv: No such file"),
        (["houses", "--target", "prize"], "no column 'prize', did you mean 'price'?"),
        (["hauses", "--target", "price"], "No such file or directory, did you mean 'houses'?"),
        (
            ["houses", "--target", "price", "--metric", "rmsee"],
            "not offered for regression, did you mean 'rmse'?: rmse",
        ),
        (["houses", "--target", "price", "--category", "regresion"], "did you mean 'regression'?"),
        (["houses", "--target", "price", "--id", "ID"], "--id ID: no such column"),
        (["houses", "--target", "price", "--id", "price"], "--id price: it must be a column beside the target"),
        (["houses", "--target", "price", "--id", "sales"], "--id sales: it must be a column beside the target"),
        (["houses", "--target", "price", "--name", "../x"], "'../x' cannot be a task's name"),
        (["few", "--target", "n"], "the 4 whole numbers of 'n' may be classes or amounts"),
        (["empty", "--target", "n"], "train.csv: it holds no rows"),
        (
            ["nan", "--target", "n", "--category", "regression"],
            "task nan: the test table: column 'n' holds 'NaN', not a re",
        ),
        (["same", "--target", "n"], "task same: column 'n' of train and answers holds 1 distinct labels"),
        (["sums", "--target", "n"], "the 30 texts of 'n' in 30 rows are hardly classes"),
        (["twice", "--target", "n", "--id", "x"], "--id x: it names several rows of train.csv alike"),
        (["alone", "--target", "n"], "beside n and Id its train.csv and test.csv share no column"),
        (["houses/train.csv", "--target", "price"], "is a file: name the folder that holds train.csv"),
        (["circle", "--target", "price"], "circle/train.csv: No such file or directory"),
        (["houses", "--target", "price", "--out", "houses/train.csv/x"], "train.csv is a file, and no folder"),
    ],
)
def test_what_cannot_become_a_task_is_one_line_and_leaves_nothing(tmp_path, arguments, words):
    kaggle(tmp_path / "houses")
    table(tmp_path / "few" / "train.csv", ["x", "n"], [[n, n % 4] for n in range(40)])
    table(tmp_path / "empty" / "train.csv", ["x", "n"], [])
    table(tmp_path / "same" / "train.csv", ["x", "n"], [[n, "a"] for n in range(40)])
    table(tmp_path / "nan" / "train.csv", ["x", "n"], [[n, "NaN"] for n in range(40)])
    table(tmp_path / "sums" / "train.csv", ["x", "n"], [[n, f"${n}"] for n in range(40)])
    table(tmp_path / "twice" / "train.csv", ["x", "n"], [[n // 2, n / 3] for n in range(40)])
    table(tmp_path / "alone" / "train.csv", ["Id", "n"], [[n, n / 3] for n in range(40)])
    (tmp_path / "circle").symlink_to("circle")
    folder, *options = arguments
    given = dict(zip(options[::2], options[1::2], strict=True))
    root = tmp_path / given.pop("--out", "data")
    with pytest.raises((ConfigError, TaskError)) as refused:
        make_task(tmp_path / folder, root, "train", Wanted(**{FIELDS[name]: value for name, value in given.items()}))
    assert words in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert not (tmp_path / "data").exists()


FIELDS = {"--target": "target", "--metric": "metric", "--category": "category", "--id": "id_column", "--name": "name"}


def test_a_full_disk_is_named_and_holds_nothing_of_the_task(tmp_path):
    """RLIMIT_FSIZE stands for the disk."""
    kaggle(tmp_path / "houses", count=4000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        arguments = ["tasks", "make", str(tmp_path / "houses"), "--target", "price", "--out", str(tmp_path / "data")]
        done = CliRunner().invoke(app, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(done.exception) == f"[Errno 27] File too large: '{tmp_path / 'data'}'"
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.parametrize("last", ["tables", "data_resplit", "cleaned_prompts.json", "train.jsonl"])
def test_of_a_task_over_which_a_process_was_killed_what_is_left_is_said(tmp_path, monkeypatch, last):
    data = tmp_path / "data"
    given = kaggle(tmp_path / "houses"), data, "train", Wanted("price", category="regression")
    if (killed := os.fork()) == 0:
        written = make.write_aside
        if last == "tables":
            monkeypatch.setattr(make, "_read_back", lambda *_: os._exit(9))
        if last == "data_resplit":
            monkeypatch.setattr(make, "load_dsbench", lambda root, *_: root == data and os._exit(9))
        monkeypatch.setattr(
            make, "write_aside", lambda path, text: os._exit(9) if path.name == last else written(path, text)
        )
        make_task(*given)
    assert os.waitstatus_to_exitcode(os.waitpid(killed, 0)[1]) == 9
    if last != "tables":  # in their place already, where nobody removes what may be the user's
        with pytest.raises(ConfigError, match=r"killed over it, remove \S+data_resplit/houses and \S+answers/houses$"):
            make_task(*given)
        for folder in ("data_resplit", "answers"):
            shutil.rmtree(data / folder / "houses")
    assert make_task(*given).files["train.csv"].is_file()
    assert len((data / "train.jsonl").read_text().splitlines()) == 1
    assert not list(data.glob(".*"))


def test_tasks_that_are_made_at_once_are_all_listed(tmp_path, monkeypatch):
    """Each stands still between reading the list and writing it, for as long as the others need to come as far."""
    written, data = make.write_aside, tmp_path / "data"
    monkeypatch.setattr(make, "write_aside", lambda *given: time.sleep(0.1) or written(*given))
    children = []
    for name in "abc":
        given = kaggle(tmp_path / name), data, "train", Wanted("price", category="regression")
        if (child := os.fork()) == 0:
            make_task(*given)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    listed = [json.loads(line)["metadata"]["task_id"] for line in (data / "train.jsonl").read_text().splitlines()]
    assert sorted(listed) == sorted(json.loads((data / make.CLEANED_PROMPTS).read_text())) == ["a", "b", "c"]


def test_answers_that_are_there_already_stay(tmp_path):
    answers = tmp_path / "data" / "answers" / "houses" / "mine.csv"
    answers.parent.mkdir(parents=True)
    answers.write_text("mine")
    with pytest.raises(ConfigError, match=r"has a task 'houses' already: .* remove \S+answers/houses$"):
        make_task(kaggle(tmp_path / "houses"), tmp_path / "data", "train", Wanted("price", category="regression"))
    assert answers.read_text() == "mine"


def test_ctrl_c_while_a_task_is_written_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(place):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_task(kaggle(tmp_path / "houses"), tmp_path / "data", "train", Wanted("price", category="regression"))
    assert not (tmp_path / "data").exists()


def test_numbers_with_gaps_stay_numbers_and_a_taken_column_name_is_not_given_again(tmp_path, caplog):
    rows = [[n // 2, n, "NaN" if n % 8 == 0 else n / 3] for n in range(40)]
    table(tmp_path / "gaps" / "train.csv", ["row_id", "x", "n"], rows)
    truth = make_task(tmp_path / "gaps", tmp_path / "data", "train", Wanted("n")).ground_truth
    assert (truth.category, truth.metric, truth.id_column) == ("regression", "rmse", "new_row_id")
    assert "gaps/train.csv: left out 5 rows without a value of n" in caplog.text


def test_a_second_task_of_one_name_is_refused_and_the_first_stays(tmp_path):
    given = kaggle(tmp_path / "houses"), tmp_path / "data"
    made = make_task(*given, "train", Wanted("price", category="regression", about="Houses."))
    assert made.prompt.startswith("Houses.") and made.category == "regression"
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="has a task 'houses' already: set --name"):
        make_task(*given, "heldout", Wanted("price"))
    assert {path: path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()} == before


def column(values, name="n"):
    return pd.Series([str(value) for value in values], name=name)


@pytest.mark.parametrize(
    ("values", "category"),
    [
        (["a", "b"] * 5, "classification"),
        ([f"word {n}" for n in range(20)], "classification"),  # so few texts are classes in any table
        ([f"word {n}" for n in range(21)] * 5, "classification"),
        ([0, 1] * 5, "classification"),
        ([1.5, 2.5] * 5, "classification"),
        ([1.5, 2, 3], "regression"),
        (range(21), "regression"),
    ],
)
def test_what_is_predicted_is_guessed_where_it_is_plain(values, category, tmp_path):
    assert _category(column(values), tmp_path) == category


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([f"word {n}" for n in range(21)] * 4, "the 21 texts of 'n' in 84 rows are hardly classes"),
        (list(range(20)) * 9, "the 20 whole numbers of 'n' may be classes or amounts"),
        ([1, 2, 3], "the 3 whole numbers of 'n' may be classes or amounts"),
    ],
)
def test_what_may_be_either_is_asked_for(values, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        _category(column(values), tmp_path)


@pytest.mark.parametrize(
    ("columns", "target", "found"),
    [
        (["id", "x"], "x", "id"),
        (["house_id", "x"], "x", "house_id"),
        (["PassengerId", "x"], "x", "PassengerId"),
        (["HOUSEID", "x"], "x", "HOUSEID"),
        (["grid", "x"], "x", "row_id"),
        (["x", "id"], "x", "row_id"),  # it is not the first
        (["id", "x"], "id", "row_id"),
        (["paid", "row_id"], "row_id", "new_row_id"),
    ],
)
def test_a_first_column_that_is_named_so_names_the_rows(columns, target, found):
    table = pd.DataFrame([["1", "5"], ["2", "5"]], columns=columns)
    assert _id_column(table, table, target) == found


def test_an_id_that_names_two_rows_is_none():
    table = pd.DataFrame({"id": ["1", "1"], "x": ["1", "2"]})
    assert _id_column(table, table, "x") == "row_id"


@pytest.mark.parametrize(
    ("values", "kept"),
    [(["1", "", " ", "NaN", "n/a", "2.5"], ["1", "2.5"]), (["yes", "none", "", "no"], ["yes", "none", "no"])],
)
def test_a_word_for_a_gap_is_one_among_numbers_and_a_class_among_texts(values, kept, tmp_path):
    assert list(_with_target(pd.DataFrame({"y": values}), "y", tmp_path)["y"]) == kept


def test_rows_that_are_held_out_have_the_columns_of_the_test_table_and_the_target(tmp_path):
    table(tmp_path / "own" / "train.csv", ["a", "y", "after", "b"], [[n, n / 2, n, n] for n in range(8)])
    table(tmp_path / "own" / "test.csv", ["b", "a", "new"], [[1, 1, 1]])
    train, test = _tables(tmp_path / "own", Wanted("y"))
    assert (list(train), list(test)) == (["a", "y", "after", "b"], ["a", "y", "b"])


@pytest.mark.parametrize(("rows", "share", "held"), [(7, 0.25, 1), (8, 0.25, 2), (4, 0.25, 1), (10, 0.5, 5)])
def test_a_share_of_the_rows_is_held_out_by_the_seed_and_each_is_in_one_table(tmp_path, rows, share, held):
    table(tmp_path / "own" / "train.csv", ["x", "y"], [[n, n / 2] for n in range(rows)])
    train, test = _tables(tmp_path / "own", Wanted("y", test_share=share, seed=1))
    assert len(test) == held and sorted(map(int, [*train["x"], *test["x"]])) == list(range(rows))
    assert len(_tables(tmp_path / "own", Wanted("y"))[1]) == rows // 4, "a quarter, where nobody says how many"
    assert list(test["x"]) == list(_tables(tmp_path / "own", Wanted("y", test_share=share, seed=1))[1]["x"])
    with pytest.raises(TaskError, match=f"{rows} rows with a target are too few to hold some out"):
        _tables(tmp_path / "own", Wanted("y", test_share=0.99 / rows))


def test_a_share_is_told_where_the_test_table_is_given_whole(tmp_path, caplog):
    rows = [[n, n * 10, n * 1.5] for n in range(20)]
    for name in ("train.csv", "test.csv"):
        table(tmp_path / "houses" / name, ["Id", "area", "price"], rows)
    for settings in ({}, {"test_share": 0.5}, {"seed": 3}):
        assert len(_tables(tmp_path / "houses", Wanted("price", **settings))[1]) == 20
    line = f"{tmp_path}/houses/test.csv has the target: it is the test table, and nothing is divided"
    assert caplog.messages == [line, line]
