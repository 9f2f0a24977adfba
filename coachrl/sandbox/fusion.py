"""SandboxFusion, or any server that speaks its HTTP API: `POST /run_code` with base64 files in, `fetch_files` out.

The server keeps nothing between two requests, so a workspace lives here and travels with each execution: in as one
packed order beside the program that unpacks it (`inside/remote.py`), out as one packed report. What isolates the code
is the server's doing; `coachrl doctor --sandbox` shows how well. What comes back is read as bytes and bounded JSON.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import logging
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

import httpx
import tenacity

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError, SandboxError, SandboxUnavailable
from coachrl.sandbox.base import limits_of, read_host_files
from coachrl.sandbox.bubblewrap import INSIDE, environment
from coachrl.sandbox.inside import files as names
from coachrl.sandbox.inside import wire
from coachrl.sandbox.inside.jail import Limits
from coachrl.types import Execution, ExecutionState

logger = logging.getLogger(__name__)

_REQUESTS = 16  # in flight at once, unless the settings say otherwise
_GRACE_S = 20.0  # beyond an execution's own limit: packing, and a busy server
_ORDER, _REPORT = "coachrl-order", "coachrl-report"
_NOT_STARTED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED_BEFORE_START = (429, 503)
_MODULES = (
    "__init__.py",
    "calls.py",
    "files.py",
    "jail.py",
    "memory_in_use.py",
    "plain.py",
    "program.py",
    "remote.py",
    "stillness.py",
    "supervisor.py",
    "warm.py",
    "wire.py",
)
_STATES = frozenset(get_args(ExecutionState)) - {"infrastructure"}  # code cannot claim that it was not its doing


class _NotStarted(SandboxError):
    """The server did not take the request: it may be sent again."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class _Contents:
    """What a workspace holds: file name -> data, and -> permissions where they are known; folders (parents first);
    links as (name, target)."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


class FusionSandbox:
    """Workspaces whose code runs on the server at `settings.url`. Raises ConfigError where that is no address.

    max_attempts: how often a request is sent that the server did not take
    (it could not be reached, or said 429 or 503). Nothing that may have started is sent twice.
    """

    def __init__(self, settings: SandboxConfig, max_attempts: int = 5, first_wait_s: float = 0.5) -> None:
        if settings.url is None or not settings.url.startswith(("http://", "https://")):
            raise ConfigError(f"sandbox 'fusion' needs sandbox.url, e.g. http://127.0.0.1:8080 (got {settings.url!r})")
        self.url, self.limits = settings.url.rstrip("/"), limits_of(settings)
        self._free = asyncio.Semaphore(settings.concurrency or _REQUESTS)
        self._max_attempts, self._first_wait_s = max_attempts, first_wait_s
        self._client: httpx.AsyncClient | None = None
        self._starting, self._checked, self._closed = asyncio.Lock(), False, False

    async def start(self) -> None:
        """See `Sandbox.start`: one execution is tried. Raises SandboxUnavailable where the server cannot be used."""
        async with self._starting:
            if self._checked:
                return
            workspace = FusionWorkspace(self, _Contents())
            execution = await workspace.run("print(6 * 7)")
            if (execution.state, execution.stdout) != ("ok", "42\n"):
                said = execution.stderr.strip() or f"print(6 * 7) ended with {execution.state}"
                raise SandboxUnavailable(
                    f"the sandbox server {self.url} cannot be used: {said}; is sandbox.url right, and does it run "
                    "SandboxFusion on Linux with Python 3.10 or later?"
                )
            self._checked = True

    async def open(self, files: Mapping[str, Path]) -> FusionWorkspace:
        """See `Sandbox.open`. Raises SandboxUnavailable, SandboxError, ValueError for a name that leaves the folder."""
        data = await asyncio.to_thread(read_host_files, files)
        if sum(map(len, data.values())) > self.limits.disk_mb * 2**20 or len(data) > self.limits.max_files:
            raise SandboxError(
                f"{len(data)} files do not fit into a workspace of disk_mb={self.limits.disk_mb}, "
                f"max_files={self.limits.max_files}"
            )
        await self.start()
        return FusionWorkspace(self, _Contents(data))

    async def close(self) -> None:
        """See `Sandbox.close`."""
        self._closed = True
        if self._client is not None:
            await self._client.aclose()

    async def post(self, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The server's answer to one `/run_code`. Raises SandboxError where there is none."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        if self._client is None:
            limits = httpx.Limits(max_connections=None)  # `_free` bounds them
            self._client = httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(timeout_s, connect=10.0))
        attempts = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_NotStarted),
            stop=tenacity.stop_after_attempt(self._max_attempts),
            wait=self._wait_s,
            reraise=True,
        )
        async with self._free:
            return cast(dict[str, Any], await attempts(self._post_once, body, timeout_s))

    async def _post_once(self, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        assert self._client is not None
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._client.post(f"{self.url}/run_code", json=body, timeout=timeout_s)
        except _NOT_STARTED as error:
            raise _NotStarted(f"{self.url} cannot be reached: {error or type(error).__name__}") from None
        except (httpx.TimeoutException, TimeoutError):
            raise SandboxError(f"no answer from {self.url} within {timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SandboxError(f"the connection to {self.url} broke: {error or type(error).__name__}") from None
        if response.status_code in _REFUSED_BEFORE_START:
            asked = response.headers.get("Retry-After", "")
            raise _NotStarted(f"{self.url} answered {response.status_code}", float(asked) if asked.isdigit() else 0.0)
        if response.status_code != 200:
            raise SandboxError(f"{self.url} answered {response.status_code}: {response.text[:200]}")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "status" not in answer:
            raise SandboxError(f"{self.url} answered with something that is no RunCodeResponse: {response.text[:200]}")
        return answer

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = error.retry_after_s if isinstance(error, _NotStarted) else 0.0
        backoff = tenacity.wait_exponential_jitter(initial=self._first_wait_s, max=20.0, jitter=self._first_wait_s)
        return max(min(asked_s, 60.0), backoff(state))


class FusionWorkspace:
    """See `Workspace`. Its files are held here, and sent along with each execution."""

    def __init__(self, sandbox: FusionSandbox, contents: _Contents) -> None:
        self._sandbox, self._contents = sandbox, contents
        self._turn = asyncio.Lock()
        self._closed = False

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        """See `Workspace.run`."""
        limits = self._sandbox.limits if timeout_s is None else replace(self._sandbox.limits, timeout_s=timeout_s)
        async with self._turn:
            try:
                return await self._run(code, limits)
            except SandboxError as error:
                return Execution("infrastructure", stderr=f"the sandbox failed, not the code: {error}")

    async def files(self) -> tuple[str, ...]:
        """See `Workspace.files`."""
        self._check_open()
        return tuple(sorted(self._contents.files))

    async def read(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """See `Workspace.read`."""
        self._check_open()
        data = self._contents.files.get(name)
        if data is None:
            raise FileNotFoundError(f"no regular file {name!r} in the workspace")
        if len(data) > max_bytes:
            raise ValueError(f"{name!r} is larger than {max_bytes} bytes")
        return data

    async def copy(self) -> FusionWorkspace:
        """See `Workspace.copy`."""
        async with self._turn:
            self._check_open()
            return FusionWorkspace(self._sandbox, self._contents)

    async def close(self) -> None:
        """See `Workspace.close`."""
        self._closed = True
        self._contents = _Contents()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the workspace is closed")

    async def _run(self, code: str, limits: Limits) -> Execution:
        self._check_open()
        begun = f"coachrl {uuid.uuid4().hex}"
        body = await asyncio.to_thread(self._request, code, limits, begun)
        answer = await self._sandbox.post(body, limits.timeout_s + 2 * _GRACE_S)
        report = await asyncio.to_thread(_read_report, answer, begun, limits)
        if isinstance(report, Execution):
            return report
        execution, contents = report
        self._contents = contents or self._contents
        return execution

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
        sent = {f"coachrl-inside/inside/{name}": (INSIDE / name).read_bytes() for name in _MODULES}
        sent[_ORDER] = b"".join([wire.pack(order), *self._contents.files.values()])
        return {
            "language": "python",
            "code": (
                "import sys\nsys.path.insert(0, 'coachrl-inside')\nfrom inside.remote import main\n"
                f"main({_ORDER!r}, {_REPORT!r}, {begun!r})\n"
            ),
            "run_timeout": limits.timeout_s + _GRACE_S,
            "files": {name: base64.b64encode(data).decode() for name, data in sent.items()},
            "fetch_files": [_REPORT],
        }


Report = tuple[Execution, _Contents | None]


def _read_report(answer: Mapping[str, Any], begun: str, limits: Limits) -> Report | Execution:
    """What the server's answer says. Raises SandboxError for what is not the code's doing."""
    result = answer.get("run_result")
    if answer["status"] == "SandboxError" or not isinstance(result, dict):
        raise SandboxError(f"the server says {answer['status']}: {str(answer.get('message'))[:500]}")
    stdout = str(result.get("stdout") or "")
    if result.get("status") == "TimeLimitExceeded":  # the unpacking program keeps the limit; the code has stopped it
        return Execution("timeout", wall_s=limits.timeout_s)
    if result.get("status") != "Finished":
        raise SandboxError(f"the server says {result.get('status')}: {str(result.get('stderr'))[:500]}")
    fetched = answer.get("files")
    packed = fetched.get(_REPORT) if isinstance(fetched, dict) else None
    if isinstance(packed, str):
        try:
            return _unpack(base64.b64decode(packed, validate=True), limits)
        except (ValueError, KeyError, TypeError, binascii.Error, wire.Disconnected) as error:
            logger.debug("a report that cannot be read: %s", error)
    # Where the program began, only the code that it ran can have ended it before its report, or spoilt that.
    if begun in stdout or stdout.startswith("[DecodeError]"):
        return Execution("error", stderr="the code ended the process that ran it", exit_code=-9)
    raise SandboxError(f"the server could not begin: {str(result.get('stderr'))[-500:].strip()}")


def _unpack(packed: bytes, limits: Limits) -> Report:
    """Raises ValueError, KeyError, TypeError or wire.Disconnected for anything but a report within `limits`."""
    stream = io.BytesIO(packed)
    header = wire.receive(stream)
    if header["state"] not in _STATES or not isinstance(header["exit_code"], int | None):
        raise ValueError("no state of an execution")
    stdout, stderr = (wire.read_exactly(stream, _size(size)) for size in header["sizes"])
    execution = Execution(
        state=header["state"],
        stdout=_text(stdout, limits),
        stderr=_text(stderr, limits),
        exit_code=header["exit_code"] if header["state"] in ("ok", "error", "oom") else None,
        files_written=tuple(_checked(name) for name in header["files_written"])[: limits.max_files],
        wall_s=float(header["wall_s"]),
    )
    if "files" not in header:
        return execution, None
    files = {_checked(name): wire.read_exactly(stream, _size(size)) for name, size in header["files"]}
    modes = {_checked(name): _size(mode) & 0o777 for name, mode in header["modes"] if name in files}
    folders = tuple(_checked(name) for name in header["folders"])
    links = tuple((_checked(name), str(target)) for name, target in header["links"])
    if max(len(files), len(folders), len(links)) > limits.max_files or len(packed) > (limits.disk_mb + 8) * 2**20:
        raise ValueError("more files than a workspace holds")
    return execution, _Contents(files, modes, folders, links)


def _text(data: bytes, limits: Limits) -> str:
    return data[: (limits.output_kb + 1) * 1024].decode(errors="replace")


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value


def _checked(name: object) -> str:
    """`name` where it is one that `inside.files` could have listed. Raises ValueError."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > names.MAX_NAME_CHARS:
        raise ValueError(f"{name!r} is not a file name")
    if "/".join(names.parts_of(name)) != name:
        raise ValueError(f"{name!r} is not a plain relative file name")
    return name
