"""Agents, teams and the protocol that every pipeline keeps.

A pipeline is plain async Python over `team.<role>.act(...)`. `act` samples a reply, runs its code in the sandbox where
the role may, records the finished `Action` (from where it goes to the coach, without waiting) and takes further turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from coachrl.generation import Generator, Message, reply_text
from coachrl.sandbox.base import Workspace
from coachrl.seeding import derive_seed
from coachrl.text import brief_output, extract_code, shown, visible
from coachrl.types import Action, Outcome, Role, Sampling, Task

# What a feedback template may use. brief: what was printed, or the last line of the error alone.
FEEDBACK_FIELDS = frozenset({"observation", "brief", "missing", "files", "turns_left"})


class Pipeline(Protocol):
    """Who acts, in which order, and how the result is graded. `roles` are in the order in which they first act."""

    name: str
    roles: tuple[Role, ...]

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        """One episode. `workspace` is None where no role runs code."""
        ...


@dataclass(frozen=True)
class Drawing:
    """How an episode's replies are drawn: shared by all its agents."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Part:
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


class EpisodeRecorder:
    """Collects the actions of one episode in order, and tells `on_action` of each as soon as it is finished."""

    def __init__(self, episode_id: str, on_action: Callable[[Role, Action], None]) -> None:
        self.episode_id = episode_id
        self.actions: list[Action] = []
        self._on_action = on_action

    def record(self, role: Role, action: Action) -> Action:
        action = replace(action, id=f"{self.episode_id}/{len(self.actions)}", index=len(self.actions))
        self.actions.append(action)
        self._on_action(role, action)
        return action


class Agent:
    """One role at work in one episode."""

    def __init__(
        self,
        role: Role,
        generator: Generator,
        recorder: EpisodeRecorder,
        drawing: Drawing,
        workspace: Workspace | None,
    ) -> None:
        self.role = role
        self._generator = generator
        self._recorder = recorder
        self._drawing = drawing
        self._workspace = workspace
        self._drawn = 0

    async def act(self, **fields: object) -> Part:
        """Take this agent's part: up to `role.max_turns` turns, the first one prompted with `fields`.

        Raises ContextOverflow where the prompt does not fit the model; ConfigError where `fields` are not the prompt's.
        """
        role, tokenizer = self.role, self._generator.tokenizer(self.role.policy)
        user_text = role.prompt.render(**fields)
        prompt_ids = tokenizer.encode_chat(opening(role, user_text), thinking=role.thinking)
        actions: list[Action] = []
        for turn in range(role.max_turns):
            action = await self._take_turn(turn, prompt_ids, user_text)
            actions.append(action)
            if self._is_done(action) or turn + 1 == role.max_turns:
                break
            user_text = self._feedback(action, turns_left=role.max_turns - turn - 1)
            prompt_ids = tokenizer.continue_chat(
                prompt_ids, action.response_ids, {"role": "user", "content": user_text}, thinking=role.thinking
            )
        return Part(visible(actions[-1].text), tuple(actions))

    async def _take_turn(self, turn: int, prompt_ids: tuple[int, ...], prompt_text: str) -> Action:
        role, drawing = self.role, self._drawing
        sampling = Sampling(
            max_new_tokens=role.max_new_tokens,
            temperature=drawing.temperature,
            top_p=drawing.top_p,
            seed=derive_seed(drawing.seed, role.name, self._drawn),
        )
        self._drawn += 1
        reply = await self._generator.generate(role.policy, prompt_ids, sampling)
        text = reply_text(self._generator.tokenizer(role.policy), prompt_ids, reply.token_ids)
        code = extract_code(text) if role.python else None
        before = await self._workspace.files() if self._workspace is not None else ()
        execution = await self._workspace.run(code) if code is not None and self._workspace is not None else None
        after = await self._workspace.files() if execution is not None and self._workspace is not None else before
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
            fault="infrastructure" if execution is not None and execution.state == "infrastructure" else None,
        )
        return self._recorder.record(role, action)

    def _is_done(self, action: Action) -> bool:
        ran = action.execution is not None and action.execution.state == "ok"
        match self.role.until:
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


class Team:
    """The agents of one episode, as attributes by role name: `team.verifier.act(...)`."""

    def __init__(self, agents: dict[str, Agent]) -> None:
        self._agents = agents

    def __getattr__(self, name: str) -> Agent:
        agents = self.__dict__.get("_agents", {})
        if name not in agents:
            raise AttributeError(f"this team has no role '{name}' (roles: {', '.join(agents)})")
        return agents[name]
