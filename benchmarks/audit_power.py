"""How often `coachrl audit` names what is wrong with a coach, and how often it accuses a fair one: the table of
docs/audit_statistics.md.

    python benchmarks/audit_power.py --repeats 200 --first-seed 50000  # 64 tasks x 8 draws x 3 roles, every world
    python benchmarks/audit_power.py --repeats 5 --only category      # one of them
    python benchmarks/audit_power.py --repeats 100 --keep runs.jsonl  # what is done is kept, and not done again

The worlds are those of `audit_worlds.py`, which shares no code with the audit. A fair coach is accused where any topic
whatever has a warning or an alarm, but for two that are facts about scores and not about a coach's fairness: most
scores are one value (`saturation`), many calls fail (`failed`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.audit_worlds import FAIR, Fault, World, play
from coachrl.audit.audit import audit_data
from coachrl.stats import exact_interval

FACTS = {"saturation", "failed"}
RESAMPLES = 200
FOLLOWS = {"handover": {"leniency"}}  # who pays one agent more for the same outcome has become more lenient


@dataclass(frozen=True)
class Cell:
    """One row of the table. topic: what must be named; empty for a fair coach."""

    name: str
    world: World
    fault: Fault = field(default_factory=Fault)

    @property
    def topic(self) -> str:
        return self.fault.name


FAULTS = (
    Cell("one category +0.5 points", World(), Fault("category", 0.5)),
    Cell("two of four topics +0.5 points", World(), Fault("topic", 0.5)),
    Cell("more lenient: +0.5 points in the second half", World(), Fault("leniency", 0.5)),
    Cell("more severe: -0.5 points in the second half", World(), Fault("leniency", -0.5)),
    Cell("a hand-over game: +0.5 points, the next fails 0.2 more often", World(), Fault("handover", 0.5)),
    Cell("one score for an episode's actions", World(), Fault("halo")),
    Cell("the outcome copied to all actions", World(), Fault("copying")),
    Cell("+0.5 points for a second turn", World(turns=2), Fault("turn_order", 0.5)),
    Cell("+0.5 points for each later place", World(shuffled=True), Fault("turn_order", 0.5, "place")),
    Cell("calls on the worse half fail 0.1 more often", World(failed=0.05), Fault("failures", 0.1, "bad")),
    Cell(
        "calls on the worse half fail 0.1 more often, 96 tasks",
        World(tasks=96, failed=0.05),
        Fault("failures", 0.1, "bad"),
    ),
    Cell("calls on the worse half fail 0.2 more often", World(failed=0.05), Fault("failures", 0.2, "bad")),
    Cell("calls on the longer half fail 0.1 more often", World(failed=0.05), Fault("failures", 0.1, "long")),
    Cell("calls on one role fail 0.1 more often", World(failed=0.05), Fault("failures", 0.1, "role")),
    Cell("+0.5 points for the own family", World(), Fault("self_preference", 0.5)),
    Cell("+0.5 points for 150 tokens more", World(), Fault("length", 0.5)),
    Cell("+0.5 points for 2 Markdown marks more", World(), Fault("style", 0.5)),
)
CELLS = (*FAULTS, *(Cell(f"fair: {name}", world) for name, world in FAIR.items()))


def accusations(cell: Cell, seed: int) -> set[str]:
    """The topics with a warning or an alarm."""
    found = audit_data(play(cell.world, cell.fault, seed), RESAMPLES)
    return {verdict.topic for verdict in found.verdicts if verdict.grade in ("warning", "alarm")} - FACTS


def run(cell: Cell, seeds: Sequence[int], keep: Path | None = None) -> list[set[str]]:
    """The accusations of each seed; what `keep` holds is not computed again."""
    done = dict(_kept(cell, keep))
    for seed in seeds:
        if seed not in done:
            done[seed] = accusations(cell, seed)
            if keep is not None:
                with keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"cell": cell.name, "seed": seed, "accused": sorted(done[seed])}) + "\n")
    return [done[seed] for seed in seeds]


def row(cell: Cell, runs: Sequence[set[str]]) -> str:
    others = sum(bool(accused - {cell.topic} - FOLLOWS.get(cell.topic, set())) for accused in runs)
    named = sum(cell.topic in accused for accused in runs)
    power = _share(named, len(runs)) if cell.topic else "–"
    return f"| {cell.name} | {cell.topic or '–'} | {power} | {_share(others, len(runs))} |"


def header() -> str:
    return "| coach | topic | named [95 %] | anything else accused [95 %] |\n|---|---|---|---|"


def _share(count: int, n: int) -> str:
    low, high = exact_interval(count, n)
    return f"{count / n:.2f} [{low:.2f}, {high:.2f}], {count} of {n}"


def _kept(cell: Cell, keep: Path | None) -> Iterator[tuple[int, set[str]]]:
    if keep is not None and keep.is_file():
        for line in keep.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["cell"] == cell.name:
                yield record["seed"], set(record["accused"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0, help="seeds that no test was tuned on")
    parser.add_argument("--only", default="", help="cells whose name or topic holds this")
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    print(header())
    for cell in CELLS:
        if chosen.only in f"{cell.name} {cell.topic}":
            seeds = range(chosen.first_seed, chosen.first_seed + chosen.repeats)
            print(row(cell, run(cell, seeds, chosen.keep)), flush=True)


if __name__ == "__main__":
    main()
