"""What surrounds a call: keys with a line end, proxies, ~/.netrc, and servers that answer to do harm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_clients import EIGHT, GEMINI, SECRET, ask, client_factory
from scripted_server import Received, ScriptedServer, Step, say

from coachrl.coach.clients.base import TransientCoachError
from coachrl.coach.clients.secrets import without_secrets
from coachrl.errors import CoachError, CoachUnavailable

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")

SERVER, LITELLM = "openai/judge", "openai/gpt-4o"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        for variable in (name, name.lower()):
            monkeypatch.setenv(variable, "")  # so that it is as before in the end, whoever sets it meanwhile
            monkeypatch.delenv(variable)


class Elsewhere(ScriptedServer):
    """A server whose address clients do not know as this machine's."""

    host = "127.0.0.2"


async def answered(
    model: str, step: Step, base: str | None = None, kind: type[ScriptedServer] = ScriptedServer
) -> tuple[str, Received | None]:
    """The text of one reply, and the request as the server got it, if it did."""
    async with kind([step]) as server:
        base = base or (server.gemini_base if model == GEMINI else server.openai_base)
        client = client_factory(max_attempts=1).client(model, base)
        try:
            return (await client.complete(ask())).text, server.requests[0] if server.requests else None
        finally:
            await client.close()


@pytest.mark.parametrize("key", [f"{SECRET}\n", f"{SECRET}\r\nX-Evil: 1", "sk-ключ", "“sk-quoted”"])
@pytest.mark.parametrize(
    ("model", "variable"),
    [(SERVER, "OPENAI_API_KEY"), (LITELLM, "OPENAI_API_KEY"), ("hosted_vllm/judge", "HOSTED_VLLM_API_KEY"),
     (GEMINI, "GEMINI_API_KEY")],
)  # fmt: skip
def test_a_key_that_cannot_be_sent_names_its_variable(
    key: str, model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, key)
    for base in ("http://127.0.0.1:1/v1", None):
        if model.startswith("hosted_vllm/") and base is None:
            continue
        with pytest.raises(CoachUnavailable, match=f"^{variable} holds a line end, or another character") as refused:
            client_factory().client(model, base)
        assert key.strip() not in str(refused.value)


async def test_credentials_that_netrc_holds_for_a_server_are_not_sent_where_a_proxy_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password hunter2hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # of other addresses
    text, received = await answered(SERVER, say(EIGHT))
    assert text == EIGHT and received is not None and received.headers["Authorization"] == f"Bearer {SECRET}"
    monkeypatch.delenv("OPENAI_API_KEY")
    text, received = await answered(SERVER, say(EIGHT))
    assert text == EIGHT and received is not None and "Authorization" not in received.headers


async def test_a_server_is_asked_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer([say(EIGHT)]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address.replace("//", "//ann:hunter2hunter2@"))
        text, _ = await answered(SERVER, say("not asked"), "http://judge.invalid/v1")
        assert text == EIGHT and proxy.requests[0].headers["Host"] == "judge.invalid"
        assert proxy.requests[0].headers["Proxy-Authorization"].startswith("Basic ")
        monkeypatch.setenv("NO_PROXY", "127.0.0.2")
        assert (await answered(SERVER, say("directly"), kind=Elsewhere))[0] == "directly"


@pytest.mark.parametrize("model", [SERVER, LITELLM, GEMINI])
@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
async def test_a_server_on_this_machine_is_asked_without_the_proxy_which_could_not_reach_it(
    name: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "an.internal.host")
    assert (await answered(model, say(EIGHT)))[0] == EIGHT
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "an.internal.host,localhost,127.0.0.1,::1"


@pytest.mark.parametrize("proxy", ["socks5://ann:hunter2hunter2@127.0.0.1:1", "http://[::", "::::"])
@pytest.mark.parametrize("model", [SERVER, LITELLM, GEMINI])
async def test_a_proxy_that_cannot_be_used_is_an_error_of_one_line(
    proxy: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(CoachError) as refused:
        await answered(model, say(EIGHT), kind=Elsewhere)
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)
    assert "/v1' is not a URL" not in str(refused.value)  # the address is one


def test_of_secrets_that_begin_alike_each_is_hidden_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "sk-abcdefgh")
    monkeypatch.setenv("B_TOKEN", "sk-abcdefgh-and-more")
    monkeypatch.setenv("C_TOKEN", " sk-with-blanks\n")
    said = "sk-abcdefgh-and-more sk-abcdefgh sk-with-blanks."
    assert without_secrets(said) == "[B_TOKEN] [A_TOKEN] [C_TOKEN]."


def whole(**more: object) -> str:
    message = {"role": "assistant", "content": EIGHT}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage, **more})


async def test_an_answer_of_a_million_values_is_not_made_into_them() -> None:
    assert (await answered(SERVER, Step(body=whole(more=[[]] * 10_000))))[0] == EIGHT
    with pytest.raises(TransientCoachError, match="cannot be read: it holds more than 100,000 values") as refused:
        await answered(SERVER, Step(body=whole(more=[[]] * 1_000_000)))
    assert not refused.value.answered  # it may be billed


async def test_of_an_error_of_megabytes_the_beginning_is_read() -> None:
    body = json.dumps({"error": {"message": "The judge is lost.", "more": ["?a"] * 2_000_000}})
    with pytest.raises(CoachError, match=r'^coach openai/judge: 400 \{"error": \{"message": "The judge is lost\."'):
        await answered(SERVER, Step(http_status=400, body=body))


async def test_a_password_in_the_address_of_a_server_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", "http://ann:hunter2hunter2@127.0.0.1:1/v1")
    client = client_factory(max_attempts=1).client("hosted_vllm/judge")
    with pytest.raises(TransientCoachError, match=r"http://\*\*\*@127.0.0.1:1/v1/chat/completions: ") as refused:
        await client.complete(ask())
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv("HOSTED_VLLM_API_KEY", SECRET)  # which of the two is to be sent?
    client = client_factory(max_attempts=1).client("hosted_vllm/judge")
    with pytest.raises(CoachUnavailable, match=r"cannot be asked: .*credentials encoded in URL") as refused_both:
        await client.complete(ask())
    assert "hunter2" not in str(refused_both.value)


OUT_OF_FILES = """
import asyncio, os, resource
from coachrl.coach.clients.base import ChatRequest, TransientCoachError
from coachrl.coach.clients.ledger import Message
from coachrl.coach.clients.providers import make_provider
from coachrl.config import CoachConfig

async def main():
    provider = make_provider("hosted_vllm/judge", "http://127.0.0.1:1/v1", CoachConfig())
    provider._open()
    taken = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, taken + 1))
    try:
        await provider.complete(ChatRequest((Message("user", "?"),)))
    except TransientCoachError as error:
        print(error.answered, error)

asyncio.run(main())
"""


def test_out_of_open_files_a_call_fails_by_its_own_error_and_may_be_made_again() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_FILES], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True coach hosted_vllm/judge: http://127.0.0.1:1/v1"), done.stderr
    assert "Too many open files" in done.stdout
