"""External roles whose provider breaks: each request is a line of the ledger, and counts where it may be billed."""

import asyncio
import json
from dataclasses import replace

import pytest
from gateway_apps import user
from scripted_server import CUT, HANG, MALFORMED, NO_CANDIDATE, RESET, ScriptedServer, Step, say, status

from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.config import CoachConfig
from coachrl.errors import BudgetExceeded, ProviderFailed
from coachrl.gateway.calls import Call
from coachrl.gateway.external import GatewayRole, LiteLLMProviders

pytest.importorskip("litellm", reason="needs the llm extra")

ANTHROPIC = "anthropic/claude-3-5-haiku-20241022"
WELL = say("well")
SAID = json.dumps(
    {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "well"}],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
)
ENDS = Step(text=None, deltas=({"role": "assistant"},), behavior="end")
"""A stream that ends before it has said a word."""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "sk-ours")
    monkeypatch.setattr("coachrl.gateway.external._TIMEOUT_S", 1.5)


class Asking:
    """A role at a server, with the budget and the ledger that its calls count in."""

    def __init__(self, server, ledger, model="openai/judge", limit_usd=10.0, **settings):
        base = server.address if model == ANTHROPIC else server.openai_base
        self.providers = LiteLLMProviders({"critic": GatewayRole(external=model, api_base=base, max_new_tokens=100)})
        config = CoachConfig(**{"usd_per_million_tokens": (1.0, 1000.0), "max_attempts": 4, **settings})
        self.budget, self.ledger = Budget(limit_usd), ledger
        self.providers.connect(ChatClientFactory(config, budget=self.budget, first_wait_s=0.01), ledger)

    async def complete(self, **more):
        async with asyncio.timeout(60):
            [reply] = await self.providers.complete(Call("critic", (user("?"),), **more))
        return reply

    @property
    def billed(self):
        """Of each line, whether it may have been billed, or was."""
        assert spent_in(self.ledger) == pytest.approx(self.budget.spent_usd)
        return [line["usage"]["cost_usd"] != 0.0 for line in read_ledger(self.ledger)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("steps", "billed"),
    [
        ([CUT, CUT, WELL], [True, True, True]),
        ([HANG, WELL], [True, True]),
        ([status(500), status(503), WELL], [False, False, True]),
        ([status(429, retry_after_s=0.2), status(429, retry_after_s=0.1), WELL], [False, False, True]),
    ],
    ids=["cut", "hang", "errors", "throttled"],
)
async def test_every_request_stands_in_the_ledger_and_counts_where_it_may_be_billed(steps, billed, stream, tmp_path):
    async with ScriptedServer(steps) as server:
        asking = Asking(server, tmp_path / "ledger")
        reply = await asking.complete(tell=(lambda piece: None) if stream else None)
        assert reply.text == "well" and len(server.requests) == len(steps)
        assert asking.billed == billed


@pytest.mark.parametrize("step", [MALFORMED, NO_CANDIDATE], ids=["no JSON", "no candidate"])
async def test_an_answer_that_is_none_is_asked_for_again_and_may_be_billed(step, tmp_path):
    async with ScriptedServer([step, WELL]) as server:
        asking = Asking(server, tmp_path / "ledger")
        assert (await asking.complete()).text == "well"
        assert len(server.requests) == 2 and asking.billed == [True, True]


@pytest.mark.parametrize("model", ["openai/judge", ANTHROPIC])
async def test_a_broken_connection_is_one_request_whichever_way_litellm_makes_it(model, tmp_path):
    steps = [CUT, RESET, Step(body=SAID) if model == ANTHROPIC else WELL]
    async with ScriptedServer(steps) as server:
        asking = Asking(server, tmp_path / "ledger", model)
        assert (await asking.complete()).text == "well"
        assert len(server.requests) == 3 and len(asking.billed) == 3


async def test_no_request_is_made_that_the_budget_has_no_room_for(tmp_path):
    async with ScriptedServer([CUT]) as server:
        asking = Asking(server, tmp_path / "ledger", limit_usd=0.25)  # each may cost $0.10
        with pytest.raises(BudgetExceeded):
            await asking.complete()
        assert len(server.requests) == 2 and asking.billed == [True, True] and asking.budget.spent_usd < 0.25


async def test_a_provider_that_stays_broken_is_given_up_after_the_attempts_of_a_coach(tmp_path):
    async with ScriptedServer([status(500)]) as server:
        asking = Asking(server, tmp_path / "ledger")
        with pytest.raises(ProviderFailed, match=r"^openai/judge: scripted error$"):
            await asking.complete()
        assert len(server.requests) == 4 and asking.budget.spent_usd == 0.0


@pytest.mark.parametrize("behavior", ["cut", "end"])
async def test_a_stream_whose_beginning_was_told_is_not_asked_for_again(behavior, tmp_path):
    told = []
    async with ScriptedServer([replace(WELL, text="well done", behavior=behavior), WELL]) as server:
        asking = Asking(server, tmp_path / "ledger")
        with pytest.raises(ProviderFailed):
            await asking.complete(tell=lambda piece: told.append(piece.text))
        assert told == ["well", " done"] and len(server.requests) == 1 and asking.billed == [True]


async def test_a_stream_that_said_nothing_yet_is_asked_for_again(tmp_path):
    told = []
    async with ScriptedServer([ENDS, WELL]) as server:
        asking = Asking(server, tmp_path / "ledger")
        await asking.complete(tell=lambda piece: told.append(piece.text))
        assert told == ["well"] and len(server.requests) == 2 and asking.billed == [True, True]


@pytest.mark.parametrize(
    ("steps", "billed"),
    [
        ([HANG], [True]),
        ([CUT, status(500, retry_after_s=30)], [True, False]),
        ([status(429, retry_after_s=30)], [False]),
    ],
    ids=["under way", "between two", "throttled"],
)
async def test_an_app_that_goes_away_leaves_what_was_asked_counted_and_nothing_reserved(steps, billed, tmp_path):
    async with ScriptedServer(steps) as server:
        asking = Asking(server, tmp_path / "ledger")
        asked = asyncio.create_task(asking.complete())
        while len(server.requests) < len(steps):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled() and asking.billed == billed and asking.budget._reserved_usd == 0.0


async def test_a_role_shares_the_limits_of_a_coach_of_the_same_model(tmp_path):
    async with ScriptedServer([say("well", latency_s=0.5)]) as server:
        asking = Asking(server, tmp_path / "ledger", concurrency=2)
        await asyncio.gather(*(asking.complete() for _ in range(6)))
        assert server.most_at_once == 2 and len(asking.billed) == 6
