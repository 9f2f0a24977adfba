"""What calls may cost."""

from dataclasses import replace
from pathlib import Path

import pytest
from chat_clients import EIGHT, ask, client_factory, requests_of, score_all
from scripted_server import ScriptedServer, Step, say

from coachrl.coach import make_coach
from coachrl.coach.clients.budget import Budget, Price, spent_in
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig
from coachrl.errors import BudgetExceeded, ConfigError
from coachrl.types import Usage

pytest.importorskip("litellm", reason="needs the llm extra")
pytest.importorskip("google.genai", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


def test_a_budget_wants_prices() -> None:
    with pytest.raises(ConfigError, match=r"price of 'openai/judge' is not known.*usd_per_million_tokens"):
        client_factory(Budget(1.0)).client("openai/judge", "http://127.0.0.1:1")
    client_factory(Budget(1.0), usd_per_million_tokens=(1.0, 2.0)).client("openai/judge", "http://127.0.0.1:1")


async def test_a_budget_is_met_and_never_passed(tmp_path: Path) -> None:
    """Calls cost $0.012 and may cost $0.1: the more is spent, the fewer go at once, and the last fraction is left."""
    ledger = tmp_path / "ledger.jsonl"
    budget = Budget(0.5)
    made = client_factory(budget, concurrency=16, usd_per_million_tokens=(0.0, 1000.0))
    async with ScriptedServer([say("word " * 10 + f"\n{EIGHT}", latency_s=0.01)]) as server:
        coach = make_coach(
            CoachConfig(name="openai/judge", api_base=server.openai_base, max_tokens=100), client_factory=made
        )
        pool = CoachPool(coach, ledger=ledger, client_factory=made)
        with pytest.raises(BudgetExceeded, match=r"coach.budget_usd of \$0.5 is reached"):
            await score_all(pool, requests_of(100))
        answered = len(server.requests)
    assert budget.spent_usd == pytest.approx(answered * 0.012)
    assert 0.4 < budget.spent_usd <= 0.5  # less than one call's most was left
    assert spent_in(ledger) == pytest.approx(budget.spent_usd)  # those under way were waited for
    with pytest.raises(BudgetExceeded):
        pool.submit(requests_of(101)[100])


async def test_a_call_that_broke_off_counts_as_the_most_that_it_may_cost(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    budget = Budget(0.25)
    made = client_factory(budget, timeout_s=0.2, max_attempts=5, usd_per_million_tokens=(0.0, 1000.0))
    async with ScriptedServer([Step("hang")]) as server:
        coach = make_coach(
            CoachConfig(name="openai/judge", api_base=server.openai_base, max_tokens=100), client_factory=made
        )
        with pytest.raises(BudgetExceeded):
            await score_all(CoachPool(coach, ledger=ledger, client_factory=made), requests_of(1))
    assert budget.spent_usd == pytest.approx(0.2)
    assert spent_in(ledger) == pytest.approx(0.2)
    assert [line["usage"]["cost_usd"] for line in read_ledger(ledger)] == [None, None]


def test_the_most_that_a_call_costs_holds_for_the_dearest_tokens_that_it_may_be_billed() -> None:
    request = ask("word")
    for dearest in ("output_usd", "thinking_usd", "long_output_usd"):
        price = replace(Price.flat(0.0, 1.0), **{dearest: 5.0})
        assert price.most(request) == 5.0 * request.max_tokens
    assert replace(Price.flat(1.0, 0.0), long_input_usd=5.0).most(request) >= 5.0 * len("word")


def test_a_price_above_200_000_tokens_is_that_of_the_prompt_alone() -> None:
    price = Price(1.0, 10.0, 0.5, 20.0, long_input_usd=2.0, long_output_usd=30.0)
    assert price.of(Usage(tokens_in=100, tokens_cached=40, tokens_out=10, tokens_thinking=4)) == 60 + 20 + 60 + 80
    assert price.of(Usage(tokens_in=150_000, tokens_out=100_000)) == 150_000 + 1_000_000
    assert price.of(Usage(tokens_in=200_000)) == 200_000
    assert price.of(Usage(tokens_in=200_001, tokens_out=10)) == 400_002 + 300
