"""Runs to make reports of, without training, and a reader of pages."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from coachrl.config import parse_config
from coachrl.runs.folder import Run
from coachrl.testing.actions import make_action
from coachrl.trainers.metrics import behavior_metrics, outcome_metrics, score_metrics
from coachrl.types import CoachScore, Episode, Execution, Outcome

ROLES = ("problem_solver", "code_executor", "verifier")
CODE = "I will compute it.\n```python\napples = 3 + 4\nprint(apples)\n```"
HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }} &lt; \x00 ]]> \ud800 \u202e"


def make_episode(
    episode_id: str, task_id: str, category: str, skill: float, rng: np.random.Generator
) -> tuple[Episode, dict[str, CoachScore]]:
    """An episode of three roles that goes well with probability `skill`, and a score for each action."""
    actions, scores = [], {}
    for index, role in enumerate(ROLES):
        good = bool(rng.random() < skill)
        runs = role == "code_executor"
        length = int(rng.integers(20, 60) if good else rng.integers(80, 128))
        state = "ok" if good else "error"
        execution = Execution(
            state, "7\n" if good else "", "" if good else "NameError: name 'x' is not defined", 0, (), 0.04
        )
        action = make_action(
            role,
            CODE if runs else f"3 + 4 = 7, so the answer is \\boxed{{{7 if good else 12}}}.",
            episode=episode_id,
            index=index,
            prompt_ids=tuple(range(40)),
            response_ids=tuple(range(length)),
            logprobs=(-0.5,) * length,
            finish_reason="stop" if good else "length",
            prompt_text=f"Tom has 3 apples and gets 4 more. How many has he? You are the {role}.",
            code="apples = 3 + 4\nprint(apples)" if runs else None,
            execution=execution if runs else None,
            files_after=("notes.txt",) if runs else (),
        )
        score = 10.0 if good else float(rng.integers(1, 5))
        scores[action.id] = CoachScore(action.id, "scored", score, rationale="it ended by itself\nthe answer is boxed")
        actions.append(action)
    solved = bool(rng.random() < skill)
    outcome = Outcome(solved, {"correct": float(solved)}, "" if solved else "the boxed answer is 12, not 7")
    return Episode(episode_id, task_id, category, "mathchat", tuple(actions), outcome, 2.0), scores


def add_evaluation(run: Run, step: int, tasks: int, skill: float, rng: np.random.Generator) -> dict[str, float]:
    made = [
        make_episode(f"eval-{step:06d}.heldout-{t:03d}.0", f"heldout-{t:03d}", f"{1 + t % 2}-step", skill, rng)[0]
        for t in range(tasks)
    ]
    run.write_episodes(f"eval-{step:06d}", made, {})
    metrics = {f"eval/{key}": value for key, value in {**outcome_metrics(made), **behavior_metrics(made)}.items()}
    return {**metrics, "time/eval_s": 21.0}


def synthetic_run(out: Path, steps: int = 12, planned: int = 12, seed: int = 0, tasks: int = 24) -> Run:
    """A run's folder with made-up numbers in which training works."""
    rng = np.random.default_rng(seed)
    run = Run.create(
        parse_config({"name": "synthetic", "out": str(out), "train": {"steps": planned, "tasks_per_step": 8}}, "")
    )
    run.append_metrics({"step": 0, **add_evaluation(run, 0, tasks, 0.15, rng)})
    for step in range(1, steps + 1):
        skill = 0.15 + 0.6 * step / planned
        made = [make_episode(f"step-{step:06d}.{i:03d}.t{i}.0", f"t{i}", "1-step", skill, rng) for i in range(8)]
        episodes = [episode for episode, _ in made]
        scores = {key: score for _, its_scores in made for key, score in its_scores.items()}
        run.write_episodes(f"step-{step:06d}", episodes, scores)
        metrics = {f"train/{key}": value for key, value in outcome_metrics(episodes).items()}
        metrics |= {**score_metrics(episodes, scores), **behavior_metrics(episodes)}
        for role in ROLES:
            metrics |= {f"train/reward/{role}": metrics[f"coach/score/{role}"] * (1 + 1e-15)}  # summed elsewhere
            metrics |= {f"train/ref_kl/{role}": 0.004 * step * float(rng.uniform(0.7, 1.3))}
            metrics |= {f"train/grad_norm/{role}": float(rng.uniform(0.5, 2.0))}
            metrics |= {f"train/clip_fraction/{role}": float(rng.uniform(0, 0.0015))}
        metrics["train/masked/truncated"] = float(rng.integers(0, 5))
        times = {
            f"time/{n}_s": float(rng.uniform(0.8, 1.2)) * s
            for n, s in {"rollout": 20, "coach": 1, "reference": 4, "update": 14, "sync": 0.3}.items()
        }
        metrics |= {**times, "time/step_s": sum(times.values()), "tokens/generated": 2100.0, "cost/usd": 0.0}
        if step in (planned // 2, planned):
            metrics |= add_evaluation(run, step, tasks, skill, rng)
        run.append_metrics({"step": step, **metrics})
    return run


class Outline(HTMLParser):
    """Tags that are left open, and every tag with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.seen if tag == name]


def read(path: Path) -> Outline:
    outline = Outline(path.read_text(encoding="utf-8"))
    assert outline.open == []
    return outline
