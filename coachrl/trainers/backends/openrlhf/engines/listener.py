"""An engine's end of the connections over which it is asked. Every request is a task of its own, so none waits for
another, and vLLM batches them.

Imports no `bindings`: their DeepSpeed does not belong into an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any

import psutil
import ray
import vllm.v1.utils
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from coachrl.text import first_line
from coachrl.trainers.backends.openrlhf.engines.wire import (
    ENDED,
    REQUESTS,
    Address,
    Answer,
    Prompt,
    Request,
    is_known,
    listening_socket,
    receive,
    send,
)
from coachrl.trainers.backends.vllm.replies import LogitsNotFinite, read_reply, request_parameters

_PROOF_S = 10.0

Generate = Callable[[list[int], SamplingParams], Awaitable[Any]]


class Listening:
    """Lets an actor that has OpenRLHF's `generate` be asked over connections."""

    generate: Generate
    _listener: Listener | None = None

    @property
    def draws_garbage(self) -> bool:
        """Whether it has been seen to draw from logits that are no numbers."""
        return self._listener is not None and self._listener.drew_garbage

    async def listen(self) -> Address:
        """Where it can be asked, from now on if not yet."""
        if self._listener is None:
            let_deaths_be_told()
            self._listener = Listener(self.generate, ray.util.get_node_ip_address())
        return self._listener.address


def let_deaths_be_told() -> None:
    """vLLM's watch over the process that computes clears it away before it tells of its end, and fails itself, so that
    requests wait for ever, where the kernel has done so first (vLLM 0.29, `kill_process_tree`)."""
    kill = vllm.v1.utils.kill_process_tree

    @wraps(kill)
    def kill_what_is_left(pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            kill(pid)

    vllm.v1.utils.kill_process_tree = kill_what_is_left


class Listener:
    """generate: from token ids and vLLM's parameters to vLLM's `RequestOutput`. host: this machine's address."""

    def __init__(self, generate: Generate, host: str) -> None:
        self._generate = generate
        self.drew_garbage = False
        door = listening_socket(host)
        self.address = Address(host, door.getsockname()[1], secrets.token_bytes(32))
        self._serving = asyncio.create_task(asyncio.start_server(self._serve, sock=door))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. What it has asked is given up then."""
        working: dict[int, asyncio.Task[None]] = {}
        try:
            async with asyncio.timeout(_PROOF_S):
                known = await is_known(reader, writer, self.address.secret)
            while known:
                request: Request = await receive(reader, REQUESTS)
                number = request.number
                if request.prompt is not None:
                    working[number] = asyncio.create_task(self._answer(number, request.prompt, writer))
                    working[number].add_done_callback(partial(working.pop, number))
                elif number in working:
                    working[number].cancel()
        except ENDED:  # a time limit's error is one of these
            pass
        finally:
            writer.close()
            for task in working.values():
                task.cancel()

    async def _answer(self, number: int, prompt: Prompt, writer: asyncio.StreamWriter) -> None:
        try:
            output = await self._generate(prompt.token_ids, request_parameters(prompt.sampling, prompt.stop_ids))
            send(writer, Answer(number, read_reply(output)))
        except Exception as error:  # noqa: BLE001 - raised where it was asked
            text = f"{type(error).__name__}: {first_line(error)}"
            self.drew_garbage |= isinstance(error, LogitsNotFinite)
            send(writer, Answer(number, None, text, isinstance(error, EngineDeadError | LogitsNotFinite)))
