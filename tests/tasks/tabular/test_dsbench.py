import copy
import json
import logging
import re
from pathlib import Path

import pytest

from coachrl.errors import TaskError
from coachrl.tasks.tabular.dsbench import load_dsbench
from coachrl.tasks.tabular.grading import grade_submission

SHARED = Path(__file__).parents[3].parent / "shared" / "data"


class Official:
    """A small copy of the official layout that tests can bend."""

    def __init__(self, root: Path) -> None:
        self.root, self.lines, self.prompts = root, [], {}

    def add(self, task_id: str, train: str, test: str, answer: str, data_type: str | None = None, **cleaned) -> None:
        data, answers = self.root / "data_resplit" / task_id, self.root / "answers" / task_id
        data.mkdir(parents=True)
        answers.mkdir(parents=True)
        (data / "train.csv").write_text(train)
        (data / "test.csv").write_text(test)
        (answers / "test_answer.csv").write_text(answer)
        metadata = {
            "task_id": task_id,
            "task_type": "data_modeling",
            "train_file": f"./data/DSBench/data/data_resplit/{task_id}/train.csv",
            "test_file": f"./data/DSBench/data/data_resplit/{task_id}/test.csv",
            "answer_dir": f"./data/DSBench/data/answers/{task_id}",
        }
        metadata |= {"data_type": data_type} if data_type else {}
        self.lines.append({"prompt": "The long competition page.", "answer": None, "metadata": metadata})
        if cleaned:
            self.prompts[task_id] = cleaned

    def load(self, **options):
        task_list, prompts = self.root / "tasks.jsonl", self.root / "prompts.json"
        task_list.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        prompts.write_text(json.dumps(self.prompts))
        return load_dsbench(self.root, task_list, prompts, **options)


@pytest.fixture
def official(tmp_path):
    return Official(tmp_path)


CATS = {
    "train": "id,size,cat\n1,3,yes\n2,4,no\n",
    "test": "id,size\n5,3\n6,4\n",
    "answer": "id,cat\n6,no\n5,yes\n",
}
AGES = {
    "train": "Id,x,age\n1,2,3\n2,2,4\n",
    "test": "Id,x\n8,1\n9,2\n",
    "answer": "Id,age\n8,3\n9,40\n",
}
DECLARED = {"task_type": "classification", "metric": "roc_auc", "target_column": "cat", "id_column": "id"}


def test_a_declared_task(official):
    official.add("cats", **CATS, cleaned_prompt="Is it a cat?", **DECLARED)
    (task,) = official.load()
    truth = task.ground_truth
    assert (task.id, task.category, truth.metric, truth.id_column) == ("cats", "classification", "roc_auc", "id")
    assert truth.target_columns == ("cat",)
    assert truth.labels == (("no", "yes"),)
    assert truth.guessed == ()
    assert set(task.files) == {"train.csv", "test.csv"}
    assert task.prompt.startswith("Is it a cat?\n")
    for fact in ("Id column: id", "Metric: roc_auc", "probability that cat is yes", "submission.csv: columns id,cat;"):
        assert fact in task.prompt
    assert "answers" not in repr(task)
    assert grade_submission(b"id,cat\n5,0.9\n6,0.2\n", truth).metrics["roc_auc"] == 1.0


def test_the_sample_submission_goes_along(official):
    official.add("cats", **CATS, **DECLARED)
    sample = official.root / "data_resplit" / "cats" / "sample_submission.csv"
    sample.write_text("id,cat\n5,0.5\n6,0.5\n")
    assert official.load()[0].files["sample_submission.csv"] == sample


def test_cleaned_prompts_overrule_the_list(official, caplog):
    official.add("ages", **AGES, data_type="classification", task_type="regression", metric="mae", target_column="age")
    with caplog.at_level(logging.WARNING):
        (task,) = official.load()
    assert task.category == "regression"
    assert "listed as classification, cleaned prompts say regression" in caplog.text
    assert task.ground_truth.guessed == ("id_column",)


def test_what_is_not_declared_is_guessed_and_said(official, caplog):
    official.add("cats", **CATS)
    official.add("ages", **AGES, data_type="regression")
    with caplog.at_level(logging.WARNING):
        cats, ages = (task.ground_truth for task in official.load())
    assert (cats.category, cats.metric, cats.id_column, cats.target_columns) == (
        "classification",
        "accuracy",
        "id",
        ("cat",),
    )
    assert cats.guessed == ("id_column", "target_columns", "category", "metric")
    assert (ages.category, ages.metric) == ("regression", "rmse")
    assert ages.guessed == ("id_column", "target_columns", "metric")
    assert "task cats declares no target column; cat taken" in caplog.text
    assert "task cats declares no category" in caplog.text
    assert "task ages declares no metric; rmse is taken" in caplog.text


def test_of_many_guesses_a_few_are_told_and_the_others_counted_with_what_to_do(official, caplog):
    for number in range(5):
        official.add(
            f"cats-{number}", **CATS, data_type="classification", metric="f1" if number else "", id_column="id"
        )
    with caplog.at_level(logging.WARNING):
        assert len(official.load()) == 5
    assert [message for message in caplog.messages if "target" in message] == [
        "task cats-0 declares no target column; cat taken",
        "task cats-1 declares no target column; cat taken",
        "without a declared target column: 3 tasks more",
    ]
    assert [message for message in caplog.messages if "no metric" in message] == [
        "task cats-0 declares no metric; accuracy is taken"
    ]
    assert "tasks.cleaned_prompts=FILE" in caplog.messages[-1]


def test_few_whole_numbers_are_never_taken_for_classes(official):
    official.add("ages", **AGES)
    with pytest.raises(TaskError, match="task ages: task_type is not declared, and whole numbers may be classes or am"):
        official.load()


def test_fractions_are_guessed_to_be_regression(official):
    official.add("ages", AGES["train"], AGES["test"], "Id,age\n8,3.5\n9,40\n")
    assert official.load()[0].category == "regression"


def test_several_targets(official):
    official.add(
        "pair",
        "id,x,a,b\n1,1,0,1\n2,2,1,0\n",
        "id,x\n3,1\n4,2\n",
        "id,a,b\n3,0,1\n4,1,0\n",
        task_type="classification",
        metric="roc_auc",
        target_column=["a", "b"],
        id_column="id",
    )
    (task,) = official.load()
    assert task.ground_truth.target_columns == ("a", "b")
    assert "Target columns: a, b" in task.prompt
    outcome = grade_submission(b"id,a,b\n4,0.9,0\n3,0.2,1\n", task.ground_truth)
    assert outcome.metrics["accuracy"] == 1.0
    assert not grade_submission(b"id,a\n4,0.9\n3,0.2\n", task.ground_truth).success


def test_labels_are_told_where_they_are_few_and_a_log_loss_is_of_one_target(official):
    for count in (12, 13):
        rows = "".join(f"{n},{n},kind {n:02}\n" for n in range(count))
        answers = "id,kind\n50,kind 00\n51,kind 01\n"
        declared = {"metric": "accuracy", "target_column": "kind", "id_column": "id", "task_type": "classification"}
        official.add(f"kinds{count}", f"id,x,kind\n{rows}", "id,x\n50,1\n51,2\n", answers, **declared)
    few, many = official.load()
    assert "Labels of kind: kind 00, kind 01," in few.prompt and few.prompt.count("kind 11") == 1
    assert "Labels" not in many.prompt and len(many.ground_truth.labels[0]) == 13
    two = {"train": "id,x,a,b\n1,1,0,1\n2,2,1,0\n", "test": "id,x\n3,1\n4,2\n", "answer": "id,a,b\n3,0,1\n4,1,0\n"}
    official.add("two", **two, **(DECLARED | {"metric": "log_loss", "target_column": ["a", "b"]}))
    with pytest.raises(TaskError, match="'log_loss' over several target columns is not offered; over one it is"):
        official.load()


TWO_TARGETS = {
    "train": "id,x,a,b\n1,1,0,1\n2,2,1,\n",
    "test": "x,id\n1,3\n2,4\n",
    "answer": "id,x,a,b\n3,1,0,1\n4,2,1,2\n",
}


def test_an_id_is_guessed_from_the_answers_order_and_targets_are_what_test_lacks(official):
    official.add("two", **TWO_TARGETS, task_type="classification")
    [task] = official.load()
    assert (task.ground_truth.id_column, task.ground_truth.target_columns) == ("id", ("a", "b"))
    assert task.ground_truth.labels == (("0", "1"), ("1", "2")), "no value is no label"


def test_every_target_of_a_ranking_has_two_classes(official):
    three = TWO_TARGETS["answer"].replace("4,2,1,2", "4,2,1,2\n5,2,1,3")
    files = TWO_TARGETS | {"answer": three, "test": TWO_TARGETS["test"] + "2,5\n"}
    official.add("two", **files, task_type="classification", metric="roc_auc")
    with pytest.raises(TaskError, match="'roc_auc' needs targets of two classes; there are 3"):
        official.load()


@pytest.mark.parametrize(
    ("first", "second", "category"),
    [
        ("0 1 0", "0.5 2.5 3", None),  # one of two values, one of fractions
        ("0 1 0", "a b c", "classification"),
        ("1.5 3 4", "0.5 2 3", "regression"),
        ("1.5 3 4", "5 2 3", None),  # one of whole numbers
        ("1.5 3 4", "a b c", None),
    ],
)
def test_a_category_is_guessed_where_all_targets_look_alike(official, first, second, category):
    values = list(zip(first.split(), second.split(), strict=True))
    train, answers = (
        "".join(f"{n},{x}{a},{b}\n" for n, (a, b) in enumerate(values, start=s)) for s, x in ((0, "1,"), (5, ""))
    )
    official.add("two", f"id,x,a,b\n{train}", "id,x\n5,1\n6,2\n7,3\n", f"id,a,b\n{answers}")
    if category is None:
        with pytest.raises(TaskError, match="task_type is not declared"):
            official.load()
    else:
        assert official.load()[0].category == category


def test_an_id_that_train_does_not_have(official):
    official.add(
        "ages",
        "x,age\n1,2\n",
        AGES["test"],
        AGES["answer"],
        task_type="regression",
        metric="rmsle",
        id_column="Id",
        target_column="age",
    )
    (task,) = official.load()
    assert "Predictions must not be negative." in task.prompt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id_column": "key"}, r"test\.csv: no column 'key'; its columns are 'id', 'size'"),
        ({"target_column": "dog"}, r"test_answer\.csv: no column 'dog'; its columns are 'id', 'cat'"),
        ({"target_column": "size"}, r"test_answer\.csv: no column 'size'"),
        ({"task_type": "extraction"}, "task_type 'extraction' cannot be graded; it must be one of classification, reg"),
        ({"metric": "map_at_3"}, "metric 'map_at_3' is not offered for classification; offered are accuracy, f1"),
        ({"metric": ["accuracy", "f1"]}, r"metric \['accuracy', 'f1'\] is not offered for classification"),
        ({"metric": "rmse"}, "metric 'rmse' is not offered for classification"),
        ({"task_type": "regression", "metric": "mae"}, "column 'cat' holds 'no', not a regression target"),
    ],
)
def test_declarations_that_cannot_be_kept(official, change, message):
    official.add("cats", **CATS, **(DECLARED | change))
    with pytest.raises(TaskError, match=f"1 of 1 tasks cannot be used: task cats: .*{message}"):
        official.load()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"test": "id,size,cat\n5,3,yes\n6,4,no\n"}, r"test\.csv: holds the target column 'cat'; agents must not see"),
        ({"train": "id,size\n1,3\n"}, r"train\.csv: no column 'cat'"),
        ({"answer": "id,cat\n5,yes\n5,no\n"}, "id '5' more than once"),
        ({"answer": "id,cat\n5,yes\n6,yes\n"}, "perfect predictions could not be graded: roc_auc is undefined"),
        ({"test": "id,size\n5,3\n7,4\n"}, r"test\.csv: column 'id' must hold the ids .*; 2 are missing, .*'6'"),
        ({"test": "id,size\n5,3\n6,4\n6,4\n"}, r"test\.csv: column 'id' must .*; 1 are missing, repeated .*'6'"),
        ({"train": "id,cat\n1,yes\n", "answer": "id,cat\n5,yes\n"}, "1 distinct labels; two are needed"),
        ({"train": "id,cat\n1,a\n", "answer": "id,cat\n5,b\n6,c\n"}, "'roc_auc' needs targets of two classes"),
        ({"train": "id,cat\n" + "1,yes\n" * 60_000 + '1,"yes\n'}, r"train\.csv: cannot be read as CSV: "),
        ({"test": ""}, r"test\.csv: cannot be read as CSV with a header"),
    ],
)
def test_files_that_cannot_be_used(official, files, message):
    official.add("cats", **(CATS | files), **DECLARED)
    with pytest.raises(TaskError, match=message):
        official.load()


def test_unusable_tasks_can_be_left_out(official, caplog):
    official.add("cats", **CATS, **DECLARED)
    official.add("other", **CATS, **(DECLARED | {"metric": "jaccard"}))
    with caplog.at_level(logging.WARNING):
        assert [task.id for task in official.load(skip_unusable=True)] == ["cats"]
    assert "left out task other: metric 'jaccard' is not offered" in caplog.text


def test_paths_that_are_not_there(official):
    for number in range(4):
        official.add(f"cats{number}", **CATS, **DECLARED)
        (official.root / "data_resplit" / f"cats{number}" / "test.csv").unlink()
        (official.root / "answers" / f"cats{number}" / "test_answer.csv").unlink()
    with pytest.raises(TaskError, match=r"8 of its files are not there: .*cats0/test\.csv; .*; and 3 more"):
        official.load()
    with pytest.raises(TaskError, match=r"2 of its files are not there: .*cats0/test\.csv; .*test_answer\.csv$"):
        official.load(limit=1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("task_type", ["classification"], "task_type must be a name"),
        ("id_column", ["id"], "id_column must be a name"),
        ("target_column", ["cat", 3], "target_column must be a name or a list of names"),
        ("target_column", {"cat": 1}, "target_column must be a name or a list of names"),
    ],
)
def test_a_declaration_that_is_no_name_is_told_with_its_line(official, key, value, words):
    official.add("cats", **CATS, **(DECLARED | {key: value}))
    with pytest.raises(TaskError, match=rf"tasks\.jsonl, line 1: not a task: {words}$"):
        official.load()


def test_limit_takes_the_first(official):
    for name in ("a", "b", "c"):
        official.add(name, **CATS, **DECLARED)
    assert [task.id for task in official.load(limit=2)] == ["a", "b"]


def test_lists_that_are_no_lists(official, tmp_path):
    with pytest.raises(TaskError, match="no tasks in it"):
        official.load()
    official.add("cats", **CATS)
    official.lines *= 2
    with pytest.raises(TaskError, match="line 2: task cats is listed twice"):
        official.load()
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "x"\n')
    with pytest.raises(TaskError, match="line 1: not JSON: Expecting"):
        load_dsbench(tmp_path, broken)
    broken.write_text('{"prompt": "x"}\n')
    with pytest.raises(TaskError, match="line 1: not a task: it has no 'metadata'"):
        load_dsbench(tmp_path, broken)
    with pytest.raises(TaskError, match="No such file"):
        load_dsbench(tmp_path, tmp_path / "absent.jsonl")


@pytest.mark.parametrize("value", [None, [], {}, True, "", " "])
@pytest.mark.parametrize("key", ["prompt", "metadata", "task_id", "train_file", "test_file", "answer_dir"])
def test_what_a_list_should_say_in_words_is_text(official, tmp_path, key, value):
    official.add("cats", **CATS, **DECLARED)
    entry = copy.deepcopy(official.lines[0])
    (entry if key in entry else entry["metadata"])[key] = value
    said = "it has no 'task_id'" if (key, value) == ("metadata", {}) else "must be an object"
    said = said if key == "metadata" else f"'{key}' must hold text, and is {re.escape(repr(value))}$"
    for line in (entry, [entry]):
        (tmp_path / "list.jsonl").write_text(json.dumps(line))
        with pytest.raises(TaskError, match=rf"list\.jsonl, line 1: not a task: .*{said}"):
            load_dsbench(official.root, tmp_path / "list.jsonl")
        said = "must be an object"


@pytest.mark.parametrize("key", ["train_file", "test_file", "answer_dir"])
@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "data_resplit/../../secret", "answers/../../secret"]
)
def test_paths_that_lead_out_of_the_root_are_refused(official, tmp_path, key, path):
    official.add("cats", **CATS, **DECLARED)
    entry = copy.deepcopy(official.lines[0])
    entry["metadata"][key] = path
    (tmp_path / "list.jsonl").write_text(json.dumps(entry))
    with pytest.raises(TaskError, match=r"list\.jsonl, line 1: not a task: .* leads out of tasks\.root"):
        load_dsbench(official.root, tmp_path / "list.jsonl")


@pytest.mark.parametrize(
    "name",
    [
        "data_resplit/cats/train.csv",
        "data_resplit/cats/test.csv",
        "data_resplit/cats/sample_submission.csv",
        "answers/cats/test_answer.csv",
        "answers/cats",
        "data_resplit",
    ],
)
def test_links_that_lead_out_of_the_root_are_refused(official, tmp_path, tmp_path_factory, name):
    official.add("cats", **CATS, **DECLARED)
    (official.root / "data_resplit" / "cats" / "sample_submission.csv").write_text("id,cat\n")
    place = official.root / name
    elsewhere = tmp_path_factory.mktemp("other") / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    (tmp_path / "list.jsonl").write_text(json.dumps(official.lines[0]))
    with pytest.raises(TaskError, match=r"is a link that leads out of tasks\.root"):
        load_dsbench(official.root, tmp_path / "list.jsonl")


def test_links_that_go_in_circles_are_files_that_are_not_there(official, tmp_path):
    official.add("cats", **CATS, **DECLARED)
    train = official.root / "data_resplit" / "cats" / "train.csv"
    train.unlink()
    train.symlink_to(train)
    (tmp_path / "list.jsonl").write_text(json.dumps(official.lines[0]))
    with pytest.raises(TaskError, match=r"1 of its files are not there: .*cats/train\.csv"):
        load_dsbench(official.root, tmp_path / "list.jsonl")


def test_the_root_itself_may_be_a_link(official, tmp_path, tmp_path_factory):
    official.add("cats", **CATS, **DECLARED)
    (tmp_path / "list.jsonl").write_text(json.dumps(official.lines[0]))
    root = tmp_path_factory.mktemp("other") / "root"
    root.symlink_to(official.root)
    assert len(load_dsbench(root, tmp_path / "list.jsonl")) == 1


def test_paths_of_the_machine_that_made_a_list_count_from_the_data_folder(official, tmp_path):
    official.add("cats", **CATS, **DECLARED)
    entry = copy.deepcopy(official.lines[0])
    entry["metadata"]["train_file"] = "/home/somebody/../DSBench/" + entry["metadata"]["train_file"]
    (tmp_path / "list.jsonl").write_text(json.dumps(entry))
    [task] = load_dsbench(official.root, tmp_path / "list.jsonl")
    assert task.files["train.csv"].is_relative_to(official.root)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the official task lists are not at hand")
def test_the_official_list_without_its_data_names_what_is_missing(tmp_path):
    with pytest.raises(
        TaskError, match=r"192 of its files are not there: .*tabular-playground-series-mar-2021/train\.csv"
    ):
        load_dsbench(
            tmp_path,
            SHARED / "dsbench_modeling_train.json",
            SHARED / "dsbench_modeling_cleaned_prompts.json",
        )
