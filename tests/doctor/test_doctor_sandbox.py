"""`coachrl doctor --sandbox` as a process."""

from __future__ import annotations

import asyncio
import json

import pytest
from command_line import coachrl

from coachrl.cli import doctor as cli_doctor
from coachrl.config import SandboxConfig
from coachrl.doctor import sandbox as doctor_sandbox
from coachrl.doctor.machine import diagnose
from coachrl.doctor.sandbox import Result


def test_bombs_are_not_set_off_where_nothing_holds_them(tmp_path):
    done = coachrl("doctor", "--sandbox", "sandbox.kind=local-unsafe", cwd=tmp_path)
    assert done.returncode == 2
    assert "isolates nothing" in done.stderr and "Traceback" not in done.stderr


def test_a_server_that_is_missing_is_one_clear_line(tmp_path):
    done = coachrl("doctor", "--sandbox", "sandbox.kind=fusion", cwd=tmp_path)
    assert done.returncode == 2 and "sandbox.url" in done.stderr and "Traceback" not in done.stderr


def test_the_table_names_what_was_tried_and_fails_where_one_got_through(monkeypatch, capsys):
    async def suite(sandbox, bait):
        yield Result("network", "internet", True, "OSError(101)")
        yield Result("bombs", "fork bomb", False, "ended with ok")

    monkeypatch.setattr(doctor_sandbox, "run_probes", suite)
    with pytest.raises(cli_doctor.typer.Exit) as exit_:
        cli_doctor.doctor(sandbox=True)
    assert exit_.value.exit_code == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["held", "FAILED", "1"]
    assert "fork bomb" in lines[1] and lines[2].startswith("1 of 2 attempts were held")
    with pytest.raises(cli_doctor.typer.Exit):
        cli_doctor.doctor(sandbox=True, as_json=True)
    assert json.loads(capsys.readouterr().out)[1]["tried"] == "fork bomb"


async def test_the_doctor_checks_a_server():
    pytest.importorskip("aiohttp")
    from fusion_server import FusionServer, status

    from coachrl.sandbox import make_sandbox

    behind = make_sandbox(SandboxConfig(kind="local-unsafe"))  # the doctor's own code is all that it runs
    async with FusionServer(behind, [status(500)]) as server:
        settings = SandboxConfig(kind="fusion", url=server.url)

        async def finding():
            [found] = [f for f in await asyncio.to_thread(diagnose, settings) if f.name.startswith("sandbox")]
            return found

        broken = await finding()
        assert not broken.ok and "answered 500" in broken.detail
        server.script = [type(server.script[0])()]
        assert (await finding()).ok
    await behind.close()
