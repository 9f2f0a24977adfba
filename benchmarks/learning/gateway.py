"""Does a LangGraph app learn through the gateway as the same team learns as a pipeline?

    pip install -e '.[gateway]' langgraph langchain-openai
    python benchmarks/learning/gateway.py --seeds 0 1 2 --steps 6

Trains the quickstart's team by outcome alone, each run in a process of its own:

    langgraph  `examples/gateway/quickstart_langgraph.yaml`: an app that imports nothing of coachrl
    pipeline   `configs/quickstart.yaml` with algorithm.name=outcome

Both have the same seeds, so the same tasks and the same first weights. Writes `<out>/gateway.json` (every figure),
`gateway.md` (the tables) and `gateway.png` (held-out curves). Runs that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from plot import plot_curves
from quickstart import by_seed, draws, heldout, table_row

from coachrl.stats import SHARE, paired_difference

APP = Path(__file__).resolve().parents[2] / "examples" / "gateway"
CONDITIONS = {
    "langgraph": ["--config", "quickstart_langgraph.yaml"],
    "pipeline": ["--config", "quickstart", "algorithm.name=outcome"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--work", type=Path, default=Path("runs/gateway"), help="Folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--eval-every", type=int, default=3)
    args = parser.parse_args()
    results = []
    for seed in args.seeds:
        for condition in CONDITIONS:
            run = args.work.resolve() / f"{condition}-{seed}"
            if not has_reached(run, args.steps):
                train(run, condition, seed, args.steps, args.eval_every)
            results.append(read_run(run, condition, seed, args.steps))
            summarise(args.out, results)


def train(run: Path, condition: str, seed: int, steps: int, eval_every: int) -> None:
    """One run in the folder of the app, without checkpoints, which would take gigabytes."""
    shutil.rmtree(run, ignore_errors=True)
    overrides = [f"seed={seed}", f"train.steps={steps}", f"eval.every={eval_every}", "train.keep_checkpoints=0"]
    where = [f"name={run.name}", f"out={run.parent}"]
    command = [sys.executable, "-m", "coachrl.cli.main", "train", *CONDITIONS[condition], *overrides, *where]
    subprocess.run(command, check=True, cwd=APP)


def has_reached(run: Path, step: int) -> bool:
    """A run that went further will do: no setting depends on how long it is."""
    return any(m["step"] >= step and "eval/success" in m for m in read_metrics(run))


def read_metrics(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def read_run(run: Path, condition: str, seed: int, last: int) -> dict:
    """The first `last` steps of a run."""
    metrics = [m for m in read_metrics(run) if m["step"] <= last]
    by_step = {m["step"]: heldout(run, m["step"]) for m in metrics if "eval/success" in m}
    return {
        "condition": condition,
        "seed": seed,
        "steps": last,
        "train_success": [(m["step"], m["train/success"]) for m in metrics if "train/success" in m],
        "heldout_success": [(step, float(np.mean(list(found.values())))) for step, found in by_step.items()],
        "heldout_before": by_step[0],
        "heldout_after": by_step[last],
        "faulty": [m["train/faulty_fraction"] for m in metrics if "train/faulty_fraction" in m],
    }


def summarise(out: Path, results: list[dict]) -> None:
    by_condition = {c: [r for r in results if r["condition"] == c] for c in CONDITIONS}
    by_condition = {condition: mine for condition, mine in by_condition.items() if mine}
    rows = ["| condition | seeds | before | after | gain [95 % interval] |", "|---|---|---|---|---|"]
    rows += [table_row(condition, mine) for condition, mine in by_condition.items()]
    rows += ["", *difference(by_condition)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "gateway.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (out / "gateway.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    curves = {condition: [r["heldout_success"] for r in mine] for condition, mine in by_condition.items()}
    plot_curves(curves, out / "gateway.png", "The quickstart's team, as a LangGraph app and as a pipeline")
    print("\n".join(rows), flush=True)


def difference(by_condition: dict[str, list[dict]]) -> list[str]:
    """LangGraph's less the pipeline's, of the same seeds and tasks, before training and after."""
    if len(by_condition) < len(CONDITIONS):
        return []
    rows = ["| held-out success | langgraph | pipeline | difference [95 % interval] |", "|---|---|---|---|"]
    for when in ("before", "after"):
        app, pipeline = (draws(by_condition[condition], when) for condition in ("langgraph", "pipeline"))
        gap = paired_difference(pipeline, app, SHARE)
        rows.append(f"| {when} | {by_seed(app)} | {by_seed(pipeline)} | {gap.interval(signed=True)} |")
    return rows


if __name__ == "__main__":
    main()
