"""Bodies that no provider should send: each has one answer, a score or a failure with its reason, and ends no run."""

import contextlib
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from cases import every
from chat_clients import EIGHT, GEMINI, SECRET, client_factory, requests_of, scored
from provider_bodies import USAGE, gemini, openai
from scripted_server import CUT, MALFORMED, Received, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients import litellm as litellm_client
from coachrl.coach.clients.base import Reply
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.ledger import FunctionCall
from coachrl.coach.clients.secrets import keyless, without_secrets
from coachrl.coach.criteria import parse_criteria, parse_verdict_by_criteria
from coachrl.coach.kinds.listwise import parse_scores
from coachrl.coach.kinds.retrospective import parse_attribution
from coachrl.coach.repeated_warnings import RepeatedWarnings
from coachrl.coach.replies import json_objects
from coachrl.coach.verdict import parse_verdict
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")

OPENAI_MODELS = ("openai/judge", "openai/gpt-4o")  # plain HTTP, LiteLLM
ODD_COUNTS: list[Any] = [None, "many", "10", -5, float("nan"), True, 10**400, {}, []]


@pytest.mark.parametrize("model", OPENAI_MODELS)
@pytest.mark.parametrize(
    "body",
    [
        openai([{"type": "text", "text": "Sound.\n"}, {"type": "text", "text": EIGHT}]),
        *(openai(EIGHT, usage={**USAGE, "completion_tokens": count}) for count in ODD_COUNTS),
        *(openai(EIGHT, usage=usage) for usage in (None, {}, [])),
    ],
    ids=lambda body: body[-90:],
)
async def test_text_is_read_whatever_else_is_odd(model: str, body: str) -> None:
    score = await scored(model, [Step(body=body)])
    if score.status == "failed":  # LiteLLM itself refuses to read some
        assert model == "openai/gpt-4o" and score.rationale.startswith("coach openai/gpt-4o: ")
    else:
        assert score.process_0_10 == 8


@pytest.mark.parametrize("model", OPENAI_MODELS)
async def test_an_answer_with_another_status_of_success_is_one(model: str) -> None:
    assert (await scored(model, [Step(http_status=201, body=openai(EIGHT))])).process_0_10 == 8
    nothing = await scored(model, [Step(http_status=202, body="")], budget=(budget := Budget(10.0)))
    assert nothing.status == "failed" and budget.spent_usd > 0  # it may be billed


@pytest.mark.parametrize("model", OPENAI_MODELS)
@pytest.mark.parametrize(
    "body",
    [
        openai(8),
        openai(True),
        openai({"text": EIGHT}),
        openai([8]),
        openai([{"type": "text", "text": None}]),
        openai(EIGHT, choices=[]),
        openai(EIGHT, choices=None),
        openai(EIGHT, choices={}),
        openai(EIGHT, choices=[8]),
        openai(EIGHT, choices=[{}]),
        openai(EIGHT, choices=[{"message": None}]),
        '{"id": "x"}',
        "null",
        "8",
        '"PROCESS_SCORE: 8"',
        "[" * 100_000,
        "<html><body>Bad gateway</body></html>",
        openai(EIGHT)[:60],
        "",
    ],
    ids=lambda body: body[:90],
)
async def test_a_body_without_text_is_a_failure_with_its_reason(model: str, body: str) -> None:
    score = await scored(model, [Step(body=body)])
    assert (score.status, score.process_0_10) == ("failed", None)
    assert model in score.rationale


@pytest.mark.parametrize("model", OPENAI_MODELS)
async def test_an_empty_content_is_an_empty_reply(model: str) -> None:
    score = await scored(model, [Step(body=openai(None))])
    assert score.status == "failed" and "the reply is empty" in score.rationale


@pytest.mark.parametrize("model", OPENAI_MODELS)
async def test_a_refusal_does_not_end_the_schema_of_the_run(model: str) -> None:
    """OpenAI says one beside an empty content, where a model is held to a schema."""
    message = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    body = openai(None, choices=[{"index": 0, "message": message, "finish_reason": "stop"}])
    async with ScriptedServer([Step(body=body), say('{"process_score": 7}')]) as server:
        made = client_factory(structured=True)
        coach = make_coach(CoachConfig(name=model, api_base=server.openai_base), client_factory=made)
        first, second = requests_of(2)
        with pytest.raises(CoachError, match="the model refused: 'I cannot help with that"):
            await coach.score(first)
        assert (await coach.score(second)).process_0_10 == 7
        await coach.close()
        assert [("response_format" in request.body) for request in server.requests] == [True, True]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gemini([{"text": "Sound.\n"}, {"text": EIGHT}]), "scored"),
        (gemini([{"text": EIGHT}], usageMetadata=None), "scored"),
        (gemini([{"text": EIGHT}], usageMetadata={"promptTokenCount": -1, "candidatesTokenCount": 5}), "scored"),
        (gemini([{"text": 8}]), "failed"),
        (gemini(8), "failed"),
        (gemini(None), "failed"),
        (gemini([{"text": EIGHT}], "OTHER", candidates=[]), "failed"),
        (gemini([{"text": EIGHT}], candidates=[None]), "failed"),
        (gemini([{"text": EIGHT}], candidates=8), "failed"),
        ("null", "failed"),
        ("8", "failed"),
        ("[]", "failed"),
        ("[" * 100_000, "failed"),
        ("<html></html>", "failed"),
        ("", "failed"),
        (gemini([{"text": EIGHT}])[:40], "failed"),
    ],
    ids=lambda value: value[:90],
)
async def test_odd_bodies_through_googles_library(body: str, status: str) -> None:
    score = await scored(GEMINI, [Step(body=body)])
    assert (score.status, score.process_0_10) == (status, 8 if status == "scored" else None)


@pytest.mark.parametrize("usage", [None, {}, {**USAGE, "prompt_tokens": -100}, {**USAGE, "completion_tokens": "few"}])
async def test_a_reply_without_usage_costs_what_was_reserved(usage: Any, tmp_path: Path) -> None:
    ledger, budget = tmp_path / "ledger.jsonl", Budget(10.0)
    score = await scored("openai/judge", [Step(body=openai(EIGHT, usage=usage))], ledger, budget)
    assert (score.process_0_10, score.usage.cost_usd) == (8, None)
    assert budget.spent_usd > 0.1  # 100 tokens at $1000 a million, and the prompt
    assert spent_in(ledger) == pytest.approx(budget.spent_usd)


async def test_an_answer_that_litellm_cannot_read_may_be_billed_and_is_no_traceback(tmp_path: Path) -> None:
    body = openai([{"type": "text", "text": EIGHT}])
    score = await scored("openai/gpt-4o", [Step(body=body)], tmp_path / "l.jsonl", budget := Budget(100.0))
    assert score.status == "failed" and "cannot be read" in score.rationale
    assert "Traceback" not in score.rationale and budget.spent_usd > 0


@pytest.mark.parametrize("trouble", [CUT, MALFORMED, Step(body=openai(EIGHT)[:-9])], ids=["cut", "no JSON", "half"])
async def test_what_broke_off_through_litellm_may_be_billed_whatever_status_it_makes_of_that(
    trouble: Step, tmp_path: Path
) -> None:
    budget = Budget(100.0)
    score = await scored("openai/gpt-4o", [trouble], ledger := tmp_path / "l.jsonl", budget)
    assert score.status == "failed" and score.usage.cost_usd is None
    assert spent_in(ledger) == pytest.approx(budget.spent_usd) and budget.spent_usd > 0
    await scored("openai/gpt-4o", [status(500)], tmp_path / "m.jsonl", refused := Budget(100.0))
    assert refused.spent_usd == 0


@pytest.mark.parametrize("calls", ["junk", [1], [{"id": None, "function": None}]], ids=str)
async def test_calls_of_functions_that_nobody_offered_are_not_read(calls: Any) -> None:
    message = {"role": "assistant", "content": EIGHT, "tool_calls": calls}
    score = await scored("openai/judge", [Step(body=openai("", choices=[{"message": message}]))])
    assert score.process_0_10 == 8


@pytest.mark.parametrize("model", [*OPENAI_MODELS, GEMINI])
async def test_a_reply_that_was_cut_is_asked_for_again_with_more_room(model: str) -> None:
    """The score is a 10 that was cut to a 1."""
    async with ScriptedServer([say("PROCESS_SCORE: 1", finish_reason="length"), say("PROCESS_SCORE: 10")]) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        coach = make_coach(CoachConfig(name=model, api_base=base, max_tokens=100), client_factory=client_factory())
        score = await coach.score(requests_of(1)[0])
        await coach.close()
        rooms = [json.dumps(received.body) for received in server.requests]
    assert (score.process_0_10, score.usage.attempts) == (10, 2)
    assert [f": {room}" in body for room, body in zip((100, 200), rooms, strict=True)] == [True, True]


@pytest.mark.parametrize("text", ["", " \n"])
async def test_a_reply_of_nothing_is_not_sent_back_as_it_is(text: str) -> None:
    """Some providers, Anthropic for one, refuse a message without a word in it."""
    async with ScriptedServer([say(text), say(EIGHT)]) as server:
        config = CoachConfig(name="openai/judge", api_base=server.openai_base)
        coach = make_coach(config, client_factory=client_factory())
        assert (await coach.score(requests_of(1)[0])).process_0_10 == 8
        await coach.close()
        assert server.requests[1].body["messages"][1] == {"role": "assistant", "content": "(empty)"}


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "content_filter", "refusal"])
async def test_a_score_in_a_cut_or_blocked_reply_is_none(reason: str) -> None:
    score = await scored("openai/judge", [Step(body=openai("PROCESS_SCORE: 1", reason))])
    assert (score.status, score.process_0_10) == ("failed", None)
    assert "ended by: " in score.rationale


MEGABYTE = 1_000_000
PIECES = ["<suggestion>\n", "</suggestion>\n", "{\n", '{"a":\n', "[", "*", "PROCESS_SCORE: ", "9", "\\", "<think>"]
PIECES += ["<analysis>\n</analysis>\n", "RESIDUAL: ", "RESIDUAL: x\n", "CONTRIBUTION: 1\nRESIDUAL: x\n", "#\n"]
PIECES += ["`", '"', "<", "ABSTAIN\n", '{"a": 8}\n', "SCORE A: 3\n", "\u3000\n", "e\u0301\u202e"]
HUGE = [piece * (MEGABYTE // len(piece)) for piece in PIECES]
HUGE += [f"{EIGHT}\n{' ' * MEGABYTE}x", f"PROCESS_SCORE: 8{' ' * MEGABYTE}x", f"PROCESS_SCORE: {'1' * MEGABYTE}"]
HUGE += ['{"a":[\n' * 99 + "1," * MEGABYTE, '{"a":1,"a":\n' * 99 + '{"a":1,"a":[' + "1," * MEGABYTE + "1]}"]


CRITERIA = parse_criteria({"criteria": {"a": {"question": "Is it right?"}}}, "made up")
READERS = [
    parse_verdict,
    parse_attribution,
    partial(parse_scores, letters="AB"),
    partial(parse_verdict_by_criteria, criteria=CRITERIA),
]


@pytest.mark.parametrize("read", READERS, ids=["verdict", "attribution", "comparison", "criteria"])
@pytest.mark.parametrize("reply", every(3, HUGE), ids=lambda reply: f"{reply[:12]}...{reply[-12:]}")
def test_a_reply_of_a_megabyte_is_read_in_one_pass(read: Callable[[str], object], reply: str) -> None:
    """More than one pass for each of its pieces would take hours."""
    with contextlib.suppress(CoachError):
        read(reply)


@pytest.mark.parametrize(
    "line", ["PROCESS_SCORE: 8", "ANSWER_CORRECT: 1", "ABSTAIN", "CONTRIBUTION: 8", "SCORE A: 8", "SCORE a: 8"]
)
@pytest.mark.parametrize("read", READERS, ids=["verdict", "attribution", "comparison", "criteria"])
def test_what_is_said_ten_thousand_times_is_weighed_once(read: Callable[[str], object], line: str) -> None:
    """A line that is said again costs the few calls that find it, and none to read what it says."""
    calls = Counter[str]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        calls[event] += 1

    sys.setprofile(count)
    try:
        with contextlib.suppress(CoachError):
            read(f"{line}\n" * 10_000)
    finally:
        sys.setprofile(None)
    assert calls["c_call"] < 25_000 and calls["call"] < 11_000


def test_a_reply_of_a_thousand_objects_or_of_two_megabytes_is_refused_in_one_line() -> None:
    with pytest.raises(CoachError, match=r"more than 1,000 JSON objects$"):
        parse_verdict('{"process_score": 8}\n' * 1001)
    with pytest.raises(CoachError, match=r"2,000,016 characters, of which at most 1,048,576 are read$"):
        parse_verdict("x" * 2 * MEGABYTE + EIGHT)


def test_objects_that_never_end_are_looked_through_twice_at_most() -> None:
    assert list(json_objects('{"a":[\n' * 99 + '1,\n{"b": 1}')) == []
    assert [found for found, _ in json_objects('{"a":[\n' + '\n{"b": 1}')] == [{"b": 1}]


def test_an_error_of_a_megabyte_is_cut_and_named_in_one_pass(caplog: pytest.LogCaptureFixture) -> None:
    assert len(without_secrets(" ssl:<" * (MEGABYTE // 6))) < 1000
    for pattern in (litellm_client._TRACEBACK, litellm_client._ADVICE):
        assert pattern.sub("", f"Wrong.{' ' * MEGABYTE}x") == f"Wrong.{' ' * MEGABYTE}x"
    RepeatedWarnings(logging.getLogger("coachrl")).warn("action e1/0", "a" * MEGABYTE)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("model", ["openai/judge", "gemini/gemini-2.5-flash"])
async def test_a_model_that_answers_a_schema_with_nothing_is_asked_in_plain_words_from_then_on(model: str) -> None:
    def script(received: Received) -> Step:
        return say("" if "schema" in json.dumps(received.body).lower() else EIGHT)

    async with ScriptedServer(script) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        made = client_factory(structured=True)
        coach, other = (
            make_coach(CoachConfig(name=model, api_base=base, structured=True), client_factory=made) for _ in range(2)
        )
        first, second = [await coach.score(request) for request in requests_of(2)]
        third = await other.score(requests_of(3)[2])
        await coach.close()
        await other.close()
        asked = len(server.requests)
    assert [score.process_0_10 for score in (first, second, third)] == [8, 8, 8]
    assert [score.usage.attempts for score in (first, second, third)] == [2, 1, 1] and asked == 4


async def test_a_model_that_answered_under_a_schema_keeps_to_it_after_an_empty_reply() -> None:
    """An agent that brings one about would else choose the form in which its judge answers."""
    one, two, nothing, well = say('{"process_score": 1}'), say('{"process_score": 2}'), say(""), say(EIGHT)
    script = [one, nothing, well, two, nothing, well, nothing, well, well]
    async with ScriptedServer(script) as server:
        config = CoachConfig(name="openai/judge", api_base=server.openai_base, structured=True)
        coach = make_coach(config, client_factory=client_factory(structured=True))
        given = [(await coach.score(request)).process_0_10 for request in requests_of(6)]
        await coach.close()
        held = ["response_format" in request.body for request in server.requests]
    assert given == [1, 8, 2, 8, 8, 8]
    assert held == [True, True, False, True, True, False, True, False, False], "empty more often than not"


async def test_a_model_that_answers_nothing_at_all_is_asked_twice_more_and_has_no_score() -> None:
    async with ScriptedServer([say("")]) as server:
        made = client_factory(structured=True)
        config = CoachConfig(name="openai/judge", api_base=server.openai_base, structured=True)
        coach = make_coach(config, client_factory=made)
        for asked in (3, 6):  # nothing is known against the schema
            with pytest.raises(CoachError, match="the reply is empty"):
                await coach.score(requests_of(1)[0])
            assert len(server.requests) == asked
        await coach.close()


@pytest.mark.parametrize("error", ["[" * 100_000, '{"error":' * 100_000], ids=["lists", "objects"])
async def test_an_error_that_is_nested_without_an_end_is_a_failure_with_its_reason(error: str) -> None:
    score = await scored("openai/judge", [Step(http_status=400, body=error)])
    assert score.status == "failed" and score.rationale.startswith(f"coach openai/judge: 400 {error[:9]}")


async def test_a_throttle_with_a_status_of_200_is_one() -> None:
    busy = Step(body='{"error": {"message": "Rate limit exceeded", "code": 429}}')
    score = await scored("openai/judge", [*[busy] * 5, say(EIGHT)])  # more than coach.max_attempts
    assert score.process_0_10 == 8


@pytest.mark.parametrize("model", OPENAI_MODELS)
async def test_an_account_without_money_is_said_at_once(model: str) -> None:
    spent = status(429, "You exceeded your current quota.", retry_after_s=1, code="insufficient_quota")
    async with ScriptedServer([spent]) as server:
        coach = make_coach(CoachConfig(name=model, api_base=server.openai_base), client_factory=client_factory())
        with pytest.raises(CoachUnavailable, match="no money left"):
            await coach.score(requests_of(1)[0])
        await coach.close()
        assert len(server.requests) == 1


@pytest.mark.parametrize("model", [*OPENAI_MODELS, GEMINI])
async def test_a_key_that_a_provider_repeats_in_its_reply_is_kept_nowhere(model: str, tmp_path: Path) -> None:
    ledger = tmp_path / "l.jsonl"
    score = await scored(model, [say(f"I was sent {SECRET}.\n{EIGHT}")], ledger)
    assert score.process_0_10 == 8 and "_API_KEY]." in score.rationale
    assert SECRET not in score.rationale + ledger.read_text(encoding="utf-8")


async def test_a_key_where_no_text_belongs_is_in_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": EIGHT}, "finish_reason": "stop"}
    body = {"id": [SECRET], "model": [SECRET], "created": 0, "choices": [choice], "usage": USAGE}
    assert (await scored("openai/gpt-4o", [Step(body=json.dumps(body))])).process_0_10 == 8
    assert SECRET not in "".join(str(one.message) for one in recwarn)


def test_secrets_that_may_be_any_word_or_number_leave_replies_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KEY_A": SECRET, "DB_PASSWORD": "postgres", "PIN_TOKEN": "1234567890123456"}.items():
        monkeypatch.setenv(name, value)
    native = {"args": {"n": 1234567890123456, "of": ["postgres", SECRET, None, object]}}
    calls = (FunctionCall(f"call_{SECRET}", f"f_{SECRET}", SECRET),)
    reply = keyless(Reply("postgres", "m", calls=calls, native=native))
    assert reply.text == "postgres"
    assert reply.calls == (FunctionCall("call_[KEY_A]", "f_[KEY_A]", "[KEY_A]"),)
    assert reply.native == {"args": {"n": 1234567890123456, "of": ["postgres", "[KEY_A]", None, object]}}


@pytest.mark.parametrize("model", [*OPENAI_MODELS, GEMINI])
async def test_half_a_character_in_a_reply_harms_neither_the_next_question_nor_the_cache(
    model: str, tmp_path: Path
) -> None:
    async with ScriptedServer([say("So far \ud83d"), say(f"Now \ud83d\n{EIGHT}")]) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        for _ in range(2):  # the second time from the cache
            made = client_factory(cache=tmp_path / "cache.sqlite", max_attempts=1)
            coach = make_coach(CoachConfig(name=model, api_base=base, structured=False), client_factory=made)
            score = await coach.score(requests_of(1)[0])
            await coach.close()
            made.close()
            assert (score.process_0_10, score.rationale) == (8, f"Now \ufffd\n{EIGHT}")
        assert len(server.requests) == 2


@pytest.mark.parametrize("model", ["openai/judge", GEMINI])
async def test_a_word_for_an_ending_tells_no_key_and_is_no_book(model: str, tmp_path: Path) -> None:
    word, ledger = f"{SECRET} " + "x" * 100_000, tmp_path / "l.jsonl"
    body = gemini([{"text": "well"}], word) if model == GEMINI else openai("well", word)
    score = await scored(model, [Step(body=body)], ledger)
    assert score.status == "failed" and "ended by: [" in score.rationale
    assert SECRET not in score.rationale + ledger.read_text(encoding="utf-8") and len(score.rationale) < 1500


async def test_an_answer_that_unpacks_to_more_than_any_reply_is_not_read_to_its_end() -> None:
    bomb = openai("8" * (1 << 25))
    score = await scored("openai/judge", [Step(body=bomb, packed=True)])
    assert score.status == "failed" and "has more than 16,777,216 bytes" in score.rationale


async def test_what_is_asked_goes_to_no_other_address_than_the_one_named() -> None:
    async with ScriptedServer([say(EIGHT)]) as elsewhere:
        place = f"{elsewhere.openai_base}/chat/completions"
        with pytest.raises(CoachUnavailable, match=f"leads on to {place}: name that as api_base"):
            await scored("openai/judge", [Step(http_status=307, place=place)])
    assert not elsewhere.requests


@pytest.mark.parametrize("model", OPENAI_MODELS)
async def test_an_error_that_comes_as_a_good_answer_is_told(model: str) -> None:
    body = json.dumps({"error": {"message": "the judge model is being loaded", "code": 503}})
    score = await scored(model, [Step(body=body)])
    assert score.status == "failed" and "the judge model is being loaded" in score.rationale


@pytest.mark.parametrize("content", [5, {"a": 1}])
async def test_what_a_library_could_not_read_is_told_without_its_traceback(
    content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    block = {"type": "text", "text": content}
    counts = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [block], "usage": counts}
    score = await scored("anthropic/claude-3-5-haiku-20241022", [Step(body=json.dumps(message))])
    assert score.status == "failed" and "can only concatenate str" in score.rationale
    assert "Traceback" not in score.rationale
