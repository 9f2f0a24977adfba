"""A checkpoint that is written beside what follows: waited for, its failure told once."""

import asyncio
import gc
import threading

import pytest

from coachrl.trainers.checkpoint_writer import CheckpointWriter, is_done_within


def failing():
    raise OSError(28, "No space left on device")


async def test_others_go_on_while_it_is_written():
    writer, may_end, ended = CheckpointWriter(), threading.Event(), []
    writer.begin(lambda: (may_end.wait(), ended.append("written")))
    waiting = asyncio.create_task(writer.written())
    await asyncio.sleep(0)
    assert not ended and not waiting.done()
    may_end.set()
    await waiting
    assert ended == ["written"]
    writer.wait()


async def test_a_failure_is_raised_once_where_it_is_waited_for():
    writer, told = CheckpointWriter(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    writer.begin(failing)
    with pytest.raises(OSError, match="No space left"):
        await writer.written()
    await writer.written()
    writer.close()
    gc.collect()
    await asyncio.sleep(0)
    assert not told, "a second time, as a traceback"


def test_where_no_thread_can_be_started_it_is_written_at_once(monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    writer, done = CheckpointWriter(), []
    writer.begin(lambda: done.append("written"))
    assert done == ["written"]
    writer.wait()


def test_what_may_hang_is_waited_for_no_longer_than_asked():
    released = threading.Event()
    assert not is_done_within(0.1, released.wait)
    released.set()
    assert is_done_within(60.0, released.wait)
    with pytest.raises(OSError, match="No space left"):
        is_done_within(60.0, failing)


def test_at_the_end_of_a_run_that_fails_a_failure_is_logged(caplog):
    writer = CheckpointWriter()
    writer.begin(failing)
    writer.close()
    assert "the last checkpoint was not written: [Errno 28] No space left on device" in caplog.text
