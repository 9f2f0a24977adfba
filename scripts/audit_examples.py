"""Makes the three score sets that docs/audit.md shows: a run scored by the rules, by the same rules with a planted
bias, and by a judge that draws lots. Then audits them.

    python scripts/audit_examples.py --out runs             # rolls the quickstart's team out: minutes on two cores
    python scripts/audit_examples.py --run runs/my-run      # a run that was trained before; its rescores/ grow by two
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from coachrl.audit.report import as_html, audit_runs, lines, write_whole
from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.coach.rules import RulesCoach
from coachrl.config import RunConfig, find_config, load_config
from coachrl.replay import requests_of, team_of, training_episodes
from coachrl.rescores import RescoredBy, append_scores, open_rescore
from coachrl.runs import Run
from coachrl.seeding import generator
from coachrl.session import rollout_once
from coachrl.tasks import load_tasks
from coachrl.types import CoachScore

PLANTED_POINTS = 1.5
FAVOURED = ("regression", "2-steps")  # kinds of task that the biased rules favour


class BiasedRules(RulesCoach):
    """The rules, with points added for one kind of task."""

    name = "rules-biased"

    async def score(self, request: CoachRequest) -> CoachScore:
        found = await super().score(request)
        if found.process_0_10 is None or request.task.kind not in FAVOURED:
            return found
        raised = min(10.0, found.process_0_10 + PLANTED_POINTS)
        reason = f"{found.rationale}\n+{PLANTED_POINTS:g}: a task of kind {request.task.kind}"
        return CoachScore(found.action_id, "scored", raised, rationale=reason, model=self.name)


class Lots:
    """A judge that is worthless by construction: it draws a score from 0 to 10."""

    name = "lots"

    async def score(self, request: CoachRequest) -> CoachScore:
        drawn = float(generator(0, "lots", request.action.id).integers(0, 11))
        return CoachScore(request.action.id, "scored", drawn, rationale="drawn by lot", model=self.name)

    async def close(self) -> None:
        """Nothing to close."""


async def roll_out(config: RunConfig, count: int) -> Run:
    run = Run.create(config)
    episodes, scores = await rollout_once(config, count, run.ledger, Console(stderr=True))
    run.write_episodes("step-000001", episodes, scores)
    return run


async def rescore(run: Run, coach: Coach) -> None:
    config = run.config()
    tasks = {task.id: task for task in load_tasks(config.tasks, config.seed)[0]}
    about = RescoredBy(coach.name, None, "", 0, datetime.now(UTC).isoformat(timespec="seconds"))
    rescored, pool = open_rescore(run.folder, about), CoachPool(coach)
    for scored in training_episodes(run):
        for request in requests_of(scored.episode, tasks, team_of(run), config.coach.evidence.ground_truth):
            pool.submit(request)
        append_scores(rescored, list((await pool.settle([scored.episode])).values()))
    await pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run; default: one is rolled out")
    parser.add_argument("--out", default="runs", help="folder that holds the run")
    parser.add_argument("--episodes", type=int, default=64)
    chosen = parser.parse_args()
    settings = ["name=audit-example", f"out={chosen.out}", "tasks.levels=[1, 2]"]
    config = load_config(find_config("quickstart"), settings)
    folder = chosen.run or Path(chosen.out) / "audit-example"
    run = Run.open(folder) if folder.is_dir() else asyncio.run(roll_out(config, chosen.episodes))
    for coach in (BiasedRules(), Lots()):
        if not (run.folder / "rescores" / coach.name).is_dir():
            asyncio.run(rescore(run, coach))
    audit = audit_runs([run.folder])
    write_whole(run.folder / "audit.html", as_html(audit))
    print("\n".join([*lines(audit), f"page: {run.folder / 'audit.html'}"]))


if __name__ == "__main__":
    main()
