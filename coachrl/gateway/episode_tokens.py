"""The endpoint of a rollout: one server, and a token for each episode that is being played."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

from coachrl.errors import CoachrlError, ConfigError, lacking
from coachrl.gateway.calls import Call, CallError, EpisodeEnded, HeldUp, Reply, WrongToken
from coachrl.gateway.loop_watch import LoopWatch
from coachrl.gateway.played_episode import OVER, PlayedEpisode

if TYPE_CHECKING:
    from coachrl.gateway.server import Server

_MOST_ENDED = 100_000  # tokens of episodes that are over; a call with an older one is told that it is no token at all
_HELD_UP = (
    "it is made in the event loop of the run, which cannot answer while the app waits in it: await an async client "
    "(endpoint.async_openai()), or make the app a plain function"
)


def check_packages() -> None:
    """Raises ConfigError where the packages of the server are missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"pipeline gateway needs {lacking(error)}: pip install 'coachrl[gateway]'") from error


class Episodes:
    """`Answerer` for the apps of many episodes: a token says whose call it is, and reaches that episode alone."""

    def __init__(self) -> None:
        self._played: dict[str, PlayedEpisode] = {}
        self._ended: dict[str, None] = {}

    @contextlib.contextmanager
    def admitted(self, episode: PlayedEpisode) -> Iterator[str]:
        """The episode's token. It opens nothing any more once the block is left."""
        token = f"coachrl-{secrets.token_urlsafe(24)}"
        self._played[token] = episode
        try:
            yield token
        finally:
            del self._played[token]
            self._ended[token] = None
            while len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]

    def models(self, token: str) -> Sequence[str]:
        """Raises WrongToken, EpisodeEnded."""
        return self._episode(token).models

    async def answer(self, call: Call, token: str) -> Sequence[Reply]:
        """See `Answerer`."""
        return await self._episode(token).answer(call)

    def refused(self, error: CallError, token: str) -> None:
        """See `Answerer`."""
        if token in self._played:
            self._played[token].refused(error)

    def hold_up(self) -> None:
        """An app waits in the event loop for what that loop is to answer. Whose it is, nobody knows here: it is told of
        all that play, and counts for those that fail on a connection that broke, before they are answered again."""
        for episode in list(self._played.values()):
            episode.refused(HeldUp(_HELD_UP))

    def _episode(self, token: str) -> PlayedEpisode:
        if token in self._played:
            return self._played[token]
        if token in self._ended:
            raise EpisodeEnded(OVER)
        raise WrongToken("the API key must be the one that this episode's endpoint gave: endpoint.api_key")


class SharedServer:
    """What serves the episodes of one event loop: a server that is there as long as anybody is inside `running`.

    Attributes:
        episodes: those that it answers, by their tokens.
        places: for apps that run at once.
        noted: see `PlayedEpisode`.
    """

    def __init__(self, host: str, port: int, most_apps: int) -> None:
        self._host, self._port = host, port
        self.loop = asyncio.get_running_loop()
        self.episodes = Episodes()
        self.places = asyncio.Semaphore(most_apps)
        self.noted: set[str] = set()
        self._users = 0
        self._starting: asyncio.Task[Server] | None = None
        self._watch: LoopWatch | None = None
        self._stopping: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The address of the endpoint, as OpenAI's clients take it. Raises ConfigError where it cannot be had."""
        if self._starting is None:
            # In a context of its own: what belongs to the episode that comes first must not be the server's.
            self._starting = asyncio.get_running_loop().create_task(self._start(), context=contextvars.Context())
        starting = self._starting
        self._users += 1
        try:
            yield f"{(await asyncio.shield(starting)).url}/v1"
        finally:
            self._users -= 1
            if self._users == 0:
                self._starting = None
                self._stopping = asyncio.create_task(self._stop(starting))
                await asyncio.shield(self._stopping)

    async def _start(self) -> Server:
        from coachrl.gateway.server import Server, listen  # of an extra's packages

        if self._stopping is not None:  # the one before may hold the port still
            await asyncio.wait({self._stopping})
        listener = listen(self._host, self._port)
        address = listener.getsockname()[:2]
        server = await Server(self.episodes, listener).__aenter__()
        self._watch = LoopWatch(address, self.episodes.hold_up)
        return server

    async def _stop(self, starting: asyncio.Task[Server]) -> None:
        with contextlib.suppress(CoachrlError):  # one that could not start was told to those who waited for it
            server = await asyncio.shield(starting)
            if self._watch is not None:
                self._watch.stop()
            await server.__aexit__(None, None, None)
