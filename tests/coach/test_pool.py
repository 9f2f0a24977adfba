import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from coach_requests import make_action, request_for

from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.ledger import Call, read_ledger
from coachrl.coach.pool import CoachPool, _Asked, _with_contribution
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import CoachScore, Episode, Outcome, Usage


class _SlowCoach:
    name = "slow"

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def score(self, request: CoachRequest) -> CoachScore:
        await self.may_answer.wait()
        return CoachScore(request.action.id, "scored", 5.0, model=self.name)

    async def close(self) -> None: ...


async def test_a_pool_counts_the_scores_that_are_waited_for() -> None:
    coach = _SlowCoach()
    pool = CoachPool(coach, concurrency=1)
    for index in range(3):
        pool.submit(request_for(make_action("solver", "3 * 4", index=index)))
    await asyncio.sleep(0)
    assert pool.waiting == 3  # those that wait for a free place as well
    coach.may_answer.set()
    await pool.scores([f"e1/{index}" for index in range(3)])
    assert pool.waiting == 0
    await pool.close()


async def test_a_pool_that_is_closed_waits_for_no_score() -> None:
    pool = CoachPool(_SlowCoach())
    pool.submit(request_for(make_action("solver", "3 * 4")))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert closing.done() and pool.waiting == 0


async def test_an_outcome_is_shared_out_only_where_a_coach_does_so() -> None:
    action = make_action("solver", "3 * 4")
    pool = CoachPool(ScriptedCoach(lambda request: 5.0))
    pool.submit(request_for(action))
    pool.submit_episode([request_for(action)])
    [score] = (await pool.settle([Episode("e1", "t", "k", "p", (action,), Outcome(True))])).values()
    assert (score.process_0_10, score.contribution) == (5.0, None)


def test_a_score_took_as_long_as_all_its_calls_and_the_waits_between_them() -> None:
    call = Call("a", "model", "hash", (), usage=Usage(attempts=1, cost_usd=0.25, latency_s=1.0))
    asked = _Asked("a", [call, call], began_s=time.monotonic() - 60)
    usage = asked.with_all_calls(CoachScore("a", "scored", 5.0)).usage
    assert (usage.attempts, usage.cost_usd) == (2, 0.5) and 60 <= usage.latency_s <= time.monotonic() - asked.began_s


class _Attributing(ScriptedCoach):
    """Shares an outcome out; the action at index 1 gets its share without a word on what is left."""

    async def score(self, request: CoachRequest) -> CoachScore:
        score = await super().score(request)
        residual = "" if request.action.index == 1 else f"left by {request.action.index}"
        return replace(score, contribution=1.0, residual=residual)


async def test_what_is_left_to_explain_is_handed_past_an_action_that_says_nothing_of_it() -> None:
    actions = tuple(make_action("solver", "3 * 4", index=index) for index in range(3))
    retrospective = _Attributing(lambda request: 5.0)
    pool = CoachPool(ScriptedCoach(lambda request: 5.0), retrospective=retrospective)
    requests = [request_for(action) for action in actions]
    for request in requests:
        pool.submit(request)
    pool.submit_episode(requests)
    scores = await pool.settle([Episode("e1", "t", "k", "p", actions, Outcome(True))])
    assert [request.residual for request in retrospective.requests] == ["", "left by 2", "left by 2"]
    assert [score.contribution for score in scores.values()] == [1.0] * 3
    await pool.close()


async def test_siblings_that_wait_for_their_comparison_are_not_asked_about_once_the_coach_cannot_be_used() -> None:
    class Locked(ScriptedCoach):
        most_compared, asked = 9, 0

        async def compare(self, requests: Sequence[CoachRequest]) -> list[CoachScore]:
            self.asked += 1
            raise CoachUnavailable("no key")

    coach = Locked(lambda request: 5.0)
    pool = CoachPool(coach, concurrency=1)
    actions = tuple(make_action(role, "3 * 4", index=index) for index, role in enumerate(["solver", "executor"] * 2))
    for action in actions:
        pool.submit(request_for(action))
    with pytest.raises(CoachUnavailable):
        await pool.settle([Episode("e1", "t", "k", "p", actions, Outcome(True))])
    assert coach.asked == 1


async def test_calls_under_way_are_paid_for_and_so_waited_for_when_the_budget_ends() -> None:
    class Poor(ScriptedCoach):
        async def score(self, request: CoachRequest) -> CoachScore:
            if request.action.index == 1:
                raise BudgetExceeded("nothing is left")
            await asyncio.sleep(0.05)
            return await super().score(request)

    coach = Poor(lambda request: 5.0)
    pool = CoachPool(coach)
    actions = tuple(make_action("solver", "3 * 4", index=index) for index in range(2))
    for action in actions:
        pool.submit(request_for(action))
    with pytest.raises(BudgetExceeded):
        await pool.settle([Episode("e1", "t", "k", "p", actions, Outcome(True))])
    assert [request.action.index for request in coach.requests] == [0]
    with pytest.raises(BudgetExceeded):
        pool.submit(request_for(make_action("solver", "3 * 4", index=2)))


async def test_what_ends_one_of_several_settlings_is_told_and_costs_no_other_what_has_come() -> None:
    """As a rescore settles each action by itself."""

    class Full(ScriptedCoach):
        async def score(self, request: CoachRequest) -> CoachScore:
            await asyncio.sleep(0)  # until all of them are waited for, from Python 3.12 on as well
            if request.action.index == 0:
                raise OSError("no space left")
            return await super().score(request)

    pool = CoachPool(Full(lambda request: 5.0))
    actions = [make_action("solver", "3 * 4", index=index) for index in range(3)]
    settling = []
    for action in actions:
        pool.submit(request_for(action))
        settling.append(pool.settle([Episode("e1", "t", "k", "p", (action,), Outcome(True))]))
    failed, *others = await asyncio.gather(*settling, return_exceptions=True)
    assert isinstance(failed, OSError)
    assert [list(scores) for scores in others if isinstance(scores, dict)] == [["e1/1"], ["e1/2"]]
    await pool.close()


async def test_one_action_that_fails_costs_no_other_its_score_and_says_why() -> None:
    def score(request: CoachRequest) -> float:
        if request.action.index == 1:
            raise CoachError("the reply has no line")
        return 4.0

    pool = CoachPool(ScriptedCoach(score), concurrency=1)
    assert pool.last_failure == "" and pool.memory_steps == 0
    actions = tuple(make_action("solver", "3 * 4", index=index) for index in range(3))
    for action in (actions[2], actions[0], actions[1]):
        pool.submit(request_for(action))
    with pytest.raises(ValueError, match="action e1/0 was submitted to the coach twice"):
        pool.submit(request_for(actions[0]))
    episode = Episode("e1", "t", "k", "p", (*actions, make_action("solver", "x", index=3)), Outcome(True))
    found = await pool.settle([episode])
    assert {key: (score.status, score.process_0_10) for key, score in found.items()} == {
        "e1/0": ("scored", 4.0),
        "e1/1": ("failed", None),
        "e1/2": ("scored", 4.0),
    }
    assert list(found) == ["e1/0", "e1/1", "e1/2"], "in the order of the actions, and none that was never submitted"
    assert pool.last_failure == found["e1/1"].rationale == "the reply has no line" and pool.waiting == 0
    assert await pool.settle([episode]) == {}, "what was settled is not kept for a later step"
    await pool.close()


async def test_two_episodes_keep_their_contributions_apart() -> None:
    def contribution(request: CoachRequest) -> float:
        return {"e1": 2.0, "e2": 7.0}[request.action.episode_id]

    class Retrospective(ScriptedCoach):
        async def score(self, request: CoachRequest) -> CoachScore:
            score = await super().score(request)
            return replace(score, contribution=contribution(request) + request.action.index)

    pool = CoachPool(ScriptedCoach(lambda request: 5.0), retrospective=Retrospective(lambda request: 1.0))
    episodes = []
    for name, count in (("e1", 1), ("e2", 2), ("e3", 1)):
        actions = tuple(make_action("solver", "3 * 4", index=index, episode=name) for index in range(count))
        requests = [request_for(action) for action in actions]
        for request in requests:
            pool.submit(request)
        if name != "e3":
            pool.submit_episode(requests)
        episodes.append(Episode(name, "t", "k", "p", actions, Outcome(True)))
    found = await pool.settle(episodes)
    assert {key: score.contribution for key, score in found.items()} == {
        "e1/0": 2.0,
        "e2/0": 7.0,
        "e2/1": 8.0,
        "e3/0": None,
    }
    assert {score.process_0_10 for score in found.values()} == {5.0}
    assert found["e1/0"].usage.attempts == 2 and found["e3/0"].usage.attempts == 1
    await pool.close()


@pytest.mark.parametrize(
    ("status", "retrospective", "together", "process"),
    [
        ("scored", "scored", "scored", 6.0),
        ("scored", "abstained", "abstained", None),
        ("scored", "failed", "failed", None),
        ("abstained", "scored", "abstained", None),
        ("failed", "scored", "failed", None),
        ("abstained", "failed", "abstained", None),
    ],
)
def test_a_score_of_two_passes_is_one_where_both_gave_one(
    status: str, retrospective: str, together: str, process: float | None
) -> None:
    first = CoachScore("e1/0", status, 6.0 if status == "scored" else None, rationale="a", usage=Usage(1, 10))  # type: ignore[arg-type]
    second = CoachScore("e1/0", retrospective, rationale="b", contribution=2.0, residual="c", usage=Usage(2, 5))  # type: ignore[arg-type]
    both = _with_contribution(first, second)
    assert (both.status, both.process_0_10, both.contribution, both.residual) == (together, process, 2.0, "c")
    assert (both.rationale, both.usage.attempts, both.usage.tokens_in) == ("a\n\nIn retrospect: b", 3, 15)
    assert _with_contribution(first, None) is first


async def test_a_chain_that_breaks_off_leaves_earlier_actions_without_a_share_and_keeps_the_later_ones() -> None:
    class Breaking(ScriptedCoach):
        async def score(self, request: CoachRequest) -> CoachScore:
            if request.action.index == 1:
                raise CoachError("no reply")
            return replace(await super().score(request), contribution=4.0, residual="some")

    retrospective = Breaking(lambda request: 5.0)
    pool = CoachPool(ScriptedCoach(lambda request: 5.0), retrospective=retrospective)
    actions = tuple(make_action("solver", "3 * 4", index=index) for index in range(3))
    requests = [request_for(action) for action in actions]
    for request in requests:
        pool.submit(request)
    pool.submit_episode(requests)
    scores = list((await pool.settle([Episode("e1", "t", "k", "p", actions, Outcome(True))])).values())
    assert [(score.status, score.contribution) for score in scores] == [
        ("failed", None),
        ("failed", None),
        ("scored", 4.0),
    ]
    assert scores[0].rationale.endswith("In retrospect: the retrospective pass broke off at e1/1: no reply")
    assert [request.action.index for request in retrospective.requests] == [2]
    await pool.close()


class _Comparing(ScriptedCoach):
    """Compares at most three, and gives each the number of those it was compared with."""

    most_compared = 3

    def __init__(self) -> None:
        super().__init__(lambda request: 0.0)
        self.groups: list[list[str]] = []

    async def compare(self, requests: Sequence[CoachRequest]) -> list[CoachScore]:
        self.groups.append([request.action.id for request in requests])
        usage = Usage(attempts=1, tokens_in=100)
        return [CoachScore(request.action.id, "scored", float(len(requests)), usage=usage) for request in requests]


async def test_siblings_are_of_one_task_one_role_and_one_turn_and_are_dealt_out_evenly() -> None:
    coach = _Comparing()
    pool = CoachPool(coach)
    requests = [request_for(make_action("solver", "x", episode=f"e{number}")) for number in range(7)]
    turns = [request_for(make_action("solver", "x", episode=f"e{number}", index=1, turn=1)) for number in range(2)]
    roles = [request_for(make_action("executor", "x", episode=f"e{number}", index=2)) for number in range(2)]
    other = request_for(make_action("solver", "x", episode="f0"))
    other = replace(other, task=replace(other.task, id="another"))
    for request in (*requests, *turns, *roles, other):
        pool.submit(request)
    assert pool.waiting == 0, "nobody is asked before all of them are there"
    ids = [request.action.id for request in (*requests, *turns, *roles, other)]
    scores = await pool.scores(ids)
    assert coach.groups == [
        ["e0/0", "e3/0", "e6/0"],
        ["e1/0", "e4/0"],
        ["e2/0", "e5/0"],
        ["e0/1", "e1/1"],
        ["e0/2", "e1/2"],
    ]
    assert [request.action.id for request in coach.requests] == ["f0/0"], "one without siblings is scored alone"
    assert [score.action_id for score in scores] == ids
    assert [score.usage.tokens_in for score in scores[:7]] == [0] * 7, "rules and the like leave no calls to count"
    await pool.close()


async def test_a_comparison_that_fails_has_failed_for_each_of_them() -> None:
    class Failing(_Comparing):
        async def compare(self, requests: Sequence[CoachRequest]) -> list[CoachScore]:
            raise CoachError("no reply")

    pool = CoachPool(Failing())
    for number in range(2):
        pool.submit(request_for(make_action("solver", "x", episode=f"e{number}")))
    scores = await pool.scores(["e0/0", "e1/0"])
    assert [(score.action_id, score.status, score.rationale) for score in scores] == [
        ("e0/0", "failed", "no reply"),
        ("e1/0", "failed", "no reply"),
    ]
    assert pool.last_failure == "no reply"
    await pool.close()


async def test_a_resumed_run_and_every_score_stand_in_the_ledger(tmp_path: Path) -> None:
    retrospective = _Attributing(lambda request: 5.0)
    pool = CoachPool(ScriptedCoach(lambda request: 5.0), retrospective=retrospective, ledger=tmp_path / "l.jsonl")
    request = request_for(make_action("solver", "3 * 4"))
    pool.note_resumed(3)
    pool.submit(request)
    pool.submit_episode([request])
    await pool.settle([Episode("e1", "t", "k", "p", (request.action,), Outcome(True))])
    await pool.close()
    lines = list(read_ledger(tmp_path / "l.jsonl"))
    assert lines[0] == {"kind": "resumed", "after_step": 3}
    assert sorted((line["kind"], line["contribution"]) for line in lines[1:]) == [
        ("contribution", 1.0),
        ("score", None),
    ]
