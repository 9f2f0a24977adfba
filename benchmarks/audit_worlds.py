"""Made-up runs for the audit to be judged on, from a model of teams and coaches that shares nothing with the audit.

An action has a latent quality: its agent's skill, the task's ease, luck, and what it was handed. Code fails, and the
next agent suffers, where quality is low; the episode succeeds where the last hands are good enough. A coach sees
quality through noise and puts it on a scale of its own: halves, whole numbers, few values with heavy ties, skewed to
the top, or zeros and tens. Only then is a fault planted, in points of what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from coachrl.audit.data.frame import AuditData, Scorer, make_frame

ROLES = ("planner", "builder", "checker")
SUBJECTS = (
    ("harbour", "cargo", "vessel", "tonnage", "berth", "crane"),
    ("orchard", "apples", "harvest", "blossom", "frost", "cider"),
    ("galaxy", "redshift", "quasar", "spectrum", "parallax", "nebula"),
    ("ledger", "invoice", "creditor", "audit", "payroll", "margin"),
)
_COMMON = ("estimate", "column", "report", "values", "table", "given", "missing", "answer")


@dataclass(frozen=True)
class World:
    """tasks x draws episodes (draws vary by task where `uneven`). turns: of each agent; shuffled: agents act in another
    order each time. scale: how the coach speaks. progress: standard deviations that the team's skill rises by over
    training. merit_gap: by which the work on one category is better. failed: share of calls that fail."""

    tasks: int = 64
    draws: int = 8
    steps: int = 4
    turns: int = 1
    shuffled: bool = False
    uneven: bool = False
    scale: str = "halves"
    progress: float = 0.0
    merit_gap: float = 0.0
    failed: float = 0.0
    share_of_first_category: float = 0.5


@dataclass(frozen=True)
class Fault:
    """What is wrong with a coach; sizes in points unless said otherwise. name: the audit's topic.

    missing: how much more often calls on one half of the actions fail, by what: quality, length or role."""

    name: str = ""
    points: float = 0.0
    how: str = ""


@dataclass
class _Actions:
    """Columns of all actions, filled agent by agent."""

    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, **values: np.ndarray) -> None:
        for name, column in values.items():
            self.columns.setdefault(name, []).append(np.asarray(column))

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame({name: np.concatenate(parts) for name, parts in self.columns.items()})


def play(world: World, fault: Fault = Fault(), seed: int = 0) -> AuditData:
    """The scores of one run (two runs and two coaches for self-preference), as the audit reads them."""
    rng = np.random.default_rng([20260, seed])
    if fault.name == "self_preference" or fault.how == "two families":
        return _two_families(world, fault, rng)
    actions = _team(world, fault, rng)
    actions["score"] = _coach(actions, world, fault, rng)
    actions["status"] = _statuses(actions, world, fault, rng)
    return _data(actions, world, rng, {"coach": Scorer("", "coach", "")})


def _team(world: World, fault: Fault, rng: np.random.Generator) -> pd.DataFrame:
    draws_T = rng.integers(world.draws // 2, world.draws * 3 // 2 + 1, world.tasks) if world.uneven else world.draws
    task_E = np.repeat(np.arange(world.tasks), draws_T)
    E = len(task_E)
    nth_E = np.concatenate([np.arange(n) for n in np.broadcast_to(draws_T, world.tasks)])
    length_E = np.broadcast_to(draws_T, world.tasks)[task_E]
    step_E = nth_E * world.steps // length_E
    time_E = step_E / max(1, world.steps - 1)
    second_T = rng.permutation(world.tasks) >= round(world.tasks * world.share_of_first_category)
    ease_T = rng.normal(0, 0.25, world.tasks)
    mood_E = rng.normal(0, 0.35, E)  # what all agents of one episode have in common
    games_E = rng.random(E) < (time_E >= 0.5) * _share_of_games(fault)
    order_EP = np.argsort(rng.random((E, 3)), axis=1) if world.shuffled else np.tile(np.arange(3), (E, 1))
    handed_E = np.zeros(E)
    made = _Actions()
    for place in range(3):
        role_E = order_EP[:, place]
        for turn in range(world.turns):
            quality_E = ease_T[task_E] + mood_E + rng.normal(0, 0.8, E) + 0.35 * handed_E
            quality_E = quality_E + world.progress * (time_E - 0.5) + world.merit_gap * second_T[task_E]
            spoiled_E = games_E & (place == 1) & (turn == 0)
            crash_E = rng.random(E) < np.where(spoiled_E, 0.6, 1 / (1 + np.exp(2.2 + 1.5 * quality_E)))
            quality_E = quality_E - 0.8 * crash_E
            made.add(
                episode=np.arange(E),
                task=task_E,
                step=step_E + 1,
                time=time_E,
                place=np.full(E, place),
                role=role_E,
                turn=np.full(E, turn),
                quality=quality_E,
                crash=crash_E,
                games=games_E & (place == 0),
                second=second_T[task_E],
                topic=(task_E * 7) % len(SUBJECTS),
                tokens=np.maximum(8, rng.gamma(4.0, 45.0, E) * (1 + 0.25 * (role_E == 1))).astype(int),
                markdown=rng.poisson(1.5, E).astype(float),
                hedging=rng.exponential(0.8, E).round(1),
            )
        handed_E = quality_E
    frame = made.frame()
    wins_E = quality_E + rng.normal(0, 0.7, E) > 0
    frame["outcome"] = wins_E[frame["episode"]].astype(float)
    return frame.sort_values(["episode", "place", "turn"], kind="stable").reset_index(drop=True)


def _share_of_games(fault: Fault) -> float:
    return 0.4 if fault.name == "handover" else 0.0


def _coach(actions: pd.DataFrame, world: World, fault: Fault, rng: np.random.Generator) -> np.ndarray:
    seen_N = actions["quality"].to_numpy() + rng.normal(0, 0.6, len(actions))
    points_N = _on_scale(seen_N, world.scale)
    return _spoken(points_N + _planted(actions, points_N, fault, rng), world.scale, rng)


def _planted(actions: pd.DataFrame, points_N: np.ndarray, fault: Fault, rng: np.random.Generator) -> np.ndarray:
    late_N = (actions["time"] >= 0.5).to_numpy()
    standard = {
        "category": lambda: actions["second"],
        "topic": lambda: actions["topic"] < 2,
        "leniency": lambda: late_N,
        "turn_order": lambda: actions["place" if fault.how == "place" else "turn"],
        "handover": lambda: actions["games"] / 0.4,
        "length": lambda: (actions["tokens"] - 190) / 150,
        "style": lambda: (actions["markdown"] - 1.5) / 2,
    }
    if fault.name in standard:
        return fault.points * np.asarray(standard[fault.name](), float)
    if fault.name == "halo":
        mean_E = pd.Series(points_N).groupby(actions["episode"]).transform("mean").to_numpy()
        return mean_E - points_N + rng.normal(0, 0.2, len(points_N))
    if fault.name == "copying":
        return np.where(actions["outcome"] == 1, 8.0, 2.5) - points_N + rng.normal(0, 0.5, len(points_N))
    return np.zeros(len(points_N))


def _on_scale(seen_N: np.ndarray, scale: str) -> np.ndarray:
    """Quality in points before it is said. Its standard deviation is near 1.2."""
    if scale == "skewed":
        return 9.2 - 1.3 * np.exp(-0.7 * seen_N)
    if scale == "saturated":
        return 5 + 6.0 * seen_N
    return 5.5 + 1.2 * seen_N


def _spoken(points_N: np.ndarray, scale: str, rng: np.random.Generator) -> np.ndarray:
    """On the coach's grid, rounded up or down at random so that a fault keeps its size on average."""
    grid = {"halves": 0.5, "integers": 1.0, "ties": 2.5, "skewed": 1.0, "saturated": 1.0}[scale]
    return np.clip(np.floor(points_N / grid + rng.random(len(points_N))) * grid, 0, 10)


def _statuses(actions: pd.DataFrame, world: World, fault: Fault, rng: np.random.Generator) -> np.ndarray:
    """fault.points: by how much the share of failed calls is higher on the half that is hit."""
    chance_N = np.full(len(actions), world.failed)
    if fault.name == "failures":
        hit = {
            "bad": actions["quality"] < actions["quality"].median(),
            "long": actions["tokens"] > actions["tokens"].median(),
            "role": actions["role"] == 1,
        }[fault.how]
        chance_N = chance_N + fault.points * np.asarray(hit, float)
    return np.where(rng.random(len(actions)) < chance_N, "failed", "scored")


def _two_families(world: World, fault: Fault, rng: np.random.Generator) -> AuditData:
    """Two runs with policies of two families, each scored by coaches of both."""
    parts, models = [], {"east": "Qwen/Qwen2.5-7B", "west": "meta-llama/Llama-3.1-8B"}
    for run, model in models.items():
        team = _team(replace(world, draws=max(2, world.draws // 2)), fault, rng)
        team["quality"] += 0.3 * (run == "west")  # one family is the better player
        for coach in ("qwen-max", "llama-4"):
            scored = team.copy()
            kin = coach[:4] in model.lower()
            harsh = -0.7 * (coach == "llama-4")
            plain_N = _on_scale(team["quality"].to_numpy() + rng.normal(0, 0.6, len(team)), world.scale)
            scored["score"] = _spoken(plain_N + harsh + fault.points * kin, world.scale, rng)
            scored["status"], scored["run"], scored["policy"], scored["rater"] = "scored", run, model, coach
            parts.append(scored)
    scorers = {name: Scorer("", name, "") for name in ("qwen-max", "llama-4")}
    return _data(pd.concat(parts, ignore_index=True), world, rng, scorers)


def _data(actions: pd.DataFrame, world: World, rng: np.random.Generator, scorers: Mapping[str, Scorer]) -> AuditData:
    run = actions["run"] if "run" in actions else pd.Series("run", index=actions.index)
    rater = actions["rater"] if "rater" in actions else pd.Series("coach", index=actions.index)
    latest = actions.groupby("episode")[["place", "turn"]].transform("max")
    last_N = (actions["place"] == latest["place"]) & (actions["turn"] == latest["turn"])
    names = [f"{r}/{e}" for r, e in zip(run, actions["episode"], strict=True)]
    rows = zip(
        run,
        ["made-up"] * len(actions),
        actions["step"],
        names,
        [f"t{task}" for task in actions["task"]],
        np.where(actions["second"], "estimation", "decision"),
        [f"{name}/{p}.{t}" for name, p, t in zip(names, actions["place"], actions["turn"], strict=True)],
        [ROLES[role] for role in actions["role"]],
        actions["turn"],
        last_N,
        rater,
        rater,
        [""] * len(actions),
        actions["status"],
        np.where(actions["status"] == "scored", actions["score"], np.nan),
        actions["outcome"],
        actions["tokens"],
        rng.uniform(0.4, 0.8, len(actions)).round(2),
        actions["markdown"],
        actions["hedging"],
        [True] * len(actions),
        np.where(actions["crash"], "error", "ok"),
        strict=True,
    )
    frame = make_frame(rows)
    if "policy" in actions:
        frame["policy"] = actions["policy"].astype("category").to_numpy()
        frame["policy"] = frame["policy"].astype("category")
    nothing = pd.DataFrame(columns=["run", "pipeline", "step", "task", "category", "outcome"])
    texts = {f"t{t}": _text(SUBJECTS[(t * 7) % len(SUBJECTS)], rng) for t in range(world.tasks)}
    return AuditData(frame, nothing, scorers, [], {}, texts)


def _text(words: tuple[str, ...], rng: np.random.Generator) -> str:
    said = [*rng.choice(words, 5), *rng.choice(_COMMON, 6)]
    return "You are the first of three agents. Task: " + " ".join(rng.permutation(said)) + "."


FAIR: Mapping[str, World] = {
    "halves": World(),
    "whole numbers": World(scale="integers"),
    "five values, heavy ties": World(scale="ties"),
    "skewed to the top": World(scale="skewed"),
    "zeros and tens": World(scale="saturated"),
    "unequal groups, a quarter of one category": World(uneven=True, share_of_first_category=0.25),
    "two turns, failed calls": World(draws=8, turns=2, failed=0.05),
    "agents in any order": World(shuffled=True),
    "a team that gets better": World(progress=0.6),
    "16 tasks": World(tasks=16, draws=4),
    "8 tasks": World(tasks=8, draws=3),
}
