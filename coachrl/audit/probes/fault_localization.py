"""Does the coach blame the right agent? Teams with one planted fault, whose culprit is known because it was planted.

The episodes are real: programs are played through the DSBench pipeline on made-up tables, in the sandbox. Each fault is
played beside the same team without it, so that what an innocent agent loses is its score there minus its score here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from coachrl.audit.data.sample import Sample
from coachrl.audit.probes.probes import ask
from coachrl.audit.stats.estimates import RESAMPLES, SCORE_CHANGE, SHARE, Estimate
from coachrl.coach.base import CoachRequest, make_request
from coachrl.coach.pool import CoachPool
from coachrl.config.sections import PipelineConfig, RoleConfig
from coachrl.demos.dsbench import CRAFTS
from coachrl.demos.programs import Program, plain_program
from coachrl.demos.tables import TableTask, make_table
from coachrl.pipelines.dsbench import ROLES, DSBench
from coachrl.sandbox.base import Sandbox
from coachrl.seeding import derive_seed, generator
from coachrl.testing.scripted import Call, ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import CoachScore, Episode, Task

# (role, name of the fault in its craft, in words).
FAULTS = (
    ("data_engineer", "no X_test.pkl", "an artifact is left out: X_test.pkl"),
    ("data_engineer", "target kept", "columns are wrong: the target stays among the features"),
    ("data_engineer", "encoder fitted twice", "columns are wrong: train and test are encoded apart"),
    ("modeler", "not fitted", "the model is saved unfitted"),
    ("modeler", "model not saved", "an artifact is left out: model.pkl"),
)
_TRIES = 60  # made-up tables that are looked at for one on which a fault applies


@dataclass(frozen=True)
class BlameCase:
    """One fault on one table. scores: role -> its score with the fault; sound: without. None: no score."""

    table: str
    culprit: str
    fault: str
    scores: Mapping[str, float | None]
    sound: Mapping[str, float | None]


@dataclass(frozen=True)
class Blame:
    """What the coach did with planted faults. accuracy: share of the cases in which the culprit has the lowest score of
    the team, ties shared out. innocent_loss, culprit_loss: points lost against the same team without the fault.
    by_fault: accuracy of each fault. notes: what could not be measured."""

    cases: Sequence[BlameCase]
    accuracy: Estimate | None
    innocent_loss: Estimate | None
    culprit_loss: Estimate | None
    by_fault: Mapping[str, Estimate]
    notes: Sequence[str]


@dataclass(frozen=True)
class _Play:
    """A team to be played: the program of each role. culprit "" where it is sound."""

    id: str
    table: TableTask
    programs: Mapping[str, Program]
    culprit: str
    fault: str


def calls_needed(tables: int) -> int:
    """Coach calls of `run_blame`, one for each action."""
    return tables * len(FAULTS) * 2 * len(ROLES)


async def run_blame(
    pool: CoachPool, sandbox: Sandbox, tables: int = 4, resamples: int = RESAMPLES, seed: int = 0
) -> Blame:
    """Play every fault on `tables` tables, with and without it, and let the coach score every action.

    Raises SandboxError where programs cannot be run, CoachUnavailable where the coach cannot be asked."""
    pipeline = DSBench(
        PipelineConfig(
            name="dsbench", prompt_style="short", roles={role.name: RoleConfig(max_turns=1) for role in ROLES}
        )
    )
    with tempfile.TemporaryDirectory(prefix="coachrl-blame-") as folder:
        plays = [play for index in range(len(FAULTS)) for play in _plan(Path(folder), index, tables, seed)]
        episodes = await _play(plays, pipeline, sandbox, seed)
        requests = [
            request
            for play, episode in zip(plays, episodes, strict=True)
            if episode.infra_error is None
            for request in _requests(episode, play.table.task, pipeline)
        ]
        scores = await ask(pool, requests)
    return judge(_cases(plays, episodes, scores), resamples, seed)


def judge(cases: Sequence[BlameCase], resamples: int = RESAMPLES, seed: int = 0) -> Blame:
    """The figures from the cases. A case without a score for every agent cannot be judged, and is counted in a note."""
    whole = [case for case in cases if None not in (*case.scores.values(), *case.sound.values()) and case.scores]
    notes = [f"{len(cases) - len(whole)} of {len(cases)} planted faults have an action without a score"]
    notes = notes if len(whole) < len(cases) else []
    if not whole:
        return Blame(cases, None, None, None, {}, notes or ["no fault was played"])
    frame = pd.DataFrame({"task": [case.table for case in whole], "score": 0.0, "outcome": np.nan, "step": 0})
    frame["fault"] = [f"{case.culprit}: {case.fault}" for case in whole]
    frame["task"] = frame["task"].astype("category")
    sample = Sample.of(frame, resamples, seed)
    right_N = np.array([_found(case) for case in whole])
    by_fault = sample.means(("fault",), right_N, of="cases", limits=SHARE)
    return Blame(
        cases=cases,
        accuracy=sample.means((), right_N, of="cases", limits=SHARE)[0],
        innocent_loss=sample.mean(
            np.array([_loss(case, culprit=False) for case in whole]), of="cases", limits=SCORE_CHANGE
        ),
        culprit_loss=sample.mean(
            np.array([_loss(case, culprit=True) for case in whole]), of="cases", limits=SCORE_CHANGE
        ),
        by_fault=dict(zip(sorted(frame["fault"].unique()), by_fault, strict=True)),
        notes=notes,
    )


def _found(case: BlameCase) -> float:
    """1 where the culprit alone has the lowest score, 1 / k where k agents share it, else 0."""
    scores = {role: score for role, score in case.scores.items() if score is not None}
    lowest = [role for role, score in scores.items() if score <= min(scores.values()) + 1e-9]
    return 1 / len(lowest) if case.culprit in lowest else 0.0


def _loss(case: BlameCase, culprit: bool) -> float:
    concerned = [role for role in case.scores if (role == case.culprit) == culprit]
    return float(np.mean([(case.sound[role] or 0.0) - (case.scores[role] or 0.0) for role in concerned]))


def _plan(folder: Path, fault_index: int, tables: int, seed: int) -> list[_Play]:
    """For one fault, a sound team and a faulty one on each of `tables` tables that it applies to."""
    role, name, what = FAULTS[fault_index]
    fault = CRAFTS[role].faults[name]
    plays: list[_Play] = []
    for number in range(_TRIES):
        if len(plays) == 2 * tables:
            break
        table_id = f"blame-{number}"
        rng = generator(seed, "fault_localization", number)
        table = make_table(table_id, folder / f"{fault_index}-{number}", rng)
        sound = {member: plain_program(craft, table, rng) for member, craft in CRAFTS.items()}
        if fault.styles is not None:  # the fault fits some ways of writing only
            style = fault.styles[0]
            code = CRAFTS[role].styles[style](table, rng)
            sound[role] = Program(code, style, None, "works", code)
        if not fault.needs(table) or not CRAFTS[role].usable(sound[role].style, table):
            continue
        code = fault.spoil(sound[role].code, table, rng)
        if code == sound[role].code:
            continue
        spoiled = {**sound, role: Program(code, sound[role].style, name, fault.effect, sound[role].code)}
        plays.append(_Play(f"{table_id}.{fault_index}.sound", table, sound, "", what))
        plays.append(_Play(f"{table_id}.{fault_index}.fault", table, spoiled, role, what))
    return plays


async def _play(plays: Sequence[_Play], pipeline: DSBench, sandbox: Sandbox, seed: int) -> list[Episode]:
    episodes = []
    for play in plays:

        def reply(call: Call, play: _Play = play) -> str:
            return f"```python\n{play.programs[call.policy].code}\n```"

        context = RolloutContext(pipeline=pipeline, backend=ScriptedPolicy(reply), sandbox=sandbox)
        spec = EpisodeSpec(play.id, play.table.task, derive_seed(seed, play.id))
        episodes += await rollout([spec], context)
    return episodes


def _requests(episode: Episode, task: Task, pipeline: DSBench) -> list[CoachRequest]:
    """As in training: the last agent's action comes with the measured outcome (MAPPA, Sec. 2.2)."""
    roles, last = {role.name: role for role in pipeline.roles}, pipeline.roles[-1].name
    return [
        make_request(
            task,
            pipeline.roles,
            roles[action.role],
            action,
            episode.actions[:place],
            episode.outcome if action.role == last else None,
        )
        for place, action in enumerate(episode.actions)
    ]


def _cases(plays: Sequence[_Play], episodes: Sequence[Episode], scores: Mapping[str, CoachScore]) -> list[BlameCase]:
    cases = []
    for sound, faulty in zip(range(0, len(plays), 2), range(1, len(plays), 2), strict=True):
        play = plays[faulty]
        cases.append(
            BlameCase(
                table=play.table.task.id,
                culprit=play.culprit,
                fault=play.fault,
                scores=_by_role(episodes[faulty], scores),
                sound=_by_role(episodes[sound], scores),
            )
        )
    return cases


def _by_role(episode: Episode, scores: Mapping[str, CoachScore]) -> dict[str, float | None]:
    found = {action.role: scores.get(action.id) for action in episode.actions}
    return {role: score.process_0_10 if score is not None else None for role, score in found.items()}
