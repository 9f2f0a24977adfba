"""Agents at work: the episode in the making, as a pipeline sees it.

`act` samples a reply, runs its code in the sandbox where the role may, records the finished `Action` (from where it
goes to the coach, without waiting) and takes further turns. Under tree sampling each turn draws candidates from one
state and goes on from the best, the one that a pipeline sees.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from coachrl.coach.base import CoachRequest, make_request
from coachrl.errors import ConfigError
from coachrl.pipelines.checked import checked_reward
from coachrl.pipelines.generation import Generator, PolicyTokenizer, opening, reply_text, stopped_at
from coachrl.pipelines.parts import part_is_done
from coachrl.pipelines.team.state import CurrentWorkspace, Environment, TeamState, checked_environment
from coachrl.pipelines.team.tools import call_tools, load_tools, results_of, told_of
from coachrl.pipelines.team.trajectory import AgentTrajectory, ReadPrompt, action_of
from coachrl.sandbox.base import Sandbox, Workspace
from coachrl.seeding import derive_seed
from coachrl.text import brief_output, counted, listed, listed_files, nearest, shown, visible
from coachrl.types import GIVEN_UP, Action, FinishReason, Generation, Reward, Role, SamplingParams, Task, ToolCall

T = TypeVar("T")
E = TypeVar("E", bound=Environment)

# Draws a reply in an agent's turn: an action that nothing has come of yet. The argument says which candidate it is; it
# is empty where there is but one.
Draw = Callable[[tuple[int, ...]], Coroutine[Any, Any, Action]]
Submit = Callable[[CoachRequest], None]
Rewards = Callable[[Sequence[CoachRequest]], Awaitable[list[float | None]]]

Scoring = Literal["now", "later", "never"]
"""When an action goes to the coach."""

# What a feedback template may use. brief: what was printed, or the last line of the error alone.
FEEDBACK_FIELDS = frozenset({"observation", "brief", "missing", "files", "turns_left"})


@dataclass(frozen=True)
class Tree:
    """Tree sampling. candidates: how many replies are drawn from each state. rewards: one for each candidate, which
    come side by side; None where there is none."""

    candidates: int
    rewards: Rewards


class Team:
    """The agents of one episode, as attributes by role name (`team.verifier.act(...)`) or as `team["verifier"]`, with
    what they have done so far and the state that they act on.

    A pipeline uses the agents, `environment`, `environment_as` and `reward`; the rest is for rollout and agents.

    Args:
        episode_id: what the ids of its actions begin with.
        task: what the coach is told that the team works at.
        roles: one agent is made of each.
        generator: draws the replies.
        sampling: how; its seed fixes every draw of the episode.
        submit: is given each finished action that can be scored, at once; None where no coach is asked.
        tree: how candidates are drawn and rewarded; None is parallel sampling, one reply a turn.
    """

    def __init__(
        self,
        episode_id: str,
        task: Task,
        roles: Iterable[Role],
        generator: Generator,
        sampling: SamplingParams,
        submit: Submit | None = None,
        tree: Tree | None = None,
    ) -> None:
        self._episode_id = episode_id
        self._task = task
        self._roles = tuple(roles)
        self._submit = submit
        self._tree = tree
        self._state = TeamState()
        self._turn = asyncio.Lock()  # held by whoever changes the state
        self._actions: list[Action] = []
        self._unobserved: dict[int, Role] = {}  # by index, of actions that the coach has not been given yet
        self._rejected: list[Action] = []
        self._agents = {role.name: Agent(role, self, generator, sampling) for role in self._roles}

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __getattr__(self, name: str) -> Agent:
        agents = self.__dict__.get("_agents", {})
        if name not in agents:
            raise AttributeError(f"this team has no role '{name}'{nearest(name, agents)} (roles: {', '.join(agents)})")
        agent: Agent = agents[name]
        return agent

    @property
    def environment(self) -> Environment | None:
        """The environment as it is now; None where the pipeline has none. Set it before the first action."""
        return self._state.environment

    @environment.setter
    def environment(self, environment: Environment) -> None:
        self._state.environment = checked_environment(environment, "team.environment: the pipeline")

    def environment_as(self, kind: type[E]) -> E:
        """The environment as it is now, which the pipeline knows to be a `kind`. Ask anew after each action: under tree
        sampling the environment is another one then."""
        if not isinstance(self._state.environment, kind):
            raise TypeError(
                f"this team's environment is a {type(self._state.environment).__name__}, no {kind.__name__}"
            )
        return self._state.environment

    def reward(self, part: AgentTrajectory, reward: Reward) -> None:
        """Give the last action of `part` a reward that is known only now: a joint one, or one of the episode's end.
        Raises ConfigError for one that is none."""
        index = part.actions[-1].index
        self._actions[index] = replace(self._actions[index], reward=checked_reward(reward, "team.reward()"))

    @property
    def actions(self) -> tuple[Action, ...]:
        """What was done so far, in order."""
        return tuple(self._actions)

    @property
    def rejected_candidates(self) -> tuple[Action, ...]:
        """Candidates of tree sampling that the episode did not go on from."""
        return tuple(self._rejected)

    async def open(self, sandbox: Sandbox | None) -> Workspace | None:
        """A workspace with the task's files for the team, which stays the present one while branches come and go."""
        if sandbox is None:
            return None
        self._state.workspace = await sandbox.open(self._task.files)
        return CurrentWorkspace(lambda: self._state.workspace)

    async def close(self) -> None:
        """Close the workspace that there is now."""
        await self._state.close()

    async def take_turn(self, agent: Agent, draw: Draw) -> Action:
        """One turn of `agent`: what it does in the present state, recorded and on its way to the coach."""
        if self._tree is None:
            action = await agent.execute(await draw(()), self._state.workspace)
            async with self._turn:
                action = await self._state.apply(action)
            return self.record(agent.role, action)
        async with self._turn:  # one agent after another: each starts from where the one before it was taken to
            return await self._take_best(agent, draw, self._tree)

    def record(self, role: Role, action: Action, scoring: Scoring = "now") -> Action:
        """`action` as the episode's next one. scoring: when it goes to the coach. With "later" it goes once `observe`
        is told what came of it, or the episode ends."""
        action = self._placed(action)
        self._actions.append(action)
        if scoring == "later":
            self._unobserved[action.index] = role
        elif scoring == "now":
            self._to_coach(role, action)
        return action

    def observe(self, index: int, tool_calls: tuple[ToolCall, ...]) -> None:
        """What came of the action at `index`. Where it was recorded to be scored later, it goes to the coach now."""
        action = replace(self._actions[index], tool_calls=tool_calls)
        self._actions[index] = action
        if index in self._unobserved:
            self._to_coach(self._unobserved.pop(index), action)

    def observe_rest(self) -> None:
        """Nothing more will come of any action: what still waits goes to the coach as it is."""
        for index in list(self._unobserved):
            self._to_coach(self._unobserved.pop(index), self._actions[index])

    def _to_coach(self, role: Role, action: Action) -> None:
        if self._submit is not None and action.infra_error is None:
            self._submit(self._request(role, action))

    async def _take_best(self, agent: Agent, draw: Draw, tree: Tree) -> Action:
        """Draw candidates from the present state, play each in its own copy of it, and go on from the best."""
        branches: list[TeamState] = []

        async def play(reply: Action, branch: TeamState) -> Action:
            return await branch.apply(await agent.execute(reply, branch.workspace))

        try:
            replies = await together(draw((number,)) for number in range(tree.candidates))
            for _ in replies:
                branches.append(await self._state.branch())
            before = self._state.rendered()
            played = await together(play(reply, branch) for reply, branch in zip(replies, branches, strict=True))
            self._state.check_unmoved(before)
            chosen = await self._choose(agent.role, played, tree)
            # What was the state until now takes the chosen branch's place, and is closed with the other branches.
            branches[chosen.candidate], self._state = self._state, branches[chosen.candidate]
            return chosen
        finally:
            for branch in branches:
                await branch.close()

    async def _choose(self, role: Role, candidates: Sequence[Action], tree: Tree) -> Action:
        """Record the candidates of one state and return the one with the highest reward: of ties the first, and the
        first of all where none has a reward (Stronger-MAS, Alg. 1, line 10). One that broke is asked no reward for."""
        named = [self._placed(action, number) for number, action in enumerate(candidates)]
        valid = [action for action in named if action.infra_error is None]
        rewards = await tree.rewards([self._request(role, action) for action in valid])
        given = dict(zip([action.id for action in valid], rewards, strict=True))

        def worth(action: Action) -> tuple[bool, float]:
            reward = given.get(action.id)
            return action.infra_error is None, -math.inf if reward is None else reward

        best = max(named, key=worth)
        self._actions.append(best)
        self._rejected += [action for action in named if action is not best]
        return best

    def _placed(self, action: Action, candidate: int | None = None) -> Action:
        """`action` as the episode's next one, or one of the candidates for it."""
        index = len(self._actions)
        ending = "" if candidate is None else f".{candidate}"
        return replace(
            action,
            id=f"{self._episode_id}/{index}{ending}",
            episode_id=self._episode_id,
            index=index,
            candidate=candidate or 0,
        )

    def _request(self, role: Role, action: Action) -> CoachRequest:
        """What the coach is asked about an action. Its outcome is not known yet."""
        return make_request(self._task, self._roles, role, action, self._actions[: action.index], None)


class Agent:
    """One role at work in one episode."""

    def __init__(self, role: Role, team: Team, generator: Generator, sampling: SamplingParams) -> None:
        self.role = role
        self._team = team
        self._generator = generator
        self._sampling = replace(sampling, max_new_tokens=role.max_new_tokens)
        self._taken = 0  # turns, over all parts
        self._tools = load_tools(role.tools)

    @property
    def tokenizer(self) -> PolicyTokenizer:
        """Of the policy that it plays with."""
        return self._generator.tokenizer(self.role.policy)

    @property
    def temperature(self) -> float:
        """At which its replies are drawn."""
        return self._sampling.temperature

    async def act(self, **fields: object) -> AgentTrajectory:
        """Take a part: up to `role.max_turns` turns, the first one prompted with `fields`.

        Raises ContextOverflow where the prompt does not fit the model; ConfigError where `fields` are not the prompt's,
        or one is what another agent left behind in place of its text.
        """
        for name, value in fields.items():
            if isinstance(value, AgentTrajectory):  # its repr would be read, and trained on
                raise ConfigError(f"role {self.role.name}: {name} is an AgentTrajectory: give its text, as draft.text")
            if inspect.iscoroutine(value):
                raise ConfigError(f"role {self.role.name}: {name} is what `act` gives without `await` before it")
        role, tokenizer = self.role, self.tokenizer
        user_text = role.prompt.render(**fields)
        schemas = [tool.schema for tool in self._tools.values()] if tokenizer.knows_tools else []
        if self._tools and not schemas:
            user_text = f"{told_of(tool.schema for tool in self._tools.values())}\n\n{user_text}"
        prompt_ids = tokenizer.encode_chat(opening(role, user_text), thinking=role.thinking, tools=schemas)
        part = [await self._take_turn(prompt_ids, user_text)]
        while not part_is_done(role, part[-1], turn_in_part=len(part) - 1):
            user_text = self._feedback(part[-1], turns_left=role.max_turns - len(part))
            prompt_ids = tokenizer.continue_chat(
                prompt_ids, part[-1].response_ids, [{"role": "user", "content": user_text}], thinking=role.thinking
            )
            part.append(await self._take_turn(prompt_ids, user_text))
        return AgentTrajectory(visible(part[-1].text), tuple(part))

    async def act_on(self, known: Mapping[str, object]) -> AgentTrajectory:
        """`act` with those of `known` that the role's prompt asks for; `token_limit` is known to every prompt."""
        values = {**known, "token_limit": self.role.max_new_tokens}
        return await self.act(**{name: values[name] for name in self.role.prompt.fields if name in values})

    async def execute(self, action: Action, workspace: Workspace | None) -> Action:
        """`action` with what its tools gave, and what its code did in `workspace`."""
        if self._tools:
            action = replace(action, tool_calls=await call_tools(action.text, self._tools, self.role))
        if not self.role.python or workspace is None:
            return action
        before = await workspace.files()
        if action.code is None:
            return replace(action, files_before=before, files_after=before)
        execution = await workspace.run(action.code)
        return replace(
            action,
            execution=execution,
            files_before=before,
            files_after=await workspace.files(),
            infra_error="infrastructure" if execution.state == "infrastructure" else None,
        )

    async def answer(self, prompt: ReadPrompt, scoring: Callable[[Action], Scoring]) -> Action:
        """One reply to a conversation that somebody else leads, recorded. scoring: when the coach is given it.

        Where it is not waited for, the action is recorded without a reply, and is neither scored nor trained on. Raises
        ContextOverflow where the prompt does not fit the model.
        """
        turn = self._next_turn()
        try:
            action = await self._draw(turn, (), prompt)
        except asyncio.CancelledError:
            self._team.record(self.role, self._unanswered(turn, prompt), "never")
            raise
        return self._team.record(self.role, action, scoring(action))

    def answered(self, prompt: ReadPrompt, text: str, ending: FinishReason, scoring: Scoring) -> Action:
        """A reply of the external model that plays the role, recorded."""
        action = replace(self._unanswered(self._next_turn(), prompt), text=text, finish_reason=ending, result="")
        return self._team.record(self.role, action, scoring)

    def given_up(self, prompt: ReadPrompt) -> Action:
        """The same of one that nobody waited for: recorded without a reply, and neither scored nor trained on."""
        return self._team.record(self.role, self._unanswered(self._next_turn(), prompt), "never")

    def _unanswered(self, turn: int, prompt: ReadPrompt) -> Action:
        return action_of(self.role, turn, prompt, Generation((), (), "length", -1), "", GIVEN_UP)

    def _next_turn(self) -> int:
        self._taken += 1
        return self._taken - 1

    async def _take_turn(self, prompt_ids: tuple[int, ...], prompt_text: str) -> Action:
        turn, prompt = self._next_turn(), ReadPrompt(prompt_ids, prompt_text)

        async def draw(place: tuple[int, ...]) -> Action:
            return await self._draw(turn, place, prompt)

        return await self._team.take_turn(self, draw)

    async def _draw(self, turn: int, place: tuple[int, ...], prompt: ReadPrompt) -> Action:
        role, tokenizer = self.role, self.tokenizer
        sampling = replace(
            self._sampling,
            max_new_tokens=min(prompt.max_new_tokens or role.max_new_tokens, role.max_new_tokens),
            seed=derive_seed(self._sampling.seed, role.name, turn, *place),
        )
        reply = await self._generator.generate(role.policy, prompt.ids, sampling)
        reply = stopped_at(reply, tokenizer, prompt.stop)
        text = reply_text(tokenizer, prompt.ids, reply.token_ids, prompt.opening)
        return action_of(role, turn, prompt, reply, text)

    def _feedback(self, action: Action, turns_left: int) -> str:
        """The environment's answer to a turn, from the role's feedback template. Says which files are still missing."""
        called = results_of(action.tool_calls)
        if action.execution is not None:
            observation = f"Your code ended with state '{action.execution.state}'.\n{shown(action.execution)}"
            brief = brief_output(action.execution)
        else:
            observation = brief = "" if action.tool_calls else _nothing_was_run(action)
        owed = (*self.role.required_files, *self.role.needed_files)
        missing = [name for name in self.role.required_files if name not in action.files_after]
        values = {
            "observation": "\n".join(filter(None, (observation, called))),
            "brief": "\n".join(filter(None, (brief, called))),
            "missing": listed(missing),
            "files": listed_files(action.files_after, owed),
            "turns_left": str(turns_left),
        }
        return self.role.feedback.render(**{name: values[name] for name in self.role.feedback.fields})


def _nothing_was_run(action: Action) -> str:
    if action.finish_reason == "length":
        cut = f"Your reply was cut off after {counted(len(action.response_ids), 'token')}"
        return f"{cut}, before a ```python block was closed, so nothing was run. Write less."
    return "No closed ```python block was found, so nothing was run."


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines that run side by side. All have ended when one's error is raised."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
