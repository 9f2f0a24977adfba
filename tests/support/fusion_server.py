"""A loopback server that speaks SandboxFusion's `/run_code` and fails on cue; the code runs in any sandbox of coachrl.

    async with FusionServer(make_sandbox(SandboxConfig()), [status(503), PASS]) as server:
        sandbox = make_sandbox(SandboxConfig(kind="fusion", url=server.url))

Each request takes the next fault of the script; the last one serves all further requests. aiohttp, on which it runs,
comes with the `llm` extra.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from loopback import LoopbackServer, web
from pydantic import BaseModel, ValidationError

from coachrl.sandbox.base import Sandbox, Workspace
from coachrl.types import Execution


class RunCode(BaseModel):
    """What is read of a request; the server passes over the rest."""

    language: Literal["python"]
    code: str
    run_timeout: float = 10.0
    files: dict[str, str] = {}
    fetch_files: list[str] = []


@dataclass(frozen=True)
class Fault:
    """What the server does with one request, after latency_s.

    run: what it should. status: an HTTP error, nothing is run. hang: nothing, until the server closes. cut: the
    connection is broken off before the code is run; cut_after: when it has been run. garbage: status 200 and a body
    that is not JSON. error: the server's own word that it failed.
    """

    behavior: Literal["run", "status", "hang", "cut", "cut_after", "garbage", "error"] = "run"
    http_status: int = 500
    retry_after_s: int | None = None
    latency_s: float = 0.0


PASS, HANG, CUT, CUT_AFTER, GARBAGE = Fault(), Fault("hang"), Fault("cut"), Fault("cut_after"), Fault("garbage")
SERVER_ERROR = Fault("error")


def status(code: int, retry_after_s: int | None = None) -> Fault:
    """An HTTP error before anything is run."""
    return Fault("status", http_status=code, retry_after_s=retry_after_s)


class FusionServer(LoopbackServer):
    """Serves while it is used as an async context manager. `requests` counts what came in, `executed` what was run."""

    def __init__(self, sandbox: Sandbox, script: Sequence[Fault] = (PASS,)) -> None:
        super().__init__({"/run_code": self._serve})
        self._sandbox = sandbox
        self.script = script
        self.requests = self.executed = self.most_at_once = self._at_once = 0

    @property
    def url(self) -> str:
        return self.address

    async def __aenter__(self) -> Self:
        await self._sandbox.start()  # seconds, or a minute on a busy machine: no request's time limit is to hold them
        return await super().__aenter__()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        fault = self.script[min(self.requests, len(self.script) - 1)]
        self.requests += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._answer(request, fault)
        finally:
            self._at_once -= 1

    async def _answer(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        try:
            body = RunCode.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"detail": error.errors(include_context=False)}, status=422)
        await asyncio.sleep(fault.latency_s)
        match fault.behavior:
            case "status":
                headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
                said = {"detail": "scripted error", "traceback": ["Traceback (most recent call last):", ""]}
                return web.json_response(said, status=fault.http_status, headers=headers)
            case "garbage":
                return web.Response(text='{"status": "Succ', content_type="application/json")
            case "error":
                return web.json_response(_sandbox_error(f"exception on running code {body.code}: scripted error None"))
            case "hang":
                await self._closing.wait()
        if fault.behavior in ("run", "cut_after"):
            answer = await self._run(body)
        if fault.behavior == "run":
            return web.json_response(answer)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _run(self, body: RunCode) -> dict[str, Any]:
        self.executed += 1
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            for number, (name, content) in enumerate(body.files.items()):
                path = Path(folder, str(number))
                path.write_bytes(base64.b64decode(content))
                files[name] = path
            workspace = await self._sandbox.open(files)
        try:
            execution = await workspace.run(body.code, body.run_timeout)
            fetched = await _fetch(workspace, body.fetch_files)
        finally:
            await workspace.close()
        return _response(execution, fetched)


async def _fetch(workspace: Workspace, names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, binascii.Error):
            found[name] = base64.b64encode(await workspace.read(name, 1024 * 1024 * 1024)).decode()
    return found


def _sandbox_error(message: str) -> dict[str, Any]:
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


def _response(execution: Execution, fetched: dict[str, str]) -> dict[str, Any]:
    """As the server words it: a process that was killed has finished, with a negative code."""
    if execution.state == "infrastructure":
        return _sandbox_error(execution.stderr)
    timed_out = execution.state == "timeout"
    return_code = -9 if execution.exit_code is None else execution.exit_code
    result = {
        "status": "TimeLimitExceeded" if timed_out else "Finished",
        "execution_time": execution.wall_s,
        "return_code": None if timed_out else return_code,
        "stdout": execution.stdout,
        "stderr": execution.stderr,
    }
    success = not timed_out and return_code == 0
    return {
        "status": "Success" if success else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": result,
        "executor_pod_name": None,
        "files": fetched,
    }
