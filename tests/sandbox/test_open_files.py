"""Limits on open files: what the sandbox does where this process may open no more, and what programs inside may."""

from __future__ import annotations

import asyncio
import re
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxUnavailable
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.inside.memory_in_use import descendants

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def open_files():
    """Sets this process's limit on open files; those that are open stay so."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda number: resource.setrlimit(resource.RLIMIT_NOFILE, (number, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, most))


async def test_where_no_more_files_may_be_opened_requests_wait(cell, open_files):
    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files(3)
    asked = [asyncio.create_task(of) for of in (cell.run("print(1)"), cell.files(), cell.copy())]
    done, _ = await asyncio.wait(asked, timeout=0.1)
    assert not done
    open_files(before)
    execution, names, copied = await asyncio.gather(*asked)
    await copied.close()
    assert (execution.stdout, names) == ("1\n", ())


async def test_a_start_without_a_file_to_open_says_how_to_get_more(local, open_files):
    fresh = make_sandbox(SandboxConfig())
    open_files(3)
    with pytest.raises(SandboxUnavailable, match=r"Too many open files; .*ulimit -n"):
        await fresh.start()


def limits_inside(sandbox):
    """Of each process but bubblewrap's own, what the kernel says; of one that is just ending it says nothing."""
    found = []
    for process in (Path("/proc", str(pid)) for pid in descendants(sandbox._zygote.bubblewrap.process.pid)):
        with suppress(OSError):
            if "bwrap" not in process.joinpath("comm").read_text():
                found.append(process.joinpath("limits").read_text())
    return found


async def test_inside_there_are_few_file_numbers_to_close_whatever_the_host_allows(local, open_files):
    """Some interpreters close them one by one, and containers often allow a billion."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < most <= 1 << 14:
        pytest.skip("this user may not open more files")
    open_files(most)
    fresh = make_sandbox(SandboxConfig(concurrency=1))
    await fresh.start()
    while len(limits := limits_inside(fresh)) > 2:  # one that made it ready may not have ended yet
        await asyncio.sleep(0.01)
    await fresh.close()
    assert len(limits) == 2 and all(re.search(r"Max open files +16384 ", text) for text in limits), limits
