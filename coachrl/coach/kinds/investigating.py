"""A coach that may look for itself: before it scores, it runs code of its own on a copy of the agents' workspace.

It asks for a program in place of a verdict, by the provider's function calls where the model has them and as a Python
block elsewhere, and is told what that printed, up to `coach.tools.turns` times. The copy is made in a sandbox of the
coach's own, from the task's files and the agents' recorded programs, so that a saved run can be scored so as well;
files that do not come out again are named. A reply that ends in a verdict is read as any other.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from time import monotonic
from typing import Any

from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient, ChatRequest, Function, Reply
from coachrl.coach.clients.ledger import FunctionCall, Message
from coachrl.coach.kinds.llm import LLMCoach, ask_until_read
from coachrl.coach.prompt_rendering import fenced, prompt_section, streams_of
from coachrl.coach.verdict import Verdict
from coachrl.config import CoachConfig
from coachrl.config.coach import ToolsConfig
from coachrl.errors import CoachError, CoachUnavailable, SandboxError, SandboxUnavailable
from coachrl.prompts import Prompt
from coachrl.sandbox.base import WITHOUT_WORKSPACE, Sandbox, Workspace
from coachrl.tasks.code.cooperation import parse_code
from coachrl.text import extract_code
from coachrl.types import CoachScore, Execution

_LEAST_S = 0.1  # what a program is given where hardly any time is left
_FUNCTION = Function(
    name="run_python",
    description="Runs a Python program in a copy of the workspace and tells what it printed.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the whole program"}},
        "required": ["code"],
    },
)


class InvestigatingCoach(LLMCoach):
    """`LLMCoach` with a sandbox. It is held to no JSON schema: its replies are programs or verdicts."""

    def __init__(
        self, client: ChatClient, prompt: Prompt, settings: CoachConfig, sandbox: Sandbox, repeat: int = 0
    ) -> None:
        super().__init__(client, prompt, settings, repeat)
        self._tools = settings.tools
        self._window = settings.evidence.window_tokens
        self._sandbox = sandbox
        how = f"call {_FUNCTION.name}" if client.calls_functions else "answer with one ```python block alone"
        self._how_to = prompt_section("tools").render(
            turns=self._tools.turns, seconds=f"{self._tools.seconds:g}", how=how
        )

    async def check(self) -> None:
        """Raises SandboxUnavailable where its code would not be held, CoachUnavailable as any coach."""
        await self._sandbox.start()
        await super().check()

    async def close(self) -> None:
        await super().close()
        await self._sandbox.close()

    async def score(self, request: CoachRequest) -> CoachScore:
        """Raises CoachError where there was no verdict in the end, or the sandbox broke, and what the client raises."""
        copy = _WorkspaceCopy(self._sandbox, request, self._tools)
        try:
            verdict, replies = await self._investigate(request, copy)
        except SandboxUnavailable as error:
            raise CoachUnavailable(f"the coach's own sandbox: {error}") from error
        except SandboxError as error:
            raise CoachError(f"the coach's own sandbox: {error}") from error
        finally:
            await copy.close()
        return self._scored(request, verdict, replies)

    def _asking(self, text: str, schema: Mapping[str, Any]) -> ChatRequest:
        function = _FUNCTION if self._client.calls_functions else None
        return replace(self._in_plain_words(text), function=function)

    async def _investigate(self, request: CoachRequest, copy: _WorkspaceCopy) -> tuple[Verdict, list[Reply]]:
        text = f"{self._text(request)}\n\n{self._how_to}"
        asked = self._asking(text, self._schema)
        replies: list[Reply] = []
        first: Reply | None = None  # that asks for no program
        while copy.is_open and not self._is_spent(replies):
            reply = await self._client.complete(asked)
            programs = self._programs(reply)
            if not programs:
                first = reply
                break
            replies.append(reply)
            found = [fenced(await copy.run(program), "RESULT", self._window) for program in programs]
            left = f"You may run {copy.turns_left} more, or give your verdict."
            if not copy.is_open or self._is_spent(replies):
                left = "You can run no more programs. Give your verdict now, in the form asked for above."
            found[-1] += f"\n\n{left}"
            asked = _and_then(asked, reply, found)
        if asked.function is not None:
            asked = replace(asked, function=replace(asked.function, open=False))
        verdict, last = await ask_until_read(self._client, asked, self._parse, self._repair, first)
        return verdict, [*replies, *last]

    def _programs(self, reply: Reply) -> list[str | None]:
        """The programs that a whole reply asks for; None is a call that holds none."""
        if reply.finish_reason not in ("stop", "", "tool_calls"):
            return []
        if reply.calls:
            return [_program_in(call) for call in reply.calls]
        code = extract_code(reply.text)
        if code is None:
            return []
        try:
            self._parse(reply.text)
        except CoachError:
            return [code]
        return []  # it ends in a verdict, and quotes the program

    def _is_spent(self, replies: Sequence[Reply]) -> bool:
        """A cost that nobody knows may be all that there is to spend."""
        costs = [math.inf if reply.usage.cost_usd is None else reply.usage.cost_usd for reply in replies]
        return self._tools.usd is not None and sum(costs) >= self._tools.usd


class _WorkspaceCopy:
    """The copy of the workspace on which the coach works, made when its first program comes.

    seconds_left: of running, for all of its programs; the agents' own do not count, each has as long as the sandbox
    gives it.
    """

    def __init__(self, sandbox: Sandbox, request: CoachRequest, limits: ToolsConfig) -> None:
        self.turns_left = limits.turns
        self.seconds_left = limits.seconds
        self._sandbox = sandbox
        self._request = request
        self._workspace: Workspace | None = None
        self._note = ""

    @property
    def is_open(self) -> bool:
        return self.turns_left > 0 and self.seconds_left > 0

    async def run(self, code: str | None) -> str:
        """What the program printed, and how it ended, in words; or why it was not run. None takes a turn too."""
        if not self.is_open:
            return "It was not run: no turn, or no time, is left."
        self.turns_left -= 1
        if code is None:
            return f"Nothing was run: call {_FUNCTION.name} with 'code', a string, and nothing else."
        workspace = self._workspace or await self._copied()
        began = monotonic()
        execution = await workspace.run(_apart(code), timeout_s=max(_LEAST_S, self.seconds_left))
        self.seconds_left -= monotonic() - began
        _check_sound(execution)
        note, self._note = self._note, ""
        return f"{note}The program ended with state '{execution.state}'.\n{streams_of(execution)}"

    async def close(self) -> None:
        if self._workspace is not None:
            await self._workspace.close()

    async def _copied(self) -> Workspace:
        """The workspace after the action: the recorded programs are run again on the task's files."""
        self._workspace = workspace = await self._sandbox.open(self._request.task.files)
        action = self._request.action
        for earlier in (*self._request.previous, action):
            if earlier.code is not None and earlier.execution is not None:
                _check_sound(await workspace.run(earlier.code))
        missing = sorted(set(action.files_after) - set(await workspace.files()))
        if missing:
            self._note = f"(These files did not come out again in the copy: {', '.join(map(repr, missing[:20]))}.)\n"
        return workspace


def _apart(code: str) -> str:
    """`code`, which imports no module of the workspace: an agent's `csv.py` would tell the coach what it likes."""
    tree, ends = parse_code(code), (0, 0)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":  # nothing may stand before it
            ends = (node.end_lineno or 0, node.end_col_offset or 0)
    if ends == (0, 0):
        return WITHOUT_WORKSPACE + code
    *before, line = StringIO(code, newline="").readlines()[: ends[0]]
    head = "".join(before) + line.encode()[: ends[1]].decode()
    return f"{head}; {WITHOUT_WORKSPACE.rstrip()}{code[len(head) :]}"


def _check_sound(execution: Execution) -> None:
    if execution.state == "infrastructure":
        raise SandboxError(f"it broke while a program ran: {execution.stderr.strip()[-200:]}")


def _program_in(call: FunctionCall) -> str | None:
    try:
        code = json.loads(call.arguments)["code"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if call.name != _FUNCTION.name or not isinstance(code, str):
        return None
    return extract_code(code) or code


def _and_then(asked: ChatRequest, reply: Reply, found: Sequence[str]) -> ChatRequest:
    """`asked` with the reply and what its programs found: an answer to each call, or one in words."""
    said = Message("assistant", reply.said, reply.native)
    if not reply.calls:
        return replace(asked, messages=(*asked.messages, said, Message("user", found[0])))
    answers = (Message("tool", text, answers=call) for call, text in zip(reply.calls, found, strict=True))
    return replace(asked, messages=(*asked.messages, said, *answers))
