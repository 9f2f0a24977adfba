"""Siblings scored against each other: one call reads several actions that answer one state, or one task in one turn,
and gives each a score (ART's RULER; coach.compare=siblings).

The prompt is the coach's own. A field in which the siblings are alike stands once; where they differ, each one's stands
under a letter. The order is shuffled by a generator seeded with what is compared, so that a resumed run asks the same
question again; nothing else tells who wrote which. The reply must hold a score for each letter, or none counts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from string import ascii_uppercase
from typing import Any

from coachrl.coach import replies
from coachrl.coach.base import CoachRequest
from coachrl.coach.clients.base import ChatClient
from coachrl.coach.kinds.llm import LLMCoach, with_replies
from coachrl.coach.prompt_rendering import prompt_section, render_siblings
from coachrl.coach.verdict import (
    ABSTAIN_KEY,
    HOW_TO_ABSTAIN,
    RATIONALE_KEY,
    SCORE_OR_NOT,
    abstains,
    closed_schema,
    rationale_of,
    repair_words,
)
from coachrl.config import CoachConfig
from coachrl.errors import CoachError, ConfigError
from coachrl.prompts import Prompt
from coachrl.types import CoachScore

_LINE = replies.statement_lines(r"SCORE[ \u00a0]+(?P<name>[A-Z])")


class ListwiseCoach(LLMCoach):
    """Scores an action that has siblings together with them, and one that has none as `LLMCoach` does."""

    most_compared = 8  # in one call: each adds its text to the prompt

    def __init__(self, client: ChatClient, prompt: Prompt, settings: CoachConfig, repeat: int = 0) -> None:
        """Raises ConfigError for a prompt that lists criteria: siblings get one score each."""
        if "criteria" in prompt.header:
            raise ConfigError(f"coach.compare: siblings get one score each, and prompt '{prompt.name}' lists criteria")
        super().__init__(client, prompt, settings, repeat)
        self._repeat = repeat
        self._closing = prompt_section("siblings")

    async def compare(self, requests: Sequence[CoachRequest]) -> list[CoachScore]:
        """The scores of 2 to `most_compared` siblings, in their order. Raises CoachError where two replies running held
        no score for each, and what the client raises."""
        listed = shuffled(requests, self._repeat)
        letters = ascii_uppercase[: len(listed)]
        closing = self._closing.render(
            count=len(letters),
            letters=", ".join(letters),
            lines="\n".join(f"SCORE {letter}: <number from 0 to 10>" for letter in letters),
            how_to_abstain=HOW_TO_ABSTAIN,
        )
        text = f"{render_siblings(self._prompt, listed, self._evidence)}\n\n{closing}"
        (scores, rationale), answers = await self._ask(
            text,
            partial(parse_scores, letters=letters),
            repair_words(f"SCORE {letter}: n" for letter in letters),
            _schema(letters),
        )
        by_id = {}
        for place, (letter, request) in enumerate(zip(letters, listed, strict=True), start=1):
            score = CoachScore(
                action_id=request.action.id,
                status="abstained" if scores is None else "scored",
                process_0_10=None if scores is None else scores[letter],
                rationale=f"(This was reply {letter} of a comparison.)\n{rationale}",
                prompt_hash=self._prompt.sha256,
                position=place,
            )
            by_id[request.action.id] = with_replies(score, answers)
        return [by_id[request.action.id] for request in requests]


def shuffled(requests: Sequence[CoachRequest], repeat: int) -> list[CoachRequest]:
    """`requests` in an order that follows from which actions they are, and from nothing else about them."""
    listed = sorted(requests, key=lambda request: request.action.id)
    seed = " ".join([str(repeat), *(request.action.id for request in listed)])
    random.Random(seed).shuffle(listed)
    return listed


def parse_scores(reply: str, letters: str) -> tuple[dict[str, float] | None, str]:
    """The score of each of `letters`, or None where the coach abstains from all; and its reasons. Raises CoachError
    where one has none or two, where another letter has one, or where more follows the last."""
    text = replies.own_words(reply)
    objects = list(replies.json_objects(text))
    stated = replies.last_statements(_LINE, text, lambda match: f"SCORE {match['name'].upper()}")
    for fields, end in objects:
        listed = fields.get("scores")
        for name, value in listed.items() if isinstance(listed, dict) else ():
            stated.append(replies.Statement(f"SCORE {name.upper()}", value, end, end))
    if abstains(text, objects, stated):
        return None, text
    scores: dict[str, float] = {}
    for name in dict.fromkeys([*(one.key.removeprefix("SCORE ") for one in stated), *letters]):
        score = replies.one_number(stated, f"SCORE {name}", 0, 10)
        if score is None or name not in tuple(letters):
            raise CoachError(f"a score was asked for of each of {', '.join(letters)}, and {name} is none of them")
        scores[name] = score
    replies.check_end(text, max(one.end for one in stated), "verdict")
    return scores, rationale_of(text, objects)


def _schema(letters: str) -> dict[str, Any]:
    scores = {
        **closed_schema(dict.fromkeys(letters, SCORE_OR_NOT)),
        "description": f"an object with the keys {', '.join(letters)}, each a number from 0 to 10, or null where you "
        "abstain",
    }
    return closed_schema({**RATIONALE_KEY, "scores": scores, **ABSTAIN_KEY})
