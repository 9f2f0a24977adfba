"""What goes to a provider and what its answers mean, piece by piece: without any socket."""

import resource
from types import SimpleNamespace
from typing import Any

import pytest
from chat_clients import ask

from coachrl.coach.clients.base import (
    ChatRequest,
    CoachUnavailable,
    Function,
    Provider,
    Reply,
    TransientCoachError,
    ending_of,
    is_throttle,
    text_of,
)
from coachrl.coach.clients.gemini import _retry_after_s
from coachrl.coach.clients.ledger import FunctionCall, Message
from coachrl.coach.clients.openai_compatible import _message, conversation, reply_of
from coachrl.coach.clients.secrets import without_secrets
from coachrl.config import CoachConfig
from coachrl.errors import CoachError


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([], ""),
        (["a", {"type": "text", "text": "b"}], "ab"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "7?"}]}, {"type": "text", "text": "8"}], "8"),
    ],
)
def test_text_comes_whole_or_in_parts(content: Any, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize("content", [7, {"text": "a"}, [{"image": "a"}], ["a", None], [{"text": 7}]])
def test_what_is_no_text_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        text_of(content)


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        ("stop", "stop"),
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("refusal", "content_filter"),
        ("SAFETY", "content_filter"),
        ("tool_calls", "tool_calls"),
        (None, ""),
        (3, ""),
    ],
)
def test_every_providers_word_for_an_ending_is_one_of_ours(reason: Any, ending: str) -> None:
    assert ending_of(reason) == ending


@pytest.mark.parametrize(
    ("status", "said", "throttle"),
    [(429, "", True), (529, "", True), (503, "is Overloaded", True), (500, "overloaded", True), (503, "down", False),
     (499, "overloaded", False), (408, "", False)],
)  # fmt: skip
def test_a_throttle_is_a_status_or_an_overload_of_the_server(status: int, said: str, throttle: bool) -> None:
    assert is_throttle(status, said) is throttle


class Silent(Provider):
    """A provider that is never asked."""

    async def close(self) -> None: ...

    async def _answer(self, request: Any) -> Any: ...

    def _read(self, answer: Any, request: Any) -> Reply:
        return Reply("", self.model)

    def _explained(self, error: Exception) -> CoachError | None:
        return None


@pytest.mark.parametrize(
    ("status", "said", "passing", "kind", "words"),
    [
        (429, "insufficient_quota", False, CoachUnavailable, "no money left"),
        (429, "Your account is not active (billing_not_active)", False, CoachUnavailable, "no money left"),
        (400, "Your credit balance is too low", False, CoachUnavailable, "no money left"),
        (500, "billing_hard_limit", False, TransientCoachError, "billing_hard_limit"),
        (401, "a", False, CoachUnavailable, "check the key"),
        (402, "a", False, CoachUnavailable, "no money left"),
        (403, "a", True, CoachUnavailable, "check the key"),
        (404, "a", False, CoachUnavailable, "no such model or address"),
        (408, "a", False, TransientCoachError, "coach m: a"),
        (409, "a", False, TransientCoachError, "coach m: a"),
        (425, "a", False, TransientCoachError, "coach m: a"),
        (429, "a", False, TransientCoachError, "coach m: a"),
        (500, "a", False, TransientCoachError, "coach m: a"),
        (499, "a", False, CoachError, "coach m: a"),
        (499, "a", True, TransientCoachError, "coach m: a"),
        (400, "a", False, CoachError, "coach m: a"),
        (None, "a", False, CoachError, "coach m: a"),
        (None, "a", True, TransientCoachError, "coach m: a"),
    ],
)
def test_a_refusal_is_for_good_for_this_request_or_for_now(
    status: int | None, said: str, passing: bool, kind: type[CoachError], words: str
) -> None:
    error = Silent("m", None, CoachConfig())._refused(status, said, 2.5, "check the key", passing)
    assert type(error) is kind and words in str(error)
    if isinstance(error, TransientCoachError):
        assert (error.retry_after_s, error.answered, error.throttled) == (2.5, True, status == 429)


def test_a_thousand_calls_may_hold_a_file_each_where_the_usual_limit_is_lower() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few, most = 256, before[1] if before[1] != resource.RLIM_INFINITY else 16384
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        Silent("m", None, CoachConfig())
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(16384, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("model", "base", "said"),
    [
        ("hosted_vllm/m", "http://h:8000/", "address: it was asked under http://h:8000, and most such addresses end"),
        ("openai/m", "http://h/v1/chat/completions", "address: it was asked under http://h/v1/chat/completions, and"),
        ("openai/m", "http://h/v1/", "address)"),
        ("openai/m", None, "address)"),
        ("ollama/m", "http://h:11434", "address)"),
    ],
)
def test_an_address_that_looks_cut_or_too_long_is_told_with_what_is_not_found(
    model: str, base: str | None, said: str
) -> None:
    assert f"(the provider knows no such model or {said}" in str(
        Silent(model, base, CoachConfig())._refused(404, "Not Found", None, "")
    )


def test_secrets_of_the_environment_and_of_urls_are_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "12345678")
    monkeypatch.setenv("db_password", "abcdefgh")
    monkeypatch.setenv("AWS_CREDENTIALS", "ijklmnop")
    monkeypatch.setenv("SHORT_TOKEN", "1234567")
    monkeypatch.setenv("HARMLESS", "plainwords")
    said = "12345678 abcdefgh ijklmnop 1234567\n plainwords http://u:p@h/x?key=1"
    hidden = "[MY_API_KEY] [db_password] [AWS_CREDENTIALS] 1234567"
    assert without_secrets(said) == f"{hidden} plainwords http://***@h/x?key=***"
    assert without_secrets("a" * 300) == "a" * 300 and without_secrets("a" * 301) == "a" * 300 + "..."
    assert without_secrets("down" + " " * 29_990 + "12345678") == "down"  # which is cut in the middle of the key
    assert without_secrets("host:1 ssl:default [x] ssl:<ssl.SSLContext object>") == "host:1 [x]"


@pytest.mark.parametrize(
    "spelled", ['a/b+c=%d"e', "a%2Fb%2Bc%3D%25d%22e", "a/b%2Bc%3D%25d%22e", r"a/b+c=%d\"e", r"a\/b+c=%d\"e"]
)
def test_secrets_are_in_no_message_as_urls_and_json_spell_them(monkeypatch: pytest.MonkeyPatch, spelled: str) -> None:
    monkeypatch.setenv("MY_API_KEY", 'a/b+c=%d"e')
    assert without_secrets(f"no such key: {spelled}!") == "no such key: [MY_API_KEY]!"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "a", "code": "b"}}', "a (b)"),
        (b'{"error": {"message": "a", "code": 4}}', "a"),
        (b'{"message": "a"}', "a"),
        (b'{"error": "a"}', '{"error": "a"}'),
        (b"[1]", "[1]"),
        (b"down \xff", "down \ufffd"),
    ],
)
def test_what_a_server_says_is_found_wherever_it_puts_it(body: bytes, said: str) -> None:
    assert _message(body) == said


FUNCTION = Function("run", "Runs.", {"type": "object"})


def test_a_request_has_a_schema_for_who_takes_one_and_a_function_that_may_be_closed() -> None:
    plain = {"messages": [{"role": "user", "content": "Judge."}]}
    assert conversation(ask(), structured=True) == conversation(ask(schema={"a": 1}), structured=False) == plain
    held = conversation(ask(schema={"a": 1}), structured=True)["response_format"]
    assert held == {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": {"a": 1}}}
    for is_open, choice in ((True, "auto"), (False, "none")):
        fields = conversation(ask(function=Function("run", "Runs.", {}, open=is_open)), structured=True)
        assert fields["tool_choice"] == choice
        described = {"name": "run", "description": "Runs.", "parameters": {}}
        assert fields["tools"] == [{"type": "function", "function": described}]


def test_a_reply_goes_back_as_it_came_and_an_answer_names_its_call() -> None:
    request = ask(function=FUNCTION)
    call = {"id": "c1", "function": {"name": "run", "arguments": "{}"}, "type": "function"}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "audio": 1}
    reply = reply_of("m", request, message, "tool_calls")
    assert reply.calls == (FunctionCall("c1", "run", "{}"),) and reply.said == "run({})"
    assert reply.native == {key: message[key] for key in ("role", "content", "tool_calls", "reasoning_content")}
    asked = [Message("assistant", reply.said, reply.native), Message("tool", "7", answers=reply.calls[0])]
    sent = conversation(ChatRequest(tuple(asked)), structured=False)["messages"]
    assert sent == [reply.native, {"role": "tool", "content": "7", "tool_call_id": "c1"}]
    unasked = reply_of("m", ask(), {**message, "content": "words"}, "length")
    assert (unasked.calls, unasked.native, unasked.text, unasked.finish_reason) == ((), None, "words", "length")


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "3"}, {"retryDelay": "34s"}, 3.0),
        ({}, {"error": {"details": [{"retryDelay": "34.5s"}]}}, 34.5),
        ({"Retry-After": "soon"}, {"retryDelay": "2s"}, 2.0),
        ({}, {"retryDelay": "99999999s"}, None),
        ({}, {}, None),
        (None, "text", None),
    ],
)
def test_gemini_says_how_long_to_wait_in_a_header_or_among_its_details(
    headers: dict[str, str] | None, details: Any, seconds: float | None
) -> None:
    response = SimpleNamespace(headers=headers) if headers is not None else None
    assert _retry_after_s(SimpleNamespace(response=response, details=details)) == seconds
