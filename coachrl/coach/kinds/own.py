"""A coach of the user's own, by import path: `--coach my_module:MyCoach`. docs/coaches.md has an example."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import inspect
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from numbers import Real
from pathlib import Path
from typing import Any

from coachrl.coach.base import Checkable, CoachRequest
from coachrl.config.choices import (
    awaited,
    check_no_generator,
    check_takes,
    import_by_path,
    is_own_doing,
    raised_in,
    user_code,
)
from coachrl.errors import BudgetExceeded, CoachError, CoachUnavailable, ConfigError
from coachrl.runs.records import score_from_record
from coachrl.storage.jsonl import json_line
from coachrl.text import brief
from coachrl.types import ONE_ATTEMPT, CoachScore, Usage

log = logging.getLogger(__name__)

_MOST_USED = 1e15  # tokens, seconds or dollars


class _NoAnswer(CoachError):
    """The user's code took longer than it may."""


class OwnCoach:
    """Holds what a coach of the user's own gives to what every coach must: a number from 0 to 10, or none.

    It is a class with `async def score(self, request) -> CoachScore`, made without arguments, or a function of the
    request, which may give the number alone. Both may be `async` or not; `check` and `close` are called where the class
    has them.
    """

    def __init__(self, path: str, give_up_after_s: float = math.inf) -> None:
        """give_up_after_s: what is `async` may take so long, in seconds. A plain function that takes longer is only
        warned of, since nothing can end it. Raises ConfigError where there is no such class or function, or it is no
        coach."""
        self.name = path
        self._give_up_after_s = give_up_after_s
        self._logged: set[str] = set()
        found = find_own_coach(path)
        self._coach: Any = None
        if isinstance(found, type):
            with user_code(f"coach '{path}' cannot be made without arguments", ConfigError):
                self._coach = found()
        self._score: Callable[[CoachRequest], Any] = getattr(self._coach, "score", found)
        check_no_generator(self._score, f"coach '{path}'")
        check_takes(self._score, ["request"], f"coach '{path}'")

    async def check(self) -> None:
        """Raises CoachUnavailable where the coach's own check raises anything."""
        if isinstance(self._coach, Checkable):
            with user_code(f"coach {self.name} cannot be asked", CoachUnavailable):
                try:
                    await self._given(self._coach.check, "its check")
                except _NoAnswer as error:
                    raise CoachUnavailable(str(error)) from error

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where the coach raises anything, or gives what is no score. The log has the traceback, once
        for each line that raises."""
        try:
            return await self._score_of(request)
        except CoachError as error:
            error.price_known = False  # whom it asked before it failed nobody sees
            raise

    async def _score_of(self, request: CoachRequest) -> CoachScore:
        try:
            given = await self._given(lambda: self._score(copy.deepcopy(request)), f"action {request.action.id}")
            return self._checked(given, request.action.id)
        except (CoachError, BudgetExceeded):
            raise
        except BaseException as error:  # the boundary to the user's own code
            if not is_own_doing(error):
                raise
            reason = raised_in(error)
            if (place := reason.rpartition(" (")[2]) not in self._logged:  # a run may meet it with every action
                self._logged.add(place)
                log.info("coach %s: %s", self.name, reason, exc_info=error)
            raise CoachError(f"coach {self.name}: {reason}") from error

    async def close(self) -> None:
        """What its own `close` raises is a warning: the run has ended, and what it wrote is whole."""
        try:
            await self._given(getattr(self._coach, "close", lambda: None), "its close")
        except BaseException as error:  # the boundary to the user's own code
            if not is_own_doing(error):
                raise
            log.warning("coach %s could not be closed: %s", self.name, raised_in(error))

    async def _given(self, call: Callable[[], Any], about: str) -> Any:
        """What a function of the user's gives, awaited where it is async. Raises _NoAnswer for one that takes too
        long."""
        with self._watched(about):
            given = call()
        if not inspect.isawaitable(given):
            return given
        try:
            async with asyncio.timeout(self._give_up_after_s) as clock:
                return await awaited(given)
        except TimeoutError as error:
            if not clock.expired():  # it is the user's own
                raise
            limit = f"{self._give_up_after_s:g} s (coach.give_up_after_s)"
            raise _NoAnswer(f"coach {self.name}: {about}: no answer within {limit}") from error

    @contextmanager
    def _watched(self, about: str) -> Iterator[None]:
        """Says after a while that a plain function holds everything up: the event loop stands still meanwhile."""
        if self._give_up_after_s > threading.TIMEOUT_MAX:
            yield
            return
        words = "coach %s: %s: no answer for %g s, and a plain function holds up the whole run: make it async"
        watch = threading.Timer(self._give_up_after_s, log.warning, (words, self.name, about, self._give_up_after_s))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _checked(self, score: Any, action_id: str) -> CoachScore:
        """Also what looks at `score` may call code of the user's, as of a number whose class is the user's own."""
        if isinstance(score, Real) and not isinstance(score, bool):  # NumPy's numbers too
            score = CoachScore(action_id, "scored", _float(score))
        if not isinstance(score, CoachScore):
            raise CoachError(f"coach {self.name} gave {type(score).__name__}, not a number or a CoachScore")
        if score.action_id != action_id:
            raise CoachError(f"coach {self.name} scored action '{score.action_id}', and was asked about '{action_id}'")
        if isinstance(value := score.process_0_10, Real) and not 0 <= value <= 10:  # NaN fails this too
            raise CoachError(f"coach {self.name} gave {_float(value):.12g}, which is outside 0 to 10")
        if score.usage is ONE_ATTEMPT:  # it gives none, and whom it asks nobody sees
            score = replace(score, usage=Usage(attempts=1, cost_usd=None))
        try:  # as it is written down and read again: what cannot be would end the run, or be missing in its files
            score = score_from_record(json.loads(json_line(asdict(score))))
        except (TypeError, ValueError, RecursionError) as error:
            raise CoachError(f"coach {self.name} gave a score that cannot be written down: {error}") from error
        for key, value in asdict(score.usage).items():
            least = -_MOST_USED if key == "latency_s" else 0  # a clock may be set back
            if value is not None and not least <= value <= _MOST_USED:  # or sums of it are no numbers
                raise CoachError(f"coach {self.name} gave a usage that cannot be: {key} is {brief(value)}")
        value = score.process_0_10
        if (value is None) == (score.status == "scored"):
            known = "it is 'scored' with a score, and 'abstained' without one"
            raise CoachError(f"coach {self.name} gave the status '{score.status}' with the score {value}: {known}")
        return replace(score, model=score.model or self.name)


def find_own_coach(path: str) -> Any:
    """The class or function at `path`, before anything is made of it. Raises ConfigError where it is no coach."""
    found = import_by_path(path, "coach")
    if not callable(getattr(found, "score", None) if isinstance(found, type) else found):
        raise ConfigError(
            f"coach '{path}' is no coach: it must be a class with `async def score(self, request) -> CoachScore`, "
            "or a function of the request"
        )
    return found


def code_of(path: str) -> str:
    """The start of a hash over the file that the coach at `path` is written in, by which an edited one is known; empty
    where it lies in no file. Raises ConfigError where there is no such coach."""
    try:
        source = Path(inspect.getsourcefile(find_own_coach(path)) or "").read_bytes()
    except (OSError, TypeError):
        return ""
    return hashlib.blake2b(source, digest_size=6).hexdigest()


def _float(value: Real) -> float:
    """A whole number that no float holds is one all the same, and no score."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
