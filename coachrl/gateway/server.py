"""The HTTP server in front of an `Answerer`. It runs in the event loop of whoever starts it, and has no time-outs: who
asks for much waits for long. What a client sends is never trusted, and is always answered in its provider's own form.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from coachrl.errors import CoachrlError, ConfigError, ContextOverflow, PolicyError
from coachrl.gateway.calls import (
    Answerer,
    BadRequest,
    Call,
    CallError,
    EngineFailed,
    NotGiven,
    Piece,
    Reply,
    RequestTooLarge,
    UnknownModel,
)
from coachrl.gateway.wire import chat, messages, model_list, responses
from coachrl.gateway.wire.base import MOST_VALUES, Exchange, Wire, openai_error
from coachrl.gateway.wire.base import event as sse
from coachrl.parsing import check_few_values, parse_json
from coachrl.resources import allow_open_files, ask_this_machine_directly
from coachrl.text import one_line

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MOST_BYTES = 16 * 2**20
"""Of a request's body."""
MOST_READ_BYTES = 16 * MOST_BYTES
"""Of a body that is thrown away; after that the connection is closed."""
ENDING_S = 5.0
"""How long a client that does not read its answer may hold up the end of the server."""
IDLE_S = 24 * 3600
"""How long a client may think between two calls on one connection. Where the server closes it, a call that is on its
way is lost."""
_KEPT_FILES = 512
"""Of the files that the process may open, so many, or half of them, are for all else that it does."""
_ACCEPTED_AT_ONCE = 16
"""Connections that asyncio takes in one round (its `backlog`), before it is seen that there are too many."""
_WAITING = 2048  # connections that the system holds until they are taken
_READ_AT_ONCE = 8192  # bytes

_OPENAI = Wire(chat.read, openai_error)
_ANTHROPIC = Wire(messages.read, messages.error)
_WIRES = {
    "/v1/chat/completions": _OPENAI,
    "/v1/responses": Wire(responses.read, openai_error),
    "/v1/messages": _ANTHROPIC,
}
_MODELS = "/v1/models"
_CLOSED = 499  # a status that nobody reads: the client is gone

Result = TypeVar("Result")


class _NoSuchPath(CallError, status=404):
    is_apps = True


class _WrongMethod(CallError, status=405):
    is_apps = True


class _ContextLengthExceeded(CallError, code="context_length_exceeded"): ...


def listen(host: str = HOST, port: int = 0) -> socket.socket:
    """A socket bound to an address; port 0 takes a free one. Raises ConfigError where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"address {one_line(host)}: {_strerror(error)}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(f"{host}, port {port} cannot be used: {_strerror(error)}") from error
    return bound


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0]).is_loopback


def _strerror(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Server:
    """`async with Server(answerer) as server:` serves at `server.url`, as long as the block runs.

    listener: what `listen` gave, loopback where it is None. The server closes it.
    """

    def __init__(self, answerer: Answerer, listener: socket.socket | None = None) -> None:
        self._answerer, self._listener = answerer, listener or listen()
        self._is_local = is_loopback(self._listener)
        host, port = self._listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        """What Anthropic's clients take as their base; OpenAI's take it with /v1."""

    async def __aenter__(self) -> Self:
        allow_open_files()
        ask_this_machine_directly(self._listener.getsockname()[0])
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        config = uvicorn.Config(
            self._application(),
            http=_Connection,
            backlog=_ACCEPTED_AT_ONCE,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # what clients do wrong is told to them
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=int(ENDING_S),
        )
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        accepts = asyncio.create_task(self._server.accepts.wait())
        await asyncio.wait({accepts, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():  # it could not begin
            accepts.cancel()
            await self._task
        self._listener.listen(_WAITING)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer what is in flight with an error, and end."""
        self._ending.set_result(None)
        self._server.should_exit = True
        await self._task

    def _application(self) -> Starlette:
        routes = [Route(path, self._endpoint, methods=["POST"]) for path in _WIRES]
        routes += [Route(f"{_MODELS}{rest}", self._models, methods=["GET"]) for rest in ("", "/{name:path}")]
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._not_routed})
        application.router.redirect_slashes = False
        return application

    async def _endpoint(self, request: Request) -> Response:
        """The boundary: whatever goes wrong in here is an error in the provider's form, and never a traceback."""
        wire = _WIRES[request.url.path]
        try:
            return await self._exchange(request, wire)
        except ClientDisconnect:
            return Response(status_code=_CLOSED)
        except Exception as error:  # noqa: BLE001
            return _refusal(wire, _call_error(error))

    async def _exchange(self, request: Request, wire: Wire) -> Response:
        self._check_host(request)
        token = _token(request.headers)
        refused = self._refusal_of(token)
        try:
            body = await self._unless_ending(_body(request, is_kept=refused is None))
            if refused is not None:
                raise refused
            exchange = _read(request, body, wire)
        except (BadRequest, RequestTooLarge) as error:
            self._answerer.refused(error, token)
            raise
        if exchange.call.stream:
            return await self._streamed(request, wire, exchange)
        return JSONResponse(exchange.body(await self._answer(request, exchange.call)))

    async def _streamed(self, request: Request, wire: Wire, exchange: Exchange) -> Response:
        """A stream that begins with the first piece of the reply: an error that comes before has its status still."""
        told: asyncio.Queue[Piece | None] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(request, replace(exchange.call, tell=told.put_nowait)))
        answering.add_done_callback(lambda _: told.put_nowait(None))
        try:
            first = await told.get()
        except asyncio.CancelledError:
            answering.cancel()
            raise
        if first is None:
            events = exchange.rest(answering.result())
            return StreamingResponse(_sent(events), media_type="text/event-stream")
        growing = _grown(wire, exchange, first, told, answering)
        return StreamingResponse(growing, media_type="text/event-stream")

    async def _answer(self, request: Request, call: Call) -> Sequence[Reply]:
        """The replies to a call. Where the client goes away it is cancelled, and ClientDisconnect raised."""
        gone = asyncio.ensure_future(request.receive())  # once the body was read, there is no other news of the client
        try:
            answer = self._answerer.answer(call, _token(request.headers))
            return await self._unless_ending(answer, gone)
        finally:
            gone.cancel()

    async def _unless_ending(
        self, work: Coroutine[Any, Any, Result], gone: asyncio.Future[Any] | None = None
    ) -> Result:
        """What `work` gives; where the server ends, or the client goes away, before it is there, it is cancelled."""
        task = asyncio.create_task(work)
        others = {self._ending} if gone is None else {self._ending, gone}
        try:
            await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and gone is not None and gone.done():
                raise ClientDisconnect
            if not task.done() or task.cancelled():
                raise EngineFailed("the server is ending" if self._ending.done() else "the answer was given up")
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # looked at: what it raises on its way out is nobody's news

    async def _models(self, request: Request) -> Response:
        is_anthropic = "anthropic-version" in request.headers
        try:
            self._check_host(request)
            names = self._answerer.models(_token(request.headers))
            name = request.path_params.get("name")
            if name is not None and name not in names:
                raise UnknownModel(name, names)
        except Exception as error:  # noqa: BLE001  the same boundary
            return _refusal(_ANTHROPIC if is_anthropic else _OPENAI, _call_error(error))
        write = model_list.anthropic if is_anthropic else model_list.openai
        return JSONResponse(write(names, name))

    async def _not_routed(self, request: Request, _: Exception) -> Response:
        error = _wrong_path(request)
        self._answerer.refused(error, _token(request.headers))
        return _refusal(_ANTHROPIC if request.url.path.startswith("/v1/messages") else _OPENAI, error)

    def _refusal_of(self, token: str) -> CallError | None:
        """Why whoever gives this token is not answered: known before a body is read, whose room costs memory."""
        try:
            self._answerer.models(token)
        except CallError as error:
            return error
        return None

    def _check_host(self, request: Request) -> None:
        # A page of another site may know this address by a name of its own (DNS rebinding): only ours is answered.
        if self._is_local and not _is_local_name(request.headers.get("host", "")):
            raise BadRequest("this server is asked as localhost, or by its address")


class _Connection(H11Protocol, asyncio.BufferedProtocol):
    """One that is closed at once where there are too many: out of open files, neither a checkpoint could be written nor
    a program started, and asyncio says so thousands of times a second.

    Little is read at once. A body may come in pieces of a byte, also from who has no key, and the 256 KiB that asyncio
    would read of it hold up everybody else for a second."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY and len(self.connections) > files - min(_KEPT_FILES, files // 2):
            transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._read = bytearray(_READ_AT_ONCE)
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._read[:nbytes]))


class _Uvicorn(uvicorn.Server):
    """uvicorn, as a guest in an event loop whose signals are its host's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepts = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepts.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _read(request: Request, body: bytes, wire: Wire) -> Exchange:
    """Raises BadRequest."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # what a browser sends for a page of another site is never this
        raise NotGiven("the body must be JSON: send it with Content-Type: application/json")
    check_few_values(body, MOST_VALUES, "the request's body", BadRequest)
    return wire.read(parse_json(body, "the request's body", BadRequest))


def _token(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _is_local_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _body(request: Request, is_kept: bool) -> bytes:
    """The request's body; nothing of it where it is not to be kept. One that is too large is read to its end all the
    same, and thrown away: a client that still sends would not read the answer. One without an end is not."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= MOST_BYTES:
            parts += [part] if is_kept else []
        elif size > MOST_READ_BYTES:
            raise RequestTooLarge(f"the body has more than {MOST_READ_BYTES:,} bytes, and may have {MOST_BYTES:,}")
    if size > MOST_BYTES:
        raise RequestTooLarge(f"the body has {size:,} bytes, and may have {MOST_BYTES:,}")
    return b"".join(parts)


async def _grown(
    wire: Wire, exchange: Exchange, first: Piece, told: asyncio.Queue[Piece | None], answering: asyncio.Task[Any]
) -> AsyncIterator[str]:
    """The events of a reply while it is drawn. An error that comes now is the last of them, in the provider's form."""
    piece: Piece | None = first
    try:
        while piece is not None:
            for event in exchange.more(piece):
                yield event
            piece = await told.get()
        async for event in _sent(exchange.rest(answering.result())):
            yield event
    except ClientDisconnect:
        pass
    except Exception as error:  # noqa: BLE001  the same boundary as of an endpoint
        yield sse(wire.error(_call_error(error)), "error")
    finally:
        answering.cancel()


async def _sent(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event
        await asyncio.sleep(0)  # others' turn: to a client that is gone, a long reply would be sent without a pause


def _call_error(error: Exception) -> CallError:
    """The error as a client is told it. Of one that nobody foresaw, the log has all and the client nothing."""
    match error:
        case CallError():
            return error
        case ContextOverflow():
            return _ContextLengthExceeded(str(error), "messages")
        case PolicyError():  # a template that refuses the conversation
            return BadRequest(str(error), "messages")
        case CoachrlError():
            return EngineFailed(str(error))
        case _:
            log.error("a call could not be answered", exc_info=error)
            return EngineFailed("a fault of the server: its log says more")


def _refusal(wire: Wire, error: CallError) -> Response:
    headers = None
    if isinstance(error, EngineFailed):
        # A fault that is told to the client is recorded as one: its own retries would only ask the same again.
        headers = {"x-should-retry": "false"}
    if isinstance(error, RequestTooLarge):
        headers = {"connection": "close"}  # else the rest of the body would be waited for
    return JSONResponse(wire.error(error), error.status, headers)


def _wrong_path(request: Request) -> CallError:
    path = request.url.path
    if path in _WIRES or path.startswith(_MODELS):
        return _WrongMethod(f"{request.method} {path}: this path takes another method")
    known = ", ".join((*_WIRES, _MODELS))
    return _NoSuchPath(f"{request.method} {path}: there is no such path; there are {known}")
