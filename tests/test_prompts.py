"""Prompt files: declared fields, one-pass filling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.errors import ConfigError
from coachrl.prompts import load_prompt, parse_prompt
from coachrl.types import Task

TEXT = "---\nfields: [problem, draft]\n---\nSolve {{problem}} from {{draft}}. Keep \\boxed{x} and {braces}.\n"


def test_fields_are_filled_and_other_braces_stay():
    assert parse_prompt(TEXT, "p").render(problem="1+1", draft="2") == (
        "Solve 1+1 from 2. Keep \\boxed{x} and {braces}."
    )


@given(st.text(), st.text())
def test_values_are_never_filled_again(problem, draft):
    rendered = parse_prompt(TEXT, "p").render(problem="{{draft}}" + problem, draft=draft)
    assert rendered == "Solve {{draft}}" + problem + " from " + draft + ". Keep \\boxed{x} and {braces}."


@pytest.mark.parametrize("values", [{"problem": "x"}, {"problem": "x", "draft": "y", "answer": "z"}, {}])
def test_missing_and_unknown_fields_are_refused_by_name(values):
    with pytest.raises(ConfigError, match=r"draft|answer"):
        parse_prompt(TEXT, "p").render(**values)


def test_a_prompt_without_a_header_is_told_the_one_that_fits():
    with pytest.raises(ConfigError, match=r"stand in the text as \{\{field\}\}, here fields: \[problem, draft\]$"):
        parse_prompt("Is {{problem}} solved by {{draft}}? {{problem}}", "p")


@pytest.mark.parametrize(
    "text",
    [
        "no header at all",
        "---\nfields: [a]\n---\nbody without it",
        "---\nfields: []\n---\nbody with {{a}}",
        "---\nfields: problem\n---\n{{problem}}",
        "---\nfields: [[a]]\n---\n{{a}}",
        "---\nfields: [\n---\nx",
    ],
)
def test_header_and_body_must_agree(text):
    with pytest.raises(ConfigError, match="prompt p"):
        parse_prompt(text, "p")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.md"):
        load_prompt(tmp_path / "nowhere.md")


def test_a_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "latin.md").write_bytes(b"---\nfields: []\n---\n\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.md: not UTF-8"):
        load_prompt(tmp_path / "latin.md")


def test_what_is_missing_and_what_is_too_much_is_named_with_all_fields():
    prompt = parse_prompt(TEXT, "p")
    for values, said in (
        ({"draft": "y"}, "no value for problem (its fields: draft, problem)"),
        ({"problem": 1, "draft": 2, "b": 3, "a": 4}, "no place for a, b (its fields: draft, problem)"),
        ({"answer": 1, "draft": 2}, "no value for problem; no place for answer (its fields: draft, problem)"),
    ):
        with pytest.raises(ConfigError) as caught:
            prompt.render(**values)
        assert str(caught.value) == f"prompt p: {said}"
    with pytest.raises(ConfigError, match=r"no place for a \(its fields: none\)"):
        parse_prompt("---\nfields: []\n---\nx", "p").render(a=1)


def test_a_prompt_is_its_header_and_its_body_whatever_ends_their_lines(tmp_path):
    text = "---\nfields: []\nabout: mine\n---\n\nOne.\n---\nTwo.\n"
    prompt = parse_prompt(text.replace("\n", "\r\n"), "p")
    assert (prompt.body, prompt.header) == ("One.\n---\nTwo.", {"fields": [], "about": "mine"})
    assert prompt.sha256 != parse_prompt(text.replace("mine", "yours"), "p").sha256
    (tmp_path / "mine.v2.md").write_text(text)
    assert load_prompt(tmp_path / "mine.v2.md") == parse_prompt(text, "mine.v2")


@pytest.mark.parametrize("header", ["", "# nothing", "about: mine"])
def test_a_header_may_name_no_fields_where_the_body_has_none(header):
    assert parse_prompt(f"---\n{header}\n---\nAsk {{x}}.", "p").fields == frozenset()


@pytest.mark.parametrize("header", ["[a]", "fields: {a: 1}", "fields: a", "fields: [1]", "a", "fields:"])
def test_a_header_is_a_mapping_and_its_fields_a_list_of_names(header):
    with pytest.raises(ConfigError, match=r"^prompt p: the header must be a mapping whose 'fields' is a list of names"):
        parse_prompt(f"---\n{header}\n---\n{{{{a}}}}", "p")


def test_what_header_and_body_have_is_told_side_by_side():
    with pytest.raises(
        ConfigError, match=r"^prompt p: header declares \['a', 'b'\], body uses \['b', 'c'\]; they must"
    ):
        parse_prompt("---\nfields: [b, a]\n---\n{{c}} {{b}}", "p")


async def an_answer():
    """Never awaited."""


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: None, "NoneType"),
        (lambda: Task("t", "k", "1+1?", ground_truth="2"), "Task"),
        (an_answer, "coroutine"),
        (lambda: "text".upper, "builtin_function_or_method"),
    ],
)
def test_what_would_be_read_as_python_calls_it_is_no_text(make, kind):
    value = make()
    with pytest.raises(ConfigError, match=f"prompt p: problem is {kind}, no text"):
        parse_prompt(TEXT, "p").render(problem=value, draft="2")
    if kind == "coroutine":
        value.close()


@pytest.mark.parametrize("value", [3, 2.5, True, ["a"], {"a": 1}, np.float64(2.5)])
def test_numbers_and_lists_are_text(value):
    assert f"from {value}." in parse_prompt(TEXT, "p").render(problem="1+1", draft=value)
