"""Do a learning-rate schedule, a higher rate, a wider clip or another aggregation of the loss help the quickstart?

    python benchmarks/learning/update_settings.py --seeds 1 2 3

Trains `configs/quickstart.yaml` with one setting changed, in a process of its own for each seed and condition, and sets
it beside the run as shipped of the same seed, whose figures are in `quickstart.json` of the same folder
(`quickstart.py`). A wider clip needs a second epoch to be of use: in the first no ratio differs from 1.

Writes `<out>/update_settings.json` (every figure) and `.md` (the table). What is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from quickstart import draws, finished, key, read_results, read_run, table_row, train, trained

from coachrl.stats import SHARE, paired_difference

SHIPPED = "coach"
CONDITIONS = {
    "cosine": ["train.lr_schedule=cosine"],
    "twice-the-rate": ["train.learning_rate=4.0e-5"],
    "outcome-twice-the-rate": ["algorithm.name=outcome", "train.learning_rate=4.0e-5"],
    "seq-mean-token-mean": ["train.loss_aggregation=seq-mean-token-mean"],
    "seq-mean-token-sum-norm": ["train.loss_aggregation=seq-mean-token-sum-norm"],
    "two-epochs": ["train.ppo_epochs=2"],
    "two-epochs-clip-higher": ["train.ppo_epochs=2", "train.clip_range_high=0.28"],
}
PAIRS = [(SHIPPED, condition) for condition in CONDITIONS] + [
    ("two-epochs", "two-epochs-clip-higher"),
    ("twice-the-rate", "two-epochs"),
    ("outcome-twice-the-rate", "twice-the-rate"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("settings", nargs="*", help="of every run, as key=value")
    args = parser.parse_intermixed_args()
    results, folder = args.out / "update_settings.json", args.out / "runs" / "update_settings"
    shipped = read_results(args.out / "quickstart.json").values()
    kept = {key(r): r for r in shipped if (r["condition"], r["steps"]) == (SHIPPED, args.steps)}
    kept |= read_results(results)
    for seed in args.seeds:
        for condition in args.conditions:
            if (condition, seed, args.steps) not in kept:
                settings = [f"seed={seed}", f"train.steps={args.steps}", *CONDITIONS[condition], *args.settings]
                train("quickstart", folder, f"{condition}-{seed}", settings)
                runs = [path for path in sorted(folder.glob("*")) if not path.is_symlink()]
                summarise(results, kept, runs)


def summarise(path: Path, kept: dict[tuple[str, int, int], dict], runs: list[Path]) -> None:
    found = kept | {key(result): result for result in map(read_run, filter(finished, runs))}
    results = {c: [r for _, r in sorted(found.items()) if r["condition"] == c] for c in (SHIPPED, *CONDITIONS)}
    rows = ["| condition | seeds | before | after | gain [95 % interval] |", "|---|---|---|---|---|"]
    seeds = {result["seed"] for condition in CONDITIONS for result in results[condition]}
    results[SHIPPED] = [result for result in results[SHIPPED] if result["seed"] in seeds]
    rows += [table_row(condition, its) for condition, its in results.items() if its]
    rows += ["", *difference_table(results)]
    ours = [result for condition in CONDITIONS for result in results[condition]]
    path.write_text(json.dumps(ours, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    print("\n".join(rows), flush=True)


def difference_table(results: dict[str, list[dict]]) -> list[str]:
    """Each condition against its base, seed by seed: on the held-out problems at the end, and on the training problems
    of all steps but the first."""
    rows = [
        "| difference [95 % interval] | seeds | held out, at the end | training problems, steps after the first |",
        "|---|---|---|---|",
    ]
    for base, condition in PAIRS:
        both = {r["seed"] for r in results[base]} & {r["seed"] for r in results[condition]}
        if both:
            a, b = results[base], results[condition]
            end = paired_difference(draws(a, "after"), draws(b, "after"), SHARE)
            way = paired_difference(trained(a), trained(b), SHARE)  # None of runs of one step
            cells = " | ".join(each.interval(signed=True) if each is not None else "" for each in (end, way))
            rows.append(f"| {condition} minus {base} | {len(both)} | {cells} |")
    return rows


if __name__ == "__main__":
    main()
