"""What users' own code does to the event loop that a command runs in."""

import asyncio
import errno
import io
import os
import signal
import sys

import pytest
from rich.console import Console

from coachrl import resources
from coachrl.commands import event_loop
from coachrl.commands.event_loop import run_in_loop
from coachrl.errors import ConfigError, Preempted

LONG_S = 60.0


def ends_the_program():
    asyncio.get_running_loop().call_soon(sys.exit, 3)


def ends_the_program_for_a_pipe_of_its_own():
    def leave():
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except BrokenPipeError:
            sys.exit(5)

    asyncio.get_running_loop().call_soon(leave)


def stops_the_loop():
    asyncio.get_running_loop().stop()


def cancels_every_task():
    for task in asyncio.all_tasks():
        task.cancel()


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (ends_the_program, r"has ended the program: exit\(3\)$"),
        (ends_the_program_for_a_pipe_of_its_own, r"has ended the program: exit\(5\)$"),
        (stops_the_loop, "has stopped the event loop$"),
        (cancels_every_task, "has cancelled tasks that are not its own$"),
    ],
)
def test_what_ends_the_loop_is_one_line_and_the_work_ends_in_its_own_time(does, said):
    ended = []

    async def work():
        does()
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    with pytest.raises(ConfigError, match=said):
        run_in_loop(work())
    with pytest.raises(ConfigError, match=said.replace("$", "; continue with: …$")):
        run_in_loop(work(), lambda: "continue with: …")
    assert ended == [True, True]


def test_a_sigterm_that_ray_hears_while_it_starts_is_no_fault_of_the_user_s_code():
    async def work():
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as `ray.init` does
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(LONG_S)
        finally:
            signal.signal(signal.SIGTERM, before)

    with pytest.raises(Preempted, match=r"asked to end; continue with: …$") as ended:
        run_in_loop(work(), lambda: "continue with: …")
    assert ended.value.exit_code == 143


def test_a_console_that_nobody_reads_ends_the_program(monkeypatch, tmp_path):
    class Unread(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    async def work():
        Console(file=Unread()).print("words")

    with (tmp_path / "stdout").open("w") as stdout:  # which the console turns away
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            run_in_loop(work())
    assert ended.value.code == 1


def test_a_task_that_does_not_end_does_not_hold_up_the_end(monkeypatch, caplog):
    monkeypatch.setattr(event_loop, "_ENDING_S", 0.1)
    monkeypatch.setattr(resources, "_endless", [])

    async def for_ever():
        while True:
            try:
                await asyncio.sleep(LONG_S)
            except asyncio.CancelledError:
                caplog.clear()

    async def work():
        left = asyncio.create_task(for_ever(), name="left")
        await asyncio.sleep(0)
        return left

    left = run_in_loop(work())
    assert not left.done() and "task left does not end" in caplog.text
    assert resources.code_goes_on(), "else Python would close it when the process ends, and wait for ever"
    left._log_destroy_pending = False


def test_an_error_of_the_work_is_told_as_it_is():
    async def work():
        raise RuntimeError("Event loop stopped")

    with pytest.raises(RuntimeError, match=r"^Event loop stopped$"):
        run_in_loop(work())


def test_ctrl_c_is_what_it_is_to_asyncio():
    before, ended = signal.signal(signal.SIGINT, signal.default_int_handler), []

    async def work():
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ended.append(True)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_loop(work())
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]


def test_a_task_that_ends_the_program_as_it_is_ended_hides_no_error(caplog):
    async def leaves():
        try:
            await asyncio.sleep(LONG_S)
        finally:
            sys.exit(0)

    async def work():
        left.append(asyncio.create_task(leaves()))
        await asyncio.sleep(0)
        raise ValueError("the true error")

    left = []
    with pytest.raises(ValueError, match="the true error"):
        run_in_loop(work())
    assert left[0].done() and "tried to end the program while its tasks end: SystemExit(0)" in caplog.text


@pytest.mark.parametrize("does", [ends_the_program, stops_the_loop])
def test_what_is_done_to_the_loop_many_times_is_one_error(does):
    async def again():
        for _ in range(20):
            asyncio.get_running_loop().call_soon(does)
            await asyncio.sleep(0)

    async def work():
        for _ in range(20):
            does()
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await again()
            ended.append(True)

    ended = []
    with pytest.raises(ConfigError, match="code that the run calls"):
        run_in_loop(work())
    assert ended == [True]


def test_ctrl_c_is_answered_as_before_once_the_program_was_ended():
    async def work():
        ends_the_program()
        await asyncio.sleep(LONG_S)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ConfigError):
        run_in_loop(work())
    assert signal.getsignal(signal.SIGINT) is before
