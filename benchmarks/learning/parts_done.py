"""Which role of a data-science team learns: how often each leaves its files where those of the role before it were
there, by blocks of training steps.

    python benchmarks/learning/parts_done.py runs/one runs/other

A chain whose first link breaks tells nothing of the last one, so that success alone does not say who fails.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from coachrl.pipelines.dsbench import ROLES
from coachrl.runs.folder import Run
from coachrl.types import Episode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--block", type=int, default=4, help="How many steps make one row.")
    args = parser.parse_args()
    print(f"| run | steps | success | {' | '.join(role.name for role in ROLES)} |")
    print("|---" * (len(ROLES) + 3) + "|")
    for folder in args.runs:
        run = Run.open(folder)
        steps = [record["step"] for record in run.metrics() if record["step"] > 0]
        for first in range(0, len(steps), args.block):
            block = steps[first : first + args.block]
            episodes = [episode for step in block for episode in run.read_episodes(f"step-{step:06d}")[0]]
            succeeded = sum(episode.outcome.success for episode in episodes)
            cells = [f"{succeeded} of {len(episodes)}", *parts_done(episodes)]
            print(f"| {folder.name} | {block[0]} to {block[-1]} | {' | '.join(cells)} |", flush=True)


def parts_done(episodes: Iterable[Episode]) -> list[str]:
    """For each role "done of begun": parts that it began with what it needs of the role before it, and of these, parts
    that it ended with all that it owes."""
    begun, done = Counter[str](), Counter[str]()
    for episode in episodes:
        for before, role in zip((None, *ROLES), ROLES, strict=False):
            part = [action for action in episode.actions if action.role == role.name]
            if part and (before is None or set(before.required_files) <= set(part[0].files_before)):
                begun[role.name] += 1
                done[role.name] += set(role.required_files) <= set(part[-1].files_after)
    return [f"{done[role.name]} of {begun[role.name]}" for role in ROLES]


if __name__ == "__main__":
    main()
