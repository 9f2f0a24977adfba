"""Does a command that dies at any of its file operations, or whose disk fails there, leave nothing that matters?

    python benchmarks/crash_points.py [SCENARIO...] [--points 30] [--fault kill|enospc|eio] [--times 1] [--seed 0]
                                       [--folder DIR]

Each scenario is a command of coachrl with a tiny model. It runs once whole, while a library that is preloaded
(crash_points.c; it needs a C compiler) counts what it does to the files below its folder: opened to be written,
written, renamed, removed, made, brought to the disk. Then it runs again for each of so many operations, and is ended
there by SIGKILL (a write half-way), or from there on the disk is full, or this one operation fails. What was begun is
gone on with as a user would (`train --resume`, or the same command once more), and all of its files are held against
those of the whole run: metrics, episodes, weights to the last bit, nothing missing, left over or half-written. Printed
is a line for each scenario, and for each point that went wrong what was different; it exits with 1 where one did.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
APPS = SUPPORT.parents[1] / "examples" / "gateway"
sys.path.insert(0, str(SUPPORT))
FAULTS = ("kill", "enospc", "eio")  # by their numbers in crash_points.c
PATIENCE_S = 300.0
# What a clock, a cache or a second life decides. Of ledgers and logs it is enough that they can be read.
MAY_DIFFER = re.compile(r"^time|^created$|latency|cache|per_s$|wall_s|_at$")
READ_ALONE = re.compile(r"(ledger|audit|replies)\.jsonl|log\.txt|versions\.json|(report|audit)\.html|train\.lock")
# What SQLite takes up again when it next opens its file, and the link that is moved once a new run has its name.
EXEMPT = re.compile(r"\.sqlite-(wal|shm)$|/runs/latest$")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?")


# What runs


@dataclass(frozen=True)
class Scenario:
    """command: it is ended at its points. before: commands that come first, or functions of the folder."""

    command: tuple[str, ...]
    before: tuple[tuple[str, ...] | Callable[[Path], object], ...] = ()


def armed(folder: str, at: str, fault: str, log: str, *words: str) -> None:
    """The command line, in a process that was forked: it comes to its fault at operation number `at`, or never (0)."""
    import cli_forks

    ctypes.CDLL(None).arm(folder.encode(), ctypes.c_long(int(at)), FAULTS.index(fault), log.encode())
    cli_forks.run(*words)


def compiled(folder: Path) -> Path:
    """The library to preload. Raises SystemExit where it cannot be made."""
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        raise SystemExit("no C compiler: install gcc")
    library = folder / "crash_points.so"
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-D_LARGEFILE64_SOURCE", "-o", library, source, "-ldl"]
    if (made := subprocess.run(command, capture_output=True, text=True)).returncode:
        raise SystemExit(f"{source} cannot be compiled: {made.stderr}")
    return library


@dataclass
class Lives:
    """Runs command lines, each in a process of its own that is forked from one that has imported everything."""

    folder: Path
    environment: dict[str, str]

    def __post_init__(self) -> None:
        from forks import ForkServer

        preloaded = {**self.environment, "LD_PRELOAD": str(compiled(self.folder))}
        self._server = ForkServer(["cli_forks"], [Path(__file__).parent, SUPPORT, APPS], preloaded)

    def run(self, words: Iterable[str], cwd: Path, at: int = 0, fault: str = "kill") -> tuple[int, str, list[str]]:
        """(exit code, what it said, its operations)."""
        log, said, temporary = (self.folder / name for name in ("operations.txt", "said.txt", "tmp"))
        said.unlink(missing_ok=True)
        temporary.mkdir(exist_ok=True)
        given = (str(cwd), str(at), fault, str(log), *words)
        environment = {**self.environment, "TMPDIR": str(temporary)}
        process = self._server.start(
            "crash_points:armed", *given, cwd=cwd, environment=environment, output=(said, said)
        )
        code = process.wait(PATIENCE_S)
        return code, said.read_text(errors="replace"), log.read_text().splitlines()


# Which points


def chosen(operations: list[str], count: int, chance: random.Random) -> list[int]:
    """Numbers of operations, from 1: of each kind in turn, however many there are of it. A kind is what is done and to
    which file, whatever its numbers."""
    kinds = defaultdict(list)
    for number, operation in enumerate(operations, 1):
        kinds[re.sub(r"\.[0-9a-f]{8}(?=\.)|\d+", "#", operation)].append(number)
    left = [chance.sample(numbers, len(numbers)) for numbers in kinds.values()]
    found: list[int] = []
    while left and len(found) < count:
        chance.shuffle(left)
        found += [numbers.pop() for numbers in left][: count - len(found)]
        left = [numbers for numbers in left if numbers]
    return sorted(found)


# Whether it is as it would have been


def differences(whole: Path, cut: Path) -> list[str]:
    """What is not alike in two folders, a line each."""
    both = [set(_names(folder)) for folder in (whole, cut)]
    found = [f"{path} is missing" for path in _highest(both[0] - both[1])]
    found += [f"{path} is left over" for path in _highest(both[1] - both[0])]
    for path in sorted(both[0] & both[1]):
        one, other = whole / path, cut / path
        if one.is_symlink() or not one.is_file():
            continue
        try:
            if READ_ALONE.fullmatch(path.name):
                content(other)
            elif content(one) != content(other):
                found.append(f"{path} differs: {_where(content(one), content(other))}")
        except ValueError as error:
            found.append(f"{path} cannot be read: {error}")
    return found


def _names(folder: Path) -> Iterator[Path]:
    return (path.relative_to(folder) for path in folder.rglob("*") if not EXEMPT.search(str(path)))


def _highest(paths: set[Path]) -> list[Path]:
    """Without those in folders that are among them."""
    return sorted(path for path in paths if path.parent not in paths)


def content(path: Path) -> Any:
    """What a file says, without what a clock decides. Raises ValueError for half a line, and half an object."""
    if path.suffix == ".sqlite":  # when its pages were written decides where what is
        with contextlib.closing(sqlite3.connect(path)) as cache:
            return cache.execute("pragma integrity_check").fetchall()
    if path.suffix not in (".json", ".jsonl", ".md", ".txt", ".html", ".yaml", ".csv"):
        return path.read_bytes()
    text = path.read_text()
    if path.suffix == ".jsonl":
        if text and not text.endswith("\n"):
            raise ValueError("its last line was cut short")
        lines = [_lasting(json.loads(line)) for line in text.splitlines()]
        return sorted(lines, key=str) if path.name == "scores.jsonl" else lines  # of a rescore: as they came
    return _lasting(json.loads(text)) if path.suffix == ".json" else _DATE.sub("", text)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if not MAY_DIFFER.search(key)}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _where(one: Any, other: Any, place: str = "") -> str:
    """The first place in which they differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if one.get(key) != other.get(key):
                return _where(one.get(key), other.get(key), f"{place}.{key}")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        number = next(number for number, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        return _where(one[number], other[number], f"{place}[{number}]")
    return f"{place} {str(one)[:80]!r} -> {str(other)[:80]!r}"


# A scenario


def tried(
    lives: Lives, scenario: Scenario, folder: Path, fault: str, points: int, times: int, seed: int
) -> tuple[int, list[bool]]:
    """How many operations there are, and of each point whether all was equal in the end. times: how often the fault
    comes, the first time at the point. Raises SystemExit where the scenario does not run by itself."""
    base, whole, cut = (folder / name for name in ("base", "whole", "here"))
    cut.mkdir()
    for step in scenario.before:
        step(cut) if callable(step) else _whole(lives, step, cut)
    shutil.copytree(cut, base, symlinks=True)
    operations = _whole(lives, scenario.command, cut)
    cut.rename(whole)
    equal, chance = [], random.Random(seed)
    for number in chosen(operations, points, chance):
        shutil.rmtree(cut, ignore_errors=True)
        shutil.copytree(base, cut, symlinks=True)
        code, said, done = lives.run(scenario.command, cut, number, fault)
        if len(done) < number:  # threads and caches: it did less this time
            continue
        problems = [f"it ended with {code}"] if fault == "kill" and code != -9 else []
        problems += _tracebacks(said)
        ends = [done[number - 1]]
        for _ in range(times - 1):
            at = chance.randint(1, len(operations))  # beyond its last one, it comes to its end
            _, said, done = lives.run(_resumed(scenario, cut), cut, at, fault)
            problems += _tracebacks(said)
            ends += done[at - 1 : at]
        problems += _again(lives, scenario, whole, cut)
        equal.append(not problems)
        for problem in problems:
            print(f"  {fault} at {number} of {len(operations)} ({', then '.join(ends)}): {problem}", flush=True)
    return len(operations), equal


def _again(lives: Lives, scenario: Scenario, whole: Path, cut: Path) -> list[str]:
    for left in cut.glob("runs/.*"):  # for a minute they might be of a process on another machine
        os.utime(left, (0, 0), follow_symlinks=False)
    code, said, _ = lives.run(_resumed(scenario, cut), cut)
    problems = differences(whole, cut)
    if problems and code:
        problems.append(f"begun again, it ended with {code}: {said[-500:]}")
    left = [path.name for path in (lives.folder / "tmp").iterdir()]
    return problems + _tracebacks(said) + [f"left in the folder for temporary files: {name}" for name in left]


def _resumed(scenario: Scenario, folder: Path) -> tuple[str, ...]:
    runs = [path.parent for path in (folder / "runs").glob("[!.]*/config.yaml") if not path.parent.is_symlink()]
    if scenario.command[0] == "train" and runs:
        return ("train", "--resume", str(runs[0].relative_to(folder)))
    return scenario.command


def _whole(lives: Lives, words: Iterable[str], folder: Path) -> list[str]:
    code, said, operations = lives.run(words, folder)
    if code:
        raise SystemExit(f"coachrl {' '.join(words)} ended with {code}: {said}")
    return operations


def _tracebacks(said: str) -> list[str]:
    return [f"a traceback: {said[-1500:]}"] if "Traceback" in said else []


# The scenarios

SMALL = (
    "model={model}", "train.steps=2", "train.tasks_per_step=2", "train.checkpoint_every=1", "train.keep_checkpoints=1",
    "train.learning_rate=1e-3", "train.mask_truncated=false", "eval.every=1", "tasks.train_count=4",
    "tasks.heldout_count=2", "pipeline.max_new_tokens=6", "pipeline.prompt_style=short", "torch.threads=1",
    "torch.device=cpu", "sandbox.kind=local-unsafe",
)  # fmt: skip
JUDGE = ("coach.name=openai/judge", "coach.api_base={judge}")
BLIND = ("coach.evidence.ground_truth=none",)
EXECUTOR = ("pipeline.roles.code_executor.max_turns=1",)
SUMS, WORLD = ("tasks.source=word-problems",), ("pipeline.name=planpath", "tasks.source=planpath")


def _train(*settings: str) -> tuple[str, ...]:
    return ("train", "name=one", *SMALL, *settings)


def _write_demonstrations(folder: Path) -> None:
    said = [[{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}] for n in range(8)]
    (folder / "sft.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in said))


def _lose_last_checkpoint(folder: Path) -> None:
    shutil.rmtree(folder / "runs/one/checkpoints/step-000002")


def _write_labels(folder: Path) -> None:
    lines = (folder / "runs/one/episodes/step-000001.jsonl").read_text().splitlines()
    actions = [action["id"] for line in lines for action in json.loads(line)["actions"]]
    labels = [{"action_id": action, "rater": "Ann", "score": 7.0, "remark": ""} for action in actions]
    (folder / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))


MATHCHAT = _train(*EXECUTOR, *SUMS, *JUDGE, "algorithm.kl_beta=0")
TRAINED, TWO_KEPT = (MATHCHAT,), (*MATHCHAT, "train.keep_checkpoints=2")
AUDIT = ("audit", "runs/one", "--json", "audit.json", "--resamples", "100")
EVAL = ("eval", "--run", "runs/one")
TREE = ("algorithm.name=at_grpo", "sampling.scheme=tree", "sampling.candidates=2", "pipeline.options.turns=2")
SCENARIOS = {
    "reinforce_pp": Scenario(MATHCHAT),
    "keep_best": Scenario((*MATHCHAT, "train.keep_best=true", "train.steps=3")),
    "at_grpo": Scenario(_train(*WORLD, *TREE, *JUDGE, *BLIND)),
    "magrpo": Scenario(_train("pipeline.name=coop_code", "tasks.source=coop-code", "pipeline.options.turns=2",
                              "algorithm.name=magrpo", "train.group_size=2", *JUDGE)),
    "grpo, refilled": Scenario(_train(*EXECUTOR, *SUMS, *JUDGE, "algorithm.name=grpo", "train.group_size=2",
                                      "algorithm.without_spread=skip", "algorithm.refill_up_to=4")),
    "counterfactual": Scenario(_train(*WORLD, "algorithm.name=counterfactual", "algorithm.others=2",
                                      "algorithm.decisions=2", "pipeline.options.turns=2", "train.tasks_per_step=1")),
    "retrospective": Scenario(_train(*EXECUTOR, *SUMS, *JUDGE, *BLIND, "algorithm.name=retrospective")),
    "dsbench": Scenario(_train("pipeline.name=dsbench", "tasks.source=dsbench-lite")),
    "LoRA over one base": Scenario((*MATHCHAT, "torch.lora_rank=4", "torch.share_base=true")),
    "one policy": Scenario((*MATHCHAT, "pipeline.shared_policy=all")),
    "audit.every": Scenario((*MATHCHAT, "audit.every=1")),
    "coach.suggest": Scenario((*MATHCHAT, "coach.suggest=true")),
    "train --resume": Scenario(("train", "--resume", "runs/one"), (TWO_KEPT, _lose_last_checkpoint)),
    "eval --episodes": Scenario((*EVAL, "--episodes", "eval.jsonl"), TRAINED),
    "prune": Scenario(("checkpoints", "prune", "runs/one"), (TWO_KEPT,)),
    "report": Scenario(("report", "runs/one"), TRAINED),
    "rescore": Scenario(("rescore", "runs/one", "--coach", "rules"), TRAINED),
    "rescore, model": Scenario(("rescore", "runs/one", *JUDGE, "--repeat", "1"), TRAINED),
    "audit": Scenario(AUDIT, TRAINED),
    "audit --probe": Scenario((*AUDIT, "--probe", "2", "--yes"), TRAINED),
    "audit --replay": Scenario((*AUDIT, "--replay", "2"), TRAINED),
    "audit --fault-localization": Scenario((*AUDIT, "--fault-localization", "2", "--yes"), TRAINED),
    "export": Scenario(("export", "runs/one", "--format", "reward-model", "--out", "judged.jsonl"), TRAINED),
    "export hub": Scenario(("export", "runs/one", "--format", "hub", "--out", "hub"), TRAINED),
    "compare": Scenario(("compare", "runs/one", "runs/one", "--html", "both.html"), TRAINED),
    "sft": Scenario(("sft", "--data", "sft.jsonl", "--out", "warm", "--model", "{model}", "--epochs", "2",
                     "--max-length", "8000"),
                    (_write_demonstrations,)),
    "label import": Scenario(("label", "import", "runs/one", "labels.jsonl"), (*TRAINED, _write_labels)),
    "gateway": Scenario(_train(*SUMS, *JUDGE, "pipeline.name=gateway", "pipeline.options.run=plain_openai:solve",
                               "pipeline.options.grade=grading:last_number",
                               "pipeline.options.roles={{planner: {{}}, solver: {{}}}}")),
}  # fmt: skip


def _filled(scenario: Scenario, **names: str) -> Scenario:
    def fill(words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(word.format(**names) if "{" in word else word for word in words)

    before = tuple(step if callable(step) else fill(step) for step in scenario.before)
    return Scenario(fill(scenario.command), before)


@contextlib.contextmanager
def judging() -> Iterator[str]:
    """The address of a judge whose scores are the same for the same question, whoever asks and when."""
    from scripted_server import ScriptedServer, say

    def judged(request: Any) -> Any:
        score = zlib.crc32(request.prompt.encode()) % 11
        attributes = "CONTRIBUTION" in str(request.body)
        return say(f"CONTRIBUTION: {score}\nRESIDUAL: none" if attributes else f"PROCESS_SCORE: {score}")

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = ScriptedServer(judged)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
    try:
        yield server.openai_base
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    parser.add_argument("--points", type=int, default=30, help="operations of each scenario")
    parser.add_argument("--fault", choices=FAULTS, default="kill", help="what happens there")
    parser.add_argument("--times", type=int, default=1, help="how often, at any operation as it goes on")
    parser.add_argument("--seed", type=int, default=0, help="which operations")
    parser.add_argument("--folder", type=Path, help="where all of it goes; by default a temporary one that is removed")
    given = parser.parse_args()
    if unknown := [name for name in given.scenarios if name not in SCENARIOS]:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    with tempfile.TemporaryDirectory() as made, judging() as judge:
        folder = (given.folder or Path(made)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        from tiny_models import write_tiny_model

        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 16384}
        model = write_tiny_model(folder / "model", **sizes)
        lives = Lives(folder, {**os.environ, "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        print("| scenario | operations | points | equal in the end |\n|---|---|---|---|")
        all_equal = True
        for name in given.scenarios or SCENARIOS:
            scenario = _filled(SCENARIOS[name], model=str(model), judge=judge)
            place = Path(tempfile.mkdtemp(prefix=f"{re.sub('[^a-z]', '_', name)}-", dir=folder))
            operations, equal = tried(lives, scenario, place, given.fault, given.points, given.times, given.seed)
            print(f"| {name} | {operations} | {len(equal)} | {sum(equal)} |", flush=True)
            all_equal &= bool(equal) and all(equal)
    sys.exit(not all_equal)


if __name__ == "__main__":
    main()
