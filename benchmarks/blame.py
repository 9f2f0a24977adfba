"""Whom does a coach blame? Planted faults in the shipped pipelines, each beside the sound play of the same task: the
tables of docs/audit_statistics.md.

    python benchmarks/blame.py                                 # the rules, 105 faults in each of four pipelines
    python benchmarks/blame.py --faults 200 --only dsbench
    python benchmarks/blame.py --coach gemini/gemini-2.5-pro   # costs money; --shown last asks once and not twice

Faults come from a seed (`coachrl/audit/faults`) and are played in the sandbox. Intervals are over tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from coachrl.audit.faults.localization import FaultLocalization, localize_faults
from coachrl.audit.faults.play import FAMILIES, PlayedFaults, play_faults
from coachrl.commands.build import make_coach_pool
from coachrl.config import PipelineConfig, SandboxConfig, load_config
from coachrl.sandbox import make_sandbox
from coachrl.stats import Estimate

SHOWN = ("last", "all")
COLUMNS = (
    "pipeline",
    "outcome shown to",
    "faults (tasks)",
    "loses most",
    "best blind guess",
    "lowest score",
    "pairs in order",
    "culprit loses",
    "innocent loses",
)


def measure(
    name: str, shown: Sequence[str], count: int, seed: int = 0, coach: str = "rules"
) -> list[FaultLocalization]:
    """What the coach makes of the same faults, where the outcome is shown with the actions of each of `shown`."""
    return asyncio.run(_measure(name, shown, count, seed, coach))


async def _measure(name: str, shown: Sequence[str], count: int, seed: int, coach: str) -> list[FaultLocalization]:
    found = []
    sandbox = make_sandbox(SandboxConfig(disk_mb=64))
    await sandbox.start()
    try:
        for outcome_to in shown:
            with tempfile.TemporaryDirectory(prefix="blame-") as folder:
                settings, place = PipelineConfig(name=name), Path(folder)
                played = await play_faults(settings, sandbox, place, count, outcome_to, seed)  # type: ignore[arg-type]
                found.append(await _asked(played, name, coach, place))
    finally:
        await sandbox.close()
    return found


async def _asked(played: PlayedFaults, name: str, coach: str, folder: Path) -> FaultLocalization:
    config = load_config(None, [f"coach.name={coach}", f"pipeline.name={name}", "coach.cache=none", f"out={folder}"])
    pool = make_coach_pool(config, folder / "ledger.jsonl")
    try:
        await pool.check()
        return await localize_faults(pool, played)
    finally:
        await pool.close()


def row(name: str, outcome_to: str, found: FaultLocalization) -> str:
    cases = found.against_sound
    if cases is None:
        return _line(name, outcome_to, "; ".join(found.notes), *["–"] * (len(COLUMNS) - 3))
    best = max(found.blind, key=lambda guess: found.blind[guess].value)
    blind = f"{found.blind[best].value:.2f}, {best}"
    figures = (found.accuracy, found.ordered, found.culprit_loss, found.innocent_loss)
    return _line(
        name, outcome_to, f"{cases.n} ({cases.tasks})", _shown(cases), blind, *(_shown(figure) for figure in figures)
    )


def fault_rows(name: str, found: FaultLocalization) -> list[str]:
    return [_line(name, fault, str(share.n), _shown(share)) for fault, share in found.by_fault.items()]


def _shown(figure: Estimate | None) -> str:
    if figure is None:
        return "–"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f} [{figure.value:.2f}, {figure.value:.2f}]"
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=105, help="in each pipeline")
    parser.add_argument("--only", choices=FAMILIES, help="one pipeline")
    parser.add_argument("--coach", default="rules")
    parser.add_argument("--shown", choices=SHOWN, help="the outcome is shown with these actions alone")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    shown = [chosen.shown] if chosen.shown else SHOWN
    by_fault = []
    print(_line(*COLUMNS), _line(*["---"] * len(COLUMNS)), sep="\n")
    for name in [chosen.only] if chosen.only else FAMILIES:
        measured = measure(name, shown, chosen.faults, chosen.seed, chosen.coach)
        for outcome_to, found in zip(shown, measured, strict=True):
            print(row(name, outcome_to, found), flush=True)
        by_fault += fault_rows(name, measured[0])
    print("", _line("pipeline", f"fault (outcome shown to {shown[0]})", "cases", "loses most"), _line(*["---"] * 4),
          *by_fault, sep="\n")  # fmt: skip


if __name__ == "__main__":
    main()
