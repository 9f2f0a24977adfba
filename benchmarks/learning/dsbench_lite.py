"""What coach training does to the data-science team: the claim of MAPPA's Table 2, at the size of a laptop.

    scripts/dsbench_lite.sh --name one
    python benchmarks/learning/dsbench_lite.py runs/one

Prints, and writes to `<out>/dsbench_lite.md` and `.json`: held-out success, raw and fair metrics before and after with
intervals over tasks, each role's behavior, and the coach's scores by step. More draws of the same tasks narrow the
intervals; `--more BEFORE AFTER` adds two files of `coachrl eval --episodes`, of the initial weights and of the last:

    coachrl eval --config dsbench_lite seed=1 --episodes before.jsonl
    coachrl eval --run runs/one seed=1 --episodes after.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from coachrl.report.contents import Contents, EpisodeFile, read_contents
from coachrl.report.outcome import BeforeAfter, behavior_rows, ends, success_rows, table2_rows
from coachrl.runs.folder import Run
from coachrl.runs.records import read_episodes
from coachrl.stats import Estimate
from coachrl.types import Episode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--more", type=Path, nargs=2, action="append", default=[], metavar=("BEFORE", "AFTER"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/learning/results"))
    args = parser.parse_args()
    contents = read_contents(Run.open(args.run))
    before, after = ends(contents)
    if before is None or after is None:
        parser.error(f"{args.run} holds no two evaluations")
    before = with_more(before, [pair[0] for pair in args.more])
    after = with_more(after, [pair[1] for pair in args.more])
    rows = [*success_rows(before, after), *table2_rows(before, after)]
    lines = [*outcome_table(rows), "", *behavior_table(before, after), "", *step_table(contents)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "dsbench_lite.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    figures = {
        "rows": [asdict(row) for row in rows],
        "by_task": {when: by_task(file) for when, file in (("before", before), ("after", after))},
        "steps": contents.steps,
        "versions": contents.versions,
    }
    (args.out / "dsbench_lite.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("\n".join(lines))


def with_more(evaluation: EpisodeFile, files: Sequence[Path]) -> EpisodeFile:
    """The evaluation with the episodes of further files as further draws."""
    episodes = list(evaluation.episodes)
    for number, path in enumerate(files, start=1):
        problems: list[str] = []
        found = [episode for episode, _ in read_episodes(path, problems)]
        for problem in problems:
            print(problem)
        episodes += [renamed(episode, f"{episode.id}+{number}") for episode in found]
    return replace(evaluation, episodes=tuple(episodes))


def renamed(episode: Episode, name: str) -> Episode:
    actions = tuple(replace(action, episode_id=name) for action in episode.actions)
    return replace(episode, id=name, actions=actions)


def outcome_table(rows: Sequence[BeforeAfter]) -> list[str]:
    lines = ["| held out | before | after | paired difference [95 % interval] |", "|---|---|---|---|"]
    for row in rows:
        shown = [interval(row.before), interval(row.after), interval(row.difference, signed=True)]
        lines.append(f"| {row.name} | {' | '.join(shown)} |")
    return lines


def interval(estimate: Estimate | None, signed: bool = False) -> str:
    return "–" if estimate is None else estimate.interval(signed)


def behavior_table(before: EpisodeFile, after: EpisodeFile) -> list[str]:
    lines = ["| role | measure | before | after | n, actions |", "|---|---|---|---|---|"]
    for role, rows in behavior_rows(before, after).items():
        for row in rows:
            was, now = (f"{value:.2f}" if value is not None else "–" for value in (row.before, row.after))
            lines.append(f"| {role} | {row.name} | {was} | {now} | {row.n_before}, {row.n_after} |")
    return lines


def step_table(contents: Contents) -> list[str]:
    """Training tasks: success, and the coach's mean score of each role."""
    keys = ["train/success", *sorted({k for m in contents.steps.values() for k in m if k.startswith("coach/score/")})]
    lines = ["| step | " + " | ".join(key.rpartition("/")[2] for key in keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for step in contents.trained_steps:
        lines.append(
            f"| {step} | " + " | ".join(f"{contents.steps[step].get(key, float('nan')):.2f}" for key in keys) + " |"
        )
    return lines


def by_task(evaluation: EpisodeFile) -> dict[str, list[bool]]:
    """Task -> success of each draw."""
    found: dict[str, list[bool]] = {}
    for episode in evaluation.valid:
        found.setdefault(episode.task_id, []).append(episode.outcome.success)
    return found


if __name__ == "__main__":
    main()
