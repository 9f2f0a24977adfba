"""Does the quickstart's team learn, and is it the coach that teaches it?

    python benchmarks/learning/quickstart.py --out results --seeds 1 2 3
    python benchmarks/learning/quickstart.py --config one_gpu --steps 24 vllm.memory=0.3

Trains the shipped `configs/quickstart.yaml`, or the same team on one GPU, in a process of its own for each seed and
condition; further words are settings of every run:

    coach     scores from the rules coach, as shipped
    outcome   the episode's outcome, broadcast to every action: no coach
    shuffled  the coach's scores, permuted among the actions of each role: a control that must not learn

Writes `<out>/<config>.json` (every figure), `<config>.md` (the table) and `<config>.png`. What the JSON holds,
or is there already, is not run again. Seeds 1 and up, because the few-shot prompts were chosen on problems of seed 0.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from plot import plot_curves

from coachrl.config import load_config
from coachrl.stats import SHARE, paired_difference
from coachrl.tasks import load_tasks

CONDITIONS = {
    "coach": [],
    "outcome": ["algorithm.name=outcome"],
    "shuffled": ["reward.shuffle=true"],
}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
TITLES = {"quickstart": "Quickstart", "one_gpu": "One GPU"}
GAP = "train/sampler_trainer_logprob_gap/"
BEHAVIOURS = ("finish_rate", "response_tokens", "code", "code_success_rate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--config", choices=list(TITLES), default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--summary-only", action="store_true", help="Summarise the runs that are there.")
    parser.add_argument("settings", nargs="*", help="of every run, as key=value")
    args = parser.parse_intermixed_args()
    results = args.out / f"{args.config}.json"
    folder, kept = args.out / "runs" / args.config, read_results(results)
    if not args.summary_only:
        for seed in args.seeds:
            for condition in args.conditions:
                if (condition, seed, args.steps) not in kept:
                    settings = [f"seed={seed}", f"train.steps={args.steps}", *CONDITIONS[condition], *args.settings]
                    train(args.config, folder, f"{condition}-{seed}", settings)
    summarise(results, kept, [path for path in sorted(folder.glob("*")) if not path.is_symlink()])


def read_results(path: Path) -> dict[tuple[str, int, int], dict]:
    """Earlier results by condition, seed and steps."""
    results = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return {key(result): result for result in results}


def key(result: dict) -> tuple[str, int, int]:
    return result["condition"], result["seed"], result["steps"]


def train(config: str, folder: Path, name: str, settings: list[str]) -> None:
    """One run, kept only when it finished; without checkpoints, which would take gigabytes."""
    if finished(folder / name):
        return
    shutil.rmtree(folder / name, ignore_errors=True)
    command = [sys.executable, "-m", "coachrl.cli.main", "train", "--config", config, f"name={name}", f"out={folder}"]
    began = time.monotonic()
    subprocess.run([*command, "train.keep_checkpoints=0", *settings], check=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


def finished(run: Path) -> bool:
    """A run that ended well has its report."""
    return (run / "report.html").is_file()


def summarise(path: Path, kept: dict[tuple[str, int, int], dict], runs: list[Path]) -> None:
    found = {key(result): result for result in map(read_run, filter(finished, runs))}
    results = [result for _, result in sorted((kept | found).items())]
    rows = ["| condition | seeds | before | after | gain [95 % interval] |", "|---|---|---|---|---|"]
    for condition in CONDITIONS:
        mine = [result for result in results if result["condition"] == condition]
        if mine:
            rows.append(table_row(condition, mine))
    rows += ["", *difference_table(results), "", *chain_table(results), "", *step_table(results)]
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    curves = {c: [r["train_success"] for r in results if r["condition"] == c] for c in CONDITIONS}
    title = f"{TITLES[path.stem]}: share of fresh training problems solved, per step"
    plot_curves({c: runs for c, runs in curves.items() if runs}, path.with_suffix(".png"), title, "success")
    print("\n".join(rows))


def difference_table(results: list[dict]) -> list[str]:
    """The coach against the others, seed by seed: on the held-out problems at the end, and on the training problems of
    all steps but the first, which initial weights play. Those are new to a run, so that they tell of its way there."""
    rows = [
        "| difference [95 % interval] | seeds | held out, at the end | training problems, steps after the first |",
        "|---|---|---|---|",
    ]
    coach = [result for result in results if result["condition"] == "coach"]
    for condition in CONDITIONS:
        other = [result for result in results if result["condition"] == condition != "coach"]
        both = {result["seed"] for result in coach} & {result["seed"] for result in other}
        if both:
            end = paired_difference(draws(other, "after"), draws(coach, "after"), SHARE)
            way = paired_difference(trained(other), trained(coach), SHARE)  # None of runs of one step
            cells = " | ".join(each.interval(signed=True) if each is not None else "" for each in (end, way))
            rows.append(f"| coach minus {condition} | {len(both)} | {cells} |")
    return rows


def trained(results: list[dict]) -> dict[tuple[str, str], float]:
    """(seed, step) -> share of its training problems solved, of the steps after the first."""
    return {(str(r["seed"]), str(step)): share for r in results for step, share in r["train_success"] if step > 1}


def chain_table(results: list[dict]) -> list[str]:
    """What the gain is made of: means over seeds, before and after, by condition."""
    conditions = [c for c in CONDITIONS if any(r["condition"] == c for r in results)]
    rows = ["| share of held-out episodes | " + " | ".join(conditions) + " |", "|---" * (len(conditions) + 1) + "|"]
    for name in results[0]["behaviour_before"]:
        cells = []
        for condition in conditions:
            mine = [r for r in results if r["condition"] == condition]
            before, after = (np.mean([r[f"behaviour_{when}"][name] for r in mine]) for when in ("before", "after"))
            cells.append(f"{before:.2f} -> {after:.2f}")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return rows


def step_table(results: list[dict]) -> list[str]:
    """Of each condition: what a step takes, and how far engine and trainer were apart, where that was kept."""
    rows = ["| condition | a step, median | engine and trainer differ by at most, mean of a step |", "|---|---|---|"]
    for condition in CONDITIONS:
        mine = [r for r in results if r["condition"] == condition]
        if mine:
            took = float(np.median([seconds for r in mine for seconds in r["step_s"]]))
            gaps = [r["logprob_gap"] for r in mine if r.get("logprob_gap") is not None]
            rows.append(f"| {condition} | {took:.1f} s | {f'{max(gaps):.4f}' if gaps else ''} |")
    return rows


def read_run(run: Path) -> dict:
    """Everything that the table and the picture are made of, from one run's folder."""
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    condition, _, seed = run.name.rpartition("-")
    last = metrics[-1]
    return {
        "condition": condition,
        "seed": int(seed),
        "steps": last["step"],
        "train_success": [(m["step"], m["train/success"]) for m in metrics if "train/success" in m],
        "heldout_before": heldout(run, 0),
        "heldout_after": heldout(run, last["step"]),
        "behaviour_before": behaviour(metrics[0]) | chain(run, 0),
        "behaviour_after": behaviour(last) | chain(run, last["step"]),
        "step_s": [m["time/step_s"] for m in metrics if "time/step_s" in m],
        "logprob_gap": max((v for m in metrics for name, v in m.items() if name.startswith(GAP)), default=None),
    }


def heldout(run: Path, step: int) -> dict[str, bool]:
    """Held-out task -> success after `step`."""
    lines = (run / "episodes" / f"eval-{step:06d}.jsonl").read_text().splitlines()
    episodes = [json.loads(line) for line in lines]
    return {episode["task_id"]: episode["outcome"]["success"] for episode in episodes}


def chain(run: Path, step: int) -> dict[str, float]:
    """Where held-out episodes are won and lost, as shares of all of them.

    draft_is_expression: the solver wrote `a + b` and nothing else; draft_right: and its value is the answer;
    code_follows: the code printed the value of such a draft; answer_follows: the verifier boxed what the code printed.
    """
    config = load_config(run / "config.yaml")
    _, tasks = load_tasks(config)
    answers = {task.id: float(task.ground_truth.answer) for task in tasks}
    found = []
    for line in (run / "episodes" / f"eval-{step:06d}.jsonl").read_text().splitlines():
        episode = json.loads(line)
        draft, code, verdict = episode["actions"]
        value = value_of(draft["text"])
        printed = ((code["execution"] or {}).get("stdout") or "").strip()
        found.append(
            {
                "draft_is_expression": value is not None,
                "draft_right": value == answers[episode["task_id"]],
                "code_follows": value is not None and printed == f"{value:g}",
                "answer_follows": bool(printed) and f"\\boxed{{{printed}}}" in verdict["text"],
            }
        )
    return {name: float(np.mean([row[name] for row in found])) for name in found[0]}


def value_of(draft: str) -> float | None:
    """The value of a reply that is one operation on two numbers, else None."""
    match = re.fullmatch(r"\s*(\d+)\s*([-+*/])\s*(\d+)\s*", draft)
    if match is None or (match[2] == "/" and match[3] == "0"):
        return None
    return float(OPERATIONS[match[2]](int(match[1]), int(match[3])))


def behaviour(record: dict) -> dict[str, float]:
    prefix = "eval/behavior/"
    wanted = {key.removeprefix(prefix): value for key, value in record.items() if key.startswith(prefix)}
    return {key: value for key, value in wanted.items() if key.split("/")[0] in BEHAVIOURS}


def table_row(condition: str, results: list[dict]) -> str:
    """Means over seeds. A training seed is one observation, however many tasks it is evaluated on: the interval is over
    the seeds' paired gains."""
    before, after = (draws(results, when) for when in ("before", "after"))
    gain = paired_difference(before, after, SHARE)
    seeds = ", ".join(str(result["seed"]) for result in results)
    return f"| {condition} | {seeds} | {by_seed(before)} | {by_seed(after)} | {gain.interval(signed=True)} |"


def draws(results: list[dict], when: str) -> dict[tuple[str, str], float]:
    """(seed, held-out task) -> success."""
    return {
        (str(result["seed"]), task): float(success)
        for result in results
        for task, success in result[f"heldout_{when}"].items()
    }


def by_seed(observations: dict[tuple[str, str], float]) -> str:
    """The mean over seeds, and each seed's own."""
    values: dict[str, list[float]] = {}
    for (seed, _), value in observations.items():
        values.setdefault(seed, []).append(value)
    means = [float(np.mean(its)) for its in values.values()]
    return f"{np.mean(means):.2f} ({', '.join(f'{mean:.2f}' for mean in means)})"


if __name__ == "__main__":
    main()
