"""The SandboxFusion client against a real server on loopback that fails on cue."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import subprocess
import sys
import time

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError, SandboxError, SandboxUnavailable
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.base import limits_of
from coachrl.sandbox.fusion import FusionSandbox, FusionWorkspace
from coachrl.sandbox.fusion_reports import Contents, read_report
from coachrl.sandbox.inside import remote, wire

pytest.importorskip("aiohttp")
from fusion_server import (
    CUT,
    CUT_AFTER,
    GARBAGE,
    HANG,
    PASS,
    SERVER_ERROR,
    Fault,
    FusionServer,
    status,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
SETTINGS = SandboxConfig(kind="fusion", timeout_s=20.0, memory_mb=512, disk_mb=8, max_files=64, output_kb=16)
LIMITS = limits_of(SETTINGS)


def at(url, **settings):
    return SETTINGS.model_copy(update={"url": url, **settings})


async def run_against(behind, script, code="open('f', 'w').write('x'); print(1)", **settings):
    async with FusionServer(behind, script) as server:
        sandbox = FusionSandbox(at(server.url), first_wait_s=0.01, **settings)
        execution = await FusionWorkspace(sandbox, Contents()).run(code)
        await sandbox.close()
        return execution, server


@pytest.mark.parametrize("refusal", [status(503), status(429, retry_after_s=0)], ids=["503", "429"])
async def test_what_has_not_started_is_sent_again(behind, refusal):
    execution, server = await run_against(behind, [refusal, refusal, PASS])
    assert execution.stdout == "1\n"
    assert (server.requests, server.executed) == (3, 1)


@pytest.mark.parametrize(
    ("fault", "executed", "says"),
    [
        (status(500), 0, "answered 500"),
        (status(502), 0, "answered 502"),
        (status(504), 0, "answered 504"),
        (CUT, 0, "connection .* broke"),
        (CUT_AFTER, 1, "connection .* broke"),
        (GARBAGE, 0, "no RunCodeResponse"),
        (SERVER_ERROR, 0, "scripted error"),
    ],
)
async def test_what_may_have_started_is_never_sent_again(behind, fault, executed, says):
    execution, server = await run_against(behind, [fault, PASS])
    assert execution.state == "infrastructure"
    assert (server.requests, server.executed) == (1, executed)
    assert "not the code" in execution.stderr
    assert re.search(says, execution.stderr)


async def test_a_server_that_hangs_is_infrastructure_and_slow_code_a_timeout(behind, monkeypatch):
    monkeypatch.setattr("coachrl.sandbox.fusion._GRACE_S", 0.5)
    async with FusionServer(behind, [HANG]) as server:
        sandbox = FusionSandbox(at(server.url, disk_mb=1))
        execution = await FusionWorkspace(sandbox, Contents()).run("print(1)", timeout_s=0.5)
        assert execution.state == "infrastructure" and "no answer" in execution.stderr
        assert server.requests == 1
        await sandbox.close()


async def test_workspaces_that_may_be_large_have_longer_to_travel(monkeypatch):
    async def post(_, body, timeout_s):
        raise SandboxError(f"{timeout_s:g}")

    monkeypatch.setattr(FusionSandbox, "post", post)
    with pytest.raises(SandboxUnavailable, match=r"failed, not the code: 60\.25;"):  # nothing travels
        await FusionSandbox(at("http://unused", disk_mb=808, timeout_s=20)).start()
    runs = [FusionWorkspace(FusionSandbox(at("http://unused", disk_mb=mb)), Contents()).run("") for mb in (8, 808)]
    small_s, large_s = [float(execution.stderr.split()[-1]) for execution in await asyncio.gather(*runs)]
    assert (small_s, large_s) == (62.0, 262.0)


async def test_a_timeout_keeps_what_was_printed_and_written(fusion):
    workspace = await fusion.open({})
    limit_s = max(2.0, 10 * (await workspace.run("")).wall_s)  # a busy machine is slow to start an interpreter
    code = "print('before', flush=True)\nopen('kept', 'w').write('x')\nimport time; time.sleep(600)"
    execution = await workspace.run(code, timeout_s=limit_s)
    assert (execution.state, execution.stdout, execution.files_written) == ("timeout", "before\n", ("kept",))
    assert await workspace.read("kept") == b"x"


async def test_a_server_that_is_not_there_is_named():
    sandbox = FusionSandbox(at("http://127.0.0.1:9"), max_attempts=2, first_wait_s=0.01)
    with pytest.raises(SandboxUnavailable, match=r"http://127.0.0.1:9 cannot be used: .* cannot be reached"):
        await sandbox.start()
    await sandbox.close()


@pytest.mark.parametrize(
    "url",
    [
        None,
        "127.0.0.1:8080",
        "http://user:secret@127.0.0.1:80800",
        "http://127.0.0.1:0",
        "http://xn--zzzzzz.invalid",
        "http://[::1",
        "http://h\x00",
        "https:///run",
    ],
)
async def test_a_url_is_needed(url):
    with pytest.raises(ConfigError, match=r"sandbox\.url") as refused:
        make_sandbox(SandboxConfig(kind="fusion", url=url))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://sandbox_fusion:8080", "HTTPS://user:p@h/api/", "http://[::1]:8080"])
async def test_an_address_is_taken_as_networks_of_containers_have_it(url):
    assert make_sandbox(SandboxConfig(kind="fusion", url=url)).limits == limits_of(SandboxConfig())


async def test_many_requests_are_in_flight(behind):
    async with FusionServer(behind, [Fault(latency_s=0.5)]) as server:
        sandbox = FusionSandbox(at(server.url, concurrency=20))
        workspaces = [FusionWorkspace(sandbox, Contents()) for _ in range(24)]
        executions = await asyncio.gather(*(w.run(f"print({n})") for n, w in enumerate(workspaces)))
        assert [e.stdout for e in executions] == [f"{n}\n" for n in range(24)], executions
        assert server.most_at_once == 20
        await sandbox.close()


async def test_a_copy_is_another_workspace(fusion):
    first = await fusion.open({})
    await first.run("import os\nopen('f', 'w').write('one'); os.mkdir('empty'); os.symlink('f', 'link')")
    second = await first.copy()
    execution = await second.run("import os; print(os.listdir('empty'), open('link').read()); open('f', 'w')")
    assert execution.stdout == "[] one\n", execution
    assert (await first.read("f"), await second.read("f")) == (b"one", b"")


async def test_more_folders_than_are_listed_keep_no_workspace_from_its_next_execution(fusion):
    workspace = await fusion.open({})
    many = "import os\nfor n in range(400): os.mkdir(f'{n:03}'); n > 390 and os.symlink('/', f'{n:03}/link')"
    assert (await workspace.run(many)).state == "ok"
    assert (await workspace.run("import os; print(os.readlink('399/link'))")).stdout == "/\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.makedirs('../coachrl-report')",
        "import os; os.makedirs('../coachrl-report.part')",
        "import shutil, os; shutil.rmtree('..', ignore_errors=True)",
        "import os; os.chmod('..', 0)",
        "import os; os.rename('../workspace', '../elsewhere')",
        "import os; os.mkfifo('../coachrl-report.part')",
    ],
)
async def test_code_that_spoils_its_report_does_not_pass_for_a_fault(fusion, code):
    workspace = await fusion.open({})
    await workspace.run("open('kept', 'w').write('x')")
    execution = await workspace.run(code, timeout_s=3)
    assert execution.state != "infrastructure", execution
    assert (await workspace.run("print('alive')")).stdout == "alive\n"


def answer(header, *parts):
    """As code leaves it that has found out how the program which runs it speaks."""
    report = b"".join([wire.pack(header), *parts])
    said = f"begun\n{remote.said_of_report('begun', remote.digest_of(report))}\n"
    result = {"status": "Finished", "return_code": 0, "stdout": said, "stderr": ""}
    files = {"coachrl-report": base64.b64encode(report).decode()}
    return json.dumps({"status": "Success", "message": "", "run_result": result, "files": files}).encode()


NESTED = []
for _ in range(900):
    NESTED = [NESTED]
GOOD = {
    "state": "ok", "exit_code": 0, "wall_s": 0.1, "files_written": ["a"],
    "sizes": [2, 0], "files": [["a", 1]], "modes": [["a", 0o750]], "folders": [], "links": [],
}  # fmt: skip


async def test_the_code_finds_nothing_of_what_was_sent_with_it(behind):
    """A process that tests a program is sent with the tests, and the program is not to read them."""
    code = (
        "from pathlib import Path\n"
        "sent = [path for path in Path('..').rglob('*') if path.is_file()]\n"
        "print(len(sent) > 3, [path.name for path in sent if b'the tests are ' + b'here' in path.read_bytes()])\n"
        "# the tests are here\n"
    )
    execution, _ = await run_against(behind, [PASS], code)
    assert execution.stdout == "True []\n"


async def test_a_forged_report_is_read_where_it_is_plausible():
    execution, contents = read_report(answer(GOOD, b"hi", b"x"), "begun", LIMITS)
    assert (execution.stdout, contents.files, contents.modes) == ("hi", {"a": b"x"}, {"a": 0o750})


@pytest.mark.parametrize(
    "change",
    [
        {"state": "infrastructure"},
        {"modes": 7},
        {"modes": [["a", "rwx"]]},
        {"state": ["ok"]},
        {"exit_code": "0"},
        {"exit_code": 10**30},
        {"wall_s": None},
        *({"wall_s": figure} for figure in (math.nan, math.inf, -1.0, 10**400, True)),
        {"state": {"nested": NESTED}},
        {"links": [["a", 1]] * 20_000},
        {"sizes": [2]},
        {"sizes": [-1, 3]},
        {"sizes": [10**12, 0]},
        {"files": [["../../etc/cron.d/evil", 1]]},
        {"files": [["/etc/passwd", 1]]},
        {"files": [["a//b", 1]]},
        {"files": [["a\n", 1]]},
        {"files": [["a" * 300, 1]]},
        {"files": [[7, 1]]},
        {"files": [[f"{n}", 0] for n in range(65)]},
        {"files_written": ["../x"]},
        {"files_written": None},
        {"folders": [".."]},
        {"links": [["../x", "/"]]},
        {"links": [["x"]]},
        # The next order could not be carried out, nor held, and that would pass for the server's doing.
        {"folders": ["a"]},
        {"folders": ["b", "b"]},
        {"folders": ["a/b"]},
        {"folders": ["\N{BLACK SQUARE}" * 100]},
        {"links": [["a", "/"]]},
        {"links": [["b", "/"], ["b", "/"]]},
        {"links": [["b", "/"], ["b/c", "/"]]},
        *({"links": [["b", target]]} for target in ("", "\0", "\ud800", "x" * 4096, 7)),
        {"more": "\N{BLACK SQUARE}" * (6 << 20)},
    ],
    ids=lambda change: str(change)[:80],
)
async def test_a_forged_report_cannot_lead_out_of_the_workspace(change):
    execution, contents = read_report(answer({**GOOD, **change}, b"hi", b"x"), "begun", LIMITS)
    assert (execution.state, contents) == ("error", None)


async def test_a_server_without_what_is_needed_is_named(behind):
    class OldPython(FusionServer):
        async def _run(self, body):
            result = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "SyntaxError: too old"}
            return {"status": "Failed", "message": "", "run_result": result, "files": {}}

    async with OldPython(behind) as server:
        with pytest.raises(SandboxUnavailable, match="too old"):
            await make_sandbox(at(server.url)).open({})


def carried_out(folder, workspace, code, limits, ahead=()):
    """What RunCodeRequest takes, carried out as a server would do. ahead: the command that isolates it, if any."""
    body = json.loads(json.dumps(workspace._request(code, limits, "begun")))
    assert set(body) == {"language", "code", "run_timeout", "files", "fetch_files"}
    for name, content in body["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(base64.b64decode(content))
    (folder / "tmp1.py").write_text(body["code"])
    done = subprocess.run([*ahead, sys.executable, "tmp1.py"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.stdout.splitlines()[0], done.stderr) == ("begun", "")
    report = base64.b64encode((folder / body["fetch_files"][0]).read_bytes()).decode()
    result = {"status": "Finished", "return_code": 0, "stdout": done.stdout, "stderr": ""}
    answered = {"status": "Success", "run_result": result, "files": {"coachrl-report": report}}
    return read_report(json.dumps(answered).encode(), "begun", limits)


async def test_the_request_is_the_server_s_format(tmp_path):
    workspace = FusionWorkspace(FusionSandbox(at("http://unused")), Contents({"a": b"1"}))
    execution, contents = carried_out(tmp_path, workspace, "print(open('a').read()); open('b', 'w')", LIMITS)
    assert (execution.state, execution.stdout, dict(contents.files)) == ("ok", "1\n", {"a": b"1", "b": b""})


async def test_a_server_whose_proc_shows_its_own_processes_ends_those_of_the_code(tmp_path):
    """As SandboxFusion's mode `lite` does, where the code has a process namespace of its own."""
    ahead = ["unshare", "--pid", "--fork", "--mount"]
    if subprocess.run([*ahead, "true"], capture_output=True).returncode:
        pytest.skip("only root can start a process namespace")
    code = "import os, time\nif os.fork() == 0: time.sleep(60)\nprint('left')"
    workspace = FusionWorkspace(FusionSandbox(at("http://unused")), Contents())
    execution, _ = carried_out(tmp_path, workspace, code, LIMITS, ahead)
    assert (execution.state, execution.stdout) == ("ok", "left\n"), execution
    assert execution.wall_s < 5.0, "as long as processes are looked for that cannot be found"


async def test_a_server_that_lets_nobody_mount_runs_the_code_all_the_same(tmp_path):
    ahead = ["unshare", "--pid", "--fork", "setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if subprocess.run([*ahead, "true"], capture_output=True).returncode:
        pytest.skip("only root can start a process namespace")
    workspace = FusionWorkspace(FusionSandbox(at("http://unused")), Contents())
    execution, _ = carried_out(tmp_path, workspace, "print('there')", LIMITS, ahead)
    assert execution.stdout == "there\n"


async def test_names_that_no_order_holds_are_the_code_s_doing(tmp_path):
    """Links whose targets take six letters a byte; with so many, the next execution could not begin."""
    limits = limits_of(SETTINGS.model_copy(update={"max_files": 2048}))
    code = "import os\nfor n in range(1500): os.symlink(b'\\xff' * 4000, f'{n}')\nprint('done')"
    execution, contents = carried_out(
        tmp_path, FusionWorkspace(FusionSandbox(at("http://unused")), Contents()), code, limits
    )
    assert (execution.state, execution.stdout, contents) == ("error", "done\n", None)
    assert "File name too long: the workspace is as it was before" in execution.stderr


async def test_one_execution_at_a_time_in_a_workspace(fusion):
    workspace = await fusion.open({})
    began = time.monotonic()
    await asyncio.gather(*(workspace.run("open('f', 'a').write('x'); import time; time.sleep(0.3)") for _ in range(2)))
    assert time.monotonic() - began > 0.6
    assert await workspace.read("f") == b"xx"
