"""Task topics that nobody named: clusters of the tasks' words, scored unlike the others?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.stats.strata import contrasts
from coachrl.audit.topics.effect import Effect, TopicFinding

FEWEST_TEXTS = 16
_MOST_TOPICS = 4
_TASKS_A_TOPIC = 8
_FITTED = 5000  # tasks that clusters are found on; the others are sorted into them
_WORDS = 3
_WEIGHT = 3.0
_CLEARED = "no gap found between topics of tasks at equal outcome"
_UNSURE = "too few tasks to say whether topics of tasks are scored alike at equal outcome"


def with_topics(actions: pd.DataFrame, texts: Mapping[str, str], seed: int = 0) -> pd.DataFrame:
    """The table with a column `topic`, where tasks' words part them into several."""
    tasks = [str(task) for task in actions["task"].cat.categories if str(task) in texts]
    if len(tasks) < FEWEST_TEXTS or len({texts[task] for task in tasks}) < FEWEST_TEXTS:
        return actions
    topics = dict(zip(tasks, find_topics([texts[task] for task in tasks], seed), strict=True))
    if len(set(topics.values())) < 2:
        return actions
    names = sorted({*topics.values(), ""})
    of_task = np.array([names.index(topics.get(str(task), "")) for task in actions["task"].cat.categories])
    column = pd.Categorical.from_codes(of_task[actions["task"].cat.codes], categories=pd.Index(names))
    return actions.assign(topic=column.remove_unused_categories())


def find_topics(texts: list[str], seed: int = 0) -> list[str]:
    """The topic of each text, named by the words that set it apart: TF-IDF and k-means (Lloyd 1982)."""
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import TfidfVectorizer

    from coachrl.seeding import generator

    count = max(2, min(_MOST_TOPICS, len(texts) // _TASKS_A_TOPIC))
    # A word of nearly all texts is of the prompt, one of a single text is a name.
    words = TfidfVectorizer(stop_words="english", min_df=2, max_df=0.8, max_features=5000, sublinear_tf=True)
    chosen = generator(seed, "topics").permutation(len(texts))[:_FITTED]
    try:
        words.fit([texts[place] for place in chosen])
    except ValueError:  # no word is in two texts
        return [""] * len(texts)
    table = words.transform(texts)
    clusters = KMeans(count, n_init=4, random_state=seed % 2**32).fit(table[chosen])
    names = words.get_feature_names_out()
    middle = clusters.cluster_centers_.mean(axis=0)
    apart = np.argsort(-(clusters.cluster_centers_ - middle), axis=1)[:, :_WORDS]
    labels = [", ".join(names[word] for word in row) for row in apart]
    return [labels[cluster] for cluster in clusters.predict(table)]


def subject_gaps(sample: Sample) -> TopicFinding:
    if "topic" not in sample.frame:
        return TopicFinding("topic", [], _CLEARED, _UNSURE, "the tasks' words do not part them into several topics")
    family = [c for c in contrasts(sample, "topic") if c.adjusted is not None]
    effects = [
        Effect(
            f"'{c.level}' minus {c.versus}",
            f"scores tasks on '{c.level}' {c.adjusted.interval(True)} points against {c.versus} at equal outcome "
            f"({c.adjusted.size}), which may be deserved where the work differs in quality",
            c.adjusted,
            weight=_WEIGHT / len(family),
        )
        for c in family
        if c.adjusted is not None
    ]
    why = "" if effects else "no role and outcome occurs in several topics"
    return TopicFinding("topic", effects, _CLEARED, _UNSURE, why)
