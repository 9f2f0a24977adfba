"""The SandboxFusion client against servers that are broken, or mean harm: whatever they send, it ends in a bounded time
and memory, is nobody's failure among the agents, and one line names the server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import re
import time
import tracemalloc
import zlib

import pytest

from coachrl.config import SandboxConfig
from coachrl.doctor.sandbox import probes, run_probes
from coachrl.errors import SandboxUnavailable
from coachrl.sandbox.fusion import FusionSandbox, FusionWorkspace
from coachrl.sandbox.fusion_reports import Contents
from coachrl.sandbox.inside import remote, wire

SETTINGS = SandboxConfig(kind="fusion", timeout_s=5.0, memory_mb=512, disk_mb=1, max_files=64, output_kb=16)
MIB = 2**20


class RawServer:
    """Answers each connection with what `respond` writes, once the request has come whole. `bodies` are those."""

    def __init__(self, respond):
        self._respond, self.bodies, self._tasks = respond, [], set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(re.search(rb"(?i)content-length: *([0-9]+)", head)[1])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                await self._respond(writer, self.bodies[-1])
        writer.close()


def http(body, *headers, status="200 OK", length=None):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def test_a_server_on_this_machine_is_asked_without_a_proxy(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def respond(writer, _):
        writer.write(http(b"no such path", status="404 Not Found"))

    async with RawServer(respond) as server:
        with pytest.raises(SandboxUnavailable, match="answered 404: no such path"):
            await FusionSandbox(SETTINGS.model_copy(update={"url": server.url})).start()


def sends(*pieces, pause_s=0.0, hang_up=True):
    async def respond(writer, body):
        for piece in pieces:
            writer.write(piece(body) if callable(piece) else piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if hang_up:
            writer.close()

    return respond


def begun_of(body):
    return body["code"].rpartition("main(")[2].split(", ")[2].rstrip(")\n").strip("'")


def answer_to(body, report=None, **changes):
    """What the server of a program says that printed a line, with `changes`."""
    header = {"state": "ok", "exit_code": 0, "wall_s": 0.1, "files_written": [], "sizes": [2, 0]}
    report = wire.pack(header) + b"hi" if report is None else report
    begun = begun_of(body)
    said = f"{begun}\n{remote.said_of_report(begun, remote.digest_of(report))}\n"
    result = {"status": "Finished", "return_code": 0, "stdout": said, "stderr": ""}
    files = {"coachrl-report": base64.b64encode(report).decode()}
    whole = {"status": "Success", "message": "", "run_result": result, "files": files}
    for key, value in changes.items():
        place = whole["run_result"] if key in result and key != "status" else whole
        place[key] = value
    return whole


def says(change=lambda whole: whole, **changes):
    """A server whose answer has passed through `change`."""
    return sends(lambda body: http(json.dumps(change(answer_to(body, **changes))).encode()))


async def ended(respond, url="", **settings):
    async with RawServer(respond) as server:
        sandbox = FusionSandbox(SETTINGS.model_copy(update={"url": url or server.url, **settings}), 2, 0.01)
        execution = await FusionWorkspace(sandbox, Contents()).run("print('hi')")
        await sandbox.close()
        return execution, server


async def is_infrastructure(respond, words):
    execution, server = await ended(respond)
    assert execution.state == "infrastructure", execution
    assert words in execution.stderr and server.url in execution.stderr, execution.stderr
    assert "\n" not in execution.stderr and execution.stderr.isprintable() and len(execution.stderr) < 1000
    return server


async def test_a_plain_answer_is_read():
    execution, _ = await ended(says())
    assert (execution.state, execution.stdout, execution.exit_code) == ("ok", "hi", 0)


async def endless(writer, body):
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"100000\r\n" + bytes(MIB) + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    "respond",
    [
        endless,
        sends(http(b"", length=10**12)[:-2] + b"\r\n", *[bytes(MIB)] * 400),
    ],
    ids=["endless", "a length of a terabyte"],
)
async def test_an_answer_without_an_end_is_not_read_to_its_end(respond):
    tracemalloc.start()
    await is_infrastructure(respond, "answered with more than ")
    assert tracemalloc.get_traced_memory()[1] < 400 * MIB
    tracemalloc.stop()


async def test_of_an_error_the_beginning_is_read():
    """All of them together may be as large as the files of all workspaces."""
    sent = []

    async def endless_error(writer, body):
        writer.write(http(b"Oh. ", length=10**12, status="500 Oh"))
        while True:
            writer.write(b"a" * 100_000)
            await writer.drain()
            sent.append(100_000)

    await is_infrastructure(endless_error, "answered 500: Oh. aaa")
    assert sum(sent) < 16 * MIB


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_that_says_much_is_asked_again(status):
    pieces = [http(b"", length=10**12, status=f"{status} Busy"), *[bytes(MIB)] * 40]
    assert len((await is_infrastructure(sends(*pieces), f"answered {status}")).bodies) == 2


@pytest.mark.parametrize("kind", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_packed_answer_is_not_unpacked(kind):
    pack = zlib.compress if kind == "deflate" else gzip.compress
    bomb = http(pack(bytes(64 * MIB)), f"Content-Encoding: {kind}")
    tracemalloc.start()
    server = await is_infrastructure(sends(bomb), f"packed its answer ({kind}), which nobody asked for")
    assert tracemalloc.get_traced_memory()[1] < 32 * MIB
    tracemalloc.stop()
    assert len(server.bodies) == 1


async def test_a_byte_a_second_does_not_hold_an_episode_for_ever(monkeypatch):
    monkeypatch.setattr("coachrl.sandbox.fusion._GRACE_S", 0.5)
    began = time.monotonic()
    slow = sends(http(b"", length=1000), *[b"{"] * 1000, pause_s=0.2)
    execution, server = await ended(slow, timeout_s=0.5)
    assert execution.state == "infrastructure"
    assert f"no answer from {server.url} within 1.75 s" in execution.stderr
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
async def test_code_and_password_go_to_no_other_address_than_the_one_named(status):
    async with RawServer(says()) as elsewhere:
        place = f"{elsewhere.url}/run_code"
        execution, server = await ended(sends(http(b"", f"Location: {place}", status=status)))
        assert execution.state == "infrastructure"
        assert f"{server.url} leads on to {place}: name that as sandbox.url" in execution.stderr
        assert not elsewhere.bodies


async def test_a_password_in_the_address_is_not_written_down():
    async with RawServer(sends(http(b"no", status="500 Oh"))) as server:
        url = server.url.replace("http://", "http://me:hunter2@")
        execution, _ = await ended(None, url=url)
        assert "answered 500" in execution.stderr and "hunter2" not in execution.stderr
        sandbox = FusionSandbox(SETTINGS.model_copy(update={"url": url}))
        with pytest.raises(SandboxUnavailable) as refused:
            await sandbox.start()
        assert "hunter2" not in str(refused.value)
        await sandbox.close()


VALUES = [None, True, 7, 1.5, "word", "\x1b[2J\nforged line\u202e", [], [[]], {}, {"a": {}}, "x" * 10**6]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("key", ["status", "run_result", "files", "whole"])
async def test_any_type_in_any_field_is_the_server_s_doing(key, value):
    respond = says(lambda whole: value if key == "whole" else {**whole, key: value})
    execution, _ = await ended(respond)
    if execution.state != "ok":
        await is_infrastructure(respond, "")
    else:
        assert key == "status"  # of which the error's alone is read


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("key", ["stdout", "status"])
async def test_any_type_in_any_field_of_the_result_is_the_server_s_doing(key, value):
    await is_infrastructure(says(lambda whole: {**whole, "run_result": {**whole["run_result"], key: value}}), "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: {**whole, "files": {f"/etc/{n}": "" for n in range(10**6)}}, "no RunCodeResponse"),
        (lambda whole: {**whole, "files": {"../coachrl-report": "", "/coachrl-report": ""}}, "without the report"),
        (lambda whole: {**whole, "files": {"coachrl-report": "!" * 40}}, "not base64"),
        (lambda whole: {**whole, "files": {"coachrl-report": "\xe9"}}, "not base64"),
        (lambda whole: {**whole, "files": {"coachrl-report": 7}}, "without the report"),
        (lambda whole: {**whole, "files": {}}, "without the report"),
        (lambda whole: {**whole, "files": {"coachrl-report": whole["files"]["coachrl-report"][:8]}}, "another report"),
        (lambda whole: {**whole, "more": [0] * 10**6}, "no RunCodeResponse"),
    ],
    ids=["a million files", "other names", "no base64", "no ASCII", "a number", "no file", "cut", "a million values"],
)
async def test_what_a_server_does_to_a_report_is_its_own_doing(change, words):
    await is_infrastructure(says(change), words)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 10**5,
        b'{"status":' * 10**5,
        b'{"status": 1e999, "run_result": NaN}',
        b'{"status": ' + b"9" * 10**5 + b"}",
        b"\xff\xfe{}",
        b"",
        b"<html>\n<body>\x1b[2J502</body></html>",
    ],
    ids=["brackets", "objects", "no number", "a long number", "no text", "nothing", "a page"],
)
async def test_what_is_no_answer_is_told_on_one_line(body):
    await is_infrastructure(sends(http(body, "Content-Type: text/html")), "")


async def test_the_kind_of_content_does_not_matter():
    respond = sends(lambda body: http(json.dumps(answer_to(body)).encode(), "Content-Type: image/png"))
    assert (await ended(respond))[0].stdout == "hi"


async def test_much_output_of_the_server_s_own_is_bounded():
    respond = says(lambda whole: {**whole, "run_result": {**whole["run_result"], "stderr": "x" * (110 * MIB)}})
    await is_infrastructure(respond, "answered with more than ")


async def test_an_answer_to_another_request_is_told_apart():
    other = {"code": "main('coachrl-order', 'coachrl-report', 'coachrl 0123')\n"}
    respond = sends(lambda body: http(json.dumps(answer_to(other)).encode()))
    await is_infrastructure(respond, "answered with what belongs to another request")


async def test_no_time_to_begin_is_not_the_code_s_doing():
    late = says(lambda whole: {**whole, "run_result": {"status": "TimeLimitExceeded", "stdout": "", "stderr": ""}})
    await is_infrastructure(late, "could not begin (TimeLimitExceeded)")


async def test_an_execution_without_a_report_leaves_the_workspace_as_it_was():
    late = says(lambda whole: {**whole, "run_result": {**whole["run_result"], "status": "TimeLimitExceeded"}})
    async with RawServer(late) as server:
        sandbox = FusionSandbox(SETTINGS.model_copy(update={"url": server.url}))
        workspace = FusionWorkspace(sandbox, Contents({"kept": b"x"}))
        assert (await workspace.run("print('hi')")).state == "timeout"
        assert await workspace.files() == ("kept",)
        await sandbox.close()


async def test_a_time_that_nobody_waited_for_is_not_believed():
    header = {"state": "ok", "exit_code": 0, "wall_s": 1e300, "files_written": [], "sizes": [0, 0]}
    respond = sends(lambda body: http(json.dumps(answer_to(body, wire.pack(header))).encode()))
    execution, _ = await ended(respond)
    assert execution.state == "ok" and execution.wall_s < 60


@pytest.mark.parametrize(
    "respond",
    [
        sends(b""),
        sends(b"HTTP/1.1 200 OK\r\nContent-Le"),
        sends(http(b'{"status": "Succ', length=5000)),
        sends(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"st'),
        sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        sends(b"SSH-2.0-OpenSSH_9.6\r\n"),
        sends(b"HTTP/1.1 200 OK\r\n" + b"X-Many: 1\r\n" * 10**5),
        sends(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10**6),
        sends(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 10),
        sends(http(b"", length=-1)),
    ],
    ids=["nothing", "head", "body", "chunk", "no chunk", "no HTTP", "heads", "a long head", "continue", "a length"],
)
async def test_a_connection_that_is_cut_is_the_server_s_doing(respond):
    await is_infrastructure(respond, "broke")


async def test_a_connection_that_the_server_hangs_up_on_between_requests_loses_none():
    """As servers do with those that wait: between two requests, without a word."""
    async with RawServer(sends(lambda body: http(json.dumps(answer_to(body)).encode()))) as server:
        sandbox = FusionSandbox(SETTINGS.model_copy(update={"url": server.url}))
        workspace = FusionWorkspace(sandbox, Contents())
        states = [(await workspace.run("print('hi')")).state for _ in range(50)]
        await sandbox.close()
    assert states == ["ok"] * 50


@pytest.mark.parametrize("asked", ["\xb2", "-1", "1e9", "9" * 400, "soon"])
async def test_an_odd_wait_that_a_server_asks_for_is_no_error(asked, monkeypatch):
    monkeypatch.setattr("coachrl.sandbox.fusion._MOST_WAIT_S", 0.1)
    refusal = http(b"", status="503 Busy").replace(b"\r\n\r\n", f"\r\nRetry-After: {asked}\r\n\r\n".encode("latin-1"))
    began = time.monotonic()
    execution, server = await ended(sends(refusal))
    assert execution.state == "infrastructure" and f"{server.url} answered 503" in execution.stderr
    assert len(server.bodies) == 2 and time.monotonic() - began < 30


async def test_the_doctor_finds_that_a_server_which_says_anything_holds_nothing():
    served = []

    def answer(body):
        served.append(body)
        words = b"42\n" if len(served) == 1 else b"many\n\x1b[2J"
        header = {"state": "ok", "exit_code": 0, "wall_s": 0.1, "files_written": [], "sizes": [len(words), 0]}
        return http(json.dumps(answer_to(body, wire.pack(header) + words)).encode())

    async with RawServer(sends(answer)) as server:
        sandbox = FusionSandbox(SETTINGS.model_copy(update={"url": server.url}))
        results = [result async for result in run_probes(sandbox, {})]
        await sandbox.close()
    assert len(results) == len(probes())
    bombs = [result for result in results if result.area == "signals"]
    assert {result.detail for result in bombs} == {"not tried: many \\x1b[2J processes are in reach"}
    assert not any(result.held for result in bombs)
