"""A README.md beside saved weights: what trained them, on what, with which coach, and what came of it.

It is written in the form that the Hugging Face hub reads: a YAML header, then Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from coachrl import __version__
from coachrl.config import RunConfig, TrainConfig
from coachrl.config.algorithm import algorithm_label
from coachrl.runs import checkpoints
from coachrl.storage.atomic import write_aside
from coachrl.text import counted, one_line
from coachrl.types import Role

CARD = "README.md"
_CHOSEN = (
    "",
    "Where this checkpoint was chosen as the best of several evaluations, its figure tends to be too high: tasks that "
    "the run has not seen measure it fairly.",
)


def write_cards(
    folder: Path,
    step: int,
    config: RunConfig,
    rewards: str,
    roles: Sequence[Role],
    metrics: Sequence[Mapping[str, Any]],
) -> None:
    """A card in each model's folder of the checkpoint `folder`. rewards: who rewarded the actions, in words. metrics:
    the run's lines up to `step`."""
    for place in checkpoints.policies(folder):
        write_aside(place / CARD, model_card(place.name, step, config, rewards, roles, metrics))


def model_card(
    policy: str,
    step: int,
    config: RunConfig,
    rewards: str,
    roles: Sequence[Role],
    metrics: Sequence[Mapping[str, Any]],
) -> str:
    """The text of the card of one policy."""
    base = config.initial_model(policy)
    header: dict[str, Any] = {
        "library_name": "transformers",
        "tags": ["coachrl", "reinforcement-learning", "multi-agent"],
    }
    if not Path(base).is_absolute() and base.count("/") == 1:  # a folder of this machine means nothing elsewhere
        header["base_model"] = base
    played = [role for role in roles if role.policy == policy]
    who = ", ".join(f"`{role.name}`" for role in played)
    lines = [
        f"# {policy}, of a team trained by coachrl",
        "",
        f"The weights that {who or policy} "
        f"{'play' if len(played) > 1 else 'plays'} with in the pipeline "
        f"`{config.pipeline.name}`, after {step} of {config.train.steps} training steps. They were trained as part of "
        "a team: alone, and with other prompts, they may do less.",
        "",
        *(f"- **{role.name}**: {one_line(role.description, 400) or 'no description'}" for role in played),
        "",
        "| | |",
        "|---|---|",
        f"| initial weights | `{Path(base).name if Path(base).is_absolute() else base}` |",
        f"| tasks | `{config.tasks.source}` |",
        f"| rewards | {rewards} |",
        f"| algorithm | `{algorithm_label(config.algorithm)}` |",
        f"| learning rate | {_learning_rate(config.train)} |",
        f"| episodes a step | {config.train.tasks_per_step * config.train.group_size} |",
        f"| seed | {config.seed} |",
        f"| coachrl | {__version__} |",
        "",
        *_measured(step, metrics),
        *(_CHOSEN if config.train.keep_best else ()),
    ]
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n" + "\n".join(lines) + "\n"


def _learning_rate(train: TrainConfig) -> str:
    """The highest, and what becomes of it where it is not the same in every step."""
    schedule = "" if train.lr_schedule == "constant" else f", {train.lr_schedule}"
    warmup = f", {counted(train.warmup_steps, 'step')} of warm-up" if train.warmup_steps else ""
    return f"{train.learning_rate:g}{schedule}{warmup}"


def _measured(step: int, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Held-out success before training and last; the run's own figures, no benchmark."""
    evaluated = [line for line in metrics if "eval/success" in line and line["step"] <= step]
    if not evaluated:
        return ["No held-out evaluation was made up to this step."]
    ends = evaluated[:1] if len(evaluated) == 1 else [evaluated[0], evaluated[-1]]
    rows = [f"| {line['step']} | {line['eval/success']:.3f} | {line.get('eval/episodes', 0):.0f} |" for line in ends]
    return [
        "Held-out success of the whole team, as the run measured it:",
        "",
        "| step | success | episodes |",
        "|---|---|---|",
        *rows,
    ]
