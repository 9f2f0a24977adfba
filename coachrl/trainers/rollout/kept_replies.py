"""Replies on disk as they are drawn, until a checkpoint holds what came of them: a run that was killed does not draw
them again.

A resumed run plays the episodes since its last checkpoint as a run always does, with the same seeds; where a reply is
on disk, that is the reply. Programs run again, and coaches' replies come from their cache. A reply is known by all that
it depends on: settings and weights, policy, prompt, and how it was drawn, so that none is ever put in another's place.

Batched arithmetic rounds by what is in the batch. Of a batch that a kill cut short no reply is taken: the same requests
meet again and are drawn together, and a resumed run comes to the same figures, bit for bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from coachrl.pipelines.generation import PolicyTokenizer
from coachrl.storage.atomic import write_aside
from coachrl.storage.jsonl import cut_torn_line, json_line, readable_jsonl, writable_file
from coachrl.trainers.backends.base import EpisodeGenerator
from coachrl.types import Action, Generation, SamplingParams

log = logging.getLogger(__name__)

_DIGEST_BYTES = 16
_GENERATION = TypeAdapter(Generation)


class KeptReplies:
    """A generator that answers with what is on disk, and asks `generator` for the rest.

    Args:
        generator: draws what is not on disk.
        path: the file; None keeps nothing.
        settings: those that decide how the models compute, as text.
    """

    def __init__(self, generator: EpisodeGenerator, path: Path | None, settings: str) -> None:
        self._generator, self._settings = generator, settings
        self._file = _ReplyFile(path) if path is not None else None
        self._from_disk: set[int] = set()  # hashes: what was asked and answered lies elsewhere
        self.weights = ""
        """What the present weights have come of: a digest of the figures of every update, which come out the same to
        the last bit where the weights do."""

    @property
    def on_disk(self) -> int:
        """How many replies there are, of whatever settings and weights."""
        return len(self._file.replies) if self._file is not None else 0

    def tokenizer(self, policy: str) -> PolicyTokenizer:
        return self._generator.tokenizer(policy)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        return self._generator.episode(patience_s)

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        if self._file is None:
            return await self._generator.generate(policy, prompt_ids, sampling)
        asked = [self._settings, self.weights, policy, list(prompt_ids), asdict(sampling)]
        key = _digest(json.dumps(asked))
        if key in self._file.replies:
            kept = await self._file.taken(key)
            self._from_disk.add(hash((policy, tuple(prompt_ids), kept.token_ids)))
            return kept
        reply = await self._generator.generate(policy, prompt_ids, sampling)
        self._file.append(key, reply)
        return reply

    def drawn_tokens(self, actions: Iterable[Action]) -> int:
        """How many tokens of their replies this process drew, for figures of speed: those from disk took no time."""
        return sum(
            len(action.response_ids)
            for action in actions
            if hash((action.policy, action.prompt_ids, action.response_ids)) not in self._from_disk
        )

    def note_update(self, statistics: Mapping[str, float]) -> None:
        """The weights are others from now on."""
        self.weights = _digest(json.dumps([self.weights, dict(statistics)]))

    def put_aside(self) -> Callable[[], None]:
        """A checkpoint of all that came of the replies so far is begun. The function that is returned is for its end,
        and removes them."""
        return self._file.put_aside() if self._file is not None else lambda: None

    def remove(self) -> None:
        """Nothing goes on from them any more."""
        self.put_aside()()


@dataclass(frozen=True)
class _Line:
    key: str
    reply: Generation

    def to_text(self) -> str:
        record = {"key": self.key, **asdict(self.reply)}
        return json_line({**record, "check": _digest(json_line(record))})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> _Line:
        """Raises KeyError, TypeError or ValueError for what is no line, or not the one that was written."""
        fields = dict(record)
        if fields.pop("check") != _digest(json_line(fields)):
            raise ValueError("its checksum is that of another line")
        return cls(fields.pop("key"), _GENERATION.validate_python(fields))


class _ReplyFile:
    """One line a reply. A line that is torn or damaged is left out, and with it the rest of its batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = path.with_name(f"{path.stem}-before{path.suffix}")
        self._is_told = False  # that the disk takes none
        problems: list[str] = []
        files = [place for place in (self._before, path) if place.exists()]
        lines = [line for place in files for line in _whole_lines(place, problems)]
        for problem in problems:
            log.warning("replies that are drawn again: %s", problem)
        self.replies = {line.key: (place, line.reply) for place, line in enumerate(lines)}
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        if files:
            write_aside(path, "".join(line.to_text() for line in lines))
            self._before.unlink(missing_ok=True)
            log.info("%d replies are on disk from before and are not drawn again", len(lines))

    async def taken(self, key: str) -> Generation:
        """A reply, which is not kept any longer. Those who ask at once, in one turn of the event loop, are answered in
        the order in which their replies were drawn: an episode's actions stand in the order in which they ended."""
        place, reply = self.replies.pop(key)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)  # behind whoever was started together with this one
        answered = loop.create_future()
        self._waiting.append((place, answered))
        try:
            await answered
        except asyncio.CancelledError:  # who is given up may ask again
            self.replies.setdefault(key, (place, reply))
            raise
        return reply

    def _answer(self) -> None:
        for _, answered in sorted(self._waiting, key=itemgetter(0)):
            if not answered.done():  # as one that was given up
                answered.set_result(None)
        self._waiting.clear()

    def append(self, key: str, reply: Generation) -> None:
        """What a full disk does not take costs the reply after a kill, not the run."""
        if not all(map(math.isfinite, reply.logprobs)):
            return  # JSON has no such number; what is wrong with the model is said by the update
        try:
            with writable_file(self._path).open("ab") as file:
                file.write(_Line(key, reply).to_text().encode())
            self._is_told = False
        except OSError as error:
            if not self._is_told:  # each reply that follows would say it once more
                log.warning("%s: replies are not kept: %s", self._path, error.strerror)
            self._is_told = True
            with contextlib.suppress(OSError):  # its piece would swallow the next one
                cut_torn_line(self._path)

    def put_aside(self) -> Callable[[], None]:
        self.replies.clear()
        if self._path.exists():
            self._path.replace(self._before)
        return partial(self._before.unlink, missing_ok=True)


def _whole_lines(path: Path, problems: list[str]) -> list[_Line]:
    """Those of a file that were drawn alone or in a batch of which all are there. Batches of one process have numbers
    of their own, so that these lose theirs."""
    lines = list(readable_jsonl(path, _Line.from_record, problems))
    there = Counter(line.reply.batch for line in lines)
    whole = [line for line in lines if line.reply.batch is None or there[line.reply.batch] == line.reply.batch[1]]
    return [replace(line, reply=replace(line.reply, batch=None)) for line in whole]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
