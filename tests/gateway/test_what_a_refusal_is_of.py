"""The two questions by which the blame for a refusal is given: whether agents may have written what was refused, and
whether an app's error came of the refusal."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("openai", reason="comes with the dev extra")

import httpx
import openai

from coachrl.errors import AppFailed
from coachrl.gateway.calls import BadRequest, HeldUp, NotGiven, UnknownModel
from coachrl.gateway.refusals import came_of, may_have_written, tells_of_time_out


@pytest.mark.parametrize(
    ("replies", "parts", "may"),
    [
        (["ask the Code-Reviewer!"], ["code_reviewer"], True),
        (["code", "reviewer"], ["CodeReviewer"], True),
        (["plan it"], ["plannr"], False),
        (["I take 2."], ["2"], True),
        (["agent2"], ["2"], True),
        (["I take 12."], ["2"], False),
        (["fine"], ["{", "", "..."], False),
        ([], ["critic"], False),
        (["fine"], [], False),
    ],
)
def test_parts_are_found_in_replies_whatever_their_case_and_signs(replies, parts, may):
    assert may_have_written(replies, parts) is may


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("plannr", ["plannr", "plannr"]),
        ("planner-math", ["planner-math", "math"]),
        ("planner-coder", ["planner-coder", "planner", "coder"]),
        ("PlannerMath2", ["PlannerMath2", "Math", "2"]),
        ("gpt-4o", ["gpt-4o", "gpt"]),
        ("4", ["4"]),
        ("HTTPServer", ["HTTPServer", "HTTPS", "erver"]),
    ],
)
def test_of_a_name_the_words_that_are_no_roles_count_for_themselves(name, parts):
    assert UnknownModel(name, ("planner", "coder")).written == parts


def test_a_name_with_a_blank_too_many_is_told_with_it():
    assert str(UnknownModel("coder ", ("coder",))).startswith("there is no model 'coder '; ")


REFUSED = NotGiven("response_format: this is not supported here; leave it out", "response_format")


def caused(error, cause):
    error.__cause__ = cause
    return error


def in_a_circle():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    return first


class Rude(Exception):
    def __str__(self):
        raise SystemExit

    @property
    def response(self):
        raise RuntimeError("no response")


@pytest.mark.parametrize(
    ("failure", "refusal", "of_it"),
    [
        (RuntimeError(f"Error code: 400 - {{'message': {str(REFUSED)!r}}}"), REFUSED, True),
        (caused(RuntimeError("it fell"), ValueError(str(REFUSED))), REFUSED, True),
        (ExceptionGroup("two", [KeyError("x"), ValueError(str(REFUSED))]), REFUSED, True),
        (RuntimeError("it fell"), REFUSED, False),
        (in_a_circle(), REFUSED, False),
        (Rude(), REFUSED, False),
        (caused(openai.APIConnectionError(request=None), None), HeldUp("x"), True),
        (caused(RuntimeError("it fell"), ConnectionResetError()), HeldUp("x"), True),
        (caused(RuntimeError("it fell"), httpx.ReadError("")), HeldUp("x"), True),
        (ValueError("x"), HeldUp("x"), False),
    ],
)
def test_an_app_fails_on_a_refusal_where_its_error_or_the_cause_of_that_says_so(failure, refusal, of_it):
    assert came_of(failure, refusal) is of_it


def test_an_error_that_holds_the_answer_says_what_is_in_it():
    failure = ValueError("Client error '400 Bad Request'")
    failure.response = SimpleNamespace(text=json.dumps({"error": {"message": str(REFUSED)}}))
    assert came_of(failure, REFUSED)
    assert not came_of(failure, BadRequest("another"))


@pytest.mark.parametrize(
    ("error", "tells"),
    [
        (httpx.ReadTimeout("timed out"), True),
        (openai.APITimeoutError(httpx.Request("POST", "http://localhost")), True),
        (caused(ValueError("no plan"), TimeoutError()), True),
        (AppFailed("python ended with exit code 1: httpx.ReadTimeout: timed out"), True),
        (ValueError("no plan"), False),
        (httpx.ReadError("reset"), False),
    ],
)
def test_an_app_that_waited_no_longer_says_so_by_the_name_of_its_error(error, tells):
    assert tells_of_time_out(error) is tells
