"""Scores actions in the background while episodes go on, and keeps the ledger."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from coachrl.coach.base import Checkable, Coach, CoachRequest, Comparer, Observer
from coachrl.coach.clients.ledger import Call, Ledger, calls_to
from coachrl.coach.clients.retrying import ChatClientFactory
from coachrl.coach.repeated_warnings import RepeatedWarnings
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable
from coachrl.types import ONE_ATTEMPT, CoachScore, Episode, Usage

log = logging.getLogger(__name__)


@dataclass
class _Asked:
    """The calls for one score, or for those of siblings. about: the ids of the actions."""

    about: str
    calls: list[Call] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def with_all_calls(self, score: CoachScore) -> CoachScore:
        """The score with what every call took, those of failed attempts included. Rules make no calls."""
        usage = sum((call.usage for call in self.calls), Usage()) if self.calls else score.usage
        return replace(score, usage=replace(usage, latency_s=time.monotonic() - self.began_s))


class CoachPool:
    """Asks `coach` for the scores of many actions at once.

    concurrency: actions that are being scored at once. ledger: file that every call and every score is appended to.
    retrospective: attributes the outcomes of finished episodes to their actions (`submit_episode`); None where they are
    not shared out.
    client_factory: what makes the coaches' calls, closed with the pool.
    """

    def __init__(
        self,
        coach: Coach,
        *,
        retrospective: Coach | None = None,
        concurrency: int = 32,
        ledger: Path | None = None,
        client_factory: ChatClientFactory | None = None,
    ) -> None:
        self.coach = coach
        self.retrospective = retrospective
        self._client_factory = client_factory
        self._observer = coach if isinstance(coach, Observer) else None
        self._comparer = coach if isinstance(coach, Comparer) else None
        self._held: dict[str, CoachRequest] = {}  # until their siblings are there
        self._slots = asyncio.Semaphore(concurrency)
        self._ledger = Ledger(ledger)
        self.waiting = 0
        """Scores that were asked for and are not there yet, retrospective passes included."""
        self.last_failure = ""
        """Why the last call that gave no score gave none."""
        self._warnings = RepeatedWarnings(log)
        self._tasks: dict[str, tuple[asyncio.Task[list[CoachScore]], int]] = {}  # and the place among its scores
        self._passes: dict[str, asyncio.Task[dict[str, CoachScore]]] = {}
        self._stopped: CoachUnavailable | BudgetExceeded | None = None  # no later call can go well either

    async def check(self) -> None:
        """Raises CoachUnavailable where the coach cannot be used. Call it before the first rollout."""
        for coach in (self.coach, self.retrospective):
            if isinstance(coach, Checkable):
                with calls_to(lambda call: self._note(call, _Asked(call.action_id))):
                    await coach.check()

    def submit(self, request: CoachRequest) -> None:
        """Begin to score an action, and return at once. Needs a running event loop. Each action is submitted once.
        A coach that compares siblings is asked when scores are waited for: then all of them are there.

        Raises what has stopped the coach meanwhile, if anything has: CoachUnavailable, BudgetExceeded.
        """
        if self._stopped is not None:
            raise self._stopped
        action_id = request.action.id
        if action_id in self._tasks or action_id in self._held:
            raise ValueError(f"action {action_id} was submitted to the coach twice")
        if self._observer is not None:
            request = self._observer.briefed(request)
        if self._comparer is not None:
            self._held[action_id] = request
            return
        self._begin([request])

    def submit_episode(self, requests: Sequence[CoachRequest]) -> None:
        """Begin the retrospective pass over an episode whose outcome was measured, and return at once.

        requests: one for each of its actions, in order, each with the outcome. `settle` gives every action's score its
        contribution. Without a retrospective coach nothing is done.
        """
        if self.retrospective is not None and requests:
            episode_id = requests[0].action.episode_id
            attributing = self._attribute(self.retrospective, requests)
            self._passes[episode_id] = asyncio.create_task(attributing, name=f"coach retrospective over {episode_id}")

    @property
    def memory_steps(self) -> int:
        """How many finished steps the coach goes by; 0 where it judges each action alone."""
        return self._observer.memory_steps if self._observer is not None else 0

    def observe(self, step: int, episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> None:
        """Tell a coach that goes by the run of a finished step."""
        if self._observer is not None:
            self._observer.observe(step, episodes, scores)

    async def scores(self, action_ids: Sequence[str]) -> list[CoachScore]:
        """Scores of submitted actions, in order, once all of them are there; `settle` gives them again.

        Raises CoachUnavailable where no call can go well."""
        self._begin_held(action_ids)
        await asyncio.gather(*(self._tasks[action_id][0] for action_id in action_ids))
        return [_given(*self._tasks[action_id]) for action_id in action_ids]

    async def settle(self, episodes: Sequence[Episode]) -> dict[str, CoachScore]:
        """Action id -> its score, in the order of the episodes' actions, once all of them are there.

        Where the coach gave none, the score's status is "failed" and its rationale says why. Actions that were never
        submitted (faults, roles that are not coached) are left out. Raises CoachUnavailable where no call can go well,
        and BudgetExceeded, once the calls under way have come back: they are paid for.
        """
        actions = [action.id for episode in episodes for action in episode.all_actions]
        self._begin_held(actions)
        # Held here: where another settling fails meanwhile, `_end` forgets them all, and these may have come already.
        asked = {action_id: self._tasks[action_id] for action_id in actions if action_id in self._tasks}
        if not asked:
            return {}
        try:
            attributed = [episode.id for episode in episodes if episode.id in self._passes]
            found = await asyncio.gather(*(self._passes[episode_id] for episode_id in attributed))
            await asyncio.gather(*(task for task, _ in asked.values()))
            # Entries go only once everything has come; where something failed above, `_end` cancels them all.
            for episode_id in attributed:
                self._passes.pop(episode_id, None)
            for action_id in asked:
                self._tasks.pop(action_id, None)
            scores = {action_id: _given(*task) for action_id, task in asked.items()}
            contributions = dict(ChainMap(*found))
            return {key: _with_contribution(score, contributions.get(key)) for key, score in scores.items()}
        except BaseException:
            await self._end()
            raise

    def note_resumed(self, step: int) -> None:
        """Say in the ledger that the run goes on after `step`: scores of later steps that stand before this line were
        dropped, and are made again after it."""
        self._ledger.resumed(step)

    async def close(self) -> None:
        """Stop what is still being scored, and close coach, ledger and cache."""
        await self._end()
        self._warnings.sum_up()
        await self.coach.close()
        if self.retrospective is not None:
            await self.retrospective.close()
        if self._client_factory is not None:
            self._client_factory.close()
        self._ledger.close()

    def _begin(self, requests: Sequence[CoachRequest]) -> None:
        """Ask about actions together: one, or siblings that are compared."""
        asked = asyncio.create_task(self._ask(self.coach, requests), name=f"coach {requests[0].action.id}")
        for place, request in enumerate(requests):
            self._tasks[request.action.id] = asked, place

    def _begin_held(self, action_ids: Sequence[str]) -> None:
        """Begin to score those of the actions that wait for their siblings: each state's together."""
        if self._comparer is None:
            return
        states: dict[tuple[str, str, int], list[CoachRequest]] = {}
        for request in [self._held.pop(action_id) for action_id in action_ids if action_id in self._held]:
            state = (request.task.id, request.role.name, request.action.turn)
            states.setdefault(state, []).append(request)
        for siblings in states.values():
            calls = math.ceil(len(siblings) / self._comparer.most_compared)
            for part in range(calls):
                self._begin(siblings[part::calls])

    async def _ask(self, coach: Coach, requests: Sequence[CoachRequest]) -> list[CoachScore]:
        """The scores of actions that are asked about together. Where there is none for one of them, all have failed."""
        ids = [request.action.id for request in requests]
        async with self._asking(ids) as asked:
            try:
                if len(requests) > 1 and isinstance(coach, Comparer):
                    scores = await coach.compare(requests)
                else:
                    scores = [await coach.score(requests[0])]
            except CoachUnavailable:
                raise
            except CoachError as error:
                self.last_failure = str(error)
                who = f"action {ids[0]} has" if len(ids) == 1 else f"{len(ids)} siblings of action {ids[0]} have"
                self._warnings.warn(f"{who} no score", self.last_failure)
                usage = ONE_ATTEMPT if error.price_known else replace(ONE_ATTEMPT, cost_usd=None)
                failed = CoachScore("", "failed", rationale=str(error), model=coach.name, usage=usage)
                scores = [replace(failed, action_id=key) for key in ids]
            if len(scores) > 1:  # what a comparison took stands once, on the first of them
                scores = [replace(score, usage=Usage()) for score in scores]
            scores[0] = asked.with_all_calls(scores[0])
        for score in scores:
            self._ledger.score(score) if coach is self.coach else self._ledger.contribution(score)
        return scores

    async def _attribute(self, coach: Coach, requests: Sequence[CoachRequest]) -> dict[str, CoachScore]:
        """Contributions by action id, made from the last action to the first (MAPPA, App. F.2).

        Where a call fails nobody knows what is left to explain: the chain ends, and earlier actions get none either.
        """
        residual, found = "", {}
        for place, request in reversed(list(enumerate(requests))):
            [score] = await self._ask(coach, [replace(request, residual=residual)])
            found[request.action.id] = score
            if score.status == "failed":
                why = f"the retrospective pass broke off at {request.action.id}: {score.rationale}"
                left = [CoachScore(r.action.id, "failed", rationale=why, model=coach.name) for r in requests[:place]]
                return found | {score.action_id: score for score in left}
            residual = score.residual or residual
        return found

    @asynccontextmanager
    async def _asking(self, action_ids: Sequence[str]) -> AsyncIterator[_Asked]:
        """A slot in which the coach is asked about these actions, with every call noted. What ends all is kept for
        those that come later."""
        self.waiting += len(action_ids)
        try:
            async with self._slots:
                if self._stopped is not None:
                    raise self._stopped
                asked = _Asked(" ".join(action_ids))
                with calls_to(lambda call: self._note(call, asked)):
                    yield asked
        except (CoachUnavailable, BudgetExceeded) as error:
            self._stopped = error
            raise
        finally:
            self.waiting -= len(action_ids)

    def _note(self, call: Call, asked: _Asked) -> None:
        call = replace(call, action_id=asked.about)
        asked.calls.append(call)
        self._ledger.call(call)

    async def _end(self) -> None:
        tasks = [*(task for task, _ in self._tasks.values()), *self._passes.values()]
        self._tasks.clear()
        self._passes.clear()
        self._held.clear()
        if not isinstance(self._stopped, BudgetExceeded):
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _given(asked: asyncio.Task[list[CoachScore]], place: int) -> CoachScore:
    return asked.result()[place]


def _with_contribution(score: CoachScore, retrospective: CoachScore | None) -> CoachScore:
    """A process score with what the retrospective pass made of the action. Without a contribution there is no score:
    the reward is made of both."""
    if retrospective is None:
        return score
    both = replace(
        score,
        contribution=retrospective.contribution,
        residual=retrospective.residual,
        rationale=f"{score.rationale}\n\nIn retrospect: {retrospective.rationale}",
        usage=score.usage + retrospective.usage,
    )
    if score.status != "scored" or retrospective.status == "scored":
        return both
    return replace(both, status=retrospective.status, process_0_10=None)
