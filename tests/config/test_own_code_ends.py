"""Code of the user's own that is told to end: it is waited for, and one that goes on is named."""

import asyncio
import contextlib

import pytest

from coachrl.config import choices
from coachrl.config.choices import awaited
from coachrl.errors import ConfigError


async def test_one_that_is_told_twice_is_still_waited_for():
    """As where one of several episodes ends first, and the others are cancelled once more."""
    ended = []

    async def tidies_up():
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                ended.append(True)

    task = asyncio.create_task(awaited(tidies_up()))
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended


async def test_one_that_goes_on_is_named_however_often_it_is_told(monkeypatch):
    monkeypatch.setattr(choices, "_ENDING_S", 0.05)
    monkeypatch.setattr(choices, "_AFTERWARDS_S", 0.05)
    end = asyncio.Event()

    async def stubborn():
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()

    task = asyncio.create_task(awaited(stubborn()))
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(ConfigError, match=r"stubborn goes on .* after it was told to end"):
        await task
    end.set()
