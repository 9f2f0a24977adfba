"""One episode at the endpoint: calls go to the team's agents, which record them as any pipeline's are."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from coachrl.coach.clients.ledger import calls_to
from coachrl.errors import AppBroken, ContextOverflow
from coachrl.gateway.calls import BadRequest, Call, CallError, EngineFailed, EpisodeEnded, Piece, Reply, UnknownModel
from coachrl.gateway.conversation_tokens import (
    Conversations,
    as_message,
    asked_functions,
    read_reply,
    said_in,
    text_of,
    with_own_ids,
)
from coachrl.gateway.external import LiteLLMProviders
from coachrl.gateway.growing import told_as_it_grows
from coachrl.gateway.refusals import may_have_written
from coachrl.pipelines.team.team import Agent, Scoring, Team, together
from coachrl.pipelines.team.trajectory import ReadPrompt
from coachrl.text import clip_middle, one_line
from coachrl.types import Action, FinishReason, Role, ToolCall, Usage

log = logging.getLogger(__name__)

OVER = "this episode is over: its app has ended"
_NEWS_S = 1.0
"""How long the news may take that a client is gone, whose own error is here already."""


@dataclass(frozen=True)
class _Asked:
    """An action that asked for functions, whose results the app has not told yet."""

    index: int
    role: Role
    reply: Reply


class PlayedEpisode:
    """Answers the calls of one episode's app.

    Args:
        team: plays the episode, and records it.
        roles: by the name that the app gives as the model's.
        unscored: names of those that no coach is asked about.
        providers: answer for the external ones.
        noted: what was said in the log already, and is said once; shared by many episodes.

    Attributes:
        broken: gets the error of the machinery that ends the episode, whatever its app makes of it.
        answered, overflowed, given_up: so many calls were answered, did not fit the model's context, and were left by
            the client before they were answered.
        unheard: so many calls were left since the app was last answered, before it was told any of the reply.
        refusal: of the app's last call, where it was refused for what its agents cannot have written; else None.
        external: what each call to a provider took.
    """

    def __init__(
        self,
        team: Team,
        roles: Mapping[str, Role],
        unscored: frozenset[str],
        providers: LiteLLMProviders,
        noted: set[str],
    ) -> None:
        self._team, self._roles, self._unscored, self._providers = team, roles, unscored, providers
        self._noted = noted
        # Calls come in the server's tasks. They are answered as what they are: a part of the episode's own.
        self._context = contextvars.copy_context()
        self._conversations = Conversations()
        self._unobserved: dict[str, _Asked] = {}  # by the id of a function call
        self._ids: Counter[str] = Counter()  # how often each was made of what was read and written
        self._under_way: set[asyncio.Task[list[Reply]]] = set()
        self._quiet_since = time.monotonic()
        self._closed = False
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered = self.overflowed = self.given_up = self.unheard = 0
        self.refusal: CallError | None = None
        self._said: list[str] = []  # in replies
        self.external: list[Usage] = []

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the roles."""
        return tuple(self._roles)

    async def answer(self, call: Call) -> list[Reply]:
        """Raises CallError, and ContextOverflow."""
        if call.role not in self._roles:
            unknown = UnknownModel(call.role, self.models)
            self.refused(unknown)
            raise unknown
        before, heard = (self.refusal, self.unheard), list[str]()
        answering = asyncio.get_running_loop().create_task(self._answer(_heard_by(call, heard)), context=self._context)
        self._under_way.add(answering)
        try:
            replies = await answering
        except asyncio.CancelledError:
            if self._closed:  # it was `close` that gave it up: the client may wait still
                raise EpisodeEnded(OVER) from None
            self.given_up += 1
            self.unheard += not heard
            self._note_given_up(call.role)
            self._said.append("".join(heard))
            raise
        except ContextOverflow:
            self.overflowed += 1
            raise
        finally:
            self._under_way.discard(answering)
            self._quiet_since = time.monotonic()
        self.answered += 1
        self._said += [said_in(as_message(reply)) for reply in replies]
        if (self.refusal, self.unheard) == before:  # else the app may fail on what came while this call was under way
            self.refusal, self.unheard = None, 0
        return replies

    def refused(self, error: CallError) -> None:
        """The app asks for what it does not get: that is its maker's to know, whoever's doing it is."""
        is_agents = not error.is_apps or may_have_written(self._said, error.written)
        self.refusal = None if is_agents else error
        field = (error.param or "").partition("[")[0]
        kind = f"refused {type(error).__name__} {field}"
        self.note(kind, "a call of the app is refused: %s", one_line(str(error), 300))

    def note(self, key: str, message: str, *arguments: object) -> None:
        """Say something in the log, once for each `key`."""
        if key not in self._noted:
            self._noted.add(key)
            log.warning(message, *arguments)

    async def stuck(self, idle_timeout_s: float) -> None:
        """Returns never. Raises AppBroken once the app has waited for no call for so long."""
        while True:
            quiet_s = 0.0 if self._under_way else time.monotonic() - self._quiet_since
            if quiet_s >= idle_timeout_s:
                raise AppBroken(f"it made no call and came to no end for {idle_timeout_s:g} s")
            await asyncio.sleep(idle_timeout_s - quiet_s)

    async def seen_gone(self) -> None:
        """Returns once it is known of which calls under way the client is gone, or the news of that would be here."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=_NEWS_S)

    async def close(self) -> None:
        """Give up calls under way; what waits for results goes to the coach without."""
        self._closed = True
        for answering in self._under_way:
            answering.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        self.broken.cancel()
        self._team.observe_rest()

    async def _answer(self, call: Call) -> list[Reply]:
        try:
            self._observe(call)
            role = self._roles[call.role]
            if role.external:
                return await self._pass_on(call, role)
            agent = self._team[call.role]
            prompt = self._read_by(agent, call)
            return await together(self._draw(call, place, agent, prompt) for place in range(call.n))
        except (CallError, ContextOverflow):
            raise
        except Exception as error:  # the boundary to an app: what breaks here must end the episode, not the server
            if not self.broken.done():
                self.broken.set_exception(error)
            raise EngineFailed(one_line(f"{type(error).__name__}: {error}")) from error

    def _read_by(self, agent: Agent, call: Call) -> ReadPrompt:
        try:
            return self._conversations.prompt(call, agent.tokenizer, agent.role.thinking)
        except BadRequest as error:  # of the chat template
            self.refused(error)
            raise

    async def _draw(self, call: Call, place: int, agent: Agent, prompt: ReadPrompt) -> Reply:
        tokenizer = agent.tokenizer
        self._note_temperature(call, agent)

        def scoring(action: Action) -> Scoring:
            return self._scoring(agent.role, bool(asked_functions(action.text, call, action)))

        with told_as_it_grows(call, place, tokenizer, prompt):
            action = await agent.answer(prompt, scoring)
        reply = with_own_ids(read_reply(action, call, tokenizer), self._ids)
        self._conversations.remember(call, reply, action.prompt_ids)
        self._expect_results(action, agent.role, reply)
        return reply

    async def _pass_on(self, call: Call, role: Role) -> list[Reply]:
        """The replies of the provider's model. What it reads is recorded as text alone."""
        prompt, agent = ReadPrompt((), text_of(call.messages)), self._team[role.name]
        try:
            with calls_to(lambda spent: self.external.append(spent.usage)):
                replies = [with_own_ids(reply, self._ids) for reply in await self._providers.complete(call)]
        except asyncio.CancelledError:
            agent.given_up(prompt)
            raise
        for reply in replies:
            ending: FinishReason = "length" if reply.finish_reason == "length" else "stop"
            scoring = self._scoring(role, bool(reply.tool_calls))
            action = agent.answered(prompt, said_in(as_message(reply)), ending, scoring)
            self._expect_results(action, role, reply)
        return replies

    def _note_given_up(self, name: str) -> None:
        self.note(
            f"given up {name}",
            "role %s: its app left a call before it was answered, as by a time-out of its own (a model in training may "
            "answer more slowly than a provider); such calls are not trained on: calls_given_up counts them",
            name,
        )

    def _note_temperature(self, call: Call, agent: Agent) -> None:
        name = agent.role.name
        if call.temperature not in (None, agent.temperature):
            self.note(
                f"temperature {name}",
                "role %s: its app asks for temperature %g; replies are drawn at the run's own, %g, as they are trained "
                "on",
                name,
                call.temperature,
                agent.temperature,
            )

    def _scoring(self, role: Role, asks: bool) -> Scoring:
        if role.name in self._unscored:
            return "never"
        return "later" if asks else "now"

    def _expect_results(self, action: Action, role: Role, reply: Reply) -> None:
        asked = _Asked(action.index, role, reply)
        self._unobserved.update({function.id: asked for function in reply.tool_calls})

    def _observe(self, call: Call) -> None:
        """Results of functions that came with a call are what came of the actions that asked for them."""
        results = {
            str(message.get("tool_call_id", "")): str(message["content"])
            for message in call.messages
            if message["role"] == "tool"
        }
        found = {asked.index: asked for key, asked in self._unobserved.items() if key in results}
        for asked in found.values():
            for function in asked.reply.tool_calls:
                self._unobserved.pop(function.id, None)
            self._team.observe(asked.index, _with_results(asked, results))


def _heard_by(call: Call, heard: list[str]) -> Call:
    """The call, whose app is told its reply in pieces: they are kept in `heard`."""
    if call.tell is None:
        return call
    tell = call.tell

    def told(piece: Piece) -> None:
        heard.append(piece.text)
        tell(piece)

    return replace(call, tell=told)


def _with_results(asked: _Asked, results: Mapping[str, str]) -> tuple[ToolCall, ...]:
    """What the app has told of each function that a reply asked for; whether it went well, only the app knows."""
    return tuple(
        ToolCall(
            function.name,
            json.dumps(function.arguments, ensure_ascii=False),
            clip_middle(results.get(function.id, "(the app told no result)"), asked.role.tool_result_chars),
            ok=function.id in results,
        )
        for function in asked.reply.tool_calls
    )
