"""Does a coach pay models of its own family more? Needs policies and coaches of two families or more, crossed: several
runs, or rescores by another coach."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.within import slope
from coachrl.audit.topics.effect import Effect, TopicFinding

_SELF_PREFERENCE = partial(
    TopicFinding,
    "self_preference",
    cleared="no coach is found to pay models of its own family more",
    unsure="too few tasks to say whether a coach pays models of its own family more",
)
_OWN = re.compile(r"[\w.]+:[^\W\d]\w*")
_SAME = {"chatgpt": "gpt", "o": "gpt", "mixtral": "mistral", "ministral": "mistral", "codestral": "mistral"}


def family(model: str) -> str:
    """'gemini' of 'gemini/gemini-2.5-pro', 'qwen' of 'Qwen/Qwen2.5-7B', 'llama' of 'meta-llama/Llama-3.1-8B'. A coach
    of the user's own, `my_module:MyCoach`, is a family by itself."""
    if _OWN.fullmatch(model):
        return model
    start = re.match(r"[a-z]+", model.rstrip("/").rsplit("/", 1)[-1].lower())
    word = start.group() if start else model.lower()
    return _SAME.get(word, word)


def self_preference(rows: pd.DataFrame) -> TopicFinding:
    """rows: all raters of one pipeline."""
    if "policy" not in rows or rows["score"].notna().sum() == 0:
        return _SELF_PREFERENCE([], unmeasured="which models played is not known")
    scored = rows[rows["score"].notna()]
    scored = scored.assign(coach_family=_families(scored["coach"]), policy_family=_families(scored["policy"]))
    sample = Sample.of(scored, resamples=1)
    coaches, policies = sample.levels("coach_family"), sample.levels("policy_family")
    shared = sorted(set(coaches) & set(policies))
    if not shared or len(coaches) < 2 or len(policies) < 2:
        why = f"coaches are of {', '.join(coaches)}, policies of {', '.join(policies)}: no family is both beside others"
        return _SELF_PREFERENCE([], unmeasured=why)
    frame = sample.frame
    own_N = np.asarray(frame["coach_family"].astype(str) == frame["policy_family"].astype(str), np.float64)
    circumstances = (("coach_family", "role", "result"), ("policy_family", "role", "result"))
    found = slope(sample, own_N, sample.scores, ("task", "role"), circumstances)
    paired = slope(sample, own_N, sample.scores, ("run", "action"), circumstances[:1])
    best = paired if paired is not None else found  # actions that both coaches scored are their own comparison
    if best is None:
        why = "each coach scored policies of one family only: what it thinks of others is not known (coachrl rescore)"
        return _SELF_PREFERENCE([], unmeasured=why)
    named = (
        f"coaches pay models of their own family ({', '.join(shared)}) {best.interval(True)} points against what other "
        f"coaches pay them, beside what each coach pays all ({best.size})"
    )
    return _SELF_PREFERENCE([Effect("own family minus others", named, best, weight=0.5)])


def _families(models: pd.Series) -> pd.Series:
    return models.map(lambda model: family(str(model))).astype(str).astype("category")
