"""The watch over a Ray cluster, with a bare socket in the place of its head."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time

import pytest

from coachrl.cli.train import _behind
from coachrl.errors import ClusterLost
from coachrl.trainers.backends.openrlhf.cluster import watch
from coachrl.trainers.backends.openrlhf.cluster.watch import ClusterWatch


@pytest.fixture
def head(monkeypatch):
    monkeypatch.setattr(watch, "_EVERY_S", 0.05)
    monkeypatch.setattr(watch, "_AGAIN_S", 2.0)
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "0.3")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background specs begin without one
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening
    signal.signal(signal.SIGINT, before)


def watched(head):
    return ClusterWatch(f"127.0.0.1:{head.getsockname()[1]}")


def test_a_head_that_answers_interrupts_nothing(head):
    watching = watched(head)
    time.sleep(1.0)
    watching.wait()
    watching.stop()


def test_a_head_that_is_gone_ends_what_is_awaited(head, caplog):
    """asyncio hears of it as of Ctrl-C, and what closes in between can say why."""

    async def wait():
        watching = watched(head)
        try:
            head.close()
            await asyncio.sleep(600)
        finally:
            try:
                watching.wait()
            finally:
                watching.stop()

    with pytest.raises(ClusterLost, match="is gone"):
        asyncio.run(wait())
    assert "has not answered for 0 s; a run goes on from its last checkpoint with" in caplog.text


def test_a_head_that_is_gone_ends_a_call_that_blocks_the_event_loop(head):
    async def block():
        watching = watched(head)
        try:
            head.close()
            time.sleep(600)
        finally:
            watching.stop()

    with pytest.raises(KeyboardInterrupt):  # long before the sleep is over
        asyncio.run(block())


def test_nothing_is_interrupted_once_it_is_stopped(head):
    watching = watched(head)
    watching.stop()
    head.close()
    time.sleep(1.0)
    watching.wait()


def test_what_ends_actors_waits_for_a_head_that_comes_back(head, monkeypatch):
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "60")
    watching = watched(head)
    place = head.getsockname()
    head.close()
    back = []
    later = threading.Timer(1.0, lambda: back.append(socket.create_server(place)))
    later.start()
    watching.wait()
    assert back, "it did not wait"
    watching.stop()
    later.join()
    back[0].close()


def test_what_the_watch_interrupted_is_told_from_ctrl_c():
    async def closed_by_the_watch():
        os.kill(os.getpid(), signal.SIGINT)  # while a call blocks the event loop
        try:
            raise ClusterLost("the head is gone")
        finally:
            await asyncio.sleep(0)  # as the sandbox's end is awaited

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as interrupted:
            asyncio.run(closed_by_the_watch())
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(_behind(interrupted.value)) == "the head is gone"
    assert _behind(KeyboardInterrupt()) is None
