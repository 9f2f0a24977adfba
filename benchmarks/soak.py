"""Does a run stay whole under load? Rollouts with a scripted engine, a coach that fails, the real sandbox, and kills.

    python benchmarks/soak.py [--minutes 60] [--episodes 500] [--kill-every-s 60] [--programs 2] [--folder DIR]

One process trains (coachrl's own loop, with replies from a script in place of a model), its coach is asked over HTTP on
loopback and fails in 5 % of the calls, its agents' programs run in the local sandbox at its limit. The process is
killed again and again in the midst of a step, and resumed. Printed in the end, for benchmarks/README.md: whether memory
stayed flat, what was left over, and whether anything was lost or doubled, counted by the server itself. It exits with 1
where something was. A kill waits for the first step since the last one: a run goes on, however slow the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from coachrl.config import RunConfig, load_config
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import append_jsonl, read_jsonl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from scripted_server import CUT, MALFORMED, Received, ScriptedServer, Step, say, status

STEPS = 1_000_000  # more than any soak makes
IN_FLIGHT = 64  # calls to the coach
NO_SCORE = "no score at all"  # a reply that is paid, and asked for again in other words
FAULTS = (status(500), status(429, retry_after_s=0.05), CUT, MALFORMED, say(NO_SCORE))
FAULT_RATE = 0.05
PROGRAM = """```python
import os
held = [bytearray(1 << 20) for _ in range(8)]
open('f', 'wb').write(os.urandom(1 << 16))
if os.fork() == 0:
    os._exit(0)
print({seed})
```"""
SETTINGS = (
    "pipeline.name=mathchat", "pipeline.prompt_style=short", "pipeline.roles.code_executor.max_turns=1",
    f"train.steps={STEPS}", "train.checkpoint_every=1", "train.keep_checkpoints=2", "eval.every=0",
    "tasks.source=word-problems", "tasks.train_count=512", "tasks.heldout_count=2", "coach.name=openai/judge",
    f"coach.concurrency={IN_FLIGHT}", "coach.max_failed_fraction=1.0", "train.max_faulty_fraction=0.2",
    "sandbox.timeout_s=60", "sandbox.memory_mb=256", "sandbox.disk_mb=16",
)  # fmt: skip


# The process that is killed


async def work(folder: Path, resume: bool) -> None:
    """Train the run in `folder` until something ends this process."""
    from coachrl.commands.build import make_coach_pool
    from coachrl.pipelines import make_pipeline
    from coachrl.sandbox import make_sandbox
    from coachrl.tasks import load_tasks
    from coachrl.testing.scripted import ScriptedPolicy
    from coachrl.trainers.loop import Trainer

    run = Run.open(folder)
    config = run.config()
    train, heldout = load_tasks(config)
    sandbox, backend = make_sandbox(config.sandbox), ScriptedPolicy(_reply)
    with run.locked("soaking"):
        coach = make_coach_pool(config, run.ledger)
        trainer = Trainer(
            config,
            run,
            pipeline=make_pipeline(config.pipeline),
            backend=backend,
            sandbox=sandbox,
            coach=coach,
            train_tasks=train,
            heldout_tasks=heldout,
            callback=_Reporter(folder.parents[1] / "worker.jsonl", backend),
        )
        if resume and run.checkpoints():
            trainer.resume(run.last_checkpoint())
        elif resume:
            trainer.start_over()
        await trainer.train()


def _reply(call) -> str:
    # Each reply is of its own kind, so that no two actions of a run are asked about in the same words.
    seed = call.sampling.seed
    return PROGRAM.format(seed=seed) if "executor" in call.policy else f"Of {call.policy}, {seed}: \\boxed{{{seed}}}"


class _Reporter:
    """Writes down after each step what the process holds."""

    def __init__(self, path: Path, backend) -> None:
        self._path, self._backend = path, backend

    def on_phase(self, phase: str, total: int) -> None: ...

    def on_episode(self, episode) -> None: ...

    def on_metrics(self, metrics) -> None:
        self._backend.calls.clear()  # the script's own memory is none of the run's
        self._backend.updates.clear()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rss_mb = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        held = {"descriptors": len(list(Path("/proc/self/fd").iterdir())), "rss_mb": rss_mb}
        append_jsonl(self._path, [{"pid": os.getpid(), "step": metrics["step"], "at": time.time(), **held}])


# What watches it


@dataclass
class Soak:
    """What was seen from outside. answered: prompt -> replies that the server sent whole."""

    folder: Path
    answered: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    faults: int = 0
    kills: int = 0
    left_processes: int = 0
    left_files: set[str] = field(default_factory=set)
    died: list[str] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "soak"

    def answer(self, received: Received) -> Step:
        self.requests += 1
        if self.chance.random() < FAULT_RATE:
            self.faults += 1
            fault = self.chance.choice(FAULTS)
            self.answered[_asked(received.body["messages"])] += fault.text == NO_SCORE
            return fault
        self.answered[_asked(received.body["messages"])] += 1
        return say(f"PROCESS_SCORE: {len(received.prompt) % 10}", latency_s=self.chance.uniform(0.0, 0.2))

    def __post_init__(self) -> None:
        self.chance = random.Random(0)

    def steps(self) -> int:
        path = self.folder / "worker.jsonl"
        return sum(1 for row in read_jsonl(path, skip_torn=True) if row["step"] > 0)


async def soak(
    folder: Path, minutes: float, episodes: int, kill_every_s: float, programs: int
) -> list[tuple[str, str, bool]]:
    """The table: what was looked at, what was found, and whether that is as it must be."""
    seen = Soak(folder)
    ends_at = time.monotonic() + 60 * minutes
    async with ScriptedServer(seen.answer) as server:

        async def forget() -> None:
            while True:
                server.requests.clear()
                await asyncio.sleep(1)

        forgetting = asyncio.create_task(forget())
        settings = [*SETTINGS, f"train.tasks_per_step={episodes}", f"sandbox.concurrency={programs}", "name=soak"]
        config = load_config(None, [*settings, f"out={folder / 'runs'}", f"coach.api_base={server.openai_base}"])
        Run.create(config)
        while time.monotonic() < ends_at or seen.kills == 0:
            await _one_life(seen, kill_every_s, ends_at)
        forgetting.cancel()
    return _figures(seen, config)


async def _one_life(seen: Soak, kill_every_s: float, ends_at: float) -> None:
    """Start or resume the run, and kill it in the midst of a step."""
    temporary = seen.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": str(seen.folder / "inductor"),  # torch makes one wherever it is imported
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    began, before = time.monotonic(), seen.steps()
    with (seen.folder / "worker.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--work", str(seen.run), *(["--resume"] if seen.kills else []),
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    due = min(began + kill_every_s, max(ends_at, began)) + seen.chance.uniform(0, 0.1) * kill_every_s
    while process.returncode is None and (time.monotonic() < due or seen.steps() == before):
        await asyncio.sleep(0.2)
    if process.returncode is not None:
        seen.died.append((seen.folder / "worker.log").read_text(errors="replace")[-500:])
        raise SystemExit(f"the run ended by itself: {seen.died[-1]}")
    family = _family(process.pid)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    seen.kills += 1
    for _ in range(100):  # the kernel takes a moment to end a process namespace
        if not (left := {one for one in family if _started(one[0]) == one[1]}):
            break
        await asyncio.sleep(0.1)
    seen.left_processes += len(left)
    seen.left_files |= {path.name for path in temporary.iterdir()}


def _figures(seen: Soak, config: RunConfig) -> list[tuple[str, str, bool]]:
    run = Run.open(seen.run)
    rows = list(read_jsonl(seen.folder / "worker.jsonl", skip_torn=True))
    steps = [record["step"] for record in run.metrics()]
    done = [f"step-{step:06d}" for step in steps if step]
    whole, played, scored = 0, 0, 0
    for label in done:
        records, scores = run.read_episodes(label)
        played, scored = played + len(records), scored + sum(score.status == "scored" for score in scores.values())
        actions = sum(len(record.actions) for record in records)
        whole += len({record.id for record in records}) == config.train.tasks_per_step and len(scores) == actions
    said = Counter(
        _asked(line["messages"])
        for line in read_jsonl(run.ledger, skip_torn=True)
        if line["kind"] == "call" and line["reply"] and not line["usage"]["calls_from_cache"]
    )
    lost, invented = sum((seen.answered - said).values()), sum((said - seen.answered).values())
    slope, least, most = _slope_mb(rows), min(r["rss_mb"] for r in rows), max(r["rss_mb"] for r in rows)
    growth, shown = _growth(rows), "not measured: no life had 5 steps" if slope is None else f"{slope:+.2f}"
    return [
        ("minutes; kills, each resumed", f"{(rows[-1]['at'] - rows[0]['at']) / 60:.1f}; {seen.kills}", seen.kills > 0),
        ("steps; episodes; scores", f"{len(done)}; {played:,}; {scored:,}", bool(done)),
        ("requests to the coach; faults", f"{seen.requests:,}; {seen.faults / max(1, seen.requests):.1%}", True),
        ("memory, MiB: least, most; slope a step", f"{least:.0f}, {most:.0f}; {shown}", abs(slope or 0) < most / 50),
        ("descriptors more at a life's end", str(growth), growth <= IN_FLIGHT),
        ("steps in the metrics that lack or repeat", str(_odd(steps)), _odd(steps) == 0),
        ("steps with an episode or a score too few or twice", str(len(done) - whole), whole == len(done)),
        (f"replies lost in {seen.kills} kills (at most {IN_FLIGHT} each)", str(lost), lost <= IN_FLIGHT * seen.kills),
        ("replies in the ledger that the server never sent", str(invented), invented == 0),
        ("replies paid twice", str(sum(count - 1 for count in said.values())), max(said.values(), default=1) == 1),
        ("processes left over", str(seen.left_processes), seen.left_processes == 0),
        ("temporary files left over", str(len(seen.left_files)), not seen.left_files),
        ("half-written files in the run", str(len(_asides(seen))), not _asides(seen)),
        ("mounts left over", str(_mounts_below(seen.folder)), _mounts_below(seen.folder) == 0),
    ]


def _asked(messages: list[dict]) -> str:
    """The whole of what was asked: the last message alone may be the same reminder to many."""
    return json.dumps([[message["role"], message["content"]] for message in messages])


def _asides(seen: Soak) -> list[str]:
    """What kills left in the run's folder that the last start did not clean up, but for what the last kill left."""
    last_start = max((path.stat().st_mtime for path in seen.run.glob("train.lock")), default=0.0)
    found = [path for path in seen.run.rglob(".*") if path.parent.name != ".cache"]
    return [str(path) for path in found if path.stat().st_mtime < last_start]


def _mounts_below(folder: Path) -> int:
    """Of the soak's own folder, where its temporary files lie, too: others of this machine are others' business."""
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return sum(Path(point).is_relative_to(folder) for point in points)


def _odd(steps: list[int]) -> int:
    return len(set(range(len(steps))) ^ set(steps)) + len(steps) - len(set(steps))


def _slope_mb(rows: list[dict]) -> float | None:
    """MiB a step within a life, the median of all lives, without the first steps, which fill what is kept; None
    where no life had enough of them."""
    slopes = []
    for pid in {row["pid"] for row in rows}:
        life = [row["rss_mb"] for row in rows if row["pid"] == pid][2:]
        if len(life) >= 3:
            slopes.append(statistics.linear_regression(range(len(life)), life).slope)
    return statistics.median(slopes) if slopes else None


def _growth(rows: list[dict]) -> int:
    lives = [[row["descriptors"] for row in rows if row["pid"] == pid] for pid in {row["pid"] for row in rows}]
    return max((life[-1] - life[min(1, len(life) - 1)] for life in lives), default=0)


def _family(pid: int) -> set[tuple[int, int]]:
    """(pid, when it started) of a process and all below it."""
    parents = {}
    for name in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        try:
            parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found, grown = {pid}, {pid}
    while grown := {child for child, parent in parents.items() if parent in grown}:
        found |= grown
    return {(one, started) for one in found if (started := _started(one))}


def _started(pid: int) -> int:
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--episodes", type=int, default=500, help="in flight at once: those of one step")
    parser.add_argument("--kill-every-s", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=2, help="in the sandbox at once")
    parser.add_argument("--folder", type=Path, help="where the run goes; by default a temporary one that is removed")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        asyncio.run(work(given.work, given.resume))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = (given.folder or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        table = asyncio.run(soak(folder, given.minutes, given.episodes, given.kill_every_s, given.programs))
    print("| looked at | found | |\n|---|---|---|")
    for name, found, good in table:
        print(f"| {name} | {found} | {'as it must be' if good else 'WRONG'} |")
    sys.exit(not all(good for _, _, good in table))


if __name__ == "__main__":
    main()
