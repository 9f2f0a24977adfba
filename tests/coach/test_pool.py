import asyncio

from coach_requests import make_action, request_for

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.types import CoachScore


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
