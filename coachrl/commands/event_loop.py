"""The event loop that a command runs in. Code of the user's own shares it, and may do to it what it likes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from coachrl.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")

_ENDING_S = 10.0


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but for what users' own code does: to end the program, the loop or the run's tasks is an error
    of one line, and tasks that it leaves behind are waited for no longer than some seconds. Raises ConfigError."""
    begun: set[asyncio.Task[Any]] = set()

    async def main() -> T:
        begun.update(filter(None, [asyncio.current_task()]))
        return await work

    with asyncio.Runner() as runner:
        try:
            return runner.run(main())
        except SystemExit as error:
            raise ConfigError(f"code that the run calls has ended the program: exit({error})") from error
        except asyncio.CancelledError as error:
            raise ConfigError("code that the run calls has cancelled tasks that are not its own") from error
        except RuntimeError as error:
            if all(task.done() for task in begun):
                raise
            raise ConfigError("code that the run calls has stopped the event loop") from error
        finally:
            runner.get_loop().run_until_complete(_let_go(begun))


async def _let_go(begun: set[asyncio.Task[Any]]) -> None:
    """Cancel what is left. The work itself ends in its own time: it may be writing."""
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    _, still = await asyncio.wait(others, timeout=_ENDING_S) if others else ((), ())
    for task in still:
        log.warning("task %s does not end though it was told to; nobody waits for it any longer", task.get_name())
        asyncio._unregister_task(task)
