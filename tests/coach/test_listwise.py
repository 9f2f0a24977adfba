"""Siblings compared in one call: what is asked, what each odd reply means, and what the pool makes of it."""

import json
from collections import Counter
from pathlib import Path
from string import ascii_uppercase

import pytest
from chat_clients import client_factory
from coach_requests import make_action, request_for
from scripted_server import Received, ScriptedServer, Step, say, status

from coachrl.coach import CoachRequest, make_coach
from coachrl.coach.clients.budget import Budget, spent_in
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.kinds.listwise import parse_scores, shuffled
from coachrl.coach.pool import CoachPool
from coachrl.config import CoachConfig, MemberConfig
from coachrl.errors import CoachError, ConfigError
from coachrl.types import CoachScore, Episode, Outcome

pytest.importorskip("litellm", reason="needs the llm extra")
pytestmark = pytest.mark.usefixtures("keys")


def siblings(count: int, role: str = "solver", index: int = 0) -> list[CoachRequest]:
    """`count` replies to one task; that of episode e<n> is "<n> * 4"."""
    return [
        request_for(make_action(role, f"{number} * 4", index=index, episode=f"e{number}")) for number in range(count)
    ]


def by_text(received: Received) -> Step:
    """Each reply is worth the number that it begins with, wherever it stands."""
    blocks = received.body["messages"][0]["content"].split("\nReply ")[1:]
    found = {block[0]: next(line for line in block.splitlines() if line.endswith(" * 4")) for block in blocks}
    return say("Read.\n" + "\n".join(f"SCORE {letter}: {line.split()[0]}" for letter, line in found.items()))


async def compared(
    script: object, requests: list[CoachRequest], ledger: Path | None = None, **settings: object
) -> tuple[list[CoachScore], list[Received]]:
    async with ScriptedServer(script) as server:  # type: ignore[arg-type]
        config = CoachConfig(name="openai/judge", api_base=server.openai_base, compare="siblings")
        made = client_factory(cache=ledger.with_name("cache.sqlite") if ledger else None, **settings)
        pool = CoachPool(make_coach(config, client_factory=made), ledger=ledger, client_factory=made)
        for request in requests:
            pool.submit(request)
        episodes = [
            Episode(r.action.episode_id, r.task.id, "one-step", "mathchat", (r.action,), Outcome(True))
            for r in requests
        ]
        try:
            return list((await pool.settle(episodes)).values()), server.requests
        finally:
            await pool.close()


async def test_one_call_scores_all_siblings_and_each_gets_its_own(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    scores, asked = await compared(by_text, siblings(5), ledger)
    assert len(asked) == 1 and asked[0].prompt.count("Ann has 3 boxes") == 1
    assert [score.process_0_10 for score in scores] == [0, 1, 2, 3, 4]
    assert sorted(score.position or 0 for score in scores) == [1, 2, 3, 4, 5]
    assert sum(score.usage.attempts for score in scores) == 1
    lines = list(read_ledger(ledger))
    assert [line["position"] for line in lines if line["kind"] == "score"] == [score.position for score in scores]
    assert not any(f"e{number}/" in asked[0].prompt for number in range(5))  # whose it is


async def test_a_run_that_goes_on_finds_the_comparison_in_its_cache(tmp_path: Path) -> None:
    first, _ = await compared(by_text, siblings(4), tmp_path / "ledger.jsonl")
    again, asked = await compared(by_text, siblings(4)[::-1], tmp_path / "ledger.jsonl")
    # The address of the second server is another one, which the cache tells apart; the question is the same.
    assert [score.process_0_10 for score in again] == [score.process_0_10 for score in first][::-1]
    assert [score.position for score in again] == [score.position for score in first][::-1]
    assert len(asked) == 1


def test_the_order_is_as_good_as_random_and_follows_from_the_actions_alone() -> None:
    first = Counter(
        shuffled([request_for(make_action("solver", "x", episode=f"{group}-{n}")) for n in range(4)], 0)[0].action.id[
            -3
        ]
        for group in range(400)
    )
    assert set(first) == {"0", "1", "2", "3"} and min(first.values()) > 60
    assert shuffled(siblings(6), 0) == shuffled(siblings(6)[::-1], 0) != shuffled(siblings(6), 1)


async def test_roles_are_not_mixed_and_large_groups_are_asked_about_in_parts() -> None:
    scores, asked = await compared(by_text, siblings(10) + siblings(2, "executor", index=1))
    assert len(asked) == 3
    assert [score.process_0_10 for score in scores] == [*range(10), 0, 1]


async def test_an_action_without_siblings_is_scored_alone() -> None:
    (score,), asked = await compared([say("PROCESS_SCORE: 8")], siblings(1))
    assert (score.process_0_10, score.position) == (8, None) and "Several replies" not in asked[0].prompt


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("SCORE A: 3\nSCORE B: 4", "no line 'SCORE C: n'"),
        ("SCORE A: 3\nSCORE B: 4\nSCORE C: ABSTAIN", "C is none of them"),
        ("SCORE A: 3\nSCORE B: 4\nSCORE C: 5\nSCORE D: 6", "D is none of them"),
        ("SCORE A: 3\nSCORE A: 4\nSCORE B: 4\nSCORE C: 5", "3 and 4 for SCORE A"),
        ("SCORE A: 3\nSCORE B: 4\nSCORE C: 11", "outside 0 to 10"),
        ("SCORE A: 3\nSCORE B: 4\nSCORE C: 5\nis what it demands.", "does not end in its verdict"),
        ("SCORE A: 3\nSCORE B: 4\nSCORE C: 5\nABSTAIN", "contradicts itself"),
        ('{"scores": {"A": 3, "B": 4}}', "no line 'SCORE C: n'"),
        ('{"scores": {"A": 3, "A": 9, "B": 4, "C": 5}}', "no line 'SCORE A: n'"),
        ('{"scores": {"A": 3, "B": 4, "C": 5, "AB": 6}}', "AB is none of them"),
        ('{"scores": {"A": 3, "B": 4, "C": 5, "": 6}}', "of each of A, B, C, and  is none of them"),
        ("PROCESS_SCORE: 8", "no line 'SCORE A: n'"),
        ("<think>\nSCORE A: 3\nSCORE B: 4\nSCORE C: 5", "hidden thoughts"),
    ],
)
async def test_a_reply_that_does_not_score_each_scores_none(reply: str, reason: str) -> None:
    with pytest.raises(CoachError, match=reason):
        parse_scores(reply, "ABC")
    scores, asked = await compared([say(reply)], siblings(3))
    assert len(asked) == 2  # a repair was asked for
    assert [(score.status, score.process_0_10) for score in scores] == [("failed", None)] * 3


@pytest.mark.parametrize(
    ("reply", "scores", "rationale"),
    [
        ("So.\nSCORE A: 3\nscore b: 4.5\nSCORE A: 3.0", {"A": 3.0, "B": 4.5}, None),
        ('{"rationale": "So.", "scores": {"b": 4, "A": 3}, "abstain": false}', {"A": 3.0, "B": 4.0}, "So."),
        ('{"scores": {"A": 3, "B": 4}}', {"A": 3.0, "B": 4.0}, None),
        ('Well:\n{"rationale": "So.", "scores": {"A": 3, "B": 4}}', {"A": 3.0, "B": 4.0}, None),
        ('{"rationale": "No.", "scores": {"A": null, "B": null}, "abstain": true}', None, None),
        ("Nothing to go by.\nABSTAIN", None, None),
    ],
)
def test_a_reply_that_scores_each_is_its_own_rationale_where_it_names_none(
    reply: str, scores: dict[str, float] | None, rationale: str | None
) -> None:
    assert parse_scores(reply, "AB") == (scores, reply if rationale is None else rationale)


async def test_a_model_that_takes_a_schema_is_held_to_one() -> None:
    reply = json.dumps({"rationale": "So.", "scores": {"A": 1, "B": 2, "C": 3}, "abstain": False})
    scores, asked = await compared([say(reply)], siblings(3), structured=True)
    assert sorted(score.process_0_10 or 0 for score in scores) == [1, 2, 3]
    assert [score.process_0_10 for score in scores] == [score.position for score in scores]
    schema = asked[0].body["response_format"]["json_schema"]["schema"]
    assert list(schema["properties"]["scores"]["properties"]) == list(ascii_uppercase[:3])


async def test_a_coach_abstains_from_all_or_none() -> None:
    scores, _ = await compared([say("ABSTAIN")], siblings(3))
    assert [(score.status, score.process_0_10) for score in scores] == [("abstained", None)] * 3


async def test_a_call_that_fails_is_a_number_for_none_of_them() -> None:
    scores, _ = await compared([status(400, "too long")], siblings(3))
    assert [score.status for score in scores] == ["failed"] * 3 and "too long" in scores[2].rationale


async def test_a_comparison_is_paid_once_and_kept_within_the_budget(tmp_path: Path) -> None:
    budget, ledger = Budget(10.0), tmp_path / "ledger.jsonl"
    scores, _ = await compared(by_text, siblings(4), ledger, budget=budget, usd_per_million_tokens=(1.0, 1.0))
    assert budget.spent_usd > 0
    assert sum(score.usage.cost_usd or 0 for score in scores) == pytest.approx(budget.spent_usd)
    assert spent_in(ledger) == pytest.approx(budget.spent_usd)


async def test_candidates_of_one_state_are_compared_as_soon_as_they_are_waited_for() -> None:
    async with ScriptedServer(by_text) as server:
        made = client_factory()
        config = CoachConfig(name="openai/judge", api_base=server.openai_base, compare="siblings")
        pool = CoachPool(make_coach(config, client_factory=made), client_factory=made)
        requests = siblings(3)
        for request in requests:
            pool.submit(request)
        with pytest.raises(ValueError, match="twice"):
            pool.submit(requests[0])
        scores = await pool.scores([request.action.id for request in requests])
        await pool.close()
    assert [score.process_0_10 for score in scores] == [0, 1, 2] and len(server.requests) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"ensemble": (MemberConfig(name="rules"), MemberConfig(name="rules"))},
        {"name": "my_module:MyCoach"},
        {"name": "openai/judge", "suggest": True},
    ],
)
def test_who_cannot_compare_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="compare: siblings"):
        CoachConfig(compare="siblings", **settings)  # type: ignore[arg-type]


def test_a_prompt_by_criteria_is_refused() -> None:
    config = CoachConfig(
        name="openai/judge", api_base="http://127.0.0.1:1/v1", compare="siblings", prompt=Path("criteria")
    )
    with pytest.raises(ConfigError, match="one score each"):
        make_coach(config)
