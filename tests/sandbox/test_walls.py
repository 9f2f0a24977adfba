"""The sandbox starts with its walls whole, or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError, SandboxUnavailable
from coachrl.sandbox import bubblewrap, checks, make_sandbox
from coachrl.sandbox.local import probe
from coachrl.sandbox.packages import resolve

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.usefixtures("bare_sandboxes")]


async def test_a_start_that_takes_too_long_says_so(monkeypatch):
    monkeypatch.setattr("coachrl.sandbox.local._START_TIMEOUT_S", 0.001)
    box = make_sandbox(SandboxConfig(kind="local"))
    with pytest.raises(SandboxUnavailable, match=r"it did not answer within 0\.001 s; try again where less is running"):
        await box.start()
    await box.close()


async def test_every_control_holds(local):
    found = await local.check()
    assert {check.name for check in found} >= {"network", "host files", "privileges", "memory limit", "process limit"}
    assert [check for check in found if not (check.ok or check.optional)] == []


async def test_a_control_that_does_not_hold_is_found(unsafe):
    found = {check.name: check for check in await checks.try_controls(await unsafe.open({}))}
    for name in ("network", "host files", "privileges", "disk limit", "file limit"):
        assert not found[name].ok
        assert found[name].remedy


class _Closed:
    """A workspace whose programs may not run the interpreter, as where root has installed it with a umask of 077."""

    def __init__(self, workspace):
        self._workspace = workspace

    async def run(self, code):
        closed = (
            "import os, sys\nmay = os.access\nos.access = lambda path, mode: path != sys.executable and may(path, mode)"
        )
        return await self._workspace.run(f"{closed}\n{code}")


async def test_an_interpreter_that_programs_may_not_start_is_found_and_nothing_else_tried(unsafe):
    """Programs begin all the same, and the suites of programming tasks, which start another one, would all fail."""
    (found,) = await checks.try_controls(_Closed(await unsafe.open({})))
    assert (found.name, found.ok) == ("Python and packages readable", False)
    assert Path(found.detail).samefile(sys.executable)
    assert "chmod -R o+rX" in found.remedy


async def test_without_bubblewrap_it_fails_closed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap") as error:
        await make_sandbox(SandboxConfig()).start()
    assert error.value.exit_code == 2
    (check,) = await asyncio.to_thread(probe)
    assert not check.ok
    assert "apt-get install bubblewrap" in check.remedy


async def test_a_bubblewrap_that_cannot_isolate_fails_closed(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create new namespace; .*namespaces"):
        await make_sandbox(SandboxConfig()).start()


async def test_a_hole_in_the_wall_fails_closed_each_time(local, monkeypatch):
    arguments = bubblewrap.arguments

    def with_a_hole(*values):
        command = arguments(*values)
        end = command.index("--remount-ro")
        return [*command[:end], "--ro-bind", "/etc", "/etc", *command[end:]]

    monkeypatch.setattr(bubblewrap, "arguments", with_a_hole)
    holed = make_sandbox(SandboxConfig())
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"host files: .*/etc/passwd"):
            await holed.open({})
    await holed.close()


async def test_a_user_who_may_start_no_more_processes_is_told_of_the_limit(monkeypatch):
    def begin(*_):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(bubblewrap, "_begin", begin)
    with pytest.raises(SandboxUnavailable, match=r"does not start: Resource temporarily unavailable; .*`ulimit -u`"):
        await make_sandbox(SandboxConfig()).open({})


@pytest.mark.parametrize("folder", ["/tmp", "/workspace", "/dev"])
async def test_an_interpreter_in_the_place_of_programs_own_files_is_named(monkeypatch, folder):
    python = Path(folder, "shm/conda/bin/python3.11")
    monkeypatch.setattr(bubblewrap, "_python", lambda: python)
    monkeypatch.setattr(os, "access", lambda place, mode: True)
    with pytest.raises(SandboxUnavailable, match=f"the interpreter inside: {python} lies below {folder}, where"):
        await make_sandbox(SandboxConfig()).open({})


async def test_unknown_package_is_a_config_error():
    with pytest.raises(ConfigError, match="no-such-distribution"):
        make_sandbox(SandboxConfig(), packages=["no-such-distribution"])


async def test_packages_come_with_what_they_need_and_no_tables():
    packages = resolve(("scikit-learn",))
    assert {"sklearn", "numpy", "scipy", "joblib", "threadpoolctl.py"} <= set(packages.entries)
    assert "pandas" not in packages.entries
    assert {"sklearn/datasets/data", "scipy/spatial/tests/data"} <= set(packages.hidden)


async def test_packages_of_the_system_are_hidden_whatever_their_language(tmp_path, monkeypatch):
    library = tmp_path.resolve() / "lib"
    hidden = [
        library / name for name in ("R/library", "node_modules", "pypy3/dist-packages", "python3.11/site-packages")
    ]
    for folder in hidden:
        folder.mkdir(parents=True)
    (library / "R" / "site-library").symlink_to("library")
    (library / "node_modules" / "more-packages").mkdir()
    (library / "tools").mkdir()
    (library / "tools" / "list-packages").touch()
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    given = list(bubblewrap._system_arguments())
    empty = [
        given[n + 1] for n, word in enumerate(given) if word == "--tmpfs" and given[n + 1].startswith(str(library))
    ]
    assert empty == sorted(map(str, hidden))
