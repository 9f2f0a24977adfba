"""Files and data sets as people have them come out as the same problems."""

import csv
import json
import logging
import sys
from decimal import Decimal

import pytest
from math_files import load_math
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.config import dump_config, load_config, with_absolute_paths
from coachrl.errors import TaskError
from coachrl.resources import quiet
from coachrl.tasks import load_tasks

ROWS = [{"question": f'Ann says "{n}",\nthen 1. Sum?', "reply": str(n + 1), "topic": "sums"} for n in range(20)]
FIELDS = ("tasks.fields.problem=question", "tasks.fields.answer=reply", "tasks.fields.category=topic")


def load(*overrides):
    return load_tasks(load_config(None, ["tasks.source=math", *overrides]))


def csv_file(path, rows=ROWS, **settings):
    with path.open("w", newline="", encoding=settings.pop("encoding", "utf-8")) as file:
        writer = csv.DictWriter(file, rows[0], **settings)
        writer.writeheader()
        writer.writerows(rows)
    return path


def data_set(folder, **splits):
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    folder.mkdir()
    for name, rows in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {name: str(folder / f"{name}.jsonl") for name in splits}
    return datasets.load_dataset("json", data_files=files, cache_dir=folder / "cache")


def written(folder, layout):
    """A file or folder of ROWS."""
    if layout == "json":
        (folder / "a.json").write_text(json.dumps(ROWS))
    elif layout == "jsonl":
        (folder / "a.json").write_text("".join(json.dumps(row) + "\r\n" for row in ROWS))
    elif layout == "csv":
        csv_file(folder / "a.csv")
    elif layout == "csv of a spreadsheet":
        csv_file(folder / "a.csv", delimiter=";", encoding="utf-8-sig", lineterminator="\r\n")
    elif layout == "tsv":
        csv_file(folder / "a.tsv", delimiter="\t")
    else:
        data = data_set(folder.parent / "made", train=ROWS)
        if layout == "parquet":
            data["train"].to_parquet(folder / "a.parquet")
        elif layout == "saved data set":
            data["train"].save_to_disk(folder / "a")
        else:
            (folder / "a").mkdir()
            data["train"].to_json(folder / "a" / "train.jsonl")
    return next(path for path in sorted(folder.iterdir()))


LAYOUTS = ["json", "jsonl", "csv", "csv of a spreadsheet", "tsv", "parquet", "saved data set", "folder of a data set"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_problems(tmp_path, layout, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / ".cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    train, heldout = load(f"tasks.train={written(folder, layout)}", *FIELDS)
    assert (len(train), len(heldout)) == (18, 2)
    found = {task.id: (task.prompt, task.ground_truth.answer, task.category) for task in [*train, *heldout]}
    assert found == {f"a-{n}": (row["question"], row["reply"], "sums") for n, row in enumerate(ROWS, 1)}


def test_a_share_is_held_out_by_the_seed_and_never_trained_on(tmp_path):
    where = f"tasks.train={csv_file(tmp_path / 'a.csv')}"
    first, again, other = (load(where, *FIELDS, *more) for more in ([], [], ["seed=1"]))
    assert first == again and first[1] != other[1]
    assert not {task.id for task in first[0]} & {task.id for task in first[1]}
    assert len(load(where, *FIELDS, "tasks.heldout_share=0.5")[1]) == 10
    train, heldout = load(where, *FIELDS, "tasks.heldout_count=3", "tasks.train_count=5")
    assert (len(train), len(heldout)) == (5, 3)
    with pytest.raises(TaskError, match="20 of 20 tasks would be held out, and none left to train on"):
        load(where, *FIELDS, "tasks.heldout_count=20")


def test_a_share_is_told_where_held_out_problems_are_given(tmp_path, caplog):
    where = [f"tasks.train={csv_file(tmp_path / 'a.csv')}", *FIELDS, "tasks.heldout_share=0.5"]
    other = tmp_path / "b.jsonl"
    other.write_text(json.dumps({"question": "What is 70 + 1?", "reply": "71"}) + "\n")
    assert len(load(*where)[1]) == 10 and not caplog.records
    assert len(load(*where, f"tasks.heldout={other}")[1]) == 1
    assert caplog.messages == ["tasks.heldout_share=0.5 holds out nothing: held-out tasks are given"]


def test_where_nobody_says_how_many_no_more_are_held_out_than_evaluations_can_play(tmp_path, caplog):
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{n}+1?", "answer": n}) + "\n" for n in range(5010)))
    train, heldout = load(f"tasks.train={path}")
    assert (len(train), len(heldout)) == (4510, 500)
    assert "500 of 5010 tasks are held out, and not a tenth" in caplog.text
    assert len(load(f"tasks.train={path}", "tasks.heldout_share=0.1")[1]) == 501
    assert len(load(f"tasks.train={path}", "tasks.heldout_count=600")[1]) == 600


def test_a_folder_without_data_is_no_data_set(tmp_path, monkeypatch):
    pytest.importorskip("datasets", reason="needs the datasets extra")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / ".cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (".hidden", "README.md"):
        (folder / name).write_text("nothing")
        with pytest.raises(TaskError, match=r"data: the folder holds no data files \(\.json, "):
            load(f"tasks.train={folder}")


def test_what_a_folder_holds_besides_what_is_read_is_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / ".cache"))
    (tmp_path / "data").mkdir()
    folder = written(tmp_path / "data", "folder of a data set")
    csv_file(folder / "more.csv")
    (folder / "notes.txt").write_text("nothing")
    load(f"tasks.train={folder}", *FIELDS)
    assert "files of one kind are read; left out: more.csv" in caplog.text and "notes" not in caplog.text


def test_a_file_of_a_kind_that_is_not_known_says_that_it_was_read_as_json(tmp_path):
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(TaskError, match=r"not JSON: .*; it was read as JSON, since it ends in none of \.json, "):
        load(f"tasks.train={tmp_path / 'a.xlsx'}")


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (r"We add them: $\boxed{3}$, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("Ann has 2+3=<<2+3=5>>5.\n#### 1,234", "1,234"),
        ("#### 2+3=5, and so\n#### 7", "7"),
        (r"So there are $\boxed 12$ ways, or $\boxed 7$.", "7"),
        (r"The sum is $\boxed 7.", "7"),
        (r"Hence \fbox{$\frac{1}{2}$}.", r"$\frac{1}{2}$"),
        (142.0, "142"),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
    ],
)
def test_the_answer_is_found_in_a_solution(tmp_path, answer, reference):
    path = tmp_path / "a.json"
    for key in ("answer", "solution") if isinstance(answer, str) and answer[0] != "\\" else ("answer",):
        path.write_text(json.dumps([{"problem": "?", key: answer, "level": "Level 5", "type": "Algebra"}]))
        [task] = load_math(path)
        assert (task.ground_truth.answer, task.category) == (reference, "a-level-5")


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"", "it holds no problems"),
        ("a.csv", b"question,answer\n", "it holds no problems"),
        ("a.csv", b"question,answer,answer\n1,2,3\n", "the column 'answer' stands twice"),
        ("a.json", b'[{"question": "1", "answer": 2, "answer": 3}]', "the key 'answer' stands twice in the object {"),
        ("a.jsonl", b'{"question": "1", "answer": {"a": 2, "a": 3}}', "line 1: .*the key 'a' stands twice in the obj"),
        ("a.csv", b"question,answer\n1,2\nwhat, now,3\n", "line 3: 3 fields; the header has 2"),
        ("a.csv", b'question,answer\n"open,2\n', "not CSV"),
        ("a.csv", b"question,answer\n1+1?,\n", "line 2: 'answer' must be a number or text, not ''"),
        ("a.csv", "question,answer\nwieviel für 2?,2\n".encode("latin-1"), "not UTF-8 text.*save it as UTF-8"),
        ("a.csv", "question,answer\n1+1?,2\n".encode("utf-16"), "not UTF-8 text.*save it as UTF-8"),
        ("a.csv", b"frage,answer\n1+1?,2\n", "a.csv: no column prompt or problem or question; it has frage, answer"),
        ("a.csv", b'question,answer\n"1\n+1?",2\n"2\n+\n2?",\n', "line 4: 'answer' must be a number or text"),
        ("a.parquet", b"PAR1 no", "not a parquet file|parquet files need pyarrow: pip install"),
        ("a.json.gz", b"no gzip", "not a whole gzip file"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_that_names_the_place(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError, match=words) as caught:
        load(f"tasks.train={tmp_path / name}")
    assert str(tmp_path / name) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["x" * 1000, ["x" * 1000]], ids=["text", "list"])
def test_a_little_table_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch, value):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'datasets' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, rows = tmp_path / "a.parquet", 50_000
    parquet.write_table(pyarrow.table({"question": pyarrow.array([value] * rows), "answer": ["1"] * rows}), path)
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    with pytest.raises(TaskError, match="it unpacks to more than 4,194,304 bytes"):
        load(f"tasks.train={path}")
    assert path.stat().st_size < 1 << 20


def test_decimals_of_a_table_are_numbers(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'datasets' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, answers = tmp_path / "a.parquet", ["1.50", "2.00", "-0.25", f"{'1' * 30}.75"]
    rows = {"question": list("abcd"), "answer": [Decimal(answer) for answer in answers]}
    parquet.write_table(pyarrow.table(rows), path)
    found = load_math(path)
    assert [task.ground_truth.answer for task in found] == ["1.50", "2", "-0.25", f"{'1' * 30}.75"]


def test_a_field_that_is_not_there_is_named_with_the_nearest(tmp_path):
    path = csv_file(tmp_path / "a.csv")
    for what in ("problem", "answer", "category", "level", "id"):
        with pytest.raises(
            TaskError,
            match=rf"a\.csv: no column 'quesion' \(tasks.fields.{what}\), did you mean 'question'\? \(it has ",
        ):
            load(f"tasks.train={path}", *FIELDS, f"tasks.fields.{what}=quesion")


def test_a_solution_that_is_a_number_is_the_answer(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("question,solution\n" + "".join(f"What is {n} + 1?,{n + 1}\n" for n in range(20)))
    for fields in ([], ["tasks.fields.answer=solution"]):
        tasks = [task for split in load(f"tasks.train={path}", *fields) for task in split]
        assert {task.ground_truth.answer for task in tasks} == {str(n + 1) for n in range(20)}


def test_a_mistyped_file_is_named_with_the_nearest(tmp_path):
    csv_file(tmp_path / "train.csv")
    with pytest.raises(TaskError, match=r"trian\.csv: No such file or directory, did you mean 'train\.csv'\?"):
        load(f"tasks.train={tmp_path / 'trian.csv'}")
    with pytest.raises(TaskError, match="a file has no subsets"):
        load(f"tasks.train={tmp_path / 'train.csv'}", "tasks.subset=main")


def test_a_data_set_that_names_its_splits_is_held_out_by_them(tmp_path):
    data = data_set(tmp_path / "made", train=ROWS[:10], validation=ROWS[10:12], extra=ROWS[12:])
    data.save_to_disk(tmp_path / "a")
    where = f"tasks.train={tmp_path / 'a'}"
    assert [len(part) for part in load(where, *FIELDS)] == [10, 2]
    assert [len(part) for part in load(where, *FIELDS, "tasks.heldout_split=extra")] == [10, 8]
    assert [len(part) for part in load(where, *FIELDS, "tasks.train_split=extra", "tasks.train_count=3")] == [3, 2]
    with pytest.raises(TaskError, match=r"no split 'tset'.*heldout_split must be one of train, validation, extra"):
        load(where, *FIELDS, "tasks.heldout_split=tset")


@pytest.mark.parametrize("form", ["numpy", "torch", "pandas", "arrow"])
def test_a_data_set_is_read_whatever_format_it_was_saved_with(tmp_path, form):
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "topic": "sums"} for n in range(10)]
    data = data_set(tmp_path / "made", train=rows)["train"]
    data.with_format(form, columns=["answer"]).save_to_disk(tmp_path / "a")
    train, heldout = load(f"tasks.train={tmp_path / 'a'}", "tasks.fields.category=topic")
    assert {task.ground_truth.answer for task in [*train, *heldout]} == {str(n) for n in range(1, 11)}


@pytest.mark.parametrize("kind", ["Image", "Audio"])
def test_pictures_and_sounds_beside_a_problem_are_not_decoded(tmp_path, kind):
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    seen = {"bytes": b"no picture", "path": None}
    rows = {"question": ["1 + 1?", "1 + 2?"], "answer": ["2", "3"], "seen": [seen, seen]}
    data = datasets.Dataset.from_dict(rows).cast_column("seen", getattr(datasets, kind)())
    data.save_to_disk(tmp_path / "a")
    assert [len(part) for part in load(f"tasks.train={tmp_path / 'a'}")] == [1, 1]


def test_an_answer_that_is_a_class_is_its_name(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    rows = {"question": [f"{n}?" for n in range(4)], "answer": [0, 1, 2, 3]}
    features = datasets.Features(question=datasets.Value("string"), answer=datasets.ClassLabel(names=list("ABCD")))
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "a")
    listed = datasets.Features({**features, "answer": datasets.List(features["answer"])})
    datasets.Dataset.from_dict(rows | {"answer": [[0], [1], [2], [3]]}, listed).save_to_disk(tmp_path / "c")
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "d.parquet")
    for name in ("a", "c", "d.parquet"):
        train, heldout = load(f"tasks.train={tmp_path / name}")
        found = {task.prompt: task.ground_truth.answer for task in [*train, *heldout]}
        assert found == {"0?": "A", "1?": "B", "2?": "C", "3?": "D"}
    rows["answer"] = [0, 1, -1, 3]  # as of a test set whose answers are kept
    datasets.Dataset.from_dict(rows, features).save_to_disk(tmp_path / "b")
    with pytest.raises(TaskError, match=r"data set .*b, row 3: 'answer' must be a number or text, not None"):
        load(f"tasks.train={tmp_path / 'b'}")


def test_an_answer_that_is_kept_as_json_is_what_it_says(tmp_path, monkeypatch):
    """So `datasets` keeps a column of numbers and texts."""
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / ".cache")
    for name, answers in (("a", [3, "x + 1", 2.5]), ("b", [[3], ["x + 1"], [2.5]])):
        (tmp_path / name).mkdir()
        lines = [json.dumps({"problem": f"{n}?", "answer": answer}) + "\n" for n, answer in enumerate(answers)]
        (tmp_path / name / "all.jsonl").write_text("".join(lines))
        train, heldout = load(f"tasks.train={tmp_path / name}")
        assert {task.ground_truth.answer for task in [*train, *heldout]} == {"3", "x + 1", "2.5"}


def test_what_a_parquet_file_says_of_its_columns_is_read_or_refused(tmp_path):
    pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"problem": ["1 + 1?", "1 + 2?"], "answer": ["2", "3"]})
    newer = b'{"info": {"features": {"answer": {"dtype": "string", "_type": "Value"}, "more": {"_type": "Newer"}}}}'
    for key, said in ((b"pandas", b"{}"), (b"huggingface", b"{"), (b"huggingface", newer)):
        parquet.write_table(table.replace_schema_metadata({key: said}), tmp_path / "a.parquet")
        assert [len(part) for part in load(f"tasks.train={tmp_path / 'a.parquet'}")] == [1, 1]
    for said in (b'{"ClassLabel"', newer.replace(b"Value", b"ClassLabel")):
        parquet.write_table(table.replace_schema_metadata({b"huggingface": said}), tmp_path / "a.parquet")
        with pytest.raises(TaskError, match=r"a\.parquet: what it says of its columns cannot be read: ") as caught:
            load(f"tasks.train={tmp_path / 'a.parquet'}")
        assert "\n" not in str(caught.value)


def test_a_saved_data_set_without_rows_says_so(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    datasets.Dataset.from_dict({"question": ["1?"], "answer": ["1"]}).select([]).save_to_disk(tmp_path / "a")
    with pytest.raises(TaskError, match=r"^data set \S*a: it holds no rows, or lacks files$"):
        load(f"tasks.train={tmp_path / 'a'}")


def test_a_row_of_a_damaged_data_set_is_named(tmp_path):
    """Read as it lies there, it may end the process: offsets of texts lead anywhere."""
    data_set(tmp_path / "made", train=ROWS)["train"].save_to_disk(tmp_path / "a")
    [path] = (tmp_path / "a").glob("*.arrow")
    path.write_bytes(path.read_bytes().replace(b'Ann says "7"', b'Ann s\xffys "7"'))
    with pytest.raises(TaskError, match=r"data set .*a, row 8: cannot be read: .*UTF8") as caught:
        load(f"tasks.train={tmp_path / 'a'}", *FIELDS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "named", ["../notes.jsonl", "{}/notes.jsonl", "data/../../notes.jsonl", "memory://notes.jsonl"]
)
def test_a_folder_of_others_names_no_file_elsewhere_for_its_own(tmp_path, named, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / ".cache")  # read from the environment once
    fsspec = pytest.importorskip("fsspec")
    lines = "".join(json.dumps({"problem": f"{n}?", "answer": n}) + "\n" for n in range(4))
    (tmp_path / "notes.jsonl").write_text(lines)
    with fsspec.open("memory://notes.jsonl", "w") as file:  # a URL, as those of the web are
        file.write(lines)
    (tmp_path / "a" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")  # where a URL is no path
    card = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    (tmp_path / "a" / "README.md").write_text(card.format(named.format(tmp_path)))
    with pytest.raises(TaskError, match=r"^data set \S*a: its lists of files name .*notes\.jsonl, which is not in"):
        load(f"tasks.train={tmp_path / 'a'}")
    (tmp_path / "a" / "README.md").write_text(card.format("data/*.jsonl"))
    (tmp_path / "a" / "data" / "own.jsonl").symlink_to(tmp_path / "notes.jsonl")  # as the hub's cache has them
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert [len(part) for part in load(f"tasks.train={tmp_path / 'link'}")] == [3, 1]
    (tmp_path / "a" / "README.md").unlink()  # files that nothing names are those of the link's end
    assert [len(part) for part in load(f"tasks.train={tmp_path / 'link'}")] == [3, 1]


def test_a_saved_data_set_names_no_file_elsewhere_for_its_own(tmp_path):
    data = data_set(tmp_path / "made", train=ROWS)["train"]
    for name in "ab":
        data.save_to_disk(tmp_path / name)
    state = json.loads((tmp_path / "a" / "state.json").read_text())
    state["_data_files"][0]["filename"] = f"../b/{state['_data_files'][0]['filename']}"
    (tmp_path / "a" / "state.json").write_text(json.dumps(state))
    with pytest.raises(TaskError, match=r"^data set \S*a: its lists of files name .*arrow, which is not in the folder"):
        load(f"tasks.train={tmp_path / 'a'}", *FIELDS)


def test_a_column_that_stands_twice_in_a_parquet_file_is_refused_as_in_a_csv_file(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra 'datasets' is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = [pyarrow.array(["1 + 1?"]), pyarrow.array(["2"]), pyarrow.array(["3"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["problem", "answer", "answer"]), tmp_path / "a.parquet")
    with pytest.raises(TaskError, match=r"a\.parquet: .*the column 'answer' stands twice"):
        load_math(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train.jsonl", '{"problem": "1 + 1?", "answer": 2}\n{"problem"', "Missing a colon.* in row 1"),
        ("train.csv", "problem,answer\n1 + 1?,2\n1 + 2?,3,4\n", "Expected 2 fields in line 3, saw 3"),
    ],
)
def test_of_a_folder_whose_file_is_torn_the_line_is_told(tmp_path, name, text, said):
    pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / name).write_text(text)
    with pytest.raises(TaskError, match=f"data set .*sums: cannot be read: .*{said}"):
        load(f"tasks.train={tmp_path / 'sums'}")


def test_a_name_of_the_hub_stays_a_name_and_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in {"huggingface_hub.constants", "datasets.config"} & sys.modules.keys():  # what has read it already
        monkeypatch.setattr(sys.modules[name], "HF_HUB_OFFLINE", True)
    config = load_config(None, ["tasks.source=math", "tasks.train=owner/no-such-set"])
    assert "train: owner/no-such-set" in dump_config(with_absolute_paths(config))
    words = r"data set owner/no-such-set: (neither a file or folder here nor|.*pip install)"
    with pytest.raises(TaskError, match=words) as caught:
        load_tasks(config)
    assert "\n" not in str(caught.value)


def test_lines_of_the_hubs_library_about_each_attempt_are_kept_back_while_it_is_asked(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "propagate", True)
    attempts = logging.getLogger("huggingface_hub.utils._http")
    with quiet("huggingface_hub"):
        attempts.warning("Retrying in 1s [Retry 1/5].")
    assert caplog.records == []
    attempts.warning("Retrying in 2s")
    assert [record.getMessage() for record in caplog.records] == ["Retrying in 2s"]


def test_a_path_is_kept_whole_so_that_a_run_can_go_on_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csv_file(tmp_path / "a.csv")
    config = load_config(None, ["tasks.source=math", "tasks.train=a.csv"])
    assert with_absolute_paths(config).tasks.train == str(tmp_path / "a.csv")


def test_a_long_list_of_tasks_is_shown_in_part(tmp_path):
    rows = [{"question": f"{number}+1?", "answer": number + 1} for number in range(1501)]
    path = csv_file(tmp_path / "a.csv", rows)
    given = ["tasks", "list", f"tasks.train={path}", "tasks.heldout_count=1"]
    shown = CliRunner().invoke(app, given).stdout.splitlines()
    assert len(shown) == 1 + 1000 + 1 + 1
    assert shown[-1] == "train: 1,000 of 1,500 tasks shown; --json prints all"
    assert len(json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)) == 1501
