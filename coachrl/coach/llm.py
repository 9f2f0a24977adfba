"""A language model as coach: render the prompt, call the model, read the verdict."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from coachrl.coach.base import CoachRequest
from coachrl.coach.client import ChatClient, Reply, TransientCoachError
from coachrl.coach.ledger import Call, Message, record_call
from coachrl.coach.prompts import render_request
from coachrl.coach.verdict import Verdict, parse_verdict
from coachrl.config import EvidenceConfig
from coachrl.errors import CoachError, CoachUnavailable
from coachrl.prompts import Prompt
from coachrl.types import CoachScore

log = logging.getLogger(__name__)

_REPAIR = (
    "Your reply could not be read: {error}. Keep your judgement and answer again with one line alone, "
    "'PROCESS_SCORE: n', n being one number from 0 to 10 (or ABSTAIN)."
)


class LLMCoach:
    """Any chat model. A reply that does not parse is asked for once more; then the action has no score."""

    def __init__(
        self,
        client: ChatClient,
        prompt: Prompt,
        *,
        evidence: EvidenceConfig | None = None,
        temperature: float = 0.0,
        max_tokens: int = 2048,
    ) -> None:
        self.name = client.model
        self._evidence = evidence or EvidenceConfig()
        self._client, self._prompt = client, prompt
        self._temperature, self._max_tokens = temperature, max_tokens

    async def check(self) -> None:
        """One short call, so that a wrong key, model or address shows before any rollout. Raises CoachUnavailable."""
        try:
            await self._client.complete(
                [Message("user", "Answer with the word ready.")],
                temperature=self._temperature,
                max_tokens=self._max_tokens,
            )
        except CoachUnavailable:
            raise
        except TransientCoachError as error:
            if error.retry_after_s is None:
                raise CoachUnavailable(f"{error} (asked before the first rollout)") from error
            log.warning("%s: busy at the start, going on", error)
        except CoachError as error:
            raise CoachUnavailable(f"{error} (asked before the first rollout)") from error

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where two replies running held no verdict, and what the client raises."""
        messages = [Message("user", render_request(self._prompt, request, self._evidence))]
        replies = [await self._ask(request, messages)]
        try:
            verdict = parse_verdict(replies[0].text)
        except CoachError as error:
            said = _with_cause(error, replies[0])
            # An empty assistant message is refused by some providers.
            messages += [
                Message("assistant", replies[0].text or "(empty)"),
                Message("user", _REPAIR.format(error=said)),
            ]
            replies.append(await self._ask(request, messages))
            verdict = self._second_verdict(replies[1], said)
        return self._scored(request, verdict, replies)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, request: CoachRequest, messages: Sequence[Message]) -> Reply:
        call = Call(request.action.id, self.name, self._prompt.sha256, tuple(messages))
        try:
            reply = await self._client.complete(messages, temperature=self._temperature, max_tokens=self._max_tokens)
        except CoachError as error:
            maybe_billed = isinstance(error, TransientCoachError) and not error.answered
            record_call(replace(call, error=str(error), cost_usd=None if maybe_billed else 0.0))
            raise
        record_call(
            replace(
                call,
                reply=reply.text,
                finish_reason=reply.finish_reason,
                tokens_in=reply.tokens_in,
                tokens_out=reply.tokens_out,
                tokens_thinking=reply.tokens_thinking,
                cost_usd=reply.cost_usd,
                latency_s=reply.latency_s,
            )
        )
        return reply

    def _second_verdict(self, reply: Reply, first_error: str) -> Verdict:
        try:
            return parse_verdict(reply.text)
        except CoachError as error:
            raise CoachError(
                f"coach {self.name}: no verdict in two replies: {first_error}; then {_with_cause(error, reply)}"
            ) from error

    def _scored(self, request: CoachRequest, verdict: Verdict, replies: Sequence[Reply]) -> CoachScore:
        prices = [reply.cost_usd for reply in replies]
        known = [price for price in prices if price is not None]
        return CoachScore(
            action_id=request.action.id,
            status="abstained" if verdict.abstained else "scored",
            process_0_10=verdict.process_0_10,
            outcome_0_1=verdict.outcome_0_1,
            rationale=verdict.rationale,
            model=self.name,
            prompt_hash=self._prompt.sha256,
            attempts=len(replies),
            tokens_in=sum(reply.tokens_in for reply in replies),
            tokens_out=sum(reply.tokens_out for reply in replies),
            tokens_thinking=sum(reply.tokens_thinking for reply in replies),
            cost_usd=sum(known) if len(known) == len(prices) else None,
            latency_s=sum(reply.latency_s for reply in replies),
        )


def _with_cause(error: CoachError, reply: Reply) -> str:
    """The error, and why the reply ended where that explains it (a length limit, a content filter)."""
    return str(error) if reply.finish_reason in ("stop", "") else f"{error} (the reply ended by: {reply.finish_reason})"
