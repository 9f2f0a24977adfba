"""What a run would do, before it does it: `coachrl train --dry-run`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from coachrl.assembly import needs_coach, policies_of
from coachrl.config import RunConfig
from coachrl.pipelines import make_pipeline
from coachrl.tasks import load_tasks

KEY_VARIABLES = (
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
)


@dataclass(frozen=True)
class Plan:
    """Ranges are (least, most): an agent may end its part after its first turn or use all of its turns."""

    pipeline: str
    policies: dict[str, str]
    tasks: tuple[int, int]
    steps: int
    episodes: int
    coach: str
    coach_calls: tuple[int, int]
    generated_tokens_most: int
    heldout_episodes: int
    keys_found: tuple[str, ...]

    def lines(self) -> list[str]:
        """The plan for people."""
        shown = ", ".join(f"{name} ({model})" for name, model in self.policies.items())
        least, most = self.coach_calls
        return [
            f"pipeline          {self.pipeline}",
            f"policies          {shown}",
            f"tasks             {self.tasks[0]} training, {self.tasks[1]} held out",
            f"training          {self.steps} steps, {self.episodes} episodes",
            f"held-out          {self.heldout_episodes} episodes in all evaluations",
            f"coach             {self.coach}: {least:,} to {most:,} calls",
            f"generated tokens  at most {self.generated_tokens_most:,}",
            f"keys found        {', '.join(self.keys_found) or 'none'}",
        ]


def make_plan(config: RunConfig) -> Plan:
    """Counts for `config`, without loading a model. Raises what the run itself would raise for names and tasks."""
    pipeline = make_pipeline(config.pipeline)
    policies = policies_of(config, pipeline)
    train_tasks, heldout_tasks = load_tasks(config.tasks, config.seed)
    settings = config.train
    episodes = settings.steps * settings.batch_size * settings.samples_per_task
    every = config.eval.every
    evaluations = 2 + (sum(1 for step in range(1, settings.steps) if step % every == 0) if every else 0)
    heldout_episodes = evaluations * len(heldout_tasks) * config.eval.samples_per_task
    turns = sum(role.max_turns for role in pipeline.roles)
    tokens = sum(role.max_turns * role.max_new_tokens for role in pipeline.roles)
    asked = needs_coach(config)
    return Plan(
        pipeline=pipeline.name,
        policies={name: policy.model or config.model for name, policy in policies.items()},
        tasks=(len(train_tasks), len(heldout_tasks)),
        steps=settings.steps,
        episodes=episodes,
        coach=config.coach.name if asked else "none (outcome rewards)",
        coach_calls=(episodes * len(pipeline.roles), episodes * turns) if asked else (0, 0),
        generated_tokens_most=(episodes + heldout_episodes) * tokens,
        heldout_episodes=heldout_episodes,
        keys_found=tuple(name for name in KEY_VARIABLES if os.environ.get(name)),
    )
