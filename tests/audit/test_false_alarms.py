"""Random scores on small runs: how often the audit says that a coach likes length or form."""

import numpy as np
import pandas as pd

from coachrl.audit.data.frame import Scorer, make_frame
from coachrl.audit.findings import examine_rater
from coachrl.audit.verdicts import verdicts

REPEATS = 20
NO_EVALUATIONS = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])


def random_run(rng):
    """Scores by the dice. Tasks differ in length; code, marks and hedging are rare; scores are coarse."""
    tasks, rollouts, roles = int(rng.choice([3, 5, 8, 12])), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    usual = rng.lognormal(5, 0.5, tasks)
    rows = []
    for episode in range(tasks * rollouts):
        task, success = episode // rollouts, float(rng.random() < 0.4)
        for role in range(roles):
            code = bool(rng.random() < 0.2)
            state = str(rng.choice(["ok", "error"])) if code else "no code"
            form = (0.5 if code else 0.0, float(rng.poisson(0.3)), float(rng.poisson(0.1)))
            name = (f"a{episode}-{role}", f"role{role}", 0, role == roles - 1, "dice", "dice", "", "scored")
            score, length = float(rng.integers(0, 5) * 2.5), int(usual[task] * rng.lognormal(0, 0.6))
            place = ("run", "p", 1 + episode % rollouts % 2, f"e{episode}", f"t{task}", f"k{task % 2}")
            rows.append((*place, *name, score, success, length, *form, code, state))
    return make_frame(rows)


def accusations(seed):
    frame = random_run(np.random.default_rng([11, seed]))
    found = examine_rater(frame, "p", Scorer("", "dice", ""), NO_EVALUATIONS, 100, seed)
    return {v.topic for v in verdicts([found], []) if v.grade in ("warning", "alarm")}


def test_random_scores_on_small_runs_accuse_nobody_of_liking_length_or_form():
    named = sum(bool({"length", "style"} & accusations(seed)) for seed in range(REPEATS))
    assert named == 0, "all of them have fewer tasks than an accusation needs"
