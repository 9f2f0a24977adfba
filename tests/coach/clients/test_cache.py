"""Replies that are kept: for resuming, for several processes, and whose keys hold all that counts."""

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from chat_clients import EIGHT, GEMINI, SECRET, ask, client_factory, requests_of, score_all
from scripted_server import Received, ScriptedServer, Step, say, status

from coachrl.coach import make_coach
from coachrl.coach.clients.base import Function, Reply
from coachrl.coach.clients.cache import ReplyCache, cache_key, check_cache
from coachrl.coach.clients.ledger import Call, FunctionCall, Message, calls_to, read_ledger
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, CoachUnavailable, ConfigError

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


async def test_a_reply_is_paid_for_once(tmp_path: Path) -> None:
    file = tmp_path / "cache.sqlite"
    async with ScriptedServer([say(EIGHT, latency_s=0.05)]) as server:

        async def run(**fields: Any) -> Reply:
            made = client_factory(cache=file)
            client = made.client(GEMINI, server.gemini_base)
            first, second = await asyncio.gather(client.complete(ask(**fields)), client.complete(ask(**fields)))
            assert (first.text, first.usage.cost_usd) == (second.text, second.usage.cost_usd)
            await client.close()
            made.close()
            return first

        paid, again = await run(), await run()
        assert len(server.requests) == 1  # both at once, and after a restart
        assert (paid.from_cache, again.from_cache) == (False, True)
        assert again.usage.cost_usd == paid.usage.cost_usd
        for number, fields in enumerate([{"temperature": 0.5}, {"repeat": 1}, {"schema": {"type": "object"}}], start=2):
            await run(**fields)
            assert len(server.requests) == number


async def test_a_reply_is_kept_before_it_is_recorded(tmp_path: Path) -> None:
    """Or a kill in between leaves a call in the ledger that the resumed run pays for again."""
    kept: list[int] = []

    def count(call: Call) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "cache.sqlite")) as connection:
            kept.append(*connection.execute("SELECT count(*) FROM replies").fetchone())

    async with ScriptedServer([say(EIGHT)]) as server:
        made = client_factory(cache=tmp_path / "cache.sqlite")
        client = made.client(GEMINI, server.gemini_base)
        with calls_to(count):
            await client.complete(ask())
        await client.close()
        made.close()
    assert kept == [1]


def test_what_could_not_be_read_again_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = []
    for _ in range(250):
        deep = [deep]
    with contextlib.closing(ReplyCache(tmp_path / "cache.sqlite")) as cache:
        cache.put("deep", Reply("a", "m", native={"thoughts": deep}))
        cache.put("half", Reply("\ud800", "m"))
        cache.put("whole", Reply("b", "m", native={"thoughts": [1]}))
        assert cache.get("deep") is None and cache.get("half") is None and cache.get("whole") is not None
    assert ["a reply was not kept: 1 validation error" in message for message in caplog.messages] == [True, True]


async def test_errors_are_not_kept(tmp_path: Path) -> None:
    async with ScriptedServer([status(400), say(EIGHT)]) as server:
        made = client_factory(cache=tmp_path / "cache.sqlite")
        client = made.client(GEMINI, server.gemini_base)
        with pytest.raises(CoachError):
            await client.complete(ask())
        assert (await client.complete(ask())).text == EIGHT
        await client.close()
        made.close()


def test_a_key_holds_all_that_a_reply_depends_on() -> None:
    keys = {
        cache_key(model, request, options)
        for model in ("openai/a", "openai/b")
        for request in (ask("x"), ask("y"), ask("x", max_tokens=7), ask("x", schema={"a": 1}))
        for options in ({"api_base": None}, {"api_base": "http://h"})
    }
    assert len(keys) == 16
    assert cache_key("m", ask(prompt_hash="1"), {}) == cache_key("m", ask(prompt_hash="2"), {})


def test_nothing_of_a_request_is_left_out_of_its_key_but_where_its_prompt_came_from() -> None:
    call = FunctionCall("1", "run_python", "{}")
    function = Function("run_python", "Runs.", {})
    request = ask("x")
    others = [
        ask("x", temperature=0.5),
        ask("x", repeat=1),
        ask("x", function=function),
        ask("x", instead_of="openai/b"),
        ask("x", function=replace(function, open=False)),
        *(
            replace(request, messages=messages)
            for messages in (
                (Message("assistant", "x"),),
                (Message("user", "x"), Message("user", "x")),
                (Message("user", "x", {"role": "user"}),),
                (Message("user", "x", answers=call),),
                (Message("user", "x", answers=replace(call, id="2")),),
            )
        ),
    ]
    assert len({cache_key("m", one, {}) for one in (request, *others)}) == 1 + len(others)
    assert cache_key("m", request, {"a": 1, "b": 2}) == cache_key("m", request, {"b": 2, "a": 1})


async def test_a_server_that_the_environment_names_is_part_of_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one server's reply would stand for another's. Named by an option, it has the same replies."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", SECRET)
    monkeypatch.setenv("FIREWORKS_API_KEY", SECRET)
    monkeypatch.setenv("HUGGINGFACE_API_KEY", SECRET)
    monkeypatch.setenv("LLAMA_API_KEY", SECRET)
    monkeypatch.setenv("MISTRAL_API_KEY", SECRET)
    monkeypatch.setenv("DATAROBOT_API_TOKEN", SECRET)
    async with ScriptedServer([say("PROCESS_SCORE: 3")]) as first, ScriptedServer([say(EIGHT)]) as second:

        async def asked(model: str, variable: str, address: str, option: str | None = None) -> str:
            monkeypatch.setenv(variable, address)
            made = client_factory(cache=tmp_path / "cache.sqlite")
            client = made.client(model, option)
            reply = await client.complete(ask())
            await client.close()
            made.close()
            return reply.text

        openai = [(one.openai_base, EIGHT if one is second else "PROCESS_SCORE: 3") for one in (first, second)]
        gemini = [(one.address, said) for one, (_, said) in zip((first, second), openai, strict=True)]
        for address, said in openai:
            assert await asked("openai/gpt-4o", "OPENAI_BASE_URL", address) == said
            assert await asked("deepseek/deepseek-chat", "DEEPSEEK_API_BASE", address) == said
            assert await asked("fireworks_ai/judge", "FIREWORKS_API_BASE", address) == said
            assert await asked("huggingface/own/judge", "HF_API_BASE", f"{address}/chat/completions") == said
            assert await asked("meta_llama/judge", "LLAMA_API_BASE", address) == said
            assert await asked("mistral/judge", "MISTRAL_AZURE_API_BASE", address) == said
            assert await asked("datarobot/judge", "DATAROBOT_ENDPOINT", address) == said
        for address, said in gemini:
            assert await asked(GEMINI, "GOOGLE_GEMINI_BASE_URL", address) == said
        assert [len(one.requests) for one in (first, second)] == [8, 8]
        assert await asked("openai/gpt-4o", "OPENAI_BASE_URL", "http://127.0.0.1:1/v1", first.openai_base) != EIGHT
        assert len(first.requests) == 8


async def test_members_that_fall_back_to_one_model_share_no_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one reply would agree with itself."""
    scores = iter("392")

    async with (
        ScriptedServer([status(400)]) as down,
        ScriptedServer([status(400)]) as moved,
        ScriptedServer(lambda _: say(f"PROCESS_SCORE: {next(scores)}")) as spare,
    ):
        monkeypatch.setenv("HOSTED_VLLM_API_BASE", spare.openai_base)
        for address in (down.openai_base, moved.openai_base):  # again, as after --resume on another node
            members = [
                {"name": "openai/a", "api_base": address},
                {"name": "openai/b", "api_base": address},
                {"name": "hosted_vllm/spare"},
            ]
            made = client_factory(cache=tmp_path / "cache.sqlite")
            config = CoachConfig(ensemble=members, fallbacks=["hosted_vllm/spare"])
            [score] = await score_all(
                CoachPool(make_coach(config, client_factory=made), client_factory=made), requests_of(1)
            )
            assert len(spare.requests) == 3
            assert score.disagreement == pytest.approx(3.0912, abs=1e-3)


def test_what_was_asked_before_there_were_stand_ins_keeps_its_key() -> None:
    """Replies are read by whichever version made them."""
    before = "21666ad578a8a08c"
    assert cache_key("openai/a", ask("x"), {"api_base": None}).startswith(before)


def fill(path: Path, name: str) -> None:
    cache = ReplyCache(path)
    for number in range(200):
        cache.put(f"{name}-{number}", Reply(name, "m"))
        cache.put(f"shared-{number}", Reply("shared", "m"))
    cache.close()


def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("fork")  # spawned ones would import all of this anew
    workers = [context.Process(target=fill, args=(path, name)) for name in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    cache = ReplyCache(path)
    assert all(cache.get(f"{name}-{number}") is not None for name in "abc" for number in range(200))
    cache.close()


def test_a_cache_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.3, other.execute, ("COMMIT",))
        timer.start()
        ReplyCache(path).close()
        timer.join()


def test_a_cache_is_checked_without_a_trace_and_made_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "cache.sqlite"
    check_cache(path)
    assert list(tmp_path.iterdir()) == []
    ReplyCache(path).close()
    check_cache(path)
    ReplyCache(path).close()
    (tmp_path / "file").write_text("not a database, but long enough to be taken for one. " * 50)
    for wrong in (tmp_path / "file", tmp_path / "file" / "cache.sqlite"):
        with pytest.raises(ConfigError, match=r"cannot be used: (file is not a database|.* is no folder)$"):
            check_cache(wrong)


def test_a_cache_whose_damage_sqlite_cannot_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    ReplyCache(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE replies", b"CREATE \xf7\xf7\xf7LE replies"))
    with pytest.raises(ConfigError, match=r"cache\.sqlite cannot be used"):
        ReplyCache(path)
    with pytest.raises(ConfigError, match=r"cache\.sqlite cannot be used"):
        check_cache(path)


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be taken for one. " * 50)
    with pytest.raises(ConfigError, match=r"notes\.txt"):
        ReplyCache(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """SQLite would wait for whoever writes into the pipe, and make a device a database."""
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path / "pipe", "a named pipe"), (Path("/dev/null"), "a device")):
        for use in (check_cache, ReplyCache):
            with pytest.raises(ConfigError, match=rf"cannot be used: it is {what}, where a file is needed$"):
                use(path)


async def test_a_resumed_pool_repeats_no_finished_call(tmp_path: Path) -> None:
    """The first pool is left behind while calls are under way, as by a kill."""
    requests, ledger = requests_of(20), tmp_path / "ledger.jsonl"

    def slow_where_odd(received: Received) -> Step:
        number = int(received.prompt.rsplit(" * 4", 1)[0].split()[-1])
        return say(EIGHT, latency_s=0.0 if number % 2 == 0 else 600.0)

    def pool_of(server: ScriptedServer) -> CoachPool:
        made = client_factory(cache=tmp_path / "cache.sqlite")
        return CoachPool(
            make_coach(CoachConfig(name=GEMINI, api_base=server.gemini_base), client_factory=made),
            ledger=ledger,
            client_factory=made,
        )

    async with ScriptedServer(slow_where_odd) as server:
        pool = pool_of(server)
        for request in requests:
            pool.submit(request)
        await wait_until(lambda: sum(line["kind"] == "score" for line in read_ledger(ledger)) == 10, ledger)
        await wait_until(lambda: len(server.requests) == 20, ledger)  # none is still on its way
        await pool.close()
        server.script = [say(EIGHT)]
        before = len(server.requests)
        scores = await score_all(pool_of(server), requests)
        assert len(server.requests) - before == 10
    assert [score.process_0_10 for score in scores] == [8.0] * 20
    assert sum(score.usage.calls_from_cache for score in scores) == 10
    assert all(score.usage.cost_usd is not None and score.usage.cost_usd > 0 for score in scores)


async def wait_until(condition: Callable[[], bool], file: Path) -> None:
    async with asyncio.timeout(300):
        while not (file.exists() and condition()):
            await asyncio.sleep(0.05)


def test_of_two_replies_to_one_question_the_first_stays(tmp_path: Path) -> None:
    """Two processes may have asked at once; what one of them has scored by must not change under it."""
    cache = ReplyCache(tmp_path / "cache.sqlite")
    for text in ("first", "second"):
        cache.put("key", Reply(text=text, model="judge"))
    found = cache.get("key")
    assert found is not None and found.text == "first"
    cache.close()


def spoil_pages(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:4096] + bytes(len(data) - 4096))


def spoil_rows(text: str) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("UPDATE replies SET reply = ?", (text,))
            connection.commit()

    return spoil


WHOLE = asdict(Reply("x", "m"))
SPOILED = (
    *("[1", "[1]", "{}", '{"text": "x", "usage": 3}', "[" * 5000),
    json.dumps({**WHOLE, "text": None}),
    json.dumps({**WHOLE, "calls": [[1]]}),
    json.dumps({**WHOLE, "usage": {**WHOLE["usage"], "tokens_in": "9"}}),
    json.dumps({**WHOLE, "usage": {**WHOLE["usage"], "cost_usd": math.nan}}),
)


@pytest.mark.parametrize("spoil", [spoil_pages, *map(spoil_rows, SPOILED)])
def test_a_damaged_cache_is_named_before_anything_is_paid_for_twice(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    file = tmp_path / "cache.sqlite"
    with contextlib.closing(ReplyCache(file)) as cache:
        for number in range(200):
            cache.put(f"key {number}", Reply("x" * 200, "model"))
    spoil(file)
    with contextlib.closing(ReplyCache(file)) as cache:
        with pytest.raises(CoachUnavailable, match=r"cache\.sqlite is damaged \(.*\): remove it"):
            cache.get("key 7")
        cache.put("another", Reply("x", "model"))  # costs the entry at most
