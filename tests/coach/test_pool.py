import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from coach_requests import make_action, request_for

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.errors import BudgetExceeded, CoachUnavailable
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import CoachScore, Episode, Outcome


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
