"""Agents, teams and the protocol that every pipeline keeps.

A pipeline is plain async Python over `team.<role>.act(...)`. `act` samples a reply, runs its code in the sandbox where
the role may, records the finished `Action` (from where it goes to the coach, without waiting) and takes further turns.
Under tree sampling each turn draws candidates from one state and goes on from the best, the one that a pipeline sees.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from coachrl.generation import Generator, Message, reply_text
from coachrl.pipelines.state import Environment, EpisodeState
from coachrl.sandbox.base import Workspace
from coachrl.seeding import derive_seed
from coachrl.text import brief_output, extract_code, shown, visible
from coachrl.types import Action, Generation, Outcome, Reward, Role, Sampling, Task

T = TypeVar("T")

# Rewards of the candidates of one state, None where one has none.
Judge = Callable[[Role, Sequence[Action]], Awaitable[Sequence[float | None]]]

# What a feedback template may use. brief: what was printed, or the last line of the error alone.
FEEDBACK_FIELDS = frozenset({"observation", "brief", "missing", "files", "turns_left"})


class Pipeline(Protocol):
    """Who acts, in which order, and how the result is graded. `roles` are in the order in which they first act.

    More attributes are looked at where a pipeline has them. `environment`: the class of the `Environment` that its
    episodes set, for rewards from the environment. `joint_rewards`: True where `run` gives rewards by `team.reward`.
    `sandbox`: True where `run` needs a workspace though no role runs code. `rounds`: how often its roles take their
    part at most. `task_sources`, `small_model`, `warm_start`: see `coachrl.pipelines.defaults`.
    """

    name: str
    roles: tuple[Role, ...]

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. `workspace` is None where no role runs code."""
        ...


@dataclass(frozen=True)
class Drawing:
    """How an episode's replies are drawn: shared by all its agents. candidates: from one state; more than one is tree
    sampling."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    candidates: int = 1


@dataclass(frozen=True)
class AgentTrajectory:
    """What one agent did in its part of the episode. text: its last reply without hidden thinking."""

    text: str
    actions: tuple[Action, ...]

    @property
    def output(self) -> str:
        """What the last piece of code printed, or the last line of its error; empty where no code ran."""
        for action in reversed(self.actions):
            if action.execution is not None:
                return brief_output(action.execution)
        return ""

    @property
    def transcript(self) -> str:
        """Every reply of this part, each with what its code printed."""
        pieces = []
        for action in self.actions:
            pieces.append(visible(action.text))
            if action.execution is not None:
                pieces.append(f"[{action.execution.state}] {shown(action.execution)}")
        return "\n\n".join(pieces)

    @property
    def result(self) -> str:
        """What the environment did in answer to the last action, in words."""
        return self.actions[-1].result


class EpisodeRecorder:
    """Collects the actions of one episode in order, and tells `on_action` of each as soon as it is finished.

    Candidates go to `judge` instead, together. rejected_candidates: those that were not chosen.
    """

    def __init__(self, episode_id: str, on_action: Callable[[Role, Action], None], judge: Judge | None = None) -> None:
        self.episode_id = episode_id
        self.actions: list[Action] = []
        self.rejected_candidates: list[Action] = []
        self._on_action, self._judge = on_action, judge

    def record(self, role: Role, action: Action) -> Action:
        action = replace(action, id=f"{self.episode_id}/{len(self.actions)}", index=len(self.actions))
        self.actions.append(action)
        self._on_action(role, action)
        return action

    async def choose(self, role: Role, candidates: Sequence[Action]) -> Action:
        """Record the candidates of one state and return the one with the highest reward: of ties the first, and the
        first of all where none has a reward (Stronger-MAS, Alg. 1, line 10)."""
        if self._judge is None:
            raise ValueError("candidates need a judge")
        index = len(self.actions)
        named = [
            replace(action, id=f"{self.episode_id}/{index}.{number}", index=index, candidate=number)
            for number, action in enumerate(candidates)
        ]
        rewards = await self._judge(role, named)
        worth = [(not a.infra_error, -math.inf if r is None else r) for a, r in zip(named, rewards, strict=True)]
        best = worth.index(max(worth))
        self.actions.append(named[best])
        self.rejected_candidates += named[:best] + named[best + 1 :]
        return named[best]

    def reward(self, action: Action, reward: Reward) -> None:
        """Give `action` a reward after the fact: one that is known only when others have acted, too."""
        self.actions[action.index] = replace(self.actions[action.index], reward=reward)


class Agent:
    """One role at work in one episode."""

    def __init__(
        self,
        role: Role,
        generator: Generator,
        recorder: EpisodeRecorder,
        drawing: Drawing,
        state: EpisodeState,
    ) -> None:
        self.role = role
        self._generator = generator
        self._recorder = recorder
        self._drawing = drawing
        self._state = state
        self._taken = 0  # turns, over all parts

    async def act(self, **fields: object) -> AgentTrajectory:
        """Take this agent's part: up to `role.max_turns` turns, the first one prompted with `fields`.

        Raises ContextOverflow where the prompt does not fit the model; ConfigError where `fields` are not the prompt's.
        """
        role, tokenizer = self.role, self._generator.tokenizer(self.role.policy)
        user_text = role.prompt.render(**fields)
        prompt_ids = tokenizer.encode_chat(opening(role, user_text), thinking=role.thinking)
        actions: list[Action] = []
        for turn in range(role.max_turns):
            action = await self._take_turn(prompt_ids, user_text)
            actions.append(action)
            if self._is_done(action) or turn + 1 == role.max_turns:
                break
            user_text = self._feedback(action, turns_left=role.max_turns - turn - 1)
            prompt_ids = tokenizer.continue_chat(
                prompt_ids, action.response_ids, {"role": "user", "content": user_text}, thinking=role.thinking
            )
        return AgentTrajectory(visible(actions[-1].text), tuple(actions))

    async def _take_turn(self, prompt_ids: tuple[int, ...], prompt_text: str) -> Action:
        turn, self._taken = self._taken, self._taken + 1
        if self._drawing.candidates == 1:
            reply = await self._draw(prompt_ids, (turn,))
            return self._recorder.record(self.role, await self._play(reply, turn, prompt_ids, prompt_text, self._state))
        async with self._state.turn:  # one agent after another: each starts from where the one before it was taken to
            return await self._take_best(turn, prompt_ids, prompt_text)

    async def _take_best(self, turn: int, prompt_ids: tuple[int, ...], prompt_text: str) -> Action:
        """Draw candidates from the present state, play each in its own copy of it, and go on from the best."""
        branches: list[EpisodeState] = []
        try:
            replies = await together(self._draw(prompt_ids, (turn, i)) for i in range(self._drawing.candidates))
            for _ in replies:
                branches.append(await self._state.branch())
            played = (self._play(r, turn, prompt_ids, prompt_text, b) for r, b in zip(replies, branches, strict=True))
            chosen = await self._recorder.choose(self.role, await together(played))
            await self._state.adopt(branches.pop(chosen.candidate))
            return chosen
        finally:
            for branch in branches:
                await branch.close()

    async def _draw(self, prompt_ids: tuple[int, ...], place: tuple[int, ...]) -> Generation:
        """One reply. place: which draw of this agent it is."""
        sampling = Sampling(
            max_new_tokens=self.role.max_new_tokens,
            temperature=self._drawing.temperature,
            top_p=self._drawing.top_p,
            seed=derive_seed(self._drawing.seed, self.role.name, *place),
        )
        return await self._generator.generate(self.role.policy, prompt_ids, sampling)

    async def _play(
        self, reply: Generation, turn: int, prompt_ids: tuple[int, ...], prompt_text: str, state: EpisodeState
    ) -> Action:
        """The reply as an action: what its code did in the state's workspace, and what the state's environment did."""
        role, workspace = self.role, state.workspace if self.role.python else None
        text = reply_text(self._generator.tokenizer(role.policy), prompt_ids, reply.token_ids)
        code = extract_code(text) if role.python else None
        before = await workspace.files() if workspace is not None else ()
        execution = await workspace.run(code) if code is not None and workspace is not None else None
        after = await workspace.files() if execution is not None and workspace is not None else before
        action = Action(
            id="",
            episode_id=self._recorder.episode_id,
            index=-1,
            role=role.name,
            policy=role.policy,
            turn=turn,
            prompt_ids=tuple(prompt_ids),
            response_ids=reply.token_ids,
            logprobs=reply.logprobs,
            finish_reason=reply.finish_reason,
            weights_version=reply.weights_version,
            prompt_text=prompt_text,
            text=text,
            code=code,
            execution=execution,
            files_before=before,
            files_after=after,
            infra_error="infrastructure" if execution is not None and execution.state == "infrastructure" else None,
        )
        if state.environment is None or action.infra_error:
            return action
        async with state.turn:
            step = await state.environment.apply(action, state.workspace)
        return replace(action, result=step.text, rendering=step.rendering, reward=step.reward)

    def _is_done(self, action: Action) -> bool:
        ran = action.execution is not None and action.execution.state == "ok"
        match self.role.stop_when:
            case "answered":
                return action.code is None
            case "ran":
                return ran
            case "saved":
                return ran and set(self.role.required_files) <= set(action.files_after)

    def _feedback(self, action: Action, turns_left: int) -> str:
        """The environment's answer to a turn, from the role's feedback template. Says which files are still missing."""
        if action.execution is None:
            observation = brief = "No closed ```python block was found, so nothing was run."
        else:
            observation = f"Your code ended with state '{action.execution.state}'.\n{shown(action.execution)}"
            brief = brief_output(action.execution)
        missing = [name for name in self.role.required_files if name not in action.files_after]
        values = {
            "observation": observation,
            "brief": brief,
            "missing": ", ".join(missing) or "none",
            "files": ", ".join(action.files_after) or "none",
            "turns_left": str(turns_left),
        }
        return self.role.feedback.render(**{name: values[name] for name in self.role.feedback.fields})


def opening(role: Role, user_text: str) -> tuple[Message, ...]:
    """What an agent reads at the start of its part: the role's examples in chat form, then `user_text`."""
    examples = [
        message
        for example in role.examples
        for message in ({"role": "user", "content": example.user}, {"role": "assistant", "content": example.assistant})
    ]
    return (*examples, {"role": "user", "content": user_text})


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines that run side by side. All have ended when one's error is raised."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


class Team:
    """The agents of one episode, as attributes by role name: `team.verifier.act(...)`."""

    def __init__(self, agents: dict[str, Agent], state: EpisodeState, recorder: EpisodeRecorder) -> None:
        self._agents, self._state, self._recorder = agents, state, recorder

    @property
    def environment(self) -> Environment | None:
        """The environment as it is now; None where the pipeline has none. Set it before the first action."""
        return self._state.environment

    @environment.setter
    def environment(self, environment: Environment) -> None:
        self._state.environment = environment

    def reward(self, part: AgentTrajectory, reward: Reward) -> None:
        """Give the last action of `part` a reward that is known only now: a joint one, or one of the episode's end."""
        self._recorder.reward(part.actions[-1], reward)

    def __getattr__(self, name: str) -> Agent:
        agents = self.__dict__.get("_agents", {})
        if name not in agents:
            raise AttributeError(f"this team has no role '{name}' (roles: {', '.join(agents)})")
        return agents[name]


def make_team(
    roles: Iterable[Role], generator: Generator, recorder: EpisodeRecorder, drawing: Drawing, state: EpisodeState
) -> Team:
    """One agent for each role, all in one state."""
    return Team({role.name: Agent(role, generator, recorder, drawing, state) for role in roles}, state, recorder)
