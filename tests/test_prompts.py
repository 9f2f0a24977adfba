"""Prompt files: declared fields, one-pass filling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coachrl.errors import ConfigError
from coachrl.prompts import load_prompt, parse_prompt

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
