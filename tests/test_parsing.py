import pytest

from coachrl.config import load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.parsing import csv_rows, parse_json, parse_yaml

WRONG_YAML = {
    "a key below a value": (
        "train:\n  steps: 4\n   seed: 3\n",
        ", line 3: not YAML: the line above has a value, or no colon, so that no key can follow deeper; keys begin in "
        "one column",
    ),
    "a tab": ("train:\n\tsteps: 4\n", ", line 2: not YAML: a tab; indent with spaces"),
    "a bracket left open": (
        "seed: 1\ntrain: {steps: 4\nmodel: x\n",
        ", line 2: not YAML: the bracket that opens here is not closed by }",
    ),
    "a list left open": ("a: [1, 2", ": not YAML: the bracket that opens here is not closed by ]"),
    "a quote left open": (
        'x: 1\nmodel: "abc\nseed: 3\n',
        ", line 2: not YAML: the quote that opens here is not closed",
    ),
    "a character that begins nothing": ("m: @abc", ": not YAML: text cannot begin with @; put it in quotes"),
    "two colons": ("seed: 1\nmodel: a: b\n", ", line 2: not YAML: a second colon; put text that holds one in quotes"),
    "an alias of nothing": (
        "coach: *x\nseed: 1\n",
        ", line 1: not YAML: *x repeats what no &x has named before; put text that begins with * in quotes",
    ),
    "a tag": ("m: !foo x", ": not YAML: there is no tag !foo; put text that begins with ! in quotes"),
    "two documents": ("a: 1\n---\nb: 2\n", ", line 2: not YAML: a second document begins here; a file holds one"),
    "a control character": ("a: \1", ": not YAML: a control character, which text cannot hold"),
    "a list and keys": (
        "- a\nb: 1\n",
        ", line 2: not YAML: it does not go on with what stands above; keys of one section begin in one column",
    ),
    "a key twice": ("a: 1\nb: 2\na: 3\n", ", line 3: not YAML: the key 'a' stands twice"),
}


@pytest.mark.parametrize("case", WRONG_YAML)
def test_wrong_yaml_is_told_by_its_line_and_in_plain_words(tmp_path, case):
    text, words = WRONG_YAML[case]
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == f"config file {path}{words}"


def test_yaml_that_would_take_minutes_to_read_is_refused():
    with pytest.raises(ConfigError, match=r"^f: 2,000,002 characters; YAML of at most 1,048,576 is read$"):
        parse_yaml("a" * 2_000_000 + ": ", "f")


def test_a_table_of_many_columns_is_read_at_once():
    columns = ",".join(f"c{number}" for number in range(300_000))
    assert list(csv_rows(f"{columns}\n", "f")) == []
    with pytest.raises(ConfigError, match=r"^f: the column 'c7' stands twice in its header$"):
        list(csv_rows(f"{columns},c7\n", "f"))


def test_yaml_of_one_line_has_no_line_number():
    with pytest.raises(ConfigError, match=r"^override 'a', the value: not YAML: the bracket that opens here"):
        parse_yaml("{steps: 4", "override 'a', the value")


def test_wrong_json_is_told_by_line_and_column():
    with pytest.raises(TaskError, match=r"^f, line 2: not JSON: Expecting ':' delimiter at column 7$"):
        parse_json('[{"a": 1},\n {"b" 2}]', "f", TaskError)
    with pytest.raises(TaskError, match=r"^f, line 7: not JSON: Expecting ':' delimiter at column 6$"):
        parse_json('{"b" 2}', "f, line 7", TaskError)
