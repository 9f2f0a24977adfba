"""Demonstrations for supervised fine-tuning: replies that scored well, and corrections of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coachrl.export.replies import ExportFilter, Line, said, scored_replies
from coachrl.runs.folder import Run

DEFAULT_MIN_SCORE = 8.0


def demonstrations(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """Replies that scored well as they are; in the place of others, what the coach suggested."""
    least = DEFAULT_MIN_SCORE if which.min_score is None else which.min_score
    for item in scored_replies(run, which, left_out):
        if item.score_0_10 >= least and item.ended:
            kind, reply, score = "reply", item.action.text, item.score_0_10
        elif item.correction:
            kind, reply, score = "correction", item.correction, None
        else:
            left_out[f"scored below {least:g}" if item.score_0_10 < least else "cut off"] += 1
            continue
        messages = [*item.prompt, said(reply)]
        yield kind, {"messages": messages, **item.columns, "source": kind, "score": score}
