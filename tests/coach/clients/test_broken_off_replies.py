"""Replies that something broke off, by the provider's own word: no verdict is read, and what they took is paid."""

from pathlib import Path

import pytest
from chat_clients import GEMINI, client_factory, requests_of, scored
from provider_bodies import gemini, openai
from scripted_server import ScriptedServer, Step, say

from coachrl.coach import make_coach
from coachrl.coach.clients.base import causes
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.providers import known_price
from coachrl.config import CoachConfig

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")

OPENAI_MODELS = ("openai/judge", "openai/gpt-4o")  # plain HTTP, LiteLLM


@pytest.mark.parametrize(
    ("model", "body"),
    [
        *((model, openai("PROCESS_SCORE: 1", word)) for model in OPENAI_MODELS for word in ("abort", "error")),
        (GEMINI, gemini([{"text": "PROCESS_SCORE: 1"}], "MALFORMED_RESPONSE")),
        (GEMINI, gemini([{"text": "PROCESS_SCORE: 1"}], "OTHER")),
    ],
)
async def test_a_reply_that_something_broke_off_is_not_read_and_costs_what_it_took(
    model: str, body: str, tmp_path: Path
) -> None:
    """It may have been going to be a 10."""
    score = await scored(model, [Step(body=body)], ledger := tmp_path / "l.jsonl", budget := Budget(10.0))
    assert (score.status, score.process_0_10) == ("failed", None) and "the reply broke off: " in score.rationale
    assert (score.usage.tokens_in, score.usage.tokens_out) == (10, 5)
    price = known_price(CoachConfig(name=model, usd_per_million_tokens=(1.0, 1000.0)))
    assert price is not None and price.of(score.usage) == budget.spent_usd == spent_in(ledger) == score.usage.cost_usd


async def test_a_reply_that_something_broke_off_is_asked_for_again_and_not_kept(tmp_path: Path) -> None:
    body = gemini([{"text": "PROCESS_SCORE: 1"}], "OTHER")
    async with ScriptedServer([Step(body=body), say("PROCESS_SCORE: 10")]) as server:
        made = client_factory(cache=tmp_path / "cache.sqlite")
        coach = make_coach(CoachConfig(name=GEMINI, api_base=server.gemini_base), client_factory=made)
        assert [(await coach.score(requests_of(1)[0])).process_0_10 for _ in range(2)] == [10, 10]
        await coach.close()
        made.close()
        assert len(server.requests) == 2


def test_causes_that_go_round_in_a_circle_are_named_once():
    """As where a library raises its first error again, behind the one that came of it."""
    first, second = ValueError("first"), KeyError("second")
    first.__context__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second] and list(causes(None)) == []
