"""What an action was worth, measured: its episode is played again from it, with other replies in its place.

A `Decision` is one action of a finished episode. Its prefix, the actions before it, is played again from the record:
`RecordedReplies` stands in the place of the backend, answers the draws of the prefix with their recorded token ids, and
asks the model for all others. The pipeline, its programs and its environment run as they always do, in a fresh
workspace, and know nothing of it. Each draw of an episode has a seed of its own, derived from the episode's seed, role
and turn; that is what a draw is recognized by, in whichever order agents act.

A playout counts only where the prefix came to what is on record: the same prompts, the same actions, the same answers
of programs, tools and environment. Where time or chance keeps it from that, in an agent's program or in the pipeline,
the decision is left out and counted. What files hold is not on record: there the playouts of a decision must agree with
each other when they get to it.

Source: Contextual Counterfactual Credit Assignment (C3, arXiv 2603.06859), which calls this fixed-context replay.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from coachrl.errors import ConfigError, ReplayDiverged
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.generation import PolicyTokenizer
from coachrl.pipelines.team.team import together
from coachrl.sandbox.base import Sandbox, Workspace
from coachrl.seeding import derive_seed
from coachrl.trainers.backends.base import EpisodeGenerator
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Action, Episode, Generation, SamplingParams

log = logging.getLogger(__name__)

# Of one file, and of all, for one digest: files with holes may be thousands of times as large as the disk.
_MOST_FILE_BYTES, _MOST_BYTES = 64 * 2**20, 512 * 2**20


@dataclass(frozen=True)
class Decision:
    """One action of a finished episode, and what the episode was played from."""

    spec: EpisodeSpec
    episode: Episode
    action: Action

    @property
    def prefix(self) -> tuple[Action, ...]:
        """What was done before it."""
        return tuple(action for action in self.episode.actions if action.index < self.action.index)


@dataclass(frozen=True)
class ReplaySettings:
    """others: replies that are drawn in the place of an action. playouts: how often each reply is played to the end.
    recorded_outcome: whether the episode's own outcome is one of the playouts of its own action."""

    others: int
    playouts: int
    recorded_outcome: bool


@dataclass(frozen=True)
class Measured:
    """What replay found of one decision.

    action: the one on record, with its value. others: the replies drawn in its place, each with its value, as rejected
    candidates of the same state. tokens: drawn by the model in all playouts. playouts: played to the end; broken: of
    them those that infrastructure broke. problem: why it could not be reproduced; then there are no values.
    """

    action: Action
    others: tuple[Action, ...] = ()
    tokens: int = 0
    playouts: int = 0
    broken: int = 0
    problem: str = ""

    @property
    def advantage(self) -> float | None:
        """Q(a) - mean of the others' Q: C3's leave-one-out credit. None where either is not known."""
        others = [other.value for other in self.others if other.value is not None]
        if self.action.value is None or not others:
            return None
        return self.action.value - sum(others) / len(others)


class RecordedReplies:
    """A generator that answers draws that are on record, by their seeds, and passes the others on.

    Args:
        generator: draws what is not on record.
        recorded: seed of a draw -> the action that came of it.
        prompts: seed of a draw -> the prompt that it must have, for a draw that is not to be answered from the record.
        seed: of the draws that are passed on; together with a draw's own, so that playouts differ.
        on_decision: called before a draw of `prompts` is answered.
    """

    def __init__(
        self,
        generator: EpisodeGenerator,
        recorded: Mapping[int, Action],
        prompts: Mapping[int, tuple[int, ...]],
        seed: int,
        on_decision: Callable[[], Awaitable[None]],
    ) -> None:
        self._on_decision = on_decision
        self._generator, self._recorded, self._prompts, self._seed = generator, recorded, prompts, seed
        self.tokens = 0

    def tokenizer(self, policy: str) -> PolicyTokenizer:
        return self._generator.tokenizer(policy)

    def episode(self, patience_s: float | None = None) -> AbstractAsyncContextManager[None]:
        return self._generator.episode(patience_s)

    async def generate(self, policy: str, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        """Raises ReplayDiverged where a prompt is not the recorded one."""
        action = self._recorded.get(sampling.seed)
        expected = action.prompt_ids if action is not None else self._prompts.get(sampling.seed)
        if expected is not None and tuple(prompt_ids) != expected:
            raise ReplayDiverged(f"policy {policy} is prompted with something else than on record")
        if sampling.seed in self._prompts:
            await self._on_decision()
        if action is not None:
            return Generation(action.response_ids, action.logprobs, action.finish_reason, action.weights_version)
        fresh = replace(sampling, seed=derive_seed(self._seed, sampling.seed))
        reply = await self._generator.generate(policy, prompt_ids, fresh)
        self.tokens += len(reply.token_ids)
        return reply


@dataclass(frozen=True)
class _Playout:
    """One continuation. reply: the decision's action as it came out; None where the pipeline never got to it. files:
    what the workspace held when it did, as a digest."""

    reply: Action | None
    success: float | None
    tokens: int
    files: str
    problem: str = ""


class _WatchedSandbox:
    """A sandbox that knows the one workspace that an episode opens."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._workspace: Workspace | None = None

    async def start(self) -> None:
        await self._sandbox.start()

    async def open(self, files: Mapping[str, Path]) -> Workspace:
        self._workspace = await self._sandbox.open(files)
        return self._workspace

    async def close(self) -> None:
        await self._sandbox.close()

    async def digest(self) -> str:
        """Of all files in the workspace, names and contents; "" where there is none. One that is too large to be
        read, after those before it, or that the code has locked, counts by its name."""
        if self._workspace is None:
            return ""
        digest, left = hashlib.blake2b(), _MOST_BYTES
        for name in await self._workspace.files():
            digest.update(name.encode())
            try:
                data = await self._workspace.read(name, min(left, _MOST_FILE_BYTES))
            except (ValueError, FileNotFoundError):
                continue
            left -= len(data)
            digest.update(hashlib.blake2b(data).digest())
        return digest.hexdigest()


def check_replayable(pipeline: Pipeline) -> None:
    """Raises ConfigError where episodes of `pipeline` cannot be played again from their records."""
    if pipeline.adviser is not None:
        raise ConfigError(
            f"pipeline {pipeline.name} cannot be replayed: a model advises its agents, and what it said is not on "
            "record as replies are; take another feedback than the adviser's"
        )


def decisions_of(specs: Iterable[EpisodeSpec], episodes: Iterable[Episode]) -> list[Decision]:
    """Every action of a policy in the episodes that did not break, in order: another can be drawn in its place."""
    by_id = {spec.episode_id: spec for spec in specs}
    valid = [episode for episode in episodes if episode.infra_error is None and episode.id in by_id]
    return [
        Decision(by_id[episode.id], episode, action)
        for episode in valid
        for action in episode.actions
        if action.response_ids
    ]


async def measure(decisions: Sequence[Decision], context: RolloutContext, settings: ReplaySettings) -> list[Measured]:
    """What each decision was worth, with the team of `context`. All playouts run side by side.

    Raises ConfigError where the pipeline cannot be replayed.
    """
    check_replayable(context.pipeline)
    measured = await together(_measure(decision, context, settings) for decision in decisions)
    if lost := [one for one in measured if one.problem]:
        log.warning("%d of %d decisions could not be replayed, e.g. %s", len(lost), len(measured), lost[0].problem)
    return measured


async def _measure(decision: Decision, context: RolloutContext, settings: ReplaySettings) -> Measured:
    player = _Player(decision, context)
    action = decision.action
    recorded = [float(decision.episode.outcome.success)] if settings.recorded_outcome else []
    own = [player.play(0, number, action) for number in range(settings.playouts - len(recorded))]
    first = [player.play(number, 0, None) for number in range(1, settings.others + 1)]
    played = await together([*own, *first])
    own_playouts, first_playouts = played[: len(own)], played[len(own) :]
    further = await together(
        player.play_again(number, playout.reply, settings.playouts) for number, playout in enumerate(first_playouts, 1)
    )
    groups = [[playout, *more] for playout, more in zip(first_playouts, further, strict=True)]
    everything = [*own_playouts, *(playout for group in groups for playout in group)]
    measured = Measured(
        action,
        tokens=sum(playout.tokens for playout in everything),
        playouts=len(everything),
        broken=sum(playout.success is None and not playout.problem for playout in everything),
        problem=next((playout.problem for playout in everything if playout.problem), ""),
    )
    if not measured.problem and len({playout.files for playout in everything if playout.reply is not None}) > 1:
        problem = f"{action.id}: files in the workspace are not the same whenever the episode gets there"
        measured = replace(measured, problem=problem)
    if measured.problem:
        return measured
    others = tuple(
        _as_candidate(action, reply, number, _mean(playout.success for playout in group))
        for number, group in enumerate(groups, 1)
        if (reply := group[0].reply) is not None
    )
    value = _mean([*recorded, *(playout.success for playout in own_playouts)])
    return replace(measured, action=replace(action, value=value), others=others)


class _Player:
    """Plays one decision's episode again and again."""

    def __init__(self, decision: Decision, context: RolloutContext) -> None:
        self._decision = decision
        self._context = replace(context, submit=None, submit_episode=None, on_episode=None, tree=None, executor=None)
        self._prefix = {self._seed_of(action): action for action in decision.prefix}

    async def play(self, number: int, again: int, reply: Action | None) -> _Playout:
        """Reply `number` in the decision's place, played to the end for the `again`-th time. reply: None draws it."""
        spec, action = self._decision.spec, self._decision.action
        recorded = self._prefix if reply is None else {**self._prefix, self._seed_of(action): reply}
        prompts = {self._seed_of(action): action.prompt_ids}
        sandbox = None if self._context.sandbox is None else _WatchedSandbox(self._context.sandbox)
        files = ""

        async def look_at_files() -> None:
            nonlocal files
            files = "" if sandbox is None else await sandbox.digest()

        seed = derive_seed(spec.seed, "replay", action.index, number, again)
        generator = RecordedReplies(self._context.backend, recorded, prompts, seed, look_at_files)
        # The seed stays the episode's own: by it the draws of the prefix are recognized.
        again_spec = replace(spec, episode_id=f"{spec.episode_id}~{action.index}.{number}.{again}")
        [episode] = await rollout([again_spec], replace(self._context, backend=generator, sandbox=sandbox))
        problem = self._differs(episode, recorded.values())
        if not problem and (episode.infra_error or "").startswith(f"{ReplayDiverged.label}: "):
            problem = f"{action.id}: {episode.infra_error}"
        made = next((a for a in episode.actions if (a.role, a.turn) == (action.role, action.turn)), None)
        success = None if problem or episode.infra_error else float(episode.outcome.success)
        return _Playout(made, success, generator.tokens, files, problem)

    async def play_again(self, number: int, reply: Action | None, playouts: int) -> list[_Playout]:
        """Reply `number`, played to the end again. It exists once its first playout has drawn it; none where it never
        came to that."""
        if reply is None:
            return []
        return await together(self.play(number, again, reply) for again in range(1, playouts))

    def _differs(self, episode: Episode, recorded: Iterable[Action]) -> str:
        """The first way in which what is on record came out differently; "" where it did not, or where infrastructure
        broke the episode before it got there."""
        made = {(action.role, action.turn): action for action in episode.actions}
        for action in recorded:
            again = made.get((action.role, action.turn))
            if again is not None and _observed(again) != _observed(action):
                return f"{action.id}: what came of {action.role}'s recorded reply is not what came of it before"
        if episode.infra_error is not None:
            return ""
        decision = self._decision.action
        for action in (*self._decision.prefix, decision):
            if (action.role, action.turn) not in made:
                return f"{action.id}: the pipeline did not come to {action.role}'s turn again"
        before = made[decision.role, decision.turn].index
        known = {(action.role, action.turn) for action in self._decision.episode.actions}
        for action in episode.actions[:before]:
            if (action.role, action.turn) not in known:
                return f"{decision.id}: before it, {action.role} takes a turn that is not on record"
        return ""

    def _seed_of(self, action: Action) -> int:
        """The seed of an action's draw, as the team derives it (`Agent`)."""
        return derive_seed(self._decision.spec.seed, action.role, action.turn)


def _observed(action: Action) -> tuple[object, ...]:
    """What programs, tools and environment answered. Not the reward: a joint one depends on what others do."""
    ran = action.execution
    execution = None if ran is None else (ran.state, ran.stdout, ran.stderr, ran.exit_code, ran.files_written)
    told = [(call.result, call.ok) for call in action.tool_calls]
    return execution, action.files_after, told, action.result, action.rendering


def _as_candidate(action: Action, reply: Action, number: int, value: float | None) -> Action:
    """A reply that was drawn in the place of `action`, as a candidate of the same state."""
    return replace(
        reply,
        id=f"{action.id}.{number}",
        episode_id=action.episode_id,
        index=action.index,
        candidate=number,
        value=value,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
