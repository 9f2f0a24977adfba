"""How much memory and disk a program, its workspace and all workspaces together may take."""

from __future__ import annotations

import asyncio

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import SandboxError
from coachrl.sandbox import make_sandbox

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_memory_of_the_whole_tree_is_bounded(cell):
    # 8 processes of 128 MiB: none exceeds the limit of 512 MiB alone.
    code = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        held = b'x' * (128 << 20)\n"
        "        time.sleep(60)\n"
        "time.sleep(60)"
    )
    assert (await cell.run(code)).state == "oom"


async def test_files_of_scratch_folders_are_memory(bait):
    box = make_sandbox(SandboxConfig(timeout_s=30, memory_mb=64, disk_mb=64, concurrency=1), [])
    cell = await box.open({})
    code = "import time\nfor f in ('/tmp', '/dev/shm'): open(f + '/f', 'wb').write(bytes(60 << 20))\ntime.sleep(60)"
    assert (await cell.run(code)).state == "oom"
    assert (await cell.run("open('f', 'wb').write(bytes(60 << 20))")).state == "ok"  # the workspace has its own limit
    await box.close()


async def test_the_workspaces_together_are_bounded(bait):
    box = make_sandbox(SandboxConfig(timeout_s=30, disk_mb=8, concurrency=2), [])
    box.all_files_mb = 12
    first, second, third = [await box.open({}) for _ in range(3)]
    fill = "try:\n    while True: open('f', 'ab').write(bytes(1 << 18))\nexcept OSError as error: print(error.strerror)"
    for cell in (first, second, first, second):
        assert (await cell.run(fill)).stdout == "No space left on device\n"
    held = [len(await cell.read("f")) >> 20 for cell in (first, second)]
    assert held[0] >= 6 and sum(held) <= 12, held
    assert (await first.run("open('f', 'wb')")).state == "ok"  # what one gives back, others get
    await second.run(fill)
    assert len(await second.read("f")) >> 20 > held[1]
    await third.run(fill)
    box.all_files_mb = 4
    with pytest.raises(SandboxError, match="hold 4 MiB together, which is all that they may"):
        await box.open({})
    assert (await third.run("print('alive')")).stdout == "alive\n"
    await box.close()


async def test_room_that_a_running_program_has_not_filled_yet_is_not_given_to_others(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=16, concurrency=2), [])
    box.all_files_mb = 24
    fill = "try:\n    while True: open('f', 'ab').write(bytes(1 << 18))\nexcept OSError: pass"
    waits = f"import time\nopen('ready', 'w')\ntime.sleep(3)\n{fill}"
    cells = [await box.open({}) for _ in range(6)]
    running = asyncio.create_task(cells[0].run(waits))
    while "ready" not in await cells[0].files():
        await asyncio.sleep(0.02)
    for cell in cells[1:]:
        assert (await cell.run(fill)).state == "ok"
    assert (await running).state == "ok"
    assert sum([len(await cell.read("f")) for cell in cells]) <= 24 << 20
    await box.close()


async def test_a_program_that_runs_leaves_room_for_a_workspace(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=64, concurrency=1), [])
    box.all_files_mb = 64
    first = await box.open({})
    running = asyncio.create_task(first.run("import time\nopen('ready', 'w')\ntime.sleep(2)"))
    while "ready" not in await first.files():
        await asyncio.sleep(0.02)
    await box.open({})
    assert (await running).state == "ok"
    await box.close()


async def test_copies_that_are_made_at_once_have_no_more_room_than_there_is(bait):
    box = make_sandbox(SandboxConfig(timeout_s=60, disk_mb=16, concurrency=2), [])
    box.all_files_mb = 40
    cell = await box.open({})
    assert (await cell.run("open('f', 'wb').write(bytes(10 << 20))")).state == "ok"
    copies = await asyncio.gather(*(cell.copy() for _ in range(8)), return_exceptions=True)
    made = [copy for copy in copies if not isinstance(copy, SandboxError)]
    assert len(made) == 3 and [len(await copy.read("f")) for copy in made] == [10 << 20] * 3
    await cell.close()
    with pytest.raises(SandboxError, match="could not be copied"):
        await cell.copy()
    await box.close()


async def test_workspaces_may_be_made_while_others_are_closed(local):
    async def open_and_close():
        for _ in range(25):
            cell = await local.open({})
            copy = await cell.copy()
            await asyncio.gather(cell.close(), copy.close())

    await asyncio.gather(*(open_and_close() for _ in range(8)))


async def test_disk_bomb_ends(cell):
    code = "import itertools\nfor n in itertools.count():\n    open(f'{n % 32}', 'ab').write(bytes(1 << 20))"
    execution = await cell.run(code)
    assert execution.state == "error"
    assert "No space left on device" in execution.stderr


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
async def test_scratch_space_is_bounded_and_private(cell, folder):
    code = (
        f"import itertools\nfor n in itertools.count():\n    open(f'{folder}/{{n % 32}}', 'ab').write(bytes(1 << 20))"
    )
    assert "No space left on device" in (await cell.run(code)).stderr
    assert (await cell.run(f"import os; print(os.listdir({folder!r}))")).stdout == "[]\n"


@pytest.mark.parametrize("make", ["open(f'{n}', 'w')", "os.mkdir(f'{n}')", "os.symlink('x', f'{n}')"])
async def test_inode_bomb_ends(cell, make):
    execution = await cell.run(f"import itertools, os\nfor n in itertools.count(): {make}")
    assert execution.state == "error"
    assert "No space left on device" in execution.stderr


async def test_a_copy_takes_no_more_room_than_what_is_copied(cell):
    made = await cell.run(
        "import os\n"
        "for n in range(4):\n"
        "    with open(f'sparse{n}', 'wb') as file: file.truncate(6 << 20); file.seek(3 << 20); file.write(b'core')\n"
        "open('once', 'wb').write(b'x' * (3 << 20))\n"
        "for n in range(4): os.link('once', f'twice{n}')"
    )
    assert made.state == "ok", made
    copied = await cell.copy()
    try:
        assert await copied.files() == await cell.files()
        for name in ("sparse3", "twice3"):
            assert await copied.read(name) == await cell.read(name)
        linked = await copied.run(
            "import os\nprint(os.path.samefile('once', 'twice3'), os.stat('once').st_uid == os.getuid())"
        )
        assert linked.stdout == "True True\n"
    finally:
        await copied.close()
