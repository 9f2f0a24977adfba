"""What a team learns from equally many tokens: coach, counterfactual credit, MAGRPO, GRPO and a single agent, in one
table as C3's (arXiv 2603.06859). Hours on two cores; `--tiny` takes minutes and shows only that it runs.

    python benchmarks/learning/equal_budget.py --out results

Every condition trains the quickstart's task from the same weights, in a process of its own for each seed, until the run
has drawn `--tokens`: generated tokens, those of the coach's calls and those of replay all count. A run goes on by
steps, is looked at after each, and ends with the step that crosses the budget; success after it is measured on the
held-out tasks, whose tokens do not count. Writes `<out>/equal_budget.json` and `.md`. What is finished is not run
again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes
from coachrl.stats import SHARE, Estimate, estimate_mean, paired_difference

SINGLE = "pipeline={name: single_agent:SingleAgent, max_new_tokens: 40}"
AFTER = "after.jsonl"  # the episodes of the last evaluation, in the run's folder
GROUPS = ["train.group_size=4", "train.tasks_per_step=8"]


@dataclass(frozen=True)
class Condition:
    """One way to train. config: a shipped configuration; overrides: what is changed of it."""

    name: str
    config: str
    overrides: Sequence[str]


@dataclass(frozen=True)
class Result:
    """A finished run. tokens: all that its training drew, by whom. before, after: success of each held-out draw."""

    condition: str
    seed: int
    steps: int
    tokens: dict[str, float]
    before: dict[str, bool]
    after: dict[str, bool]
    turns: dict[str, float] = field(default_factory=dict)


CONDITIONS = [
    Condition("coach", "quickstart", []),
    Condition("counterfactual", "quickstart", ["algorithm={name: counterfactual}", "train.tasks_per_step=8"]),
    Condition("MAGRPO", "quickstart", ["algorithm={name: outcome_groups:OutcomeMAGRPO}", *GROUPS]),
    Condition("GRPO", "quickstart", ["algorithm={name: outcome_groups:OutcomeGRPO, group_by: role}", *GROUPS]),
    Condition("outcome", "quickstart", ["algorithm.name=outcome"]),
    Condition("single agent", "quickstart", ["algorithm={name: outcome_groups:OutcomeGRPO}", SINGLE, *GROUPS]),
]
"""All but the first have the outcome alone to learn from."""
TINY = ["train.tasks_per_step=2", "tasks.heldout_count=4", "eval.samples_per_task=1"]


def arguments(about: str | None, tokens: int | None, steps: int) -> argparse.ArgumentParser:
    """What every comparison takes. tokens: the default budget; None where runs end by their steps alone."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    if tokens is not None:
        parser.add_argument("--tokens", type=int, default=tokens, help="The budget of one run, in generated tokens.")
    parser.add_argument("--steps", type=int, default=steps, help="The most steps that a run takes.")
    parser.add_argument("--tiny", action="store_true", help="Few and small tasks: to see that it runs.")
    parser.add_argument("overrides", nargs="*", help="Settings of every run, e.g. torch.threads=2")
    return parser


def main() -> None:
    parser = arguments(__doc__, tokens=400_000, steps=40)
    parser.add_argument("--conditions", nargs="+", choices=[c.name for c in CONDITIONS])
    args = parser.parse_args()
    chosen = [c for c in CONDITIONS if args.conditions is None or c.name in args.conditions]
    shared = [*(TINY if args.tiny else []), *args.overrides]
    conditions = [Condition(c.name, c.config, [*c.overrides, *shared]) for c in chosen]
    run_all("equal_budget", args.out, conditions, args.seeds, args.steps, args.tokens)


def run_all(
    name: str, out: Path, conditions: Sequence[Condition], seeds: Sequence[int], steps: int, tokens: int
) -> list[Result]:
    """Train what is not there yet, then write `<out>/<name>.json` and `.md`."""
    found = []
    for condition, seed, run in finished_runs(name, out / "runs", conditions, seeds, steps, tokens):
        found.append(result_of(run, condition, seed))
        write(name, out, found, tokens)
    return found


def finished_runs(
    name: str, runs: Path, conditions: Sequence[Condition], seeds: Sequence[int], steps: int, tokens: float
) -> Iterator[tuple[str, int, Run]]:
    """Condition, seed and run, one after the other: what is not there yet is trained first. A seed's conditions are
    done before the next seed."""
    for seed in seeds:
        for condition in conditions:
            folder = runs / f"{name}-{condition.name.replace(' ', '-')}-{seed}"
            if not (folder / "finished").exists():
                train(folder, condition, seed, steps, tokens)
            yield condition.name, seed, Run.open(folder)


def train(folder: Path, condition: Condition, seed: int, steps: int, tokens: float) -> None:
    """One run, stopped behind the step with which its budget is spent, with a checkpoint, as SIGTERM asks it to. What
    was under way by then is given up. That checkpoint is evaluated, and not kept: it is large. A run that took all of
    its steps has evaluated itself."""
    shutil.rmtree(folder, ignore_errors=True)
    settings = [f"seed={seed}", f"train.steps={steps}", "train.checkpoint_every=1000", f"eval.every={steps}"]
    command = [sys.executable, "-m", "coachrl.cli.main", "train", "--config", condition.config]
    place = [f"name={folder.name}", f"out={folder.parent}"]
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])  # for outcome_groups
    arguments = [*command, *condition.overrides, *settings, *place]
    with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": here}) as process:
        while process.poll() is None and spent(folder) < tokens:
            time.sleep(1)
        process.terminate()  # once: a second signal would end it without a checkpoint
    if process.returncode != 0 and spent(folder) < tokens:
        raise SystemExit(f"{folder.name} failed; see {folder / 'log.txt'}")
    own = folder / "episodes" / f"eval-{steps:06d}.jsonl"
    if (folder / "report.html").exists() and own.exists():
        shutil.copy(own, folder / AFTER)
    else:
        evaluate = [sys.executable, "-m", "coachrl.cli.main", "eval", "--run", str(folder)]
        ending = ["--episodes", str(folder / AFTER)]
        subprocess.run([*evaluate, *ending], check=True, env={**os.environ, "PYTHONPATH": here})
    shutil.rmtree(folder / "checkpoints")
    (folder / "finished").touch()


def spent(folder: Path) -> float:
    """What the steps that are written down have drawn."""
    if not (folder / "metrics.jsonl").exists():
        return 0.0
    run = Run.open(folder)
    return sum(tokens_of(run, record)["all"] for record in run.metrics())


def tokens_of(run: Run, record: dict) -> dict[str, float]:
    """Tokens of one step: drawn by the team, by replay and by the coach."""
    parts = {"team": record.get("tokens/generated", 0.0), "replay": record.get("tokens/replayed", 0.0), "coach": 0.0}
    if record["step"] > 0:
        _, scores = run.read_episodes(f"step-{record['step']:06d}")
        parts["coach"] = float(sum(score.usage.tokens_in + score.usage.tokens_out for score in scores.values()))
    return {**parts, "all": sum(parts.values())}


def result_of(run: Run, condition: str, seed: int) -> Result:
    """The first evaluation and the last whose step is written down."""
    records = run.metrics()
    used = [tokens_of(run, record) for record in records]
    last = records[-1]
    turns = {key.rpartition("/")[2]: value for key, value in last.items() if key.startswith("behavior/turns/")}
    return Result(
        condition,
        seed,
        last["step"],
        {part: sum(one[part] for one in used) for part in used[0]},
        successes(run.folder / "episodes" / "eval-000000.jsonl"),
        successes(run.folder / AFTER),
        turns,
    )


def successes(file: Path) -> dict[str, bool]:
    """Held-out draw, by its name without the evaluation's -> whether it succeeded."""
    found = [one.episode for one in read_episodes(file, [])]
    return {e.id.partition(".")[2]: e.outcome.success for e in found if e.infra_error is None}


def write(name: str, out: Path, results: Sequence[Result], tokens: int) -> None:
    rows = [
        f"Budget of a run: {tokens:,} tokens. Intervals: over held-out tasks, with all seeds' draws; then over seeds.",
        "",
        "| condition | seeds | steps | tokens (team + replay + coach) | before | after | gain | range over seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for condition in dict.fromkeys(result.condition for result in results):
        rows.append(table_row(condition, [result for result in results if result.condition == condition]))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    print("\n".join(rows), flush=True)


def table_row(condition: str, mine: Sequence[Result]) -> str:
    before, after = observations(mine, "before"), observations(mine, "after")
    gain = paired_difference(before, after, SHARE)
    ends = [np.mean(list(result.after.values())) for result in mine]
    used = [" + ".join(f"{r.tokens[part]:,.0f}" for part in ("team", "replay", "coach")) for r in mine[:1]]
    cells = [
        condition,
        str(len(mine)),
        "–".join(map(str, sorted({min(r.steps for r in mine), max(r.steps for r in mine)}))),
        used[0],
        shown(estimate_mean(before, SHARE)),
        shown(estimate_mean(after, SHARE)),
        shown(gain, signed=True),
        f"{min(ends):.2f} to {max(ends):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def observations(results: Sequence[Result], when: str) -> dict[tuple[str, str], float]:
    """(task, seed and draw) -> success. A draw is named by its task and number."""
    return {
        (draw.rpartition(".")[0], f"{result.seed}.{draw}"): float(success)
        for result in results
        for draw, success in getattr(result, when).items()
    }


def shown(estimate: Estimate | None, signed: bool = False) -> str:
    return "–" if estimate is None else estimate.interval(signed)


if __name__ == "__main__":
    main()
