"""An `Answerer` for servers under test: it answers as a function says, and keeps what it was asked."""

import asyncio
import json
import re

from coachrl.gateway.calls import FunctionCall, Reply, UnknownModel, WrongToken

KEY = "the-key"
ROLES = ("planner", "coder")


def reply(text="Hello there.", *, calls=(), finish_reason=None, prompt_tokens=7, stop_text=None):
    """A reply whose tokens are its words. calls: (name, arguments) of the functions that it asks for."""
    tool_calls = tuple(FunctionCall(f"call_{place}", name, given) for place, (name, given) in enumerate(calls))
    texts = tuple(re.findall(r"\s*\S+|\s+", text))
    return Reply(
        text=text,
        finish_reason=finish_reason or ("tool_calls" if calls else "stop"),
        prompt_tokens=prompt_tokens,
        token_ids=tuple(range(len(texts))),
        logprobs=tuple(-0.5 * place for place in range(len(texts))),
        token_texts=texts,
        tool_calls=tool_calls,
        stop_text=stop_text,
    )


class ScriptedAnswerer:
    """Each reply is what `answer_with(call, place)` gives, or raises; place: which of `call.n` replies it is."""

    def __init__(self, answer_with=lambda call, place: reply()):
        self.answer_with = answer_with
        self.calls = []
        self.cancelled = []
        self.refusals = []

    def refused(self, error, token):
        self.refusals.append((str(error), token))

    def models(self, token):
        if token != KEY:
            raise WrongToken("this API key is of no episode here")
        return ROLES

    async def answer(self, call, token):
        if call.role not in self.models(token):
            raise UnknownModel(call.role, ROLES)
        self.calls.append(call)
        return [self.answer_with(call, place) for place in range(call.n)]


class WaitingAnswerer(ScriptedAnswerer):
    """Holds every call until `go` is set."""

    def __init__(self, answer_with=lambda call, place: reply()):
        super().__init__(answer_with)
        self.go = asyncio.Event()
        self.arrived = asyncio.Condition()
        self.gone = asyncio.Condition()

    async def answer(self, call, token):
        replies = await super().answer(call, token)
        async with self.arrived:
            self.arrived.notify_all()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call)
            async with self.gone:
                self.gone.notify_all()
            raise
        return replies

    async def until_asked(self, count):
        async with asyncio.timeout(60), self.arrived:
            await self.arrived.wait_for(lambda: len(self.calls) >= count)

    async def until_cancelled(self, count):
        async with asyncio.timeout(60), self.gone:
            await self.gone.wait_for(lambda: len(self.cancelled) >= count)


def events(text):
    """(name, data) of each server-sent event."""
    found = []
    for block in filter(None, text.split("\n\n")):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"]
        found.append((lines.get("event"), data if data == "[DONE]" else json.loads(data)))
    return found
