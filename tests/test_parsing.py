import gzip

import pytest

from coachrl import parsing
from coachrl.config import load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.parsing import check_few_values, csv_rows, json_lines, parse_json, parse_yaml, read_json

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
    "text in braces": (
        "coach:\n  prompt: {{problem}}\n",
        ", line 2: not YAML: a section or a list in the place of a key; put text that begins with {{ in quotes",
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
    columns = ",".join(f"c{number}" for number in range(50_000))
    assert list(csv_rows(f"{columns}\n", "f")) == []
    with pytest.raises(ConfigError, match=r"^f: the column 'c7' stands twice in its header$"):
        list(csv_rows(f"{columns},c7\n", "f"))


def test_yaml_of_one_line_has_no_line_number():
    with pytest.raises(ConfigError, match=r"^override 'a', the value: not YAML: the bracket that opens here"):
        parse_yaml("{steps: 4", "override 'a', the value")


def test_a_cell_may_hold_a_document():
    document = "word " * 100_000
    assert list(csv_rows(f"a,b\n{document},1\n", "f")) == [(2, {"a": document, "b": "1"})]


def test_wrong_json_is_told_by_line_and_column():
    with pytest.raises(TaskError, match=r"^f, line 2: not JSON: Expecting ':' delimiter at column 7$"):
        parse_json('[{"a": 1},\n {"b" 2}]', "f", TaskError)
    with pytest.raises(TaskError, match=r"^f, line 7: not JSON: Expecting ':' delimiter at column 6$"):
        parse_json('{"b" 2}', "f, line 7", TaskError)


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_values_stand_in_64_sections_at_most(parse):
    assert parse("[" * 64 + "1" + "]" * 64, "f")
    with pytest.raises(ConfigError, match=r"^f: not (JSON|YAML): nested deeper than 64 levels"):
        parse("[" * 65 + "1" + "]" * 65, "f")


def test_nesting_without_an_end_is_refused_too():
    with pytest.raises(ConfigError, match=r"^f, line 1: not YAML: nested deeper than 64 levels$"):
        parse_yaml("a: &a [*a]\nb: 1", "f")
    with pytest.raises(ConfigError, match=r"^f: not JSON: nested too deep$"):
        parse_json("[" * 100_000, "f")


def test_a_whole_number_has_1024_bits_at_most():
    assert parse_json(str(2**1024 - 1), "f") == 2**1024 - 1
    for text in (f"[{2**1024}]", f"-{2**1024}"):
        with pytest.raises(ConfigError, match="a number of more than 1024 bits"):
            parse_json(text, "f")


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\ud800": 1}', '[{"a": ["b", "\\udfff"]}]'])
def test_half_a_character_is_taken_where_models_write_it_and_nowhere_else(text):
    assert parse_json(text, "f", half_characters=True)
    with pytest.raises(ConfigError, match=r"^f: not JSON: half a character \('\\ud[8f]"):
        parse_json(text, "f")


def test_what_aliases_stand_for_is_counted_before_it_is_made(monkeypatch):
    monkeypatch.setattr(parsing, "MAX_VALUES", 100)
    assert len(parse_yaml(f"[{'1,' * 99}]", "f")) == 99  # one value is the list itself
    aliases = "a: &a [{}]\nb: [" + "*a," * 9 + "]"  # what a stands for counts ten times
    assert len(parse_yaml(aliases.format("1," * 8), "f")["b"]) == 9
    for text in (f"[{'1,' * 100}]", aliases.format("1," * 9)):
        with pytest.raises(ConfigError, match=r"^f: not YAML: it stands for more than 100 values; write what aliases"):
            parse_yaml(text, "f")


@pytest.mark.parametrize("text", ["{name:rules}", "a: {b: 1, name:rules}", "[{a:1}]"])
def test_a_colon_without_its_space_makes_no_key(text):
    with pytest.raises(ConfigError, match=r"a space is missing behind the first colon of (name:rules|a:1)"):
        parse_yaml(text, "f")


def test_a_key_that_holds_a_colon_stands_in_quotes_or_has_a_value():
    assert parse_yaml("{'a:b': }", "f") == parse_yaml("a:b:\n", "f") == {"a:b": None}
    assert parse_yaml("{a:b: 1}", "f") == {"a:b": 1}
    assert parse_yaml("a: &x {b: 1}\nc: {<<: *x, <<: *x}", "f")["c"] == {"b": 1}


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("2001-13-45", "2001-13-45", "timestamp"),
        ("!!bool maybe", "maybe", "bool"),
        ("!!int abc", "abc", "int"),
        ("0x_", "0x_", "int"),
        ("9" * 5000, "9" * 20 + " … " + "9" * 20, "int"),
    ],
)
def test_a_value_that_its_tag_does_not_allow_is_named_with_its_line_and_told_to_stand_in_quotes(text, value, kind):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(f"a: 1\nb: {text}", "f")
    assert str(caught.value) == f"f, line 2: not YAML: '{value}' cannot be read as YAML's {kind}; put text in quotes"


def test_lines_of_json_are_numbered_as_they_stand_in_the_file():
    lines = json_lines('{"a": 1}\n\n  \n[2]\n', "f", TaskError)
    assert list(lines) == [("line 1", {"a": 1}), ("line 4", [2])]
    with pytest.raises(TaskError, match=r"^f, line 3: not JSON: "):
        list(json_lines("1\n\n{", "f", TaskError))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_rows_have_the_fields_of_the_header_and_the_line_where_they_begin(separator):
    text = ' a |b\n1|"x\ny"\n\n|\n2|"p, q; r"\n'.replace("|", separator)
    assert list(csv_rows(text, "f")) == [(2, {"a": "1", "b": "x\ny"}), (6, {"a": "2", "b": "p, q; r"})]
    assert list(csv_rows("a|b\r1|2\r".replace("|", separator), "f")) == [(2, {"a": "1", "b": "2"})]
    with pytest.raises(ConfigError, match=r"^f, line 3: 1 fields; the header has 2$"):
        list(csv_rows("a|b\n1|2\n3\n".replace("|", separator), "f"))


def test_a_table_without_a_header_has_no_rows_and_one_that_is_no_table_is_told_by_its_line():
    assert list(csv_rows("", "f")) == []
    with pytest.raises(TaskError, match=r"^f, line 2: not CSV: "):
        list(csv_rows('a,b\n"x"y,2\n', "f", TaskError))


def test_a_file_is_read_as_its_name_says(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf[1]")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"[2]"))
    assert (read_json(tmp_path / "a.json", "f"), read_json(tmp_path / "a.json.gz", "f")) == ([1], [2])


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b'[1, {"a": [2]}]', 4),
        (b'["a,b", "c\\",[{", "\\\\", "d,"]', 4),  # in texts nothing begins
        (b'["never closed, [[[[', 1),
        (b'"\\', 0),
        (b"", 0),
    ],
)
def test_values_are_counted_outside_of_texts(text, count):
    check_few_values(text, count, "here", ConfigError)
    if count:
        with pytest.raises(ConfigError, match=f"^here holds more than {count - 1} values, the most that are read$"):
            check_few_values(text, count - 1, "here", ConfigError)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_values_do_not_hide_in_another_encoding(encoding):
    """By its bytes an odd letter of UTF-16 is a quote: what follows would look like one text."""
    hidden = '["\u2200", 1, 1, 1, 1]'
    assert parse_json(hidden.encode(encoding), "here") == ["\u2200", 1, 1, 1, 1]
    with pytest.raises(ConfigError, match=r"^here is not JSON in UTF-8$"):
        check_few_values(hidden.encode(encoding), 3, "here", ConfigError)


def test_a_text_that_is_never_closed_is_looked_at_once():
    """Where each of its escaped quotes were tried as the beginning of one, this would take hours."""
    check_few_values(b'"' + b'\\"' * (1 << 20) + b"," * 9, 8, "here", ConfigError)


def test_texts_that_follow_each_other_are_left_to_the_parser():
    text = b'["a" "b"' + b' "c"' * 1000 + b"]" + b"," * 9
    check_few_values(text, 9, "here", ConfigError)
    with pytest.raises(ConfigError, match="not JSON: Expecting ',' delimiter at column 6"):
        parse_json(text, "here")


def test_who_changes_what_was_read_changes_it_for_nobody_else():
    text = "&a {steps: [1, 2]}"
    parse_yaml(text, "settings")["steps"].append(3)
    assert parse_yaml(text, "settings") == {"steps": [1, 2]}
