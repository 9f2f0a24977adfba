"""What coaches are made of, and what is refused before any is asked."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from coach_requests import make_action, request_for

from coachrl.coach import make_coach
from coachrl.coach.build import make_client_factory, make_retrospective_coach
from coachrl.coach.clients.base import ChatRequest, Reply
from coachrl.coach.clients.ledger import Call, Ledger
from coachrl.coach.kinds.ensemble import EnsembleCoach
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.config import CoachConfig, MemberConfig
from coachrl.errors import ConfigError
from coachrl.types import CoachScore, Outcome, Usage


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


class Clients:
    """Makes clients that answer all alike, and keeps who was named and what was asked."""

    structured = calls_functions = False

    def __init__(self, reply: str = "PROCESS_SCORE: 5") -> None:
        self._reply = reply
        self.named: list[tuple[str, str | None, tuple[str, ...]]] = []
        self.asked: list[ChatRequest] = []

    def client(
        self, model: str, api_base: str | None = None, fallbacks: Sequence[str] = (), member: str = ""
    ) -> "Clients":
        self.named.append((model, api_base, tuple(fallbacks)))
        self.model = model
        return self

    async def complete(self, request: ChatRequest) -> Reply:
        self.asked.append(request)
        return Reply(self._reply, self.model)

    async def close(self) -> None: ...


REQUEST = request_for(make_action("solver", "3 * 4"))


async def asked_of(settings: CoachConfig, repeat: int = 0) -> tuple[CoachScore, Clients]:
    clients = Clients()
    score = await make_coach(settings, "mathchat", clients, repeat).score(REQUEST)  # type: ignore[arg-type]
    return score, clients


@pytest.mark.parametrize(("repeat", "asked"), [(0, [0, 0, 1]), (1, [2, 1, 3]), (2, [4, 2, 5])])
async def test_a_member_that_is_named_twice_is_asked_anew_each_time(repeat: int, asked: list[int]) -> None:
    one, other = MemberConfig(name="openai/a"), MemberConfig(name="openai/b")
    _, clients = await asked_of(CoachConfig(ensemble=(one, other, one)), repeat)
    assert [request.repeat for request in clients.asked] == asked


async def test_each_member_has_its_own_address_and_prompt_and_all_have_the_fallbacks() -> None:
    members = (
        MemberConfig(name="openai/a", api_base="http://a/v1", prompt=Path("strict")),
        MemberConfig(name="openai/b"),
        MemberConfig(name="rules"),
    )
    _, clients = await asked_of(CoachConfig(ensemble=members, fallbacks=("openai/c",)))
    assert clients.named == [("openai/a", "http://a/v1", ("openai/c",)), ("openai/b", None, ("openai/c",))]
    assert len({request.prompt_hash for request in clients.asked}) == 2


async def test_a_coach_that_sees_the_run_has_its_statistics_before_the_prompt_once(tmp_path: Path) -> None:
    own = tmp_path / "own.md"
    own.write_text("---\nfields: [agent_output, statistics]\n---\n{{agent_output}} so far: {{statistics}}")
    shown = []
    for changes in ({}, {"strategic": {"window_steps": 2}}, {"strategic": {"window_steps": 2}, "prompt": own}):
        _, clients = await asked_of(CoachConfig.model_validate({"name": "openai/a", **changes}))
        shown.append(clients.asked[0].messages[0].content)
    assert [text.count("No step of this run is finished yet") for text in shown] == [0, 1, 1]
    assert shown[1].endswith(shown[0]) and shown[2].index("3 * 4") < shown[2].index("No step")


async def test_a_prompt_that_does_not_say_how_to_answer_is_told_of_where_no_schema_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = tmp_path / "own.md"
    for ending, warned in (
        ("Judge it.", True),
        ("End with PROCESS_SCORE: n", False),
        ("End with process-score: n", False),
        (r"End with PROCESS\_SCORE: n", False),
        ("End with PROCESS SCORE: n", False),
    ):
        caplog.clear()
        own.write_text(f"---\nfields: [agent_output]\n---\n{{{{agent_output}}}} {ending}")
        await asked_of(CoachConfig(name="openai/a", prompt=own))
        assert ("coach prompt own: it does not say that" in caplog.text) == warned
    make_coach(CoachConfig(name="openai/a", prompt=Path("criteria")), None, Clients())  # type: ignore[arg-type]
    assert not caplog.text


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({}, ("openai/a", "http://a/v1")),
        ({"api_base": "http://b/v1"}, ("openai/a", "http://b/v1")),
        ({"name": "openai/b"}, ("openai/b", None)),  # the coach's address is not that of another model
        ({"name": "openai/b", "api_base": "http://b/v1"}, ("openai/b", "http://b/v1")),
    ],
)
async def test_who_attributes_outcomes_is_the_coach_unless_another_is_named(
    own: dict[str, str], named: tuple[str, str | None]
) -> None:
    clients = Clients("CONTRIBUTION: 3\nRESIDUAL: the rest")
    config = {"name": "openai/a", "api_base": "http://a/v1", "fallbacks": ("openai/c",), "retrospective": own}
    coach = make_retrospective_coach(CoachConfig.model_validate(config), clients)  # type: ignore[arg-type]
    assert clients.named == [(*named, ("openai/c",))]
    score = await coach.score(request_for(REQUEST.action, outcome=Outcome(True)))
    assert (score.status, score.contribution, score.residual) == ("scored", 3, "the rest")


def test_the_rules_attribute_no_outcomes() -> None:
    with pytest.raises(ConfigError, match=r"coach.retrospective.name: 'rules' is no language model"):
        make_retrospective_coach(CoachConfig())


@pytest.mark.parametrize(
    ("cache", "has_ledger", "place"),
    [(None, True, "run/cache.sqlite"), (None, False, None), ("mine.sqlite", True, "mine.sqlite"),
     ("mine.sqlite", False, "mine.sqlite"), ("none", True, None)],
)  # fmt: skip
def test_replies_are_kept_beside_the_ledger_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str | None, has_ledger: bool, place: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    factory = make_client_factory(
        CoachConfig.model_validate({"cache": cache}), Path("run/ledger.jsonl") if has_ledger else None
    )
    assert factory._cache_file == (None if place is None else Path(place)) and factory.budget.spent_usd == 0


def test_only_a_model_takes_fallbacks_and_suggests() -> None:
    rules, model = MemberConfig(name="rules"), MemberConfig(name="openai/a")
    with pytest.raises(ConfigError, match=r"^coach 'mine:f' takes no fallbacks; name a model to use them$"):
        make_coach(CoachConfig(name="mine:f", fallbacks=("openai/c",)))
    with pytest.raises(ConfigError, match=r"^coach 'rules' suggests no replies; name a model, or set coach.suggest=f"):
        make_coach(CoachConfig(suggest=True))
    clients = Clients()
    make_coach(CoachConfig(ensemble=(rules, model), fallbacks=("openai/c",)), "mathchat", clients)  # type: ignore[arg-type]
    assert clients.named == [("openai/a", None, ("openai/c",))], "one model among the members is enough"
