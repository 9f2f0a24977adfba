"""What coaches are made of, and what is refused before any is asked."""

from pathlib import Path

import pytest

from coachrl.coach import make_coach
from coachrl.coach.build import make_client_factory
from coachrl.coach.clients.ledger import Call, Ledger
from coachrl.coach.kinds.ensemble import EnsembleCoach
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.config import CoachConfig, MemberConfig
from coachrl.errors import ConfigError
from coachrl.types import Usage


def test_rules_take_no_prompt() -> None:
    with pytest.raises(ConfigError, match="takes no prompt"):
        make_coach(CoachConfig(name="rules", prompt=Path("strict")))


def test_one_coach_stands_alone_and_several_are_an_ensemble() -> None:
    rules = MemberConfig(name="rules")
    assert isinstance(make_coach(CoachConfig()), RulesCoach)
    ensemble = make_coach(CoachConfig(ensemble=(rules, rules), combine="median"))
    assert isinstance(ensemble, EnsembleCoach) and ensemble.name == "median of rules, rules"


def test_a_budget_goes_on_from_what_the_ledger_says_was_spent(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.call(Call("e1/0", "m", "", (), usage=Usage(attempts=1, cost_usd=0.25)))
    ledger.call(Call("e1/1", "m", "", (), usage=Usage(attempts=1, cost_usd=None), reserved_usd=0.5))
    ledger.call(Call("e1/2", "m", "", (), usage=Usage(attempts=1, cost_usd=9.0, calls_from_cache=1)))
    ledger.close()
    budget = make_client_factory(CoachConfig(budget_usd=2.0), ledger.path).budget
    assert (budget.limit_usd, budget.spent_usd) == (2.0, 0.75)
