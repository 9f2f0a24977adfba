"""A client factory with short waits, and what is asked of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coach_requests import make_action, request_for
from scripted_server import ScriptedServer, Step

from coachrl.coach import CoachRequest, make_coach
from coachrl.coach.clients.base import ChatRequest
from coachrl.coach.clients.budget import Budget
from coachrl.coach.clients.ledger import Message
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig
from coachrl.types import CoachScore, Episode, Outcome

GEMINI = "gemini/gemini-2.5-flash"
SECRET = "sk-0123456789abcdef"
EIGHT = "PROCESS_SCORE: 8"


def ask(text: str = "Judge.", **fields: Any) -> ChatRequest:
    return ChatRequest((Message("user", text),), **fields)


def client_factory(
    budget: Budget | None = None, cache: Path | None = None, first_wait_s: float = 0.01, **settings: Any
) -> ChatClientFactory:
    config = CoachConfig(**{"max_attempts": 3, **settings})
    return ChatClientFactory(config, budget=budget, cache=cache, first_wait_s=first_wait_s)


async def score_all(pool: CoachPool, requests: Sequence[CoachRequest]) -> list[CoachScore]:
    for request in requests:
        pool.submit(request)
    episode = Episode("e1", "w1", "one-step", "mathchat", tuple(r.action for r in requests), Outcome(True))
    try:
        return list((await pool.settle([episode])).values())
    finally:
        await pool.close()


def requests_of(count: int) -> list[CoachRequest]:
    return [request_for(make_action("solver", f"{index} * 4", index=index)) for index in range(count)]


async def scored(
    model: str, script: list[Step], ledger: Path | None = None, budget: Budget | None = None
) -> CoachScore:
    """What a coach of that model makes of the server's answers to one question."""
    async with ScriptedServer(script) as server:
        base = server.gemini_base if model == GEMINI else server.openai_base
        made = client_factory(budget, max_attempts=1, usd_per_million_tokens=(1.0, 1000.0))
        coach = make_coach(CoachConfig(name=model, api_base=base, max_tokens=100), client_factory=made)
        (score,) = await score_all(CoachPool(coach, ledger=ledger, client_factory=made), requests_of(1))
    return score
