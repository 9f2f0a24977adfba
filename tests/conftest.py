"""Settings for all tests."""

import os
import shutil

import pytest
import pytest_asyncio
from hypothesis import settings

from coachrl.sandbox import Limits, make_sandbox

# Tests that import LiteLLM themselves stay offline too: its retries would warn in the middle of another test.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
settings.register_profile("coachrl", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("coachrl")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def code_sandbox():
    """One isolating sandbox for all tests that run programs; their loop scope is the session's."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    sandbox = make_sandbox("local", Limits(timeout_s=30.0, memory_mb=512, disk_mb=8))
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="session")
async def code_workspace(code_sandbox):
    workspace = await code_sandbox.open({})
    yield workspace
    await workspace.close()
