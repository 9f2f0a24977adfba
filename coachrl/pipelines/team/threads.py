"""Functions that may block or hang, beside the event loop: the user's own, and those that wait for other processes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

from coachrl.text import said


async def in_a_thread(function: Callable[[], Any], name: str) -> Any:
    """A thread of its own, that the program does not wait for when it ends: nothing stops a function that hangs."""
    process = os.getpid()
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # it was not waited for
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as raised:  # noqa: BLE001 - carried to whoever awaits it, an exit() as well
            # A future carries no StopIteration, and what is no Exception would end the trainer.
            carried = isinstance(raised, Exception) and not isinstance(raised, StopIteration)
            error = raised if carried else RuntimeError(f"{type(raised).__name__}: {said(raised)}")
        if os.getpid() != process:
            os._exit(0)  # a fork that the function has made ends here: it must not go on as a second trainer
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name=name).start()
    return await done
