"""What ends a run that does not learn: more failures than its settings allow, or nothing that could be trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from shlex import quote
from typing import Any

from coachrl.config import RunConfig
from coachrl.errors import NothingTrained
from coachrl.runs.folder import Run
from coachrl.text import counted, one_line
from coachrl.trainers.masking import left_out_in_words


def too_much_failed(metrics: Mapping[str, Any], config: RunConfig, last_failure: str = "") -> str | None:
    """Which of a step's failures are more than the settings allow, in words; None where all are bearable. last_failure:
    why the coach's last call that failed did."""
    failed, allowed = metrics.get("coach/failed_fraction", 0.0), config.coach.max_failed_fraction
    faulty, bearable = metrics["train/faulty_fraction"], config.train.max_faulty_fraction
    overflowed = metrics["train/overflowed_fraction"]
    unheld = max((v for k, v in metrics.items() if k.startswith("train/out_of_memory/")), default=0.0)
    if failed > allowed:
        last = f", the last with: {one_line(last_failure, 200)}" if last_failure else ""
        return f"{failed:.0%} of the coach's calls failed{last} (coach.max_failed_fraction is {allowed:.0%})"
    if faulty > bearable:
        return f"{faulty:.0%} of the episodes broke (train.max_faulty_fraction is {bearable:.0%})"
    if unheld > bearable:
        return f"{unheld:.0%} of a policy's samples did not fit into memory; lower torch.micro_batch_tokens"
    if overflowed > bearable:
        return f"in {overflowed:.0%} of the episodes a prompt did not fit the model's context"
    return None


def untrained(steps: Iterable[Mapping[str, Any]]) -> str:
    """That all steps of training left all of their actions out, and why; empty where one did not, or there is none."""
    trained = [metrics for metrics in steps if "train/trained_actions" in metrics]
    if not trained or any(metrics["train/trained_actions"] for metrics in trained):
        return ""
    in_all: Counter[str] = Counter()
    for metrics in trained:
        in_all.update({key: value for key, value in metrics.items() if key.startswith("train/masked/")})
    why = "; ".join(left_out_in_words(in_all)) or (
        "no episode had an action to train on, as where a pipeline's `run` forgets the `await` of `await "
        "team.ROLE.act(…)`"
    )
    return f"nothing was trained in {counted(len(trained), 'step')}, and the weights are what they were: {why}"


def require_training(run: Run) -> None:
    """Raises NothingTrained where every step of the run left all of its actions out."""
    if said := untrained(run.metrics()):
        raise NothingTrained(f"{said} (coachrl view {quote(str(run.folder))} shows the episodes)")
