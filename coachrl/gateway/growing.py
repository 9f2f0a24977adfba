"""A reply while it is drawn: what of its text is certain already, for who takes it in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coachrl.gateway.calls import Call, Piece
from coachrl.gateway.conversation_tokens import before_stop, offered
from coachrl.pipelines.generation import PolicyTokenizer, listening, reply_text
from coachrl.pipelines.team.tools import OPEN
from coachrl.pipelines.team.trajectory import ReadPrompt
from coachrl.text import visible

_HALF_A_CHARACTER = "\ufffd"


@contextmanager
def told_as_it_grows(call: Call, place: int, tokenizer: PolicyTokenizer, prompt: ReadPrompt) -> Iterator[None]:
    """Around the drawing of one reply to `call`: where the app takes it in pieces, and the engine tells its tokens one
    by one, the app gets what is certain of its text. place: which of the replies it is."""
    if call.tell is None:
        yield
        return
    tell, ids, told = call.tell, list[int](), 0

    def heard(token: int) -> None:
        nonlocal told
        ids.append(token)
        if len(ids) % (1 + len(ids) // 64):  # what was read before is decoded again: less often as it grows
            return
        text = settled(reply_text(tokenizer, prompt.ids, ids, prompt.opening), call)
        if len(text) > told:
            tell(Piece(place, text[told:], len(prompt.ids)))
            told = len(text)

    with listening(heard):
        yield


def settled(text: str, call: Call) -> str:
    """What the app's text of a reply will begin with, whatever comes after `text`: without what may be thinking, the
    beginning of a stop text, a call of a function, white space at the end or a part of a character."""
    marks = [*call.stop, *([OPEN] if offered(call) else [])]
    text, stop = before_stop(text.rstrip(_HALF_A_CHARACTER), call.stop)
    if stop is None:
        text = text[: min((_begins(mark, text) for mark in marks), default=len(text))]
    if "<think>".startswith(text.lstrip()[:7]) and "</think>" not in text:
        return ""
    text = visible(text)
    return text.partition(OPEN)[0].rstrip() if offered(call) else text


def _begins(mark: str, text: str) -> int:
    """Where the longest end of `text` stands that `mark` begins with, and that is not all of it; else the end of
    `text`. Only places with the mark's first letter are looked at: every token comes here, and there are many marks."""
    place = text.find(mark[0], max(0, len(text) - len(mark) + 1))
    while place >= 0 and not mark.startswith(text[place:]):
        place = text.find(mark[0], place + 1)
    return place if place >= 0 else len(text)
