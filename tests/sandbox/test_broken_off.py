"""What is cancelled while it begins or ends leaves nothing: no workspace, no process, no folder."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from processes import is_running

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.base import to_its_end
from coachrl.sandbox.inside.memory_in_use import descendants

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("bare_sandboxes")]


async def broken_off(make, after):
    """Break `make()` off after the event loop has gone round so often; what it made is closed where it came first."""
    making = asyncio.create_task(make())
    for _ in range(after):
        await asyncio.sleep(0)
    making.cancel()
    for made in await asyncio.gather(making, return_exceptions=True):
        if not isinstance(made, BaseException):
            await made.close()


async def test_what_is_done_elsewhere_is_waited_for_however_often_it_is_cancelled():
    done = asyncio.Event()

    async def work():
        await done.wait()
        raise SandboxError("it is told to nobody")

    waiting = asyncio.create_task(to_its_end(work()))
    for _ in range(4):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    done.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_workspace_whose_making_was_broken_off_has_no_room(bait, tmp_path):
    (tmp_path / "given").write_bytes(bytes(6 << 20))
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=8, concurrency=1), [])
    first = await box.open({"given": tmp_path / "given"})
    box.all_files_mb = 14
    for after in range(0, 300, 10):
        await broken_off(first.copy, after)
        await broken_off(lambda: box.open({"given": tmp_path / "given"}), after)
    await (await first.copy()).close()
    await box.close()


async def test_a_workspace_whose_closing_was_broken_off_has_no_room(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=8, concurrency=1), [])
    first = await box.open({})
    box.all_files_mb = 8
    assert (await first.run("open('f', 'wb').write(bytes(3 << 20))")).state == "ok"
    for after in range(1, 12):
        copy = await first.copy()
        await broken_off(copy.close, after)
    await box.close()


async def test_a_copy_without_a_sandbox_that_was_broken_off_leaves_no_folder():
    box = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=60, concurrency=1))
    first = await box.open({})
    Path(first.root, "given").write_bytes(bytes(8 << 20))
    for after in range(2, 6):
        await broken_off(first.copy, after)
        assert box.workspaces == {first}
    await box.close()


async def starting(box):
    """A workspace that is just being opened in `box`, whose processes are there already; and these."""
    others = descendants(os.getpid())
    opening = asyncio.create_task(box.open({}))
    async with asyncio.timeout(60):
        while not (begun := descendants(os.getpid()) - others):
            await asyncio.sleep(0.01)
    return opening, begun


async def have_ended(pids):
    async with asyncio.timeout(60):
        while any(map(is_running, pids)):
            await asyncio.sleep(0.01)


async def test_a_start_that_was_broken_off_leaves_no_process(bait):
    box = make_sandbox(SandboxConfig(memory_mb=256, concurrency=1))
    opening, begun = await starting(box)
    opening.cancel()
    (ended,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)
    await have_ended(begun)
    again = await box.open({})
    assert (await again.run("print('alive')")).stdout == "alive\n"
    await box.close()


async def test_a_sandbox_that_was_closed_while_it_started_leaves_no_process(bait):
    box = make_sandbox(SandboxConfig(memory_mb=256, concurrency=1))
    opening, begun = await starting(box)
    await box.close()
    await have_ended(begun)
    with pytest.raises(SandboxError):
        await opening
