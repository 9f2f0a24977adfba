"""The escape suite against each sandbox that isolates, and against none, where what it tries must go through."""

# ruff: noqa: E501  an attempt is a line or two of the table, however long

from __future__ import annotations

import asyncio

import pytest
from escapes import ATTEMPTS, BOMBS, judge, run_suite
from escapes.attempts import program

from coachrl.types import Execution

pytestmark = pytest.mark.asyncio(loop_scope="session")


# A server is sent a program that unpacks the workspace, runs the agent's as its child, and packs what it left.
REACH_THE_PACKER = [
    ("signals", name)
    for name in ("kill every process", "kill the parent", "stop the parent", "write to inherited files")
]


def attempts(chosen):
    return pytest.mark.parametrize("attempt", chosen, ids=lambda attempt: attempt.name)


def firsts(found, area):
    """One of each area: what runs code for a server is the sandbox that everything was tried in."""
    return list({area(one): one for one in reversed(found)}.values())


@attempts(ATTEMPTS)
async def test_attempt_is_refused(local, bait, attempt):
    await is_refused(local, bait, attempt)


@attempts(firsts(ATTEMPTS, lambda attempt: attempt.area))
async def test_attempt_is_refused_behind_a_server(fusion, bait, attempt):
    await is_refused(fusion, bait, attempt)


async def is_refused(sandbox, bait, attempt):
    workspace = await sandbox.open({})
    execution = await workspace.run(program(attempt, bait))
    await workspace.close()
    held, detail = judge(execution)
    assert held, detail


@pytest.mark.thorough
@attempts([attempt for attempt in ATTEMPTS if attempt.open_outside])
async def test_attempt_would_work_without_the_sandbox(unsafe, bait, attempt):
    workspace = await unsafe.open({})
    execution = await workspace.run(program(attempt, bait))
    await workspace.close()
    assert execution.stdout.endswith("ESCAPED\n"), execution


@pytest.mark.parametrize("name", BOMBS, ids=": ".join)
async def test_bomb_is_held(local, name):
    assert await BOMBS[name](local) == ""


@pytest.mark.parametrize(
    "name", dict.fromkeys([*firsts(list(BOMBS), lambda name: name[0]), *REACH_THE_PACKER]), ids=": ".join
)
async def test_bomb_is_held_behind_a_server(fusion, name):
    assert await BOMBS[name](fusion) == ""


async def test_the_disk_bomb_would_work_without_the_sandbox(unsafe):
    assert "ended with" in await BOMBS["bombs", "disk"](unsafe)


class Open:
    """A sandbox that lets everything through without running anything."""

    async def start(self): ...
    async def close(self): ...
    async def open(self, files):
        return self

    async def run(self, code, timeout_s=None):
        return Execution("ok", "300\n" if "/proc" in code and "ESCAPED" not in code else "ESCAPED\n")

    async def copy(self):
        return self

    async def files(self):
        return ("link",)

    async def read(self, name, max_bytes=0):
        return b"id,y\n1,0.5\n2,0.7\n"


async def test_the_suite_tells_of_each_attempt_that_gets_through(bait):
    results = [result async for result in run_suite(Open(), bait)]
    assert [r.tried for r in results] == [a.name for a in ATTEMPTS] + [name for _, name in BOMBS]
    assert len(results) >= 40 and len({(r.area, r.tried) for r in results}) == len(results)
    assert not any(r.held for r in results[: len(ATTEMPTS)])
    assert {r.detail for r in results if r.area == "signals"} == {"not tried: 300 processes are in reach"}
    assert not any(r.held for r in results if r.tried in ("link to a file of the host", "pickle as a submission"))


async def test_the_table_says_how_an_attempt_was_held():
    assert judge(Execution("ok", "refused PermissionError(13, 'no')\n")) == (True, "PermissionError(13, 'no')")
    assert judge(Execution("ok", "refused AssertionError()\n")) == (True, "not there")
    assert judge(Execution("ok", "ESCAPED\n")) == (False, "ESCAPED")
    assert judge(Execution("error", "", "Traceback\nOSError: x")) == (False, "OSError: x")
    held, detail = judge(Execution("timeout"))
    assert not held and "did not end in time; try again where less is running" in detail
    assert judge(Execution("timeout", "ESCAPED\n")) == (False, "ESCAPED")


async def test_workspaces_do_not_see_each_other(local):
    owner, thief = await local.open({}), await local.open({})
    await owner.run("open('mine', 'w').write('answer 42')\nopen('/tmp/left', 'w').write('answer 42')")
    busy = asyncio.create_task(owner.run("import time; open('/tmp/note', 'w').write('answer 42'); time.sleep(1.5)"))
    search = (
        "import os\nfor folder, _, names in os.walk('/'):\n    if folder.startswith(('/proc', '/packages', '/usr')): continue\n"
        "    for n in names:\n        if n in ('mine', 'left', 'note'): print('ESCAPED', folder, n)\n"
        "print([p for p in os.listdir('/proc') if p.isdigit()])"
    )
    execution = await thief.run(search)
    assert execution.stdout == "['1', '2']\n"
    assert (await busy).state == "ok"
    await owner.close()
    await thief.close()


async def test_what_one_execution_breaks_stays_broken_there_only(cell):
    await cell.run(
        "import os, signal\nfor pid in range(1, 400):\n    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass"
    )
    await cell.run("import sys, gc\nfor m in list(sys.modules.values()): vars(m).clear()")
    assert (await cell.run("import pandas as pd; print(pd.Series([1, 2]).sum())")).stdout == "3\n"
