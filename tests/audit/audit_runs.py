"""Small run folders with made-up scores, as coachrl writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from coachrl.config import parse_config
from coachrl.runs.folder import Run
from coachrl.runs.reading import training_episodes
from coachrl.testing.actions import make_action
from coachrl.types import Action, CoachScore, Episode, Execution, Outcome

ROLES = ("problem_solver", "code_executor", "verifier")
Judge = Callable[[Episode, Action, np.random.Generator], float | None]


def fair(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return float(np.clip(round(4 + 3 * episode.outcome.success + rng.normal(0, 1)), 0, 10))


def likes_sums(episode: Episode, action: Action, rng: np.random.Generator) -> float:
    return min(10.0, fair(episode, action, rng) + 2 * (episode.task_category == "sum"))


def make_episodes(
    label: str, tasks: int, draws: int, rng: np.random.Generator, pipeline: str = "mathchat"
) -> list[Episode]:
    """`draws` episodes of each task; even tasks are of category product, odd ones of category sum."""
    made = []
    for task in range(tasks):
        for draw in range(draws):
            episode_id = f"{label}.{task:03d}.t{task}.{draw}"
            success = bool(rng.random() < 0.5)
            actions = tuple(_action(episode_id, index, role, success, rng) for index, role in enumerate(ROLES))
            category = ("product", "sum")[task % 2]
            made.append(Episode(episode_id, f"t{task}", category, pipeline, actions, Outcome(success)))
    return made


def write_run(
    out: Path,
    judge: Judge | None = fair,
    *,
    name: str = "run",
    steps: int = 2,
    tasks: int = 16,
    draws: int = 2,
    pipeline: str = "mathchat",
    coach: str = "made-up",
    outcome_to: str = "last",
) -> Run:
    """judge: the score of each action, None for a failed call. No judge: a run without scores."""
    rng = np.random.default_rng(0)
    run = Run.create(
        parse_config({"name": name, "out": str(out), "coach": {"evidence": {"ground_truth": outcome_to}}}, "")
    )
    for step in range(1, steps + 1):
        label = f"step-{step:06d}"
        episodes = make_episodes(label, tasks, draws, rng, pipeline)
        run.write_episodes(label, episodes, scores_of(episodes, judge, coach, rng) if judge else {})
    for step in (0, steps):
        label = f"eval-{step:06d}"
        run.write_episodes(label, make_episodes(label, tasks, 1, rng, pipeline), {})
    return run


def scores_of(episodes: list[Episode], judge: Judge, coach: str, rng: np.random.Generator) -> dict[str, CoachScore]:
    return {
        action.id: CoachScore(
            action.id, "failed" if score is None else "scored", score, rationale=f"so says {coach}", model=coach
        )
        for episode in episodes
        for action in episode.actions
        for score in [judge(episode, action, rng)]
    }


def write_rescore(run: Run, label: str, judge: Judge, *, coach: str = "other", repeat: int = 0, seed: int = 1) -> Path:
    """`rescores/<label>/` of all training episodes."""
    rng = np.random.default_rng(seed)
    folder = run.folder / "rescores" / label
    folder.mkdir(parents=True)
    episodes = [scored.episode for scored in training_episodes(run)]
    scores = scores_of(episodes, judge, coach, rng)
    (folder / "scores.jsonl").write_text("".join(json.dumps(asdict(score)) + "\n" for score in scores.values()))
    about = {"coach": coach, "prompt": "p.md", "prompt_hash": "ab" * 32, "repeat": repeat, "created": "2026-01-01"}
    (folder / "coach.json").write_text(json.dumps(about))
    return folder


def change_scores(run: Run, change: Callable[[dict[str, object]], Mapping[str, object]]) -> None:
    """Rewrite each saved score of the run."""
    for path in run.episode_files():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for action in (action for record in records for action in record["actions"] if action["score"]):
            action["score"] = change(action["score"])
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _action(episode_id: str, index: int, role: str, success: bool, rng: np.random.Generator) -> Action:
    runs = role == "code_executor"
    length = int(rng.integers(10, 60))
    return make_action(
        role,
        episode=episode_id,
        index=index,
        response_ids=(5,) * length,
        finish_reason="stop" if rng.random() < 0.8 else "length",
        prompt_text="How many?",
        text="Maybe:\n```python\nprint(7)\n```" if runs else "**7**, I think." + " indeed" * int(rng.integers(0, 4)),
        code="print(7)\n" if runs else None,
        execution=Execution("ok" if success else "error", "7\n", "", 0) if runs else None,
    )
