"""What a team learns on one card: the shipped `configs/one_gpu.yaml`, once for each seed.

    python benchmarks/learning/one_gpu.py --seeds 1 2 3
    python benchmarks/learning/one_gpu.py vllm.memory=0.3 --seeds 1

Needs coachrl[vllm]; further words are settings of every run. Writes `<out>/one_gpu.json` (every figure), `one_gpu.md`
(the table) and `one_gpu.png`. Runs that ended well are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from plot import plot_curves

from coachrl.runs.folder import Run

GAP = "train/sampler_trainer_logprob_gap/"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("settings", nargs="*", help="of every run, as key=value")
    args = parser.parse_intermixed_args()
    folder = args.out / "one_gpu"
    for seed in args.seeds:
        train(folder, seed, args.settings)
    summarise(args.out, [read_run(folder / f"seed-{seed}", seed) for seed in args.seeds])


def train(folder: Path, seed: int, settings: list[str]) -> None:
    run = folder / f"seed-{seed}"
    if (run / "report.html").is_file():  # that of a run that ended well
        return
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "coachrl.cli.main", "train", "--config", "one_gpu", "train.keep_checkpoints=0"]
    subprocess.run([*command, f"name=seed-{seed}", f"seed={seed}", f"out={folder}", *settings], check=True)


def read_run(folder: Path, seed: int) -> dict[str, Any]:
    """train_success: of each step's episodes; heldout: by step; logprob_gap: the largest mean |log pi| between engine
    and trainer that any policy had in any step."""
    records = Run.open(folder).metrics()
    steps = [record for record in records if "train/success" in record]
    return {
        "seed": seed,
        "train_success": [[int(record["step"]), record["train/success"]] for record in steps],
        "heldout": [[int(record["step"]), record["eval/success"]] for record in records if "eval/success" in record],
        "step_s": float(np.median([record["time/step_s"] for record in steps])),
        "logprob_gap": max(value for record in steps for name, value in record.items() if name.startswith(GAP)),
    }


def summarise(out: Path, results: list[dict[str, Any]]) -> None:
    rows = [
        "| seed | held out, before -> after | steps | a step, median | engine and trainer differ by at most |",
        "|---|---|---|---|---|",
    ]
    for found in results:
        (_, before), (last, after) = found["heldout"][0], found["heldout"][-1]
        rows.append(
            f"| {found['seed']} | {before:.2f} -> {after:.2f} | {last} | {found['step_s']:.1f} s "
            f"| {found['logprob_gap']:.4f} |"
        )
    (out / "one_gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (out / "one_gpu.md").write_text("\n".join(rows) + "\n", encoding="utf-8")
    curves = {"coach": [found["train_success"] for found in results]}
    plot_curves(curves, out / "one_gpu.png", "One GPU: share of fresh training problems solved, per step", "success")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
