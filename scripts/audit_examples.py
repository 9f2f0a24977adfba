"""Makes the three score sets that docs/audit.md shows, and audits them: a run of the quickstart with the rules coach,
the same run scored by the rules with a planted bias, and a sample of it scored by a small model that is served on this
machine and is worthless as a judge.

    python scripts/audit_examples.py                    # plays 160 episodes first
    python scripts/audit_examples.py --run runs/mine    # a run that was trained before; its rescores/ grow by two

Everything happens on this machine. The judge needs the extra `judge` (scripts/setup.sh judge installs it). What is
there already is not made again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from coachrl.coach.base import Coach, CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.commands.run import rollout_once
from coachrl.config import RunConfig, find_config, load_config
from coachrl.rescore.store import RescoreMetadata, append_scores, open_rescore
from coachrl.runs.folder import Run
from coachrl.runs.reading import requests_of, team_of, training_episodes
from coachrl.seeding import generator
from coachrl.tasks import load_tasks
from coachrl.types import CoachScore

ROOT = Path(__file__).parents[1]
JUDGE, JUDGE_ACTIONS, START_S = "smollm2-135m", 240, 600
PLANTED_POINTS = 1.5
FAVOURED = ("product", "regression")  # kinds of task that the biased rules favour

# Three examples, between the marks that SmolLM2's chat template sets: without them so small a model keeps no form.
JUDGE_PROMPT = """---
about: for SmolLM2-135M; examples as turns of a conversation
fields: [task, agent_output, outcome]
---
Task: 2 + 3?
Reply: 2 + 3
Rate the reply from 0 to 10.<|im_end|>
<|im_start|>assistant
PROCESS_SCORE: 8<|im_end|>
<|im_start|>user
Task: Mia has 9 hats and loses 4. How many are left?
Reply: banana
Rate the reply from 0 to 10.<|im_end|>
<|im_start|>assistant
PROCESS_SCORE: 1<|im_end|>
<|im_start|>user
Task: Sam fills 2 boxes with 6 eggs each. How many?
Reply: 2 + 6
Rate the reply from 0 to 10.<|im_end|>
<|im_start|>assistant
PROCESS_SCORE: 4<|im_end|>
<|im_start|>user
Task: {{task}}
Reply: {{agent_output}}
{{outcome}}
Rate the reply from 0 to 10.
"""


class BiasedRules(RulesCoach):
    """The rules, with points added for one kind of task."""

    name = "rules-biased"

    async def score(self, request: CoachRequest) -> CoachScore:
        found = await super().score(request)
        if found.process_0_10 is None or request.task.category not in FAVOURED:
            return found
        raised = min(10.0, found.process_0_10 + PLANTED_POINTS)
        reason = f"{found.rationale}\n+{PLANTED_POINTS:g}: a task of kind {request.task.category}"
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
    """Episodes of the first training step, with the initial weights."""
    run = Run.create(config)
    episodes, scores = await rollout_once(config, count, run.ledger, Console(stderr=True))
    run.write_episodes("step-000001", episodes, scores)
    return run


async def rescore(run: Run, coach: Coach) -> None:
    """With a coach that no configuration names; filed as `coachrl rescore` would. What is there is not made again."""
    if (run.folder / "rescores" / coach.name).is_dir():
        return
    config = run.config()
    tasks = {task.id: task for task in load_tasks(config)[0]}
    about = RescoreMetadata(coach.name, None, "", 0, datetime.now(UTC).isoformat(timespec="seconds"))
    rescored, pool = open_rescore(run.folder, about), CoachPool(coach)
    for scored in training_episodes(run):
        for request in requests_of(scored.episode, tasks, team_of(run), config.coach.evidence.ground_truth):
            pool.submit(request)
        append_scores(rescored, list((await pool.settle([scored.episode])).values()))
    await pool.close()


def rescore_with_judge(run: Run, actions: int) -> None:
    prompt = run.folder / "judge.md"
    prompt.write_text(JUDGE_PROMPT, encoding="utf-8")
    with served_judge() as address:
        coachrl(
            *("rescore", run.folder, "--coach", f"hosted_vllm/{JUDGE}", "--coach-api-base", address),
            *("--coach-prompt", prompt, "--sample", actions),
            *("coach.max_tokens=16", "coach.concurrency=2", "coach.timeout_s=300"),
        )


@contextmanager
def served_judge() -> Iterator[str]:
    """The address of the judge while it is served. Raises SystemExit where it does not come up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = Path(sys.executable).parent
    environment = {**os.environ, **({"BIN": str(own)} if (own / "transformers").exists() else {})}
    command = [str(ROOT / "scripts" / "serve_judge.sh"), JUDGE, str(port)]
    server = subprocess.Popen(command, env={**environment, "ENGINE": "transformers"}, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{port}/v1"
        until = time.monotonic() + START_S
        while not answers(f"{address}/models"):
            if server.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the judge did not come up: {' '.join(command)}")
            time.sleep(1)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def coachrl(*arguments: object) -> None:
    """One command, as a user would type it."""
    words = [str(argument) for argument in arguments]
    print("$ coachrl", *words, flush=True)
    if code := subprocess.run([sys.executable, "-m", "coachrl.cli.main", *words]).returncode:
        raise SystemExit(code)  # the command has said why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a run of the quickstart; default: one is rolled out")
    parser.add_argument("--out", default="runs", help="folder that holds the run that is rolled out")
    parser.add_argument("--episodes", type=int, default=160)
    parser.add_argument(
        "--judge", choices=[JUDGE, "lots"], default=JUDGE, help="lots: one that draws, and needs no server"
    )
    parser.add_argument("--actions", type=int, default=JUDGE_ACTIONS, help="that the judge scores")
    chosen = parser.parse_args()
    folder = chosen.run or Path(chosen.out) / "audit-example"
    config = load_config(find_config("quickstart"), [f"name={folder.name}", f"out={folder.parent}"])
    run = Run.open(folder) if folder.is_dir() else asyncio.run(roll_out(config, chosen.episodes))
    asyncio.run(rescore(run, BiasedRules()))
    if chosen.judge == "lots":
        asyncio.run(rescore(run, Lots()))
    else:
        rescore_with_judge(run, chosen.actions)
    coachrl("audit", run.folder)


if __name__ == "__main__":
    main()
