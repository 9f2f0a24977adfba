"""The user's app: a function in this process, or a command in one of its own, led through one episode."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from coachrl.config.choices import import_by_path, import_function, is_own_doing
from coachrl.errors import AppFailed, ConfigError
from coachrl.parsing import parse_json
from coachrl.pipelines.team.threads import in_a_thread
from coachrl.resources import past_proxies
from coachrl.storage.temporary import LockedFolder, drop_left
from coachrl.text import KEY_CHARS, holds_password, names_secret, one_line, redacted, said, secrets_of
from coachrl.types import Task

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

log = logging.getLogger(__name__)

_MOST_RESULT_BYTES = 16 * 2**20
_PREFIX = "coachrl-app-"
_TRACEBACK = "Traceback (most recent call last):"
_IS_ITS_CAUSE = "The above exception was the direct cause of the following exception:"
_DRAIN_S = 5.0
"""How long the rest of what an app has printed may take to be read once it has ended."""
_ENDING_S = 5.0
"""How long a function that is cancelled may take to end."""


@dataclass(frozen=True)
class Endpoint:
    """Where one episode's app finds its team. base_url: as OpenAI's clients take it; anthropic_base_url: as Anthropic's
    do. api_key: a token of this episode alone."""

    base_url: str
    api_key: str

    @property
    def anthropic_base_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    def openai(self) -> OpenAI:
        """A client of the `openai` package. It waits for a reply as long as the team needs."""
        from openai import DefaultHttpxClient, OpenAI

        # Without proxies, and without certificates, which take longer to read than a call does: this is plain HTTP.
        plain = DefaultHttpxClient(trust_env=False, verify=False)
        return OpenAI(base_url=self.base_url, api_key=self.api_key, timeout=None, http_client=plain)

    def async_openai(self) -> AsyncOpenAI:
        """As `openai`, for coroutines."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        plain = DefaultAsyncHttpxClient(trust_env=False, verify=False)
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, timeout=None, http_client=plain)


class App(Protocol):
    """What plays an episode."""

    async def play(self, task: Task, endpoint: Endpoint) -> Any:
        """The app's result. Raises AppFailed where it has none. When it is cancelled it ends what it has started."""
        ...


class FunctionApp:
    """A function of the user's, plain or async: `(task, endpoint) -> result`."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError where there is no such function, or it does not take these two."""
        self._path = path
        import_function(path, "app", ("task", "endpoint"), may_be_async=True)

    async def play(self, task: Task, endpoint: Endpoint) -> Any:
        function = import_by_path(self._path, "app")
        try:
            return await called(function, task, endpoint, name="coachrl-app")
        except BaseException as error:  # the boundary to the user's own code, whatever it raises
            if not is_own_doing(error):
                raise
            raise AppFailed(f"{self._path} raised {type(error).__name__}: {one_line(said(error), 300)}") from error


class _ItsError(Exception):
    """What a program of Python's wrote of the error that ended it."""


class CommandApp:
    """A command of the user's. It finds the endpoint in its environment, and its task in a file; its result is a file
    that it writes (`{result_file}`), or the last line that it prints. JSON is read, other text taken as it is."""

    def __init__(self, command: str, passed: Sequence[str]) -> None:
        """passed: secret-looking variables of the environment that it gets all the same. Raises ConfigError."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"pipeline.options.command: {error}: {command}") from error
        if not self._words:
            raise ConfigError("pipeline.options.command is empty: write it as in python my_app.py {task_file}")
        self._passed = frozenset(passed)
        self._tidied = False
        self._writes_file = any("{result_file}" in word for word in self._words)

    async def play(self, task: Task, endpoint: Endpoint) -> Any:
        if not self._tidied:
            self._tidied = True
            await asyncio.to_thread(drop_left, _PREFIX)
        with LockedFolder(_PREFIX) as folder:
            task_file, result_file = Path(folder.path) / "task.json", Path(folder.path) / "result.json"
            told = {  # all but the ground truth
                "id": task.id,
                "category": task.category,
                "prompt": task.prompt,
                "files": {name: str(path) for name, path in task.files.items()},
            }
            task_file.write_text(json.dumps(told), encoding="utf-8")
            words = [word.replace("{task_file}", str(task_file)) for word in self._words]
            words = [word.replace("{result_file}", str(result_file)) for word in words]
            output, errors = _Tail(_MOST_RESULT_BYTES), _Tail(_MOST_RESULT_BYTES)
            code = await self._run(words, endpoint, output, errors)
            if code != 0:
                said = one_line(redacted(errors.last_line(), secrets_of(KEY_CHARS)), 300)
                failed = f"{Path(self._words[0]).name} ended with exit code {code}: {said or 'it said nothing'}"
                raise AppFailed(failed) from _ItsError(errors.last_error())
            return _written_result(result_file) if self._writes_file else _printed_result(output)

    async def _run(self, words: Sequence[str], endpoint: Endpoint, output: _Tail, errors: _Tail) -> int:
        """The exit code of the process, all of whose group is ended. What it prints goes to `output` and `errors`."""
        async with output.pipe() as printed, errors.pipe() as complained:
            try:
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=printed,
                    stderr=complained,
                    env=app_environment(endpoint, os.environ, self._passed),
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigError(f"pipeline.options.command: {words[0]} cannot be run: {error.strerror}") from error
            try:
                async with _guarded(process.pid):
                    return await process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):  # its children too, also those that it left behind
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


@contextlib.asynccontextmanager
async def _guarded(group: int) -> AsyncIterator[None]:
    """Another process, which ends the group where this one is killed meanwhile: then the pipe between them closes."""
    try:
        guard = await asyncio.create_subprocess_exec(
            "sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(group),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise ConfigError(f"pipeline.options.command: sh, to watch over it, cannot be run: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # somebody has ended it
            guard.kill()  # before the group's number may be another's
        await guard.wait()


class _Tail:
    """The last bytes of what a process prints: however much that is, no more is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()

    @contextlib.asynccontextmanager
    async def pipe(self) -> AsyncIterator[int]:
        """What the process prints to. When the block is left, all is read that came through it."""
        out, into = os.pipe()
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(out, "rb")
        )
        reading = asyncio.create_task(self._read(stream))
        try:
            yield into
        finally:
            os.close(into)
            # A process that fled from the group may hold the pipe open: what it prints is not the app's.
            await asyncio.wait({reading}, timeout=_DRAIN_S)
            reading.cancel()
            transport.close()

    def last_line(self) -> str:
        """Raises AppFailed where it is longer than what is kept."""
        line = bytes(self._kept).rstrip().rpartition(b"\n")[2]
        if len(line) > self._most:
            raise AppFailed(f"the last line that it printed has more than {self._most:,} bytes")
        return line.decode("utf-8", "replace").strip()

    def last_error(self) -> str:
        """Of the last traceback, and those of its causes: all but the code. Empty where there is none."""
        _, *tracebacks = bytes(self._kept).decode("utf-8", "replace").split(_TRACEBACK)
        lines: list[str] = []
        for place, traceback in enumerate(reversed(tracebacks)):
            if place > 0 and not traceback.rstrip().endswith(_IS_ITS_CAUSE):
                break
            lines += [line for line in traceback.splitlines() if line[:1].strip()]
        return "\n".join(lines)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while part := await stream.read(2**16):
            self._kept += part
            if len(self._kept) > 2 * self._most:
                del self._kept[: -self._most - 1]


async def called(function: Callable[..., Any], *arguments: Any, name: str) -> Any:
    """What a function of the user's gives: of an async one in a task, else in a thread, of that name. What ends a
    program (`exit()`), or its task, is raised as an error of the function's. One that does not end when it is cancelled
    is waited for no longer than some seconds."""
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(type(function).__call__):
        given = await in_a_thread(lambda: function(*arguments), name)
        if not inspect.isawaitable(given):
            return given
        function, arguments = (lambda: given), ()  # a decorator may hide that it is async
    # A task of its own: whoever cancels that, or swallows a cancellation, does nothing to the run's.
    running = asyncio.create_task(_awaited(function, arguments), name=name)
    try:
        return await asyncio.shield(running)
    finally:
        running.cancel()
        _, still = await asyncio.wait({running}, timeout=_ENDING_S)
        if still:
            log.warning("%s does not end though it was told to; nobody waits for it any longer", name)
        elif not running.cancelled():
            running.exception()  # it is known, or came too late to matter


async def _awaited(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return await function(*arguments)
    except (SystemExit, KeyboardInterrupt) as error:  # which asyncio lets out of the event loop
        if not is_own_doing(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {said(error)}") from error


def app_environment(endpoint: Endpoint, environment: Mapping[str, str], passed: frozenset[str]) -> dict[str, str]:
    """The environment of an app: ours without what looks secret by its name, or by a login or a key in a URL, and where
    it finds its team."""
    kept = {
        name: value
        for name, value in environment.items()
        if name in passed or not (names_secret(name) or holds_password(value))
    }
    return {
        **kept,
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,  # its older name
        "OPENAI_API_KEY": endpoint.api_key,
        "ANTHROPIC_BASE_URL": endpoint.anthropic_base_url,
        "ANTHROPIC_API_KEY": endpoint.api_key,
        **past_proxies(kept, urlsplit(endpoint.base_url).hostname or ""),
    }


def _written_result(path: Path) -> Any:
    if not path.is_file():
        raise AppFailed("it ended without writing its {result_file}")
    if path.stat().st_size > _MOST_RESULT_BYTES:
        raise AppFailed(f"its result has more than {_MOST_RESULT_BYTES:,} bytes")
    text = path.read_bytes().decode("utf-8", "replace").strip()
    return parse_json(text, "the app's {result_file}", AppFailed)


def _printed_result(output: _Tail) -> Any:
    last = output.last_line()
    try:
        return json.loads(last)
    except (ValueError, RecursionError):  # of brackets without an end, as a model in a loop writes them
        return last
