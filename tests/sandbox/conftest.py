"""One sandbox of each kind for the whole session: starting one costs seconds, a workspace costs milliseconds."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import pytest_asyncio
from escapes import SUITE_LIMITS, set_out

from coachrl.config import SandboxConfig
from coachrl.sandbox import make_sandbox

LIMITS = SUITE_LIMITS


def _why_no_bubblewrap() -> str | None:
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    attempt = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"], capture_output=True, text=True
    )
    return f"bubblewrap cannot isolate here: {attempt.stderr.strip()}" if attempt.returncode else None


NO_BUBBLEWRAP = _why_no_bubblewrap()


@pytest.fixture(scope="session")
def bait():
    """What attempts to escape are after."""
    with set_out() as things:
        yield things


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local(bait):
    if NO_BUBBLEWRAP:
        pytest.skip(NO_BUBBLEWRAP)
    sandbox = make_sandbox(LIMITS)
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def unsafe():
    # Nothing is imported beforehand: on a busy machine that takes long.
    sandbox = make_sandbox(LIMITS.model_copy(update={"kind": "local-unsafe", "timeout_s": 120.0}))
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def behind(bait):
    """The isolating sandbox behind the server, with room for the program that unpacks a workspace."""
    if NO_BUBBLEWRAP:
        pytest.skip(NO_BUBBLEWRAP)
    sandbox = make_sandbox(
        SandboxConfig(timeout_s=60.0, memory_mb=1024, disk_mb=64, max_files=512, max_processes=24, output_kb=16)
    )
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fusion(behind):
    """A SandboxFusion-compatible server on loopback, which runs code in the isolating sandbox."""
    pytest.importorskip("aiohttp")
    from fusion_server import FusionServer

    async with FusionServer(behind) as server:
        sandbox = make_sandbox(LIMITS.model_copy(update={"kind": "fusion", "url": server.url}))
        yield sandbox
        await sandbox.close()


@pytest.fixture(params=["local", "local-unsafe", "fusion"])
def sandbox(request):
    """Each kind in turn."""
    return request.getfixturevalue(request.param.removeprefix("local-"))


@pytest_asyncio.fixture(loop_scope="session")
async def workspace(sandbox):
    """An empty workspace of each kind of sandbox in turn."""
    workspace = await sandbox.open({})
    yield workspace
    await workspace.close()


@pytest_asyncio.fixture(loop_scope="session")
async def cell(local):
    """An empty workspace of the isolating sandbox."""
    workspace = await local.open({})
    yield workspace
    await workspace.close()
