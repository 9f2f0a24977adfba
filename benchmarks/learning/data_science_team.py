"""Which returns teach a team whose agents take several turns: the experiment that the default of `algorithm.returns` is
for. Hours on two cores; `--tiny` takes minutes and shows only that it runs.

    python benchmarks/learning/returns.py --out results

Trains `configs/dsbench_lite.yaml` with each of `own`, `centered_sum` and `sum_as_in_the_paper`, three seeds each, in a
process of its own for each run, at equal tokens: every run is played until it has generated `--tokens` (those of the
shorter ones are compared there). Writes `<out>/returns.json` and `returns.md`: held-out success before and after with
intervals over tasks and seeds, turns taken by role, and tokens. What is finished is not run again.
"""

from __future__ import annotations

from equal_budget import Condition, arguments, run_all

RETURNS = ("own", "centered_sum", "sum_as_in_the_paper")
TINY = [
    "train.tasks_per_step=2",
    "tasks.heldout_count=2",
    "pipeline.max_new_tokens=24",
    "eval.samples_per_task=1",
]


def main() -> None:
    args = arguments(__doc__, tokens=2_000_000, steps=10).parse_args()
    shared = [*(TINY if args.tiny else []), *args.overrides]
    conditions = [Condition(kind, "dsbench_lite", [f"algorithm.returns={kind}", *shared]) for kind in RETURNS]
    run_all("returns", args.out, conditions, args.seeds, args.steps, args.tokens)


if __name__ == "__main__":
    main()
