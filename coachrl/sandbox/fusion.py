"""SandboxFusion, or any server that speaks its HTTP API: `POST /run_code` with base64 files in, `fetch_files` out.

The server keeps nothing between two requests, so a workspace lives here and travels with each execution: in as one
packed order beside the program that unpacks it (`inside/remote.py`), out as one packed report. What isolates the code
is the server's doing; `coachrl doctor --sandbox` shows how well. What comes back is read as bytes and bounded JSON.
"""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import tenacity

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError, SandboxError, SandboxUnavailable
from coachrl.resources import ask_this_machine_directly
from coachrl.sandbox.base import Sandbox, Workspace, limits_of, read_host_files
from coachrl.sandbox.bubblewrap import INSIDE, environment
from coachrl.sandbox.fusion_reports import REPORT, Contents, most_answer_bytes, read_report
from coachrl.sandbox.inside import wire
from coachrl.sandbox.inside.files import reported
from coachrl.sandbox.inside.jail import Limits
from coachrl.text import brief, one_line, printable, without_passwords
from coachrl.types import Execution

_REQUESTS = 16  # in flight at once, unless the settings say otherwise
_CONNECT_S = 10.0
_SHOWN_BYTES = 1024  # of an answer that is an error
_MOST_WAIT_S = 60.0  # that a server asks for before the next attempt
_GRACE_S = 20.0  # beyond an execution's own limit: packing, and a busy server
_TRAVEL_MB_S = 4.0  # of a workspace, there and back: base64 in JSON, which a server reads and writes in one thread
_ORDER = "coachrl-order"
_NOT_STARTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED_BEFORE_START = (429, 503)


class _NotStarted(SandboxError):
    """The server did not take the request: it may be sent again."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FusionSandbox(Sandbox):
    """Workspaces whose code runs on the server at `settings.url`. Raises ConfigError where that is no address.

    max_attempts: how often a request is sent that the server did not take
    (it could not be reached, or said 429 or 503). Nothing that may have started is sent twice.
    """

    def __init__(self, settings: SandboxConfig, max_attempts: int = 5, first_wait_s: float = 0.5) -> None:
        if settings.url is None or not _is_address(settings.url):
            given = brief(settings.url)
            raise ConfigError(f"sandbox 'fusion' needs sandbox.url, e.g. http://127.0.0.1:8080 (got {given})")
        ask_this_machine_directly()
        self._url, self.limits = settings.url.rstrip("/"), limits_of(settings)
        self.name = without_passwords(self._url)  # as errors call the server
        self._free = asyncio.Semaphore(settings.concurrency or _REQUESTS)
        self._max_attempts, self._first_wait_s = max_attempts, first_wait_s
        self._client: httpx.AsyncClient | None = None
        self._starting, self._checked, self._closed = asyncio.Lock(), False, False

    async def start(self) -> None:
        """One execution is tried. Raises SandboxUnavailable where the server cannot be used."""
        async with self._starting:
            if self._checked:
                return
            nothing_travels = replace(self.limits, disk_mb=1)
            execution = await FusionWorkspace(self, Contents()).run_within("print(6 * 7)", nothing_travels)
            if (execution.state, execution.stdout) != ("ok", "42\n"):
                said = one_line(execution.stderr) or f"print(6 * 7) ended with {execution.state}"
                raise SandboxUnavailable(
                    f"the sandbox server {self.name} cannot be used: {said}; is sandbox.url right, and does it run "
                    "SandboxFusion on Linux with Python 3.10 or later?"
                )
            self._checked = True

    async def open(self, files: Mapping[str, Path]) -> FusionWorkspace:
        """Raises SandboxUnavailable, SandboxError, ValueError for a name that leaves the folder."""
        data = await asyncio.to_thread(read_host_files, files, self.limits)
        await self.start()
        return FusionWorkspace(self, Contents(data))

    async def close(self) -> None:
        self._closed = True
        if self._client is not None:
            await self._client.aclose()

    async def post(self, body: Mapping[str, Any], timeout_s: float) -> bytes:
        """The server's answer to one `/run_code`. Raises SandboxError where there is none."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._client is None:
            # `_free` bounds them. None is used twice: a server that hangs up on one which waits may do so just when a
            # request comes, and nobody could say whether that has started.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            # A few packed bytes may stand for gigabytes.
            self._client = httpx.AsyncClient(limits=limits, headers={"Accept-Encoding": "identity"})
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_NotStarted),
            stop=tenacity.stop_after_attempt(self._max_attempts),
            wait=self._wait_s,
            reraise=True,
        )
        async with self._free:
            return cast(bytes, await attempts(self._post_once, body, timeout_s))

    async def _post_once(self, body: Mapping[str, Any], timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                response, answer = await self._exchange(body, timeout_s)
        except _NOT_STARTED as error:
            raise _NotStarted(f"{self.name} cannot be reached: {error or type(error).__name__}") from None
        except (httpx.TimeoutException, TimeoutError):
            raise SandboxError(f"no answer from {self.name} within {timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SandboxError(f"the connection to {self.name} broke: {error or type(error).__name__}") from None
        if response.status_code in _REFUSED_BEFORE_START:
            asked = response.headers.get("Retry-After", "")
            wait_s = float(asked) if asked.isascii() and asked.isdigit() else 0.0
            raise _NotStarted(f"{self.name} answered {response.status_code}", wait_s)
        if response.is_redirect:  # the code, and a password in the URL, are for the one address that the user has named
            place = one_line(response.headers.get("Location", "nowhere"))
            raise SandboxError(f"{self.name} leads on to {place}: name that as sandbox.url")
        if response.status_code != 200:
            said = one_line(answer[:_SHOWN_BYTES].decode(errors="replace"))
            raise SandboxError(f"{self.name} answered {response.status_code}: {said}")
        return answer

    async def _exchange(self, body: Mapping[str, Any], timeout_s: float) -> tuple[httpx.Response, bytes]:
        """The head of an answer, and the answer, which may be without an end; of an error as much as is told of it."""
        assert self._client is not None
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        async with self._client.stream("POST", f"{self._url}/run_code", json=body, timeout=timeout) as response:
            if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
                raise SandboxError(f"{self.name} packed its answer ({one_line(packed)}), which nobody asked for")
            answer, most = bytearray(), most_answer_bytes(self.limits)
            async for part in response.aiter_raw():
                answer += part
                if response.status_code != 200 and len(answer) >= _SHOWN_BYTES:
                    break
                if len(answer) > most:
                    raise SandboxError(f"{self.name} answered with more than {most:,} bytes")
        return response, bytes(answer)

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, _NotStarted) else 0.0
        backoff = tenacity.wait_exponential_jitter(initial=self._first_wait_s, max=20.0, jitter=self._first_wait_s)
        return max(min(asked_s, _MOST_WAIT_S), backoff(state))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.port != 0 and bool(httpx.URL(url).host)
    except (ValueError, httpx.InvalidURL):  # a port beyond 65535, brackets that are not closed, a name that is none
        return False


class FusionWorkspace(Workspace):
    """Its files are held here, and sent along with each execution."""

    def __init__(self, sandbox: FusionSandbox, contents: Contents) -> None:
        self._sandbox, self._contents = sandbox, contents
        self._turn = asyncio.Lock()
        self._closed = False

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        limits = self._sandbox.limits if timeout_s is None else replace(self._sandbox.limits, timeout_s=timeout_s)
        return await self.run_within(code, limits)

    async def run_within(self, code: str, limits: Limits) -> Execution:
        """`run`, within other limits than the sandbox's."""
        async with self._turn:
            try:
                return await self._run(code, limits)
            except SandboxError as error:
                return Execution("infrastructure", stderr=f"the sandbox failed, not the code: {printable(str(error))}")

    async def files(self) -> tuple[str, ...]:
        self._check_open()
        return tuple(reported(self._contents.files))

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        self._check_open()
        data = self._contents.files.get(name)
        if data is None:
            raise FileNotFoundError(f"no regular file {name!r} in the workspace")
        if len(data) > max_bytes:
            raise ValueError(f"{name!r} is larger than {max_bytes} bytes")
        return data

    async def copy(self) -> FusionWorkspace:
        async with self._turn:
            self._check_open()
            return FusionWorkspace(self._sandbox, self._contents)

    async def close(self) -> None:
        self._closed = True
        self._contents = Contents()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the workspace is closed")

    async def _run(self, code: str, limits: Limits) -> Execution:
        self._check_open()
        begun = f"coachrl {uuid.uuid4().hex}"
        body = await asyncio.to_thread(self._request, code, limits, begun)
        patience_s = limits.timeout_s + 2 * _GRACE_S + limits.disk_mb / _TRAVEL_MB_S
        sent = time.monotonic()
        answer = await self._sandbox.post(body, patience_s)
        waited_s = time.monotonic() - sent
        try:
            execution, contents = await asyncio.to_thread(read_report, answer, begun, limits)
        except SandboxError as error:
            raise SandboxError(f"{self._sandbox.name} {error}") from None
        self._contents = contents or self._contents
        return replace(execution, wall_s=min(execution.wall_s, waited_s))

    def _request(self, code: str, limits: Limits, begun: str) -> dict[str, Any]:
        order = {
            "code": code,
            "limits": asdict(limits),
            "environment": {k: v for k, v in environment().items() if k not in ("PYTHONPATH", "PATH", "HOME")},
            "folders": self._contents.folders,
            "links": self._contents.links,
            "files": [[name, len(data)] for name, data in self._contents.files.items()],
            "modes": list(self._contents.modes.items()),
        }
        modules = (path for path in INSIDE.glob("*.py") if path.name != "zygote.py")  # which serves local sandboxes
        sent = {f"coachrl-inside/inside/{path.name}": path.read_bytes() for path in modules}
        sent[_ORDER] = b"".join([wire.pack(order), *self._contents.files.values()])
        return {
            "language": "python",
            "code": (
                "import sys\nsys.path.insert(0, 'coachrl-inside')\nfrom inside.remote import main\n"
                f"main({_ORDER!r}, {REPORT!r}, {begun!r})\n"
            ),
            "run_timeout": limits.timeout_s + _GRACE_S,
            "files": {name: base64.b64encode(data).decode() for name, data in sent.items()},
            "fetch_files": [REPORT],
        }
