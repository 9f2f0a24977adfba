"""A language model as coach: render the prompt, call the model, read the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient, ChatRequest, Reply
from coachrl.coach.clients.ledger import Message
from coachrl.coach.criteria import criteria_schema, parse_criteria, parse_verdict_by_criteria
from coachrl.coach.prompt_rendering import render_request, with_suggestion
from coachrl.coach.verdict import (
    SUGGESTION_KEY,
    Verdict,
    json_instruction,
    parse_verdict,
    repair_words,
    suggestion_in,
    verdict_schema,
)
from coachrl.config import CoachConfig
from coachrl.errors import CoachError
from coachrl.prompts import Prompt
from coachrl.types import CoachScore, Usage

_LINE_REPAIR = (
    "Keep your judgement and answer again with one line alone, 'PROCESS_SCORE: n', n being one number from 0 to 10 "
    "(or ABSTAIN)."
)
_JSON_REPAIR = "Keep your judgement and answer again with the JSON object alone."

Parsed = TypeVar("Parsed")


class PromptedCoach:
    """A chat model with a prompt, whatever its reply must hold. The model is held to a JSON schema where the client can
    do so."""

    def __init__(
        self, client: ChatClient, prompt: Prompt, settings: CoachConfig, schema: Mapping[str, Any], repeat: int = 0
    ) -> None:
        """repeat: asks again what was asked before, past the cache (`ChatRequest.repeat`)."""
        self.name = client.model
        self._client = client
        self._prompt = prompt
        self._evidence = settings.evidence
        self._schema = schema
        self._blank = ChatRequest(
            messages=(),
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            repeat=repeat,
            prompt_hash=prompt.sha256,
        )

    async def check(self) -> None:
        """A short call, so that a wrong key, model or address shows before any rollout. Raises CoachUnavailable."""
        text = "This is a test of the connection, there is nothing to judge: abstain."
        await self._client.check(self._asking(text, self._schema))

    async def close(self) -> None:
        await self._client.close()

    def _text(self, request: CoachRequest) -> str:
        return render_request(self._prompt, request, self._evidence)

    async def _ask(
        self, text: str, parse: Callable[[str], Parsed], repair: str, schema: Mapping[str, Any] | None = None
    ) -> tuple[Parsed, list[Reply]]:
        """What `parse` makes of the model's reply to `text`, and the replies that it took. repair: what a model is told
        that is not held to a schema. schema: another one than the coach's.

        Some models answer nothing where they are held to a schema. Such a model is asked in plain words, and where that
        goes well it is asked so from then on.
        """
        asked = self._asking(text, schema or self._schema)
        if asked.schema is None:
            return await ask_until_read(self._client, asked, parse, repair)
        first = await self._client.complete(asked)
        # Nothing, of its own will: neither its limit nor a filter ended it.
        is_empty = not first.text.strip() and first.finish_reason not in ("length", "content_filter")
        if not is_empty:
            return await ask_until_read(self._client, asked, parse, _JSON_REPAIR, first)
        parsed, replies = await ask_until_read(self._client, self._in_plain_words(text), parse, repair)
        self._client.ask_in_plain_words(first.model)
        return parsed, [first, *replies]

    def _asking(self, text: str, schema: Mapping[str, Any]) -> ChatRequest:
        if not self._client.structured:
            return self._in_plain_words(text)
        message = Message("user", f"{text}\n\n{json_instruction(schema)}")
        return replace(self._blank, messages=(message,), schema=schema)

    def _in_plain_words(self, text: str) -> ChatRequest:
        return replace(self._blank, messages=(Message("user", text),))


class LLMCoach(PromptedCoach):
    """Gives scores. A reply that does not parse is asked for once more; then the action has no score."""

    def __init__(self, client: ChatClient, prompt: Prompt, settings: CoachConfig, repeat: int = 0) -> None:
        if settings.suggest:
            prompt = with_suggestion(prompt)
        extra = SUGGESTION_KEY if settings.suggest else None
        criteria = parse_criteria(prompt.header, prompt.name)
        self._parse = partial(parse_verdict_by_criteria, criteria=criteria) if criteria else parse_verdict
        self._repair = _LINE_REPAIR
        if criteria:
            names = [one.name for one in criteria]
            self._repair = repair_words(line for name in names for line in (f"REASON {name}: ...", f"SCORE {name}: n"))
        schema = criteria_schema(criteria, extra) if criteria else verdict_schema(extra)
        super().__init__(client, prompt, settings, schema, repeat)

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where two replies running held no verdict, and what the client raises."""
        verdict, replies = await self._ask(self._text(request), self._parse, self._repair)
        return self._scored(request, verdict, replies)

    def _scored(self, request: CoachRequest, verdict: Verdict, replies: Sequence[Reply]) -> CoachScore:
        score = CoachScore(
            action_id=request.action.id,
            status="abstained" if verdict.abstained else "scored",
            process_0_10=verdict.process_0_10,
            outcome_0_1=verdict.outcome_0_1,
            rationale=verdict.rationale,
            prompt_hash=self._prompt.sha256,
            suggestion=verdict.suggestion or suggestion_in(replies[0].text),  # a repair asks for the score alone
            criteria=verdict.criteria,
        )
        return with_replies(score, replies)


async def ask_until_read(
    client: ChatClient,
    request: ChatRequest,
    parse: Callable[[str], Parsed],
    repair: str,
    first: Reply | None = None,
) -> tuple[Parsed, list[Reply]]:
    """What `parse` makes of the reply (`first`, where it is there already), and the replies that it took: one, or two
    where the first could not be read and the model was told so, with `repair` saying what to do. `parse` raises
    CoachError for what it cannot read. A reply that was cut at its limit is not read at all, and the second has twice
    the room.

    Raises CoachError where the second cannot be read either, and what the client raises.
    """
    first = first or await client.complete(request)
    try:
        return _parsed(first, parse), [first]
    except CoachError as error:
        said = _with_cause(error, first)
    if first.finish_reason == "content_filter":  # it would be blocked again
        raise CoachError(f"coach {first.model}: {said}")
    # An empty assistant message is refused by some providers, and one of blanks too.
    again = (
        Message("assistant", first.text if first.text.strip() else "(empty)"),
        Message("user", f"Your reply could not be read: {said}. {repair}"),
    )
    room = 2 if first.finish_reason == "length" else 1
    second = await client.complete(
        replace(request, messages=(*request.messages, *again), max_tokens=room * request.max_tokens)
    )
    try:
        return _parsed(second, parse), [first, second]
    except CoachError as error:
        raise CoachError(
            f"coach {second.model}: no verdict in two replies: {said}; then {_with_cause(error, second)}"
        ) from error


def _parsed(reply: Reply, parse: Callable[[str], Parsed]) -> Parsed:
    """What `parse` makes of a whole reply: of one that was cut, "PROCESS_SCORE: 1" may have been going to be a 10."""
    if reply.finish_reason == "length":
        raise CoachError("the reply was cut at its limit of tokens")
    if reply.finish_reason == "content_filter":
        raise CoachError("the reply is empty" if not reply.text else "the reply was blocked or refused")
    return parse(reply.text)


def with_replies(score: CoachScore, replies: Sequence[Reply]) -> CoachScore:
    """`score` with who gave it, and what its replies took."""
    return replace(
        score,
        model=replies[-1].model,
        usage=sum((reply.usage for reply in replies), Usage()),
        fallbacks=max(reply.fallbacks for reply in replies),
    )


def _with_cause(error: CoachError, reply: Reply) -> str:
    """The error, and why the reply ended where that explains it (a length limit, a content filter)."""
    if reply.finish_reason in ("stop", ""):
        return str(error)
    return f"{error} (the reply ended by: {reply.finish_reason}{', ' if reply.detail else ''}{reply.detail})"
