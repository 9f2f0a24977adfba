"""Task topics that nobody named: clusters of the tasks' words, scored unlike the others?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from coachrl.audit.data.frame import ended_well
from coachrl.audit.data.sample import Floats, Sample
from coachrl.audit.stats.strata import Contrast
from coachrl.audit.stats.within import by_task, taken_out
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.seeding import generator

FEWEST_TEXTS = 16
_MOST_TOPICS = 4
_TASKS_A_TOPIC = 8
_FITTED = 5000  # tasks that clusters are found on; the others are sorted into them
_WORDS = 3
_WEIGHT = 5.0
_FEWEST_FOR_EASE = 24  # tasks from which two more numbers can be learnt
_PERMUTATIONS, _FEWEST_PERMUTATIONS = 9999, 999
_PERMUTED_NUMBERS = 3_000_000  # at once, of all permutations together
_TOPIC = partial(
    TopicFinding,
    "topic",
    cleared="no gap found between topics of tasks at equal outcome",
    unsure="too few tasks to say whether topics of tasks are scored alike at equal outcome",
)


def with_topics(actions: pd.DataFrame, texts: Mapping[str, str], seed: int = 0) -> pd.DataFrame:
    """The table with a column `topic`, where tasks' words part them into several."""
    tasks = [str(task) for task in actions["task"].cat.categories if str(task) in texts]
    if len(tasks) < FEWEST_TEXTS or len({texts[task] for task in tasks}) < FEWEST_TEXTS:
        return actions
    topics = dict(zip(tasks, find_topics([texts[task] for task in tasks], seed), strict=True))
    if len(set(topics.values())) < 2:
        return actions
    return actions.assign(topic=actions["task"].map(lambda task: topics.get(str(task), "")).astype("category"))


def find_topics(texts: list[str], seed: int = 0) -> list[str]:
    """The topic of each text, named by the words that set it apart: TF-IDF and k-means (Lloyd 1982)."""
    from sklearn.cluster import KMeans
    from sklearn.feature_extraction.text import TfidfVectorizer

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


def subject_gaps(sample: Sample, gaps: Sequence[Contrast]) -> TopicFinding:
    """gaps: of each topic against the others."""
    if "topic" not in sample.frame:
        return _TOPIC([], unmeasured="the tasks' words do not part them into several topics")
    family = [(gap, c, gap.p) for c in gaps if (gap := c.adjusted) is not None and gap.p is not None]
    if not family:
        return _TOPIC([], unmeasured="no role and outcome occurs in several topics")
    gap, apart, _ = min(family, key=lambda one: one[2])
    p = _p_of_all_topics(sample)
    named = (
        f"scores topics of tasks unlike each other at equal outcome (p {p:.2g}), which may be deserved where the work "
        f"differs in quality; the most apart is '{apart.level}': {gap.interval(True)} points against {apart.versus} "
        f"({gap.size})"
    )
    effect = Effect(f"'{apart.level}' minus {apart.versus}", named, replace(gap, p=p), weight=_WEIGHT)
    return _TOPIC([effect])


def _p_of_all_topics(sample: Sample) -> float:
    """Whether tasks' mean scores, at equal role, outcome and exit state, differ between topics by more than tasks do.
    What tasks' ease explains is taken out: the share of episodes that succeed on a task and of its actions whose code
    ends well. A permutation test (Freedman and Lane 1983) of a Wald statistic with a robust covariance (DiCiccio and
    Romano 2017), which needs no normal scores, no equal groups and no tasks that are equally exact."""
    frame = sample.frame
    cells_N, _ = sample.codes(("role", "result", "state"))
    topic_N = frame["topic"].cat.codes.to_numpy()
    ones_N = np.ones(len(frame))
    columns = (taken_out(sample.scores, cells_N), topic_N.astype(np.float64), sample.matches("result", "success"))
    sums_TV = by_task(sample, ones_N, *columns, np.asarray(ended_well(frame["state"]), np.float64))
    means_T, topics_T, *ease = (sums_TV[:, 1:] / sums_TV[:, :1]).T
    topic_T = np.round(topics_T).astype(np.int64)
    if len(means_T) < _FEWEST_FOR_EASE:
        ease = []
    outside_TK = _orthonormal(np.column_stack([np.ones(len(means_T)), *ease]))
    in_topic_TK = np.eye(topic_T.max() + 1)[topic_T]
    between_TK = _orthonormal(in_topic_TK - outside_TK @ (outside_TK.T @ in_topic_TK))
    left_T = means_T - outside_TK @ (outside_TK.T @ means_T)
    if between_TK.shape[1] == 0 or outside_TK.shape[1] + between_TK.shape[1] >= len(means_T):
        return 1.0
    observed = float(_wald(left_T[None], outside_TK, between_TK)[0])
    rng = generator(0, "permutations", len(means_T))
    times = max(_FEWEST_PERMUTATIONS, min(_PERMUTATIONS, _PERMUTED_NUMBERS // len(means_T)))
    shuffled_RT = rng.permuted(np.tile(left_T, (times, 1)), axis=1)
    shuffled_R = _wald(shuffled_RT, outside_TK, between_TK)
    return float((1 + (shuffled_R >= observed * (1 - 1e-12)).sum()) / (1 + times))


def _wald(values_RT: Floats, outside_TK: Floats, between_TK: Floats) -> Floats:
    """b' V^-1 b of the coefficients b of what lies between topics, with the covariance V that holds where tasks are not
    equally exact (White 1980): a topic of few tasks, or of tasks with few actions, is not apart for its noise."""
    found_RK = values_RT @ between_TK
    left_RT = values_RT - (values_RT @ outside_TK) @ outside_TK.T - found_RK @ between_TK.T
    covariance_RKK = np.einsum("rt,tk,tl->rkl", left_RT**2, between_TK, between_TK, optimize=True)
    covariance_RKK += 1e-12 * np.eye(found_RK.shape[1])
    return np.asarray((found_RK * np.linalg.solve(covariance_RKK, found_RK[..., None])[..., 0]).sum(axis=1))


def _orthonormal(columns_TK: Floats) -> Floats:
    """A basis of what the columns span."""
    basis_TK, sizes_K, _ = np.linalg.svd(columns_TK, full_matrices=False)
    return np.asarray(basis_TK[:, sizes_K > 1e-9 * max(1.0, float(sizes_K.max(initial=0.0)))])
