"""Whose doing it is when a process that watches over programs ends: never the sandbox's where a program may have done
it, and never another program's."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from coachrl.sandbox.inside import zygote
from coachrl.sandbox.inside.memory_in_use import descendants

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("bare_sandboxes")]

WAIT = "import time; open('started', 'w').close(); time.sleep(600)"
WAIT_WARM = f"import numpy; {WAIT}"


def fields(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has just ended
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def processes(sandbox):
    """pid -> fields of its status, of all that the sandbox runs."""
    found = {pid: fields(pid) for pid in descendants(sandbox._zygote.bubblewrap.process.pid)}
    return {pid: known for pid, known in found.items() if known}


def room_inits(sandbox):
    """Host pids of the first processes of rooms: pid 1 of a namespace below bubblewrap's."""
    found = {pid: known["NSpid"].split() for pid, known in processes(sandbox).items()}
    deepest = max(map(len, found.values()))
    return [pid for pid, pids in found.items() if len(pids) == deepest and pids[-1] == "1"]


def warm_interpreter(sandbox):
    """Host pid of the warm interpreter: the largest process outside the rooms."""
    found = processes(sandbox)
    depth = max(len(known["NSpid"].split()) for known in found.values())
    outside = [pid for pid, known in found.items() if len(known["NSpid"].split()) < depth]
    return max(outside, key=lambda pid: int(found[pid].get("VmRSS", "0 kB").split()[0]))


async def running(sandbox, code=WAIT):
    """A workspace in which `code` runs, and that execution."""
    cell = await sandbox.open({})
    task = asyncio.create_task(cell.run(code))
    async with asyncio.timeout(60):
        while "started" not in await cell.files():
            await asyncio.sleep(0.02)
    return cell, task


async def test_a_program_whose_first_process_ends_has_failed_itself(local):
    for code in (WAIT, WAIT_WARM):
        cell, task = await running(local, code)
        (init,) = room_inits(local)
        os.kill(init, signal.SIGKILL)
        execution = await task
        assert execution.state == "error", execution
        assert (await cell.run("print('alive')")).stdout == "alive\n"
        await cell.close()


async def test_a_program_whose_supervisor_ends_has_failed_itself_alone(local):
    other, beside = await running(local)
    (spared,) = room_inits(local)
    cell, task = await running(local)
    (init,) = {*room_inits(local)} - {spared}
    os.kill(int(fields(init)["PPid"]), signal.SIGKILL)
    execution = await task
    assert execution.state == "error", execution
    assert "ended the process that watches over it" in execution.stderr
    assert not beside.done()
    assert (await cell.run("print('alive')")).stdout == "alive\n"
    await cell.close()
    await other.close()
    assert (await beside).state == "infrastructure"  # the host closed its workspace: nobody's failure


async def test_the_only_program_that_runs_when_the_sandbox_ends_from_inside_is_to_blame(local):
    cell, task = await running(local, WAIT_WARM)
    os.kill(warm_interpreter(local), signal.SIGKILL)
    execution = await task
    assert execution.state == "error", execution
    assert (await cell.run("print(1)")).state == "infrastructure"  # its files are gone; no code has run
    await cell.close()
    fresh = await local.open({})
    assert (await fresh.run("print('alive')")).stdout == "alive\n"
    await fresh.close()


async def test_of_several_programs_none_is_blamed_for_the_end_of_the_sandbox(local):
    pairs = [await running(local), await running(local, WAIT_WARM)]
    os.kill(warm_interpreter(local), signal.SIGKILL)
    assert [(await task).state for _, task in pairs] == ["infrastructure"] * 2
    for cell, _ in pairs:
        await cell.close()


async def test_none_is_blamed_where_the_end_of_the_sandbox_takes_its_time(local):
    pairs = [await running(local), await running(local, WAIT_WARM)]
    interpreter = warm_interpreter(local)
    waiting = int(fields(interpreter)["PPid"])
    os.kill(waiting, signal.SIGSTOP)  # as on a busy machine
    os.kill(interpreter, signal.SIGKILL)
    await asyncio.sleep(2)
    assert not any(task.done() for _, task in pairs)
    os.kill(waiting, signal.SIGCONT)
    assert [(await task).state for _, task in pairs] == ["infrastructure"] * 2
    for cell, _ in pairs:
        await cell.close()


async def test_a_sandbox_that_is_ended_from_outside_blames_no_program(local):
    cell, task = await running(local)
    local._zygote.bubblewrap.process.kill()
    assert (await task).state == "infrastructure"
    await cell.close()


async def test_an_answer_that_came_while_the_host_did_something_else_counts(cell):
    await cell.run("open('f', 'w').write('here')")
    request = {"op": "read", "name": "f", "max_bytes": 9}
    reading = asyncio.create_task(cell.ask(request, timeout_s=0.1))
    while not cell._running:  # until it is asked
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(0.5)  # the time for the answer is over when this process looks again
    assert (await reading)[1] == [b"here"]


async def test_where_everything_stood_still_a_program_has_the_rest_of_its_time(cell, monkeypatch):
    async def goes_on():
        return True

    monkeypatch.setattr("coachrl.sandbox.local._GRACE_S", 0.01)
    monkeypatch.setattr(cell, "_goes_on", goes_on)
    answer = asyncio.ensure_future(asyncio.sleep(0.8, "done"))
    assert await cell._awaited(answer, timeout_s=0.5) == "done"


async def test_requests_wait_where_the_sandbox_has_not_taken_those_before(local):
    cell, task = await running(local, WAIT_WARM)
    waiting = int(fields(warm_interpreter(local))["PPid"])
    control = local._zygote.control
    usual = control.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least: a few requests
    os.kill(waiting, signal.SIGSTOP)
    asked = [asyncio.create_task(cell.files()) for _ in range(12)]
    await asyncio.sleep(0.2)
    assert not any(looked.done() for looked in asked)
    os.kill(waiting, signal.SIGCONT)
    assert await asyncio.gather(*asked) == [("started",)] * 12
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, usual // 2)  # the kernel doubles it
    await cell.close()
    await task


async def test_a_look_at_the_files_does_not_hide_who_runs(local):
    cell, task = await running(local)  # looks at the files until the program has begun
    async with asyncio.timeout(60):
        while local._zygote.programs != {cell._name}:  # what says that it began may be read just after
            await cell.files()
    await cell.files()
    assert local._zygote.programs == {cell._name}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert local._zygote.programs == set()
    await cell.close()


async def test_code_that_is_too_long_to_send_is_the_agents_failure(cell):
    execution = await cell.run("#" * (65 << 20))
    assert execution.state == "error"
    assert "longer than" in execution.stderr
    assert (await cell.run("#" * (7 << 20) + "\nprint('alive')")).stdout == "alive\n"


@pytest.mark.parametrize("error", [ValueError("no text"), FileNotFoundError("gone"), OSError("no room")])
@pytest.mark.parametrize("begins", [True, False])
async def test_a_watch_that_fails_is_the_programs_doing_from_its_beginning_on(monkeypatch, tmp_path, error, begins):
    def execute(workspace, code, limits, host, interpreter, begun, cgroup):
        if begins:
            begun()
        raise error

    monkeypatch.setattr(zygote.supervisor, "execute", execute)
    monkeypatch.setattr(zygote.jail, "WORKSPACES", str(tmp_path))
    monkeypatch.setattr(zygote.jail, "fit_workspace", lambda *_: None)
    monkeypatch.setattr(zygote.jail, "shrink_workspace", lambda *_: None)
    (tmp_path / "here").mkdir()
    limits = {"timeout_s": 1, "memory_mb": 64, "disk_mb": 1, "max_files": 8, "max_processes": 1, "output_kb": 1}
    request = {"workspace": "here", "code": "", "limits": limits, "all_files_mb": 1, "at_once": 1}
    with pytest.raises(zygote._BrokenByCode if begins else type(error)):
        zygote._run(request, io.BytesIO(), None, None, None)


async def test_no_answer_that_the_sandbox_may_give_to_a_program_is_raised(local):
    cell = await local.open({})
    name, cell._belongs["workspace"] = cell._name, "never made"
    assert (await cell.run("pass")).state == "infrastructure"
    cell._belongs["workspace"] = name
    await cell.close()
