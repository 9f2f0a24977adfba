"""What a ledger holds after it was cut short, and of what its calls took."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from chat_clients import score_all
from coach_requests import coded, request_for

from coachrl.coach.clients.budget import spent_in
from coachrl.coach.clients.ledger import Call, Ledger, Message, calls_to, read_ledger, record_call
from coachrl.coach.pool import CoachPool
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.errors import ConfigError
from coachrl.types import CoachScore, Execution, Usage


def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_text('{"kind": "score", "action_id": "a"}\n{"kind": "sco')

    async def append() -> None:
        await score_all(
            CoachPool(RulesCoach(), ledger=ledger), [request_for(coded("executor", "print(1)", Execution("ok")))]
        )

    asyncio.run(append())
    assert [line["action_id"] for line in read_ledger(ledger)] == ["a", "e1/0"]
    assert len([json.loads(line) for line in ledger.read_text().splitlines() if line.endswith("}")]) == 2


def test_a_line_for_which_there_is_no_room_names_the_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger._descriptor = os.open("/dev/full", os.O_WRONLY)  # as a disk answers that has filled up since it was opened
    with pytest.raises(OSError, match=r"No space left on device: .*ledger\.jsonl"):
        ledger.resumed(1)
    ledger.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from coachrl.coach.clients.ledger import Ledger
from coachrl.types import CoachScore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger(Path(sys.argv[1]))
ledger.resumed(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))  # stands for the disk
try: ledger.score(CoachScore("long", "failed", rationale="x" * 5000))
except OSError: resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
ledger.resumed(2)
"""


def test_a_line_that_was_cut_for_want_of_room_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    subprocess.run([sys.executable, "-c", FULL, str(path)], check=True)
    assert path.read_bytes().count(b"xxx") and [line["after_step"] for line in read_ledger(path)] == [1, 2]


def test_a_line_holds_all_of_a_call_and_of_a_score(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    usage = Usage(attempts=1, tokens_in=3, cost_usd=None)
    ledger.call(Call("e1/0", "m", "hash", (Message("user", "Judge."),), reply="PROCESS_SCORE: 8", usage=usage))
    ledger.score(CoachScore("e1/0", "scored", 8.0, usage=usage))
    ledger.contribution(CoachScore("e1/0", "scored", contribution=-2.0))
    ledger.resumed(4)
    ledger.close()
    call, score, contribution, resumed = read_ledger(ledger.path)
    assert [line["kind"] for line in (call, score, contribution)] == ["call", "score", "contribution"]
    assert call["messages"] == [{"role": "user", "content": "Judge."}]
    assert Usage(**call["usage"]) == Usage(**score["usage"]) == usage
    assert contribution["contribution"] == -2.0
    assert resumed == {"kind": "resumed", "after_step": 4}


def test_a_ledger_makes_its_folder_holds_one_file_open_and_may_be_closed_at_any_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a" / "ledger.jsonl")
    ledger.close()
    assert not ledger.path.parent.exists()
    for step in (1, 2):
        ledger.resumed(step)
        opened = ledger._descriptor
        ledger.close()
        ledger.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(opened)
    assert [line["after_step"] for line in read_ledger(ledger.path)] == [1, 2]


def test_what_is_no_number_is_no_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        ledger.score(CoachScore("e1/0", "scored", float("nan")))
    ledger.close()
    assert ledger.path.read_bytes() == b""


def test_calls_go_to_whoever_listens_and_to_nobody_else() -> None:
    heard: list[Call] = []
    call = Call("e1/0", "m", "hash", ())
    record_call(call)
    with calls_to(heard.append):
        record_call(call)
    record_call(call)
    assert heard == [call]


def test_what_another_process_left_in_mid_line_does_not_swallow_the_next_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.resumed(1)
    with ledger.path.open("a") as other:
        other.write('{"kind": "resu')  # its disk was full
    ledger.resumed(2)
    ledger.close()
    assert [line["after_step"] for line in read_ledger(ledger.path)] == [1, 2]


def write_long_lines(path: Path, name: str) -> None:
    ledger = Ledger(path)
    for number in range(40):
        ledger.call(Call(f"{name}/{number}", "m", "hash", (Message("user", "x" * 1_000_000 * (number % 4)),)))
    ledger.close()


def test_long_lines_of_several_processes_stand_whole_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("fork")  # spawned ones would import all of this anew
    writers = [context.Process(target=write_long_lines, args=(path, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert all(path.read_bytes().split(b"\n")[:-1])  # no line is empty, as after one that is seen half
    found = [line["action_id"] for line in read_ledger(path)]
    assert sorted(found) == sorted(f"{name}/{number}" for name in "abc" for number in range(40))


def test_a_line_waits_for_one_that_another_process_writes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.resumed(1)
    with ledger.path.open("ab", buffering=0) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writing = threading.Thread(target=ledger.resumed, args=(2,))
        other.write(b'{"kind": "resumed", ')
        writing.start()
        writing.join(0.3)
        assert writing.is_alive()
        other.write(b'"after_step": 5}\n')
        fcntl.flock(other, fcntl.LOCK_UN)
        writing.join(60)
    ledger.close()
    assert [line["after_step"] for line in read_ledger(ledger.path)] == [1, 5, 2]


def test_a_lock_that_nobody_lets_go_of_holds_up_a_run_once_and_for_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("coachrl.coach.clients.ledger.WAIT_S", 0.01)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.resumed(1)
    with (tmp_path / "ledger.jsonl").open() as held:  # as whoever may read it can
        fcntl.flock(held, fcntl.LOCK_EX)
        writing = threading.Thread(target=lambda: [ledger.resumed(step) for step in (2, 3)], daemon=True)
        writing.start()
        writing.join(30)
        assert [line["after_step"] for line in read_ledger(tmp_path / "ledger.jsonl")] == [1, 2, 3]
    assert len(caplog.records) == 1 and "another process holds its lock" in caplog.text
    ledger.resumed(4)
    assert ledger._waits_s == 0.01  # whoever writes for a moment is waited for again
    ledger.close()


def test_a_ledger_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACHRL_MAX_FILE_MB", "1")
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"x" * (1 << 20) + b"x")
    with pytest.raises(ConfigError, match="line 1 has more than 1,048,576 bytes"):
        list(read_ledger(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it is a named pipe"):
        list(read_ledger(path))


@pytest.mark.parametrize(
    "change",
    [
        {"action_id": []},
        {"model": None},
        {"reply": 5},
        {"messages": {}},
        {"messages": [None]},
        {"messages": [{"content": 5}]},
        {"usage": {}},
        {"usage": {"calls_from_cache": 0, "cost_usd": "much"}},
        {"usage": {"calls_from_cache": 0, "cost_usd": float("nan")}},
        {"usage": {"calls_from_cache": 0, "cost_usd": None}, "reserved_usd": -1e9},
        {"kind": ["call"]},
        {"kind": "score", "criteria": 5},
        {"kind": "score", "criteria": [None]},
        {"kind": "score", "action_id": {}},
    ],
)
def test_a_line_that_is_no_call_and_no_score_is_left_out(tmp_path: Path, change: dict[str, object], caplog) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.call(Call("a", "m", "", (Message("user", "How good?"),), reply="good", usage=Usage(cost_usd=0.5)))
    ledger.close()
    [whole] = read_ledger(ledger.path)
    with ledger.path.open("a") as file:
        file.write(json.dumps({**whole, **change}) + "\n")
    assert list(read_ledger(ledger.path)) == [whole]
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "line 2 is left out: cut short or foreign"
    ]
    assert spent_in(ledger.path) == 0.5


def test_many_lines_that_are_none_of_a_ledger_are_told_in_one(tmp_path: Path, caplog) -> None:
    (tmp_path / "ledger.jsonl").write_text("pipeline:\n" * 200, encoding="utf-8")
    assert list(read_ledger(tmp_path / "ledger.jsonl")) == []
    [told] = [record.message for record in caplog.records]
    assert told.endswith("lines 1, 2, 3, 4, 5, … (200 of 200) are left out: cut short or foreign")
