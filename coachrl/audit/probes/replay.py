"""How well a coach's scores go with what actions were worth: the same episodes are played again from scored actions.

For each of N scored actions, `OTHERS` other replies of its policy take its place, and each of them, and the action
itself, is played to the end `PLAYOUTS` times with the team of the run's last checkpoint. What the action was worth is
its share of successes less the mean of the others' (`coachrl.trainers.rollout.replay`). A coach's fidelity is the rank
correlation of its scores with that (C3, arXiv 2603.06859, which reports .27 for its own credit). Values of few playouts
are noisy, which draws every correlation towards 0: what is compared at equal numbers compares.

What has been measured is written down at once, and is not played again where the audit is repeated; what could not be
is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from scipy import stats

from coachrl.audit.data.sample import Sample
from coachrl.audit.verdicts import SMALLEST_RHO, AuditVerdict, Grade
from coachrl.config import RunConfig
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.records import step_of
from coachrl.seeding import generator
from coachrl.stats import Estimate
from coachrl.storage.jsonl import append_jsonl, drop_torn_line, readable_jsonl
from coachrl.text import counted
from coachrl.trainers.rollout.replay import Decision, Measured, ReplaySettings, decisions_of, measure
from coachrl.trainers.rollout.rollout import RolloutContext
from coachrl.trainers.schedule import all_specs
from coachrl.types import CoachScore, Task

OTHERS, PLAYOUTS = 3, 2
AT_ONCE = 8  # decisions that are played side by side; so many at most are lost where the audit is interrupted
FEWEST = 8  # actions: a correlation of fewer says nothing


@dataclass(frozen=True)
class ReplayedAction:
    """One scored action and what it was worth. score: the coach's. worth: None where it could not be measured; problem
    says why. action_digest: `Action.digest` of what was measured."""

    action: str
    task: str
    role: str
    turn: int
    category: str
    rater: str
    score: float
    worth: float | None
    tokens: int
    problem: str = ""
    action_digest: str = ""


_REPLAYED = TypeAdapter(ReplayedAction)


@dataclass(frozen=True)
class Fidelity:
    """The rank correlation of scores and worths among the actions of one kind. rho: None where there are too few, or
    all scores or worths are the same."""

    of: str
    actions: int
    rho: Estimate | None


@dataclass(frozen=True)
class ReplayFidelity:
    """checkpoint: whose weights played. tokens: what all playouts together drew. fidelity: of all actions first, then
    by role, turn and task category."""

    pipeline: str
    rater: str
    checkpoint: str
    others: int
    playouts: int
    measured: int
    not_reproduced: int
    unmeasured: int
    tokens: int
    fidelity: Sequence[Fidelity]


def last_checkpoint(run: Run) -> Path:
    """Where the weights are that play. Raises ConfigError where the run kept none."""
    if not run.checkpoints():
        raise ConfigError(
            f"{run.folder}: --replay plays with the run's own weights, and no checkpoint is there "
            "(train.keep_checkpoints=1 keeps the last)"
        )
    return run.last_checkpoint()


def scored_decisions(
    run: Run, config: RunConfig, tasks: Sequence[Task], count: int, seed: int
) -> list[tuple[Decision, CoachScore]]:
    """`count` scored actions of the run's training steps, drawn at random from the last steps that hold so many: the
    weights that play are those of the end. Raises ConfigError where there is none."""
    found: list[tuple[Decision, CoachScore]] = []
    for path in reversed(run.episode_files("step")):
        episodes, scores = run.read_episodes(path.stem)
        specs = all_specs(tasks, config, step_of(path))
        found += [
            (decision, score)
            for decision in decisions_of(specs, episodes)
            if (score := scores.get(decision.action.id)) is not None and score.process_0_10 is not None
        ]
        if len(found) >= count:
            break
    if not found:
        raise ConfigError(f"{run.folder} holds no scored action of an episode of its task set: nothing can be replayed")
    chosen = generator(seed, "replay").permutation(len(found))[:count]
    return [found[place] for place in sorted(chosen)]


async def replay_fidelity(
    run: Run,
    chosen: Sequence[tuple[Decision, CoachScore]],
    context: RolloutContext,
    checkpoint: str,
    *,
    resamples: int,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReplayFidelity:
    """Measures what is not on file yet, `AT_ONCE` actions at a time. Raises ConfigError where the pipeline cannot be
    replayed, and OSError, before anything is measured, where nothing can be written."""
    settings = ReplaySettings(OTHERS, PLAYOUTS, recorded_outcome=False)  # the coach may have seen that outcome
    path = run.folder / "coach" / "replayed.jsonl"
    made_with = {"checkpoint": checkpoint, **asdict(settings)}
    problems: list[str] = []
    here = {decision.action.id: decision.action for decision, _ in chosen}
    on_file = _on_file(path, made_with, problems)
    done = {one.action: one for one in on_file if one.action in here and here[one.action].is_of(one.action_digest)}
    missing = [pair for pair in chosen if pair[0].action.id not in done]
    if missing:
        path.parent.mkdir(exist_ok=True)
        append_jsonl(path, [])  # a place that takes nothing costs nothing
    for problem in problems:
        run.warn(f"{problem}; what stood there is measured again" if missing else problem)
    for first in range(0, len(missing), AT_ONCE):
        batch = missing[first : first + AT_ONCE]
        measured = await measure([decision for decision, _ in batch], context, settings)
        new = [_replayed(decision, score, one) for (decision, score), one in zip(batch, measured, strict=True)]
        kept = [one for one in new if one.worth is not None]  # a sandbox may be up, or a task put back, next time
        append_jsonl(path, [{"made_with": made_with, **asdict(one)} for one in kept])
        done |= {one.action: one for one in new}
        on_progress(len(chosen) - len(missing) + first + len(new), len(chosen))
    actions = [done[decision.action.id] for decision, _ in chosen]
    known = [one for one in actions if one.worth is not None]
    return ReplayFidelity(
        context.pipeline.name,
        ", ".join(dict.fromkeys(one.rater for one in actions)),
        checkpoint,
        OTHERS,
        PLAYOUTS,
        measured=len(known),
        not_reproduced=sum(bool(one.problem) for one in actions),
        unmeasured=sum(one.worth is None and not one.problem for one in actions),
        tokens=sum(one.tokens for one in actions),
        fidelity=list(_fidelities(known, resamples, seed)),
    )


def replay_verdict(found: ReplayFidelity) -> AuditVerdict:
    overall = found.fidelity[0]
    lost = f"; {found.not_reproduced} could not be reproduced" if found.not_reproduced else ""
    cost = f"{counted(found.tokens, 'token')} drawn{lost}"
    if overall.rho is None:
        text = f"fidelity is not known: {overall.actions} actions were measured, or all came to the same ({cost})"
        return AuditVerdict("replay", "unknown", found.pipeline, found.rater, text)
    rho = overall.rho
    how = f"rank correlation {rho.interval(True)}, {rho.size}; {cost}"
    if rho.low is not None and rho.low > 0:
        grade: Grade = "ok" if rho.value >= SMALLEST_RHO else "note"
        text = f"its scores go with what actions were worth when they were replayed: {how}"
    elif rho.high is not None and rho.high < SMALLEST_RHO:
        grade, text = "warning", f"its scores do not go with what actions were worth when they were replayed: {how}"
    else:
        grade, text = "unknown", f"too few actions to say whether its scores go with what actions were worth: {how}"
    parts = [f"{one.of} {one.rho.interval(True)}" for one in found.fidelity[1:] if one.rho is not None]
    aside = f" ({'; '.join(parts)})" if parts else ""
    return AuditVerdict("replay", grade, found.pipeline, found.rater, text + aside, rho.value)


def _on_file(path: Path, made_with: dict[str, object], problems: list[str]) -> Iterator[ReplayedAction]:
    def parse(record: Any) -> ReplayedAction | None:
        return _REPLAYED.validate_python(record) if record["made_with"] == made_with else None

    drop_torn_line(path)
    for one in readable_jsonl(path, parse, problems):
        if one is not None and one.worth is not None:  # earlier versions kept what could not be measured, too
            yield one


def _replayed(decision: Decision, score: CoachScore, measured: Measured) -> ReplayedAction:
    assert score.process_0_10 is not None
    action = decision.action
    return ReplayedAction(
        action.id,
        decision.episode.task_id,
        action.role,
        action.turn,
        decision.episode.task_category,
        score.model,
        score.process_0_10,
        measured.advantage,
        measured.tokens,
        measured.problem,
        action.digest,
    )


def _fidelities(actions: Sequence[ReplayedAction], resamples: int, seed: int) -> Iterator[Fidelity]:
    yield Fidelity("all", len(actions), _rho(actions, resamples, seed))
    for kind in ("role", "turn", "category"):
        groups: dict[Any, list[ReplayedAction]] = {}
        for one in actions:
            groups.setdefault(getattr(one, kind), []).append(one)
        for level, of in sorted(groups.items()) if len(groups) > 1 else ():
            name = level + 1 if kind == "turn" else level
            yield Fidelity(f"{kind} {name}".strip(), len(of), _rho(of, resamples, seed))


def _rho(actions: Sequence[ReplayedAction], resamples: int, seed: int) -> Estimate | None:
    """Spearman's, its interval over tasks."""
    if len(actions) < FEWEST:
        return None
    sample = Sample.of_tasks([one.task for one in actions], resamples, seed)
    scores_N = stats.rankdata([one.score for one in actions])
    worths_N = stats.rankdata([one.worth for one in actions])
    return sample.correlation(scores_N, worths_N)
