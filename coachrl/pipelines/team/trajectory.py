"""What an agent reads and what it leaves behind: its prompt, its action, and all of its actions in one part."""

from __future__ import annotations

from dataclasses import dataclass

from coachrl.pipelines.team.tools import results_of
from coachrl.text import brief_output, extract_code, shown, visible
from coachrl.types import Action, Generation, Role


@dataclass(frozen=True)
class AgentTrajectory:
    """What one agent did in one part of the episode. text: its last reply without hidden thinking."""

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
            if action.tool_calls:
                pieces.append(results_of(action.tool_calls))
        return "\n\n".join(pieces)

    @property
    def result(self) -> str:
        """What the environment did in answer to the last action, in words."""
        return self.actions[-1].result


@dataclass(frozen=True)
class ReadPrompt:
    """What an agent reads before one reply. ids: of the whole conversation; text: of what is new in it. max_new_tokens:
    of this reply, where it may have fewer than its role's have. stop: texts that end it, see `stopped_at`. opening:
    what it is made to begin with: the end of `ids`, and the beginning of the reply's text, but nothing drawn."""

    ids: tuple[int, ...]
    text: str
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    opening: str = ""


def action_of(role: Role, turn: int, prompt: ReadPrompt, reply: Generation, text: str, result: str = "") -> Action:
    """An action that has no place in the episode yet: it gets one when it is recorded."""
    return Action(
        id="",
        episode_id="",
        index=-1,
        role=role.name,
        policy=role.external or role.policy,
        turn=turn,
        prompt_ids=tuple(prompt.ids),
        response_ids=reply.token_ids,
        logprobs=reply.logprobs,
        finish_reason=reply.finish_reason,
        weights_version=reply.weights_version,
        prompt_text=prompt.text,
        text=text,
        code=extract_code(text) if role.python else None,
        result=result,
    )
