"""Clients that misbehave, by accident or on purpose: each is answered in its provider's form, and holds up nobody."""

import asyncio
import gc
import json
import socket
import tracemalloc

import pytest

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

import httpx
from scripted_answerer import KEY, ScriptedAnswerer, WaitingAnswerer, events, reply
from uvicorn.protocols.http.h11_impl import H11Protocol

from coachrl.errors import ConfigError
from coachrl.gateway import server as server_module
from coachrl.gateway.calls import EngineFailed
from coachrl.gateway.server import Server, is_loopback, listen

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
BODY = {
    "/v1/chat/completions": {"model": "coder", "messages": [{"role": "user", "content": "?"}]},
    "/v1/responses": {"model": "coder", "input": "?"},
    "/v1/messages": {"model": "coder", "max_tokens": 5, "messages": [{"role": "user", "content": "?"}]},
}
HEADERS = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
CHAT = PATHS[0]


def web(server):
    """A client that opens as many connections as it has requests in flight."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, headers=HEADERS, timeout=300, limits=limits)


def is_error_of(path, body):
    """Whether a body is an error in the form of the provider whose path it is."""
    if path == "/v1/messages":
        return body["type"] == "error" and body["error"].keys() == {"type", "message"}
    return body["error"].keys() == {"message", "type", "param", "code"}


def head(path, length, host, extra=""):
    lines = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{lines}Content-Type: application/json\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


def address(server):
    url = httpx.URL(server.url)
    return url.host, url.port


def with_field(path, **fields):
    return {**BODY[path], **fields}


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{'model': 'coder'}",
    "a list": b"[]",
    "a number": b"5",
    "a text": b'"coder"',
    "cut": json.dumps(BODY[CHAT]).encode()[:-9],
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "half a character": b'{"model": "\\ud800", "messages": [{"role": "user", "content": "?"}], "input": "?"}',
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 500_000,
    "deep but whole": b'{"model": "coder", "tools": ' + b"[" * 70 + b"]" * 70 + b"}",
    "a number of many digits": b'{"model": "coder", "max_tokens": ' + b"9" * 6000 + b"}",
    "not finite": b'{"model": "coder", "max_tokens": 5, "temperature": NaN, "messages": [], "input": "?"}',
    "no model": b'{"messages": [{"role": "user", "content": "?"}], "max_tokens": 5, "input": "?"}',
    "model of a number": b'{"model": 4, "messages": [{"role": "user", "content": "?"}], "max_tokens": 5, "input": "?"}',
    "a key of a surrogate": b'{"model": "coder", "\\udfff": 1}',
}


@pytest.mark.parametrize("path", PATHS)
async def test_a_malformed_body_is_told_what_is_wrong_in_the_providers_form(path):
    answerer = ScriptedAnswerer()
    async with Server(answerer) as server, web(server) as client:
        for name, body in MALFORMED.items():
            response = await client.post(path, content=body)
            assert (name, response.status_code) == (name, 400)
            assert is_error_of(path, response.json())
            assert "Traceback" not in response.text
        assert (await client.post(path, json=BODY[path])).status_code == 200
    assert len(answerer.calls) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_50_megabytes_is_refused_by_an_answer_and_not_by_a_broken_connection(path):
    async with Server(ScriptedAnswerer()) as server, web(server) as client:
        declared = await client.post(path, content=b" " * 50_000_000)
        response = await client.post(path, content=chunks(b" " * 1_000_000, 50))  # of no declared length
    for refused in (declared, response):
        assert refused.status_code == 413
        assert is_error_of(path, refused.json())
        assert "50,000,000 bytes" in refused.text


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_of_a_million_values_is_refused_before_they_are_made(path, monkeypatch):
    """They would hold the event loop, and every other episode with it, for half a minute."""
    parsed = []
    parse = server_module.parse_json
    monkeypatch.setattr(server_module, "parse_json", lambda *given: parsed.append(given) or parse(*given))
    async with Server(ScriptedAnswerer()) as server, web(server) as client:
        for values in ("{}", "[]", "1", '{"role":"user","content":"a"}', '""'):
            field = json.dumps(BODY[path])[:-1] + f', "items": [{",".join([values] * 500_000)}]}}'
            refused = await client.post(path, content=field)
            assert refused.status_code == 400 and is_error_of(path, refused.json())
            assert "holds more than 100,000 values" in refused.text
        assert not parsed
        text = '", [{' * 100_000
        assert (await client.post(path, json=with_field(path, note=text))).status_code == 200
    assert len(parsed) == 1


async def test_a_body_without_an_end_is_not_read_for_ever(monkeypatch):
    monkeypatch.setattr(server_module, "MOST_READ_BYTES", 2 * server_module.MOST_BYTES)
    async with asyncio.timeout(60), Server(ScriptedAnswerer()) as server:
        _, writer = await asyncio.open_connection(*address(server))
        begin = head(CHAT, 0, "localhost").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        writer.write(begin)
        with pytest.raises(ConnectionError):
            while True:
                writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
                await writer.drain()


async def test_of_a_body_in_pieces_of_a_byte_little_is_read_at_once(monkeypatch):
    """All that is read at once is taken apart before anybody else has a turn: 256 KiB of such pieces take a second."""
    sizes, take = [], H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", lambda self, data: sizes.append(len(data)) or take(self, data))
    begin = head(CHAT, 0, "localhost").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    body = json.dumps(BODY[CHAT]).encode()
    sent = begin + b"1\r\n \r\n" * 20_000 + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with Server(ScriptedAnswerer()) as server:
        reader, writer = await asyncio.open_connection(*address(server))
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert sum(sizes) == len(sent) and max(sizes) <= 8192


async def test_a_body_of_somebody_without_the_key_takes_no_memory():
    answerer = ScriptedAnswerer()
    async with Server(answerer) as server, web(server) as client:
        tracemalloc.start()
        try:
            for _ in range(3):  # the room of what is read in pieces is taken and given back
                refused = await client.post(CHAT, content=chunks(b" " * 100_000, 150), headers={"authorization": "no"})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert refused.status_code == 401 and peak < 15_000_000
    assert not answerer.calls


async def chunks(part, count):
    for _ in range(count):
        yield part


async def test_a_client_may_think_for_an_hour_between_two_calls_on_one_connection(monkeypatch):
    """The server that closes a connection as idle loses the call that comes at the same moment."""
    loop, delays = asyncio.get_running_loop(), {}
    call_later = loop.call_later

    def noted(delay, callback, *given, **more):
        delays[getattr(callback, "__name__", "")] = delay
        return call_later(delay, callback, *given, **more)

    monkeypatch.setattr(loop, "call_later", noted)
    async with Server(ScriptedAnswerer()) as server, web(server) as client:
        for _ in range(2):
            assert (await client.post(CHAT, json=BODY[CHAT])).status_code == 200
    assert delays["timeout_keep_alive_handler"] >= 3600


async def test_what_a_page_of_another_site_can_send_is_not_answered():
    answerer = ScriptedAnswerer()
    async with Server(answerer) as server, web(server) as client:
        plain = await client.post(CHAT, content=json.dumps(BODY[CHAT]), headers={"content-type": "text/plain"})
        rebound = await client.post(CHAT, json=BODY[CHAT], headers={"host": "evil.example:80"})
        odd = await client.post(CHAT, json=BODY[CHAT], headers={"host": "[::1"})
        listed = await client.get("/v1/models", headers={"host": "evil.example"})
        preflight = await client.options(CHAT, headers={"origin": "http://evil.example"})
        by_name = await client.post(CHAT, json=BODY[CHAT], headers={"host": "localhost:1"})
    assert [response.status_code for response in (plain, rebound, odd, listed, preflight)] == [400, 400, 400, 400, 405]
    assert "application/json" in plain.json()["error"]["message"]
    assert by_name.status_code == 200
    assert len(answerer.calls) == 1


async def test_a_wrong_path_or_method_is_an_error_in_the_providers_form():
    async with Server(ScriptedAnswerer()) as server, web(server) as client:
        missing = await client.post("/chat/completions", json=BODY[CHAT])
        counted = await client.post("/v1/messages/count_tokens", json={})
        method = await client.get(CHAT)
        slash = await client.post(f"{CHAT}/", json=BODY[CHAT])
    assert (missing.status_code, counted.status_code, method.status_code, slash.status_code) == (404, 404, 405, 404)
    assert "/v1/chat/completions" in missing.json()["error"]["message"]
    assert is_error_of("/v1/messages", counted.json())


async def test_tokens_are_read_from_either_header_and_odd_ones_are_wrong():
    async with Server(ScriptedAnswerer()) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:

        async def status(**headers):
            return (await client.post(CHAT, json=BODY[CHAT], headers=headers)).status_code

        good = [{"authorization": f"bearer {KEY}"}, {"x-api-key": KEY}]
        bad = [
            {},
            {"authorization": KEY},
            {"authorization": f"Basic {KEY}"},
            {"authorization": "Bearer"},
            {"authorization": f"Bearer {KEY}x"},
            {"authorization": "Bearer kéy".encode()},
            {"x-api-key": "kéy".encode("latin-1")},
            {"x-api-key": "k" * 8000},
        ]
        assert [await status(**headers) for headers in good] == [200] * len(good)
        assert [await status(**headers) for headers in bad] == [401] * len(bad)


@pytest.mark.parametrize("path", PATHS)
async def test_a_client_that_goes_away_takes_its_call_with_it(path):
    answerer = WaitingAnswerer()
    async with Server(answerer) as server:
        for stream in (False, True):
            answerer.calls.clear(), answerer.cancelled.clear()
            body = json.dumps(with_field(path, stream=stream)).encode()
            _, writer = await asyncio.open_connection(*address(server))
            writer.write(head(path, len(body), "localhost") + body)
            await answerer.until_asked(1)
            writer.close()
            await answerer.until_cancelled(1)
        answerer.go.set()
        async with web(server) as client:  # and nobody else's
            assert (await client.post(path, json=BODY[path])).status_code == 200


async def asked_over_a_socket(server, answerer):
    """Both ends of a connection whose request the answerer has."""
    body = json.dumps(BODY[CHAT]).encode()
    reader, writer = await asyncio.open_connection(*address(server))
    writer.write(head(CHAT, len(body), "localhost") + body)
    await answerer.until_asked(1)
    return reader, writer


async def test_what_a_cancelled_answer_raises_on_its_way_out_is_no_error_of_the_event_loop():
    class Clumsy(WaitingAnswerer):
        async def answer(self, call, token):
            try:
                return await super().answer(call, token)
            except asyncio.CancelledError:
                raise RuntimeError("while it was given up") from None

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    answerer = Clumsy()
    async with Server(answerer) as server:
        _, writer = await asked_over_a_socket(server, answerer)
        writer.close()
        await answerer.until_cancelled(1)
    gc.collect()  # a task's error that nobody has looked at is told when the task goes
    await asyncio.sleep(0)
    assert complaints == []


async def test_a_stream_that_is_closed_on_one_side_counts_as_gone():
    answerer = WaitingAnswerer()
    async with Server(answerer) as server:
        reader, writer = await asked_over_a_socket(server, answerer)
        writer.write_eof()
        await answerer.until_cancelled(1)
        assert await reader.read() == b""
        writer.close()


async def test_a_client_that_reads_only_the_first_piece_of_a_stream_harms_nobody_and_does_not_hold_up_the_end(
    monkeypatch,
):
    monkeypatch.setattr(server_module, "ENDING_S", 1.0)
    answerer = ScriptedAnswerer(lambda call, place: reply("word " * 200_000))
    body = json.dumps(with_field(CHAT, stream=True)).encode()
    async with asyncio.timeout(60), Server(answerer) as server:
        silent = [await asyncio.open_connection(*address(server), limit=1000) for _ in range(4)]
        for reader, writer in silent:
            writer.write(head(CHAT, len(body), "localhost") + body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        silent[0][1].transport.abort()  # one goes away, the others stay and read nothing more
        async with web(server) as client:
            response = await client.post(CHAT, json=BODY[CHAT])
        assert response.status_code == 200
    for _, writer in silent:
        writer.close()


async def test_slow_clients_keep_nobody_waiting_and_do_not_hold_up_the_end():
    answerer = ScriptedAnswerer()
    server = Server(answerer)
    async with server:
        slow = [await asyncio.open_connection(*address(server)) for _ in range(200)]
        for place, (_, writer) in enumerate(slow):
            # Half of them stop in the head, the others in the body.
            writer.write(head(CHAT, 500, "localhost")[: None if place % 2 else 40])
            if place % 2:
                writer.write(b'{"model"')
        async with web(server) as client:
            response = await client.post(CHAT, json=BODY[CHAT])
        assert response.status_code == 200
    for _, writer in slow:
        writer.close()
    assert len(answerer.calls) == 1


async def test_connections_leave_half_of_the_files_to_all_else(monkeypatch):
    """A process without a file left can write no checkpoint, and needs no key to be brought there."""
    monkeypatch.setattr(server_module.resource, "getrlimit", lambda _: (40, 40))
    async with asyncio.timeout(60), Server(ScriptedAnswerer()) as server:
        idle = [await asyncio.open_connection(*address(server)) for _ in range(100)]
        closed = [asyncio.create_task(reader.read()) for reader, _ in idle]
        while sum(reading.done() for reading in closed) < 80:
            await asyncio.sleep(0.01)
        async with web(server) as client:
            with pytest.raises(httpx.TransportError):
                await client.post(CHAT, json=BODY[CHAT])
        for _, writer in idle:
            writer.close()
        await asyncio.gather(*closed, return_exceptions=True)
        async with web(server) as client:
            assert (await client.post(CHAT, json=BODY[CHAT])).status_code == 200


async def test_300_clients_at_once_are_all_in_flight_and_each_gets_its_own_answer():
    answerer = WaitingAnswerer(lambda call, place: reply(f"to {call.messages[0]['content']}"))

    async def ask(client, number):
        message = {"role": "user", "content": f"number {number}"}
        return await client.post(CHAT, json={"model": "coder", "messages": [message]})

    async with Server(answerer) as server, web(server) as client:
        asking = [asyncio.create_task(ask(client, number)) for number in range(300)]
        await answerer.until_asked(300)
        answerer.go.set()
        responses = await asyncio.gather(*asking)
    said = [response.json()["choices"][0]["message"]["content"] for response in responses]
    assert said == [f"to number {number}" for number in range(300)]


async def test_a_server_that_ends_says_so_to_those_who_wait():
    answerer = WaitingAnswerer()
    async with Server(answerer) as server:
        client = web(server)
        asking = [asyncio.create_task(client.post(path, json=BODY[path])) for path in PATHS for _ in range(3)]
        await answerer.until_asked(9)
    for response in await asyncio.gather(*asking):
        assert response.status_code == 500
        assert is_error_of(response.url.path, response.json())
        assert "the server is ending" in response.text
    assert len(answerer.cancelled) == 9
    with pytest.raises(httpx.ConnectError):
        await client.post(CHAT, json=BODY[CHAT])
    await client.aclose()


async def test_an_answer_that_somebody_cancels_is_the_machinerys_fault():
    class GivenUp(ScriptedAnswerer):
        async def answer(self, call, token):
            raise asyncio.CancelledError

    async with Server(GivenUp()) as server, web(server) as client:
        response = await client.post(CHAT, json=BODY[CHAT])
    assert (response.status_code, response.json()["error"]["code"]) == (500, EngineFailed.code)
    assert response.headers["x-should-retry"] == "false"


async def test_a_stream_that_fails_is_told_by_its_status_and_not_in_its_middle():
    def fails(call, place):
        raise EngineFailed("the engine died")

    async with Server(ScriptedAnswerer(fails)) as server, web(server) as client:
        response = await client.post(CHAT, json=with_field(CHAT, stream=True))
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the engine died"


async def test_a_connection_serves_one_call_after_another():
    async with Server(ScriptedAnswerer()) as server, web(server) as client:
        for _ in range(3):
            streamed = await client.post(CHAT, json=with_field(CHAT, stream=True))
            assert events(streamed.text)[-1] == (None, "[DONE]")
            assert (await client.post(CHAT, content=b"{")).status_code == 400
        assert len(client._transport._pool.connections) == 1


async def test_two_servers_stand_beside_each_other_and_their_port_can_be_had_again():
    async with Server(ScriptedAnswerer()) as first, Server(ScriptedAnswerer()) as second:
        assert first.url != second.url
        port = httpx.URL(first.url).port
        with pytest.raises(ConfigError, match=f"port {port} cannot be used"):
            listen(port=port)
    async with Server(ScriptedAnswerer(), listen(port=port)) as again:
        assert httpx.URL(again.url).port == port


async def test_a_client_that_goes_by_the_environments_proxy_finds_a_server_of_this_machine(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with Server(ScriptedAnswerer(), listen("127.0.0.2")) as server, web(server) as client:
        assert (await client.post(CHAT, json=BODY[CHAT])).status_code == 200


def test_an_address_is_this_machines_or_an_error_of_one_line():
    for host, local in (("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)):
        with listen(host) as bound:
            assert is_loopback(bound) is local
    for host in ("203.0.113.7", "no such host", "x" * 300):
        with pytest.raises(ConfigError) as wrong:
            listen(host)
        assert "\n" not in str(wrong.value)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
async def test_an_address_of_the_newer_form_is_written_in_brackets():
    try:
        listener = listen("::1")
    except ConfigError as error:
        pytest.skip(f"no IPv6 here: {error}")
    async with Server(ScriptedAnswerer(), listener) as server, web(server) as client:
        assert server.url.startswith("http://[::1]:")
        assert (await client.post(CHAT, json=BODY[CHAT])).status_code == 200
