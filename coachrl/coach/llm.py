"""A language model as coach: render the prompt, call the model, read the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient, ChatRequest, Reply
from coachrl.coach.clients.ledger import Message
from coachrl.coach.prompts import render_request, with_suggestion
from coachrl.coach.verdict import (
    SUGGESTION_KEY,
    Verdict,
    json_instruction,
    parse_verdict,
    suggestion_in,
    verdict_schema,
)
from coachrl.config import EvidenceConfig
from coachrl.errors import CoachError
from coachrl.prompts import Prompt
from coachrl.types import CoachScore

_LINE_REPAIR = (
    "Keep your judgement and answer again with one line alone, 'PROCESS_SCORE: n', n being one number from 0 to 10 "
    "(or ABSTAIN)."
)
_JSON_REPAIR = "Keep your judgement and answer again with the JSON object alone."

Parsed = TypeVar("Parsed")


class LLMCoach:
    """Any chat model. A reply that does not parse is asked for once more; then the action has no score.

    Where the client can hold the model to a JSON schema, it does. repeat: asks again what was asked before, past the
    cache (`ChatRequest.repeat`). suggest: asks for the reply that the agent should have given, too.
    """

    def __init__(
        self,
        client: ChatClient,
        prompt: Prompt,
        *,
        evidence: EvidenceConfig | None = None,
        suggest: bool = False,
        temperature: float = 0.0,
        max_tokens: int = 8192,
        repeat: int = 0,
    ) -> None:
        self.name = client.model
        self._client, self._evidence = client, evidence or EvidenceConfig()
        self._prompt = with_suggestion(prompt) if suggest else prompt
        schema = verdict_schema(SUGGESTION_KEY if suggest else None) if client.structured else None
        self._blank = ChatRequest((), temperature, max_tokens, schema, repeat, self._prompt.sha256)

    async def check(self) -> None:
        """A short call, so that a wrong key, model or address shows before any rollout. Raises CoachUnavailable."""
        await self._client.check(self._asking("This is a test of the connection, there is nothing to judge: abstain."))

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where two replies running held no verdict, and what the client raises."""
        asked = self._asking(render_request(self._prompt, request, self._evidence))
        repair = _JSON_REPAIR if asked.schema is not None else _LINE_REPAIR
        verdict, replies = await ask_until_read(self._client, asked, parse_verdict, repair)
        return self._scored(request, verdict, replies)

    async def close(self) -> None:
        await self._client.close()

    def _asking(self, text: str) -> ChatRequest:
        if self._blank.schema is not None:
            text = f"{text}\n\n{json_instruction(self._blank.schema)}"
        return replace(self._blank, messages=(Message("user", text),))

    def _scored(self, request: CoachRequest, verdict: Verdict, replies: Sequence[Reply]) -> CoachScore:
        return with_replies(
            CoachScore(
                action_id=request.action.id,
                status="abstained" if verdict.abstained else "scored",
                process_0_10=verdict.process_0_10,
                outcome_0_1=verdict.outcome_0_1,
                rationale=verdict.rationale,
                prompt_hash=self._prompt.sha256,
                suggestion=verdict.suggestion or suggestion_in(replies[0].text),  # a repair asks for the score alone
            ),
            replies,
        )


async def ask_until_read(
    client: ChatClient, request: ChatRequest, parse: Callable[[str], Parsed], repair: str
) -> tuple[Parsed, list[Reply]]:
    """What `parse` makes of the reply, and the replies that it took: one, or two where the first could not be read and
    the model was told so, with `repair` saying what to do. `parse` raises CoachError for what it cannot read. A reply
    that was cut at its limit is not read at all, and the second has twice the room.

    Raises CoachError where the second cannot be read either, and what the client raises.
    """
    first = await client.complete(request)
    try:
        return _parsed(first, parse), [first]
    except CoachError as error:
        said = _with_cause(error, first)
    if first.finish_reason == "content_filter":  # it would be blocked again
        raise CoachError(f"coach {first.model}: {said}")
    # An empty assistant message is refused by some providers.
    again = (
        Message("assistant", first.text or "(empty)"),
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
    """`score` with what its replies took. Where the price of one is not known, neither is the sum."""
    prices = [reply.cost_usd for reply in replies]
    known = [price for price in prices if price is not None]
    return replace(
        score,
        model=replies[-1].model,
        attempts=len(replies),
        tokens_in=sum(reply.tokens_in for reply in replies),
        tokens_out=sum(reply.tokens_out for reply in replies),
        tokens_thinking=sum(reply.tokens_thinking for reply in replies),
        tokens_cached=sum(reply.tokens_cached for reply in replies),
        cost_usd=sum(known) if len(known) == len(prices) else None,
        latency_s=sum(reply.latency_s for reply in replies),
        fallbacks=max(reply.fallbacks for reply in replies),
        calls_from_cache=sum(reply.from_cache for reply in replies),
    )


def _with_cause(error: CoachError, reply: Reply) -> str:
    """The error, and why the reply ended where that explains it (a length limit, a content filter)."""
    if reply.finish_reason in ("stop", ""):
        return str(error)
    return f"{error} (the reply ended by: {reply.finish_reason}{', ' if reply.detail else ''}{reply.detail})"
