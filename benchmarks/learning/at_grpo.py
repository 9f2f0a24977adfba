"""Do groups by agent and turn beat groups by task, and does training together beat training apart?

    python benchmarks/learning/at_grpo.py --name at_grpo_80 --seeds 1 2 3 4 5 6 7 8
    python benchmarks/learning/at_grpo.py --name at_grpo_shaped --size 4 --rewards shaped --steps 100 --eval-every 25 \\
        --learning-rate 5e-4 --heldout 200

The claims of Stronger-MAS (Tables 1 and 4) at the smallest size: Plan-Path mazes of 3 x 3 cells, rewards for success
and a readable answer only (App. B.6) or those of App. B.4, and a model of a hundred thousand weights that is made on
the spot: trained from scratch, once for each seed, on a few hundred answers of a player who is right half of the time.
Both roles and every condition start from it. The tool states its list of moves directly: so small a model writes no
code.

    at_grpo  tree sampling, K candidates for each agent and turn, groups by agent and turn; both roles together
    grpo     K whole episodes of each maze side by side, one group for all actions of a maze; both roles together
    apart    at_grpo for each role in a team of one, as many steps; then both play together

Each draws K replies for each role, turn and maze of a step; a tree goes on from its best, so that it ends sooner and
draws fewer. `swapped` is at_grpo's team at its end, with the two roles' weights exchanged. Evaluation draws replies as
training does, on mazes that no training and no demonstration has seen. Runs that are there are not run again. Writes
`<out>/<name>.json`, `.md` and `.png`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import time
from pathlib import Path

from plot import plot_curves
from quickstart import table_row
from rich.console import Console
from tiny_planner import warm_model, write_prompts

from coachrl.commands.run import evaluate_run, train_run
from coachrl.config import RunConfig, load_config
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl

TURNS, CANDIDATES = 2, 4
CONDITIONS = {
    "at_grpo": ["sampling.scheme=tree", f"sampling.candidates={CANDIDATES}", "algorithm.name=at_grpo"],
    "grpo": ["algorithm.name=grpo", f"train.group_size={CANDIDATES}"],
}
ROLES = ("tool", "planner")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--work", type=Path, default=Path("runs/at_grpo"), help="Folder of models and runs")
    parser.add_argument("--name", default="at_grpo", help="Of the files in --out")
    parser.add_argument("--size", type=int, default=3, help="Rows and columns of a maze")
    parser.add_argument("--rewards", choices=["outcome", "shaped"], default="outcome")
    parser.add_argument("--heldout", type=int, default=100, help="Mazes of one evaluation")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=16, help="Mazes of one step")
    parser.add_argument("--demos", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--summary-only", action="store_true", help="Summarise the runs that are there.")
    args = parser.parse_args()
    for seed in [] if args.summary_only else args.seeds:
        asyncio.run(run_seed(args, seed))
    summarise(args, [json.loads(path.read_text()) for path in sorted(args.work.glob("seed-*/*.result.json"))])


async def run_seed(args: argparse.Namespace, seed: int) -> None:
    folder = args.work / f"seed-{seed}"
    prompts = write_prompts(folder / "prompts")
    if not (folder / "warm.json").is_file():
        shutil.rmtree(folder / "warm", ignore_errors=True)
        began = time.process_time()
        losses = warm_model(folder, seed, args.size, args.demos, args.epochs)
        (folder / "warm.json").write_text(json.dumps(losses | {"cpu_s": time.process_time() - began}))
    options = f"turns: {TURNS}, rewards: {args.rewards}"
    base = [
        *(f"model={folder / 'warm'}", f"out={folder}", f"seed={seed}", "torch.threads=1"),
        *("torch.generation_batch=256", "torch.micro_batch_tokens=8192"),
        *("pipeline.name=planpath", f"pipeline.prompts={prompts}", "pipeline.max_new_tokens=16"),
        f"pipeline.options={{{options}}}",
        *("tasks.source=planpath", f"tasks.size={args.size}", "tasks.train_count=500"),
        f"tasks.heldout_count={args.heldout}",
        *("reward.source=environment", "train.mask_truncated=false"),
        *(
            f"train.steps={args.steps}",
            f"train.tasks_per_step={args.batch}",
            f"train.learning_rate={args.learning_rate}",
        ),
        *(f"eval.every={args.eval_every}", "eval.temperature=1.0"),
    ]
    talks = ["pipeline.roles.tool.python=false"]
    for condition, settings in CONDITIONS.items():
        await together(folder, condition, seed, [*base, *talks, *settings])
    await swapped(folder, seed, [*base, *talks])
    await apart(folder, seed, base, talks, options)


async def together(folder: Path, condition: str, seed: int, overrides: list[str]) -> None:
    target = folder / f"{condition}.result.json"
    if not target.is_file():
        run, cpu_s = await train(load_config(None, [*overrides, f"name={condition}"]))
        target.write_text(json.dumps(result(condition, seed, run, cpu_s)))


async def swapped(folder: Path, seed: int, overrides: list[str]) -> None:
    """The team that at_grpo trained, as it is and with its weights exchanged."""
    target = folder / "swapped.result.json"
    if target.is_file():
        return
    run = Run.open(folder / "at_grpo")
    config, played = load_config(None, overrides), folder / "swapped.jsonl"
    await evaluate_run(config, run, played, Console(quiet=True), "tool,planner")
    last = run.metrics()[-1]["step"]
    before, after = successes(run.folder / "episodes" / f"eval-{last:06d}.jsonl"), successes(played)
    record = {"condition": "swapped", "seed": seed, "heldout_before": before, "heldout_after": after}
    target.write_text(json.dumps(record))


async def apart(folder: Path, seed: int, base: list[str], talks: list[str], options: str) -> None:
    """Each role in a team of one, then both in the team of two."""
    target = folder / "apart.result.json"
    if target.is_file():
        return
    models, cpu_s = [], 0.0
    for role in ROLES:
        alone = f"pipeline.options={{{options}, only: {role}}}"
        own = talks if role == "tool" else []
        run, spent = await train(load_config(None, [*base, *own, *CONDITIONS["at_grpo"], alone, f"name=alone-{role}"]))
        models.append(f"policies.{role}.model={run.last_checkpoint() / role}")
        cpu_s += spent
    played = folder / "apart.jsonl"
    await evaluate_run(load_config(None, [*base, *talks, *models]), None, played, Console(quiet=True))
    both = result("apart", seed, Run.open(folder / "at_grpo"), cpu_s)
    after = successes(played)
    steps = both["curve"][-1][0]
    share = sum(after.values()) / len(after)
    record = both | {"heldout_after": after, "curve": [both["curve"][0], (steps, share)]}
    target.write_text(json.dumps(record))


async def train(config: RunConfig) -> tuple[Run, float]:
    shutil.rmtree(config.out / str(config.name), ignore_errors=True)
    run, began = Run.create(config), time.process_time()
    await train_run(config, run, Console(quiet=True), resume=False)
    spent = time.process_time() - began
    print(f"{run.folder}: {spent:.0f} CPU-seconds, held out {run.metrics()[-1]['eval/success']:.2f}", flush=True)
    return run, spent


def result(condition: str, seed: int, run: Run, cpu_s: float) -> dict:
    metrics = run.metrics()
    curve = [(m["step"], m["eval/success"]) for m in metrics if "eval/success" in m]
    before, after = (successes(run.folder / "episodes" / f"eval-{step:06d}.jsonl") for step in (0, curve[-1][0]))
    rewards = {k: [m[k] for m in metrics if k in m] for k in metrics[1] if k.startswith("train/reward/")}
    return {
        "condition": condition,
        "seed": seed,
        "curve": curve,
        "heldout_before": before,
        "heldout_after": after,
        "rewards": rewards,
        "groups_without_spread": [m.get("train/groups_without_spread", 0.0) / m["train/groups"] for m in metrics[1:]],
        "tokens_generated": sum(m.get("tokens/generated", 0.0) for m in metrics),
        "cpu_s": cpu_s,
    }


def successes(path: Path) -> dict[str, bool]:
    """Held-out maze -> whether it was solved."""
    return {episode["task_id"]: episode["outcome"]["success"] for episode in read_jsonl(path)}


def summarise(args: argparse.Namespace, results: list[dict]) -> None:
    rows = ["| condition | seeds | before | after | gain [95 % interval] |", "|---|---|---|---|---|"]
    names = ("at_grpo", "grpo", "apart", "swapped")
    by_name = {name: [r for r in results if r["condition"] == name] for name in names}
    rows += [table_row(name, mine) for name, mine in by_name.items() if mine]
    rows += ["", "| difference after training | seeds | second | first | first minus second [95 % interval] |", rows[1]]
    for other in ("grpo", "apart"):
        pairs = paired(by_name[other], by_name["at_grpo"])
        if pairs:
            rows.append(table_row(f"at_grpo - {other}", pairs))
    args.out.mkdir(parents=True, exist_ok=True)
    target = args.out / args.name
    target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    target.with_suffix(".md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    curves = {name: [r["curve"] for r in mine] for name, mine in by_name.items() if mine and name != "swapped"}
    title = f"Plan-Path {args.size} x {args.size}, {args.rewards} rewards: held-out mazes solved by tool and planner"
    plot_curves(curves, target.with_suffix(".png"), title)
    print("\n".join(rows))


def paired(baseline: list[dict], ours: list[dict]) -> list[dict]:
    """For `table_row`: seeds that both have, the baseline's end as "before" and ours as "after"."""
    ends = {r["seed"]: r["heldout_after"] for r in baseline}
    return [
        {"seed": r["seed"], "heldout_before": ends[r["seed"]], "heldout_after": r["heldout_after"]}
        for r in ours
        if r["seed"] in ends
    ]


if __name__ == "__main__":
    main()
