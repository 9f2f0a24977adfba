"""Made-up scored actions with known biases: what the audit is itself tested on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from coachrl.audit.data.frame import COLUMNS, category, typed

ROLES = ("engineer", "modeler", "analyst")
CATEGORIES = ("classification", "regression")


@dataclass(frozen=True)
class PlantedBias:
    """Biases of a coach. category_shift: points added to regression. length_slope: points for 100 tokens more.

    flat: share of the scores that are replaced by one value. inverted: the last role's scores fall where the team
    succeeds. reward_hacking: points that the score rises over training while success falls from 0.7 to 0.3.
    """

    category_shift: float = 0.0
    length_slope: float = 0.0
    flat: float = 0.0
    inverted: bool = False
    reward_hacking: float = 0.0


@dataclass(frozen=True)
class Noise:
    """Standard deviations in points: between tasks, between episodes of a task, between actions. merit: points that a
    successful episode's actions earn more."""

    task: float = 0.3
    episode: float = 0.7
    action: float = 1.2
    merit: float = 2.0


def synthetic_scores(
    planted: PlantedBias = PlantedBias(),
    *,
    tasks: int = 64,
    rollouts: int = 8,
    steps: int = 4,
    noise: Noise = Noise(),
    seed: int = 0,
) -> pd.DataFrame:
    """The table of one run: every task `rollouts` times, three roles each, spread over `steps` training steps.

    Half of the tasks are regression. Successes are as frequent in both categories, and longer replies are no better."""
    rng = np.random.default_rng(seed)
    task_E = np.repeat(np.arange(tasks), rollouts)
    step_E = np.tile(np.arange(rollouts) * steps // rollouts + 1, tasks)
    E, R = len(task_E), len(ROLES)
    skill_E = 0.5 + rng.normal(0, 0.15, tasks)[task_E]
    progress_E = (step_E - 1) / max(1, steps - 1)
    if planted.reward_hacking:
        skill_E = skill_E + 0.2 - 0.4 * progress_E
    success_E = rng.random(E) < skill_E
    tokens_ER = rng.lognormal(np.log(200), 0.4, (E, R)).round()
    merit_ER = np.repeat(np.where(success_E, 0.5, -0.5)[:, None], R, axis=1) * noise.merit
    if planted.inverted:
        merit_ER[:, -1] *= -1
    score_ER = (
        5.5
        + merit_ER
        + (rng.normal(0, noise.task, tasks)[task_E] + rng.normal(0, noise.episode, E))[:, None]
        + rng.normal(0, noise.action, (E, R))
        + planted.category_shift * (task_E % 2)[:, None]
        + planted.length_slope * (tokens_ER - 200) / 100
        + planted.reward_hacking * progress_E[:, None]
    )
    score_ER = np.where(rng.random((E, R)) < planted.flat, 7.0, score_ER)
    score_ER = np.clip(np.round(score_ER * 2) / 2, 0, 10)  # coaches give halves
    return _frame(task_E, step_E, success_E, tokens_ER, score_ER, rng)


def _frame(
    task_E: np.ndarray,
    step_E: np.ndarray,
    success_E: np.ndarray,
    tokens_ER: np.ndarray,
    score_ER: np.ndarray,
    rng: np.random.Generator,
) -> pd.DataFrame:
    E, R = score_ER.shape
    N = E * R
    episode_N, role_N = np.repeat(np.arange(E), R), np.tile(np.arange(R), E)

    def always(name: str) -> pd.Categorical:
        return category(np.zeros(N, np.int8), [name])

    task_names = [f"task-{number:06d}" for number in range(int(task_E.max()) + 1)]
    columns = {
        "run": always("synthetic"),
        "pipeline": always("synthetic"),
        "step": step_E[episode_N],
        "episode": episode_N,
        "task": category(task_E[episode_N], task_names),
        "category": category(task_E[episode_N] % 2, CATEGORIES),
        "action": np.arange(N),
        "role": category(role_N, ROLES),
        "turn": np.zeros(N, np.int32),
        "last": role_N == R - 1,
        "rater": always("planted"),
        "coach": always("planted"),
        "prompt": always(""),
        "status": always("scored"),
        "score": score_ER.ravel(),
        "outcome": success_E[episode_N].astype(float),
        "tokens": tokens_ER.ravel(),
        "code_share": rng.uniform(0.3, 0.9, N).round(2),
        "markdown": rng.gamma(2.0, 2.0, N).round(1),
        "hedging": rng.gamma(1.0, 1.0, N).round(1),
        "has_code": np.ones(N, bool),
        "state": category((rng.random(N) < 0.15).astype(np.int8), ["ok", "error"]),
    }
    return typed(pd.DataFrame(columns)[list(COLUMNS)])
