"""Settings for all tests."""

import contextlib
import fcntl
import gc
import os
import shlex
import shutil
from dataclasses import replace

import pytest

# Tests run side by side, and at their size threads only wait for each other. Before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that import LiteLLM themselves stay offline too: its retries would warn in the middle of another test.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import command_line
import pytest_asyncio
from hypothesis import settings

from coachrl.config import SandboxConfig
from coachrl.sandbox import local, make_sandbox
from coachrl.sandbox.packages import resolve

# No test depends on how fast the machine is, and two runs of one commit try the same examples.
# `pytest --hypothesis-profile explore` tries new ones, and more of them.
settings.register_profile("coachrl", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None)
settings.load_profile("coachrl")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """The whole suite runs in three processes, or two where there is one processor: tests wait about as long as they
    compute, and each process collects all of it. `-n 0` runs it in one, as single files do."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # this is one of those processes
        return
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if whole and getattr(config.option, "numprocesses", 0) is None and not config.option.usepdb:
        command_line.share()
        # Forked from what runs command lines, which has imported what takes longest.
        process = f"popen//python={shlex.join(command_line.command('cli_forks:run_tests'))}"
        config.option.tx = [process] * (count := 3 if (os.cpu_count() or 1) > 1 else 2)
        config.option.maxworkerrestart = config.option.maxworkerrestart or str(4 * count)
        config.option.dist = "worksteal"


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="the tests marked thorough too")


def pytest_collection_modifyitems(config, items):
    """What takes longest comes first, so that no process waits for it in the end. What is marked thorough is left out,
    unless it is asked for: with --thorough, or by name."""
    if not (config.option.thorough or any("::" in argument for argument in config.args)):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: collections look at new objects only."""
    gc.disable()
    try:
        with one_before_the_others():
            return (yield)
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def one_before_the_others():
    """Of processes side by side, one rewrites the assertions of all tests and compiles what they import; the others
    wait for that and read it."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not (shared := command_line.shared()):
        yield
        return
    with shared.with_suffix(".collecting").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


LEFT_OUT = pytest.StashKey()


def pytest_deselected(items):
    """What is left out because it takes long is listed in the end."""
    long = {i.nodeid.partition("[")[0] for i in items if any(map(i.get_closest_marker, ("slow", "thorough")))}
    items[0].config.stash.setdefault(LEFT_OUT, set()).update(long)


def pytest_sessionfinish(session):
    if "PYTEST_XDIST_WORKER" in os.environ:
        session.config.workeroutput["left_out"] = sorted(session.config.stash.get(LEFT_OUT, ()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """The process that reports collects nothing itself, where others run the tests."""
    left_out = getattr(node, "workeroutput", {}).get("left_out", ())
    node.config.stash.setdefault(LEFT_OUT, set()).update(left_out)


def pytest_terminal_summary(terminalreporter, config):
    for test in sorted(config.stash.get(LEFT_OUT, ())):
        terminalreporter.write_line(f"left out: {test}")


def import_no_packages(monkeypatch):
    """Sandboxes import packages when a program asks for them: beforehand, as they do, it takes seconds of computing."""
    monkeypatch.setattr(local, "resolve", lambda names: replace(resolve(names), preload=()))


@pytest.fixture
def bare_sandboxes(monkeypatch):
    import_no_packages(monkeypatch)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def code_sandbox():
    """One isolating sandbox for all tests that run programs; their loop scope is the session's."""
    with pytest.MonkeyPatch.context() as patched:
        import_no_packages(patched)
        sandbox = make_code_sandbox()
    yield sandbox
    await sandbox.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def warm_code_sandbox():
    """The same for programs that import packages."""
    sandbox = make_code_sandbox()
    yield sandbox
    await sandbox.close()


def make_code_sandbox():
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return make_sandbox(SandboxConfig(timeout_s=30.0, memory_mb=512, disk_mb=8))


@pytest_asyncio.fixture(loop_scope="session")
async def code_workspace(code_sandbox):
    workspace = await code_sandbox.open({})
    yield workspace
    await workspace.close()
