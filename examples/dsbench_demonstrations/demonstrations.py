"""Demonstrations of the DSBench team: chains of programs on made-up tables, played through the pipeline itself.

Every program is run, in a sandbox, by the very code that runs a model's programs; prompts and feedback are recorded as
that code rendered them, so that they cannot drift from what a trained model will read. A chain whose programs do not
end as they were written to end is an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import TaskError
from coachrl.pipelines.dsbench import ROLES, DSBench
from coachrl.pipelines.team.team import Team
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import generator
from coachrl.testing.scripted import Call, ScriptedPolicy
from coachrl.types import Action, Outcome, Role, SamplingParams

from .analyst import ANALYST
from .engineer import ENGINEER
from .modeler import MODELER
from .programs import Craft, Effect, Program, plain_program, write_program
from .tables import TableTask, make_table

log = logging.getLogger(__name__)

CRAFTS: dict[str, Craft] = {"data_engineer": ENGINEER, "modeler": MODELER, "analyst": ANALYST}
FAULT_SHARE = 0.4
_REPAIRED = 0.7  # share of faults that show at once whose second turn is demonstrated
_TURNS = 2  # a fault and its repair; longer parts demonstrate nothing new
_CHAINS_AT_ONCE = 4


@dataclass(frozen=True)
class Demo:
    """One role's part as a conversation. style, fault: what its first program is; more than one reply is a repair."""

    role: str
    style: str
    fault: str | None
    table: str
    messages: tuple[dict[str, str], ...]

    def to_json(self) -> str:
        record = {
            "messages": list(self.messages),
            "role": self.role,
            "style": self.style,
            "fault": self.fault,
            "table": self.table,
        }
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class _Cue:
    """What one role plays in a chain. kept: becomes a demonstration. repaired: the second turn is the sound program."""

    program: Program
    kept: bool
    repaired: bool

    @property
    def reply(self) -> str:
        return _fenced(self.program.code)

    @property
    def leaves_files(self) -> bool:
        return self.program.effect in ("works", "later") or (self.repaired and self.program.effect != "works")


@dataclass(frozen=True)
class _Chain:
    """One table and the cue of each role, in the team's order."""

    table: TableTask
    cues: dict[str, _Cue]


async def write_demos(
    folder: Path,
    sandbox: Sandbox,
    count_per_role: int,
    fault_share: float = FAULT_SHARE,
    seed: int = 0,
    roles: Sequence[str] = tuple(CRAFTS),
) -> dict[str, Path]:
    """Write `<folder>/<role>.jsonl`, one chat-form record a line, and return the paths by role.

    round(fault_share * count_per_role) of each role's records begin with a faulty program. The same seed gives the same
    files. Raises TaskError where a program did not end as it was written to, SandboxError where it could not be run.
    """
    demos = await make_demos(sandbox, count_per_role, fault_share, seed, roles)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {role: folder / f"{role}.jsonl" for role in roles}
    for role, path in paths.items():
        path.write_text("".join(f"{demo.to_json()}\n" for demo in demos if demo.role == role), encoding="utf-8")
    return paths


async def make_demos(
    sandbox: Sandbox, count_per_role: int, fault_share: float, seed: int, roles: Sequence[str] = tuple(CRAFTS)
) -> list[Demo]:
    """The demonstrations of `roles`, in the order of their chains. Raises TaskError, SandboxError."""
    unknown = [role for role in roles if role not in CRAFTS]
    if unknown or not 0 <= fault_share <= 1 or count_per_role < 1:
        raise TaskError(
            f"demonstrations need roles among {', '.join(CRAFTS)}, a fault share within 0..1 and a count of 1 or more; "
            f"got {', '.join(roles)}, {fault_share} and {count_per_role}"
        )
    pipeline = short_pipeline()
    with tempfile.TemporaryDirectory(prefix="coachrl-demos-") as folder:
        chains = list(_plan(Path(folder), count_per_role, fault_share, seed, roles))
        free = asyncio.Semaphore(_CHAINS_AT_ONCE)

        async def played(chain: _Chain) -> list[Demo]:
            async with free:
                return await _play(chain, pipeline, sandbox)

        groups = await asyncio.gather(*(played(chain) for chain in chains))
    return [demo for group in groups for demo in group]


def short_pipeline() -> DSBench:
    """The pipeline with the prompts that demonstrations are made for."""
    return DSBench(
        PipelineConfig(
            name="dsbench", prompt_style="short", roles={role.name: RoleConfig(max_turns=_TURNS) for role in ROLES}
        )
    )


def _plan(folder: Path, count: int, fault_share: float, seed: int, roles: Sequence[str]) -> Iterable[_Chain]:
    """Chains until every role has its count, with exactly the stated share of faults."""
    faulty = round(fault_share * count)
    left = {role: {True: faulty, False: count - faulty} if role in roles else {True: 0, False: 0} for role in CRAFTS}
    number = 0
    while any(sum(of_role.values()) for of_role in left.values()):
        rng = generator(seed, "dsbench-demos", number)
        table = make_table(f"table-{number}", folder / str(number), rng)
        yield _Chain(table, _cues(table, left, rng))
        number += 1


def _cues(table: TableTask, left: dict[str, dict[bool, int]], rng: np.random.Generator) -> dict[str, _Cue]:
    """One cue a role; `left` counts down. What comes after a hidden fault is played but not kept."""
    cues: dict[str, _Cue] = {}
    absent: set[str] = set()
    hidden_fault = False
    for role in ROLES:
        kept = not hidden_fault and sum(left[role.name].values()) > 0
        needed = [name for name in role.needed_files if name in absent]
        if needed:
            kept = kept and left[role.name][False] > 0
            cue = _Cue(_report(needed), kept, repaired=False)
        elif kept:
            counts = left[role.name]
            is_faulty = bool(rng.random() * sum(counts.values()) < counts[True])
            program = write_program(CRAFTS[role.name], table, is_faulty, rng)
            shows = program.effect in ("error", "missing")
            cue = _Cue(program, True, repaired=shows and bool(rng.random() < _REPAIRED))
        else:
            cue = _Cue(plain_program(CRAFTS[role.name], table, rng), False, repaired=False)
        if cue.kept:
            left[role.name][cue.program.fault is not None] -= 1
        hidden_fault |= cue.program.effect == "later"
        if needed or not cue.leaves_files:
            absent |= _unsaved(cue.program, role)
        cues[role.name] = cue
    return cues


def _report(missing: Sequence[str]) -> Program:
    """What to do where upstream left nothing to work with: say what is missing."""
    code = f'print("missing: {", ".join(missing)}")'
    return Program(code, "report", None, "missing", code)


def _unsaved(program: Program, role: Role) -> set[str]:
    """Required files that the program leaves out; one that breaks, breaks before it saves."""
    return {name for name in role.required_files if program.effect == "error" or name not in program.code}


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


async def _play(chain: _Chain, pipeline: DSBench, sandbox: Sandbox) -> list[Demo]:
    """Run the chain as an episode, check that each program ended as it was written to, and keep what is to be kept."""
    turns = dict.fromkeys(chain.cues, 0)

    def reply(call: Call) -> str:
        cue = chain.cues[call.policy]
        turns[call.policy] += 1
        return _fenced(cue.program.sound) if cue.repaired and turns[call.policy] > 1 else cue.reply

    task = chain.table.task
    team = Team(task.id, task, pipeline.roles, ScriptedPolicy(reply), SamplingParams())
    try:
        outcome = await pipeline.run(task, team, await team.open(sandbox))
    finally:
        await team.close()
    parts = {role.name: [a for a in team.actions if a.role == role.name] for role in pipeline.roles}
    for role in pipeline.roles:
        _check_effect(chain, role, parts[role.name][0])
    _check_outcome(chain, outcome)
    return [_demo(chain, role, parts[role.name]) for role in pipeline.roles if chain.cues[role.name].kept]


def _demo(chain: _Chain, role: Role, actions: Sequence[Action]) -> Demo:
    cue = chain.cues[role.name]
    messages: list[dict[str, str]] = []
    for action in actions if cue.repaired else actions[:1]:
        messages += [{"role": "user", "content": action.prompt_text}, {"role": "assistant", "content": action.text}]
    return Demo(role.name, cue.program.style, cue.program.fault, chain.table.task.id, tuple(messages))


def _check_effect(chain: _Chain, role: Role, action: Action) -> None:
    """Raises TaskError where a first program did not end as written. What follows a hidden fault may break."""
    cue = chain.cues[role.name]
    if not cue.kept or action.execution is None:
        return
    saved = set(role.required_files) <= set(action.files_after)
    ended: Effect = "error" if action.execution.state != "ok" else "later" if saved else "missing"
    if ended != ("later" if cue.program.effect == "works" else cue.program.effect):
        raise TaskError(
            f"{chain.table.task.id}: the {role.name}'s program ({cue.program.style}, {cue.program.fault}) was to end "
            f"as '{cue.program.effect}' and ended as '{ended}': {action.execution.stderr[-500:]}\n{cue.program.code}"
        )


def _check_outcome(chain: _Chain, outcome: Outcome) -> None:
    """Raises TaskError where a sound or repaired chain failed, or one with a lasting fault did not."""
    sound = all(cue.program.fault is None or cue.repaired for cue in chain.cues.values())
    if outcome.success != sound:
        played = {name: (cue.program.style, cue.program.fault, cue.repaired) for name, cue in chain.cues.items()}
        raise TaskError(
            f"{chain.table.task.id}: a {'sound' if sound else 'faulty'} chain ended with success {outcome.success} "
            f"({outcome.reason}): {played}"
        )
