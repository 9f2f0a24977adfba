"""Preference pairs: a better reply against the agent's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from coachrl.export.replies import ExportFilter, Line, ScoredReply, said, scored_replies
from coachrl.runs.folder import Run
from coachrl.types import HIGHEST_SCORE

DEFAULT_MIN_GAP = 1.0
HOW_PAIRS_COME = (
    "; a pair is two replies to one prompt (train.group_size=2 or more, or sampling.scheme=tree), or a reply and its "
    "correction (coachrl rescore RUN --coach MODEL coach.suggest=true, then --rescore LABEL), of which "
    "the better scored at least --min-gap (default 1) above the other; sft and reward-model need no pairs"
)


def preferences(run: Run, which: ExportFilter, left_out: Counter[str]) -> Iterator[Line]:
    """One pair at most for each action: against its correction, else against its best sibling."""
    gap = DEFAULT_MIN_GAP if which.min_gap is None else which.min_gap
    groups: dict[str, list[ScoredReply]] = {}
    for item in scored_replies(run, which, left_out):
        key = json.dumps([item.task_id, item.action.role, item.action.turn, item.prompt])
        groups.setdefault(key, []).append(item)
    for group in groups.values():
        best = max((item for item in group if item.ended), key=lambda item: item.score_0_10, default=None)
        if best is not None and best.score_0_10 < (which.min_score or 0.0):
            best = None
        pairs = set()
        for item in group:
            if item.correction and _is_better(HIGHEST_SCORE, item, gap):
                kind, chosen, score = "correction", item.correction, None
            elif best is not None and _is_better(best.score_0_10, item, gap) and best.action.text != item.action.text:
                kind, chosen, score = "sibling", best.action.text, best.score_0_10
            else:
                left_out["without a better reply"] += 1
                continue
            if (chosen, item.action.text) in pairs:
                left_out["the same as another"] += 1
                continue
            pairs.add((chosen, item.action.text))
            replies = {"chosen": [said(chosen)], "rejected": [said(item.action.text)]}
            scores = {"score_chosen": score, "score_rejected": item.score_0_10}
            yield kind, {"prompt": item.prompt, **replies, **item.columns, "source": kind, **scores}


def _is_better(score_0_10: float, than: ScoredReply, gap: float) -> bool:
    """Equal scores prefer neither, whatever the gap."""
    return score_0_10 > than.score_0_10 and score_0_10 - than.score_0_10 >= gap
