"""What the pipelines on math problems share: whose answer counts, what each agent's own answer is worth, and how
agents are told of each other's work."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from coachrl.config import PipelineConfig
from coachrl.pipelines.base import AgentTrajectory, Environment, Pipeline, PipelineOptions, StepResult, Team, together
from coachrl.pipelines.team.roles import fill, load_text
from coachrl.pipelines.team.threads import in_a_thread
from coachrl.sandbox.base import Workspace
from coachrl.tasks.math.problems import MathTruth, final_answer, grade_math, same_answer
from coachrl.text import clip_middle
from coachrl.types import Action, Outcome, Reward, Task, ran

_REPLY_CHARS = 2000  # of what one agent wrote, for another


def answer_of(action: Action) -> str | None:
    """What an agent answers: the last line that its code printed, where the code ran, else its last \\boxed answer."""
    if action.execution is None:
        return final_answer(action.text)
    lines = action.execution.stdout.strip().splitlines() if ran(action.execution) else []
    return (final_answer(lines[-1]) or lines[-1].strip()) if lines else None


def vote(answers: Iterable[str | None]) -> str | None:
    """The answer that most give, of equally frequent ones the first; None where there is none. May take seconds."""
    counts: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            known = next((k for k in counts if k == answer or same_answer(k, answer)), answer)
            counts[known] = counts.get(known, 0) + 1
    return max(counts, key=lambda known: counts[known], default=None)


async def grade_reply(text: str, truth: MathTruth) -> Outcome:
    """The outcome of an episode whose last reply is `text`. A grader of the user's own that hangs holds up its episode
    alone, and not the end of the program."""
    return await in_a_thread(lambda: grade_math(text, truth), "coachrl-grader")


async def grade_answer(answer: str | None, truth: MathTruth) -> Outcome:
    """The outcome of an episode in which the team answers `answer`."""
    return await grade_reply(f"\\boxed{{{answer}}}" if answer is not None else "", truth)


@dataclass
class AnswerEnvironment(Environment):
    """Latest answers by role (Stronger-MAS, Sec. 5.1 and App. B).

    An agent's own reward: 0.2 for an answer in the form asked for, 0.8 where it is right. The team's: 1 where what the
    team answers is right as things stand after the action. What that is: the answer of `decider`, once it gave one,
    else the vote of `voters`, of equally frequent answers that of the earlier voter. Unless it is
    shaped, the agent's own is 1 for the form alone (App. B.6).
    """

    truth: MathTruth
    voters: Sequence[str]
    decider: str | None = None
    shaped: bool = True
    answers: Mapping[str, str | None] = field(default_factory=dict)
    solved: bool = False

    async def apply(self, action: Action, workspace: Workspace | None) -> StepResult:
        """Take the agent's answer, and decide anew."""
        answer = answer_of(action)
        known = self.answers = {**self.answers, action.role: answer}  # others may act while this one is graded
        own = await grade_answer(answer, self.truth)
        decided = await grade_answer(await self._decision(known), self.truth)
        self.solved = decided.success
        form, right = float(answer is not None), float(own.success)
        local = 0.2 * form + 0.8 * right if self.shaped else form
        return StepResult("", Reward(float(decided.success), local, {"form": form, "right": right}))

    async def outcome(self) -> Outcome:
        """How the team's answer grades as things stand."""
        return await grade_answer(await self._decision(self.answers), self.truth)

    async def _decision(self, answers: Mapping[str, str | None]) -> str | None:
        if self.decider is not None and answers.get(self.decider) is not None:
            return answers[self.decider]
        return await asyncio.to_thread(vote, [answers.get(name) for name in self.voters])

    async def agreed(self, names: Sequence[str]) -> bool:
        """Whether all of `names` gave an answer, and the same. Agreement ends a talk; it is no success."""
        given = [self.answers.get(name) for name in names]
        first = given[0]
        if first is None or None in given:
            return False
        return await asyncio.to_thread(lambda: all(same_answer(first, other) for other in given if other is not None))

    def copy(self) -> AnswerEnvironment:
        return replace(self)

    def render(self) -> str:
        return "\n".join(f"{name}: {answer}" for name, answer in self.answers.items())


class AnswerOptions(PipelineOptions):
    """Of every pipeline whose agents answer a math problem."""

    rewards: Literal["shaped", "outcome"] = Field(
        "shaped", description="outcome: success for the team, the form for the agent, nothing in between."
    )


class AnswerPipeline(Pipeline):
    """Base of the pipelines whose agents each answer a math problem, on tasks whose ground truth is a `MathTruth`."""

    task_sources = ("word-problems", "math")
    ground_truth = MathTruth
    small_model = PipelineConfig(max_new_tokens=64)
    environment = AnswerEnvironment
    Options = AnswerOptions
    options: AnswerOptions

    def begin(self, task: Task, team: Team, voters: Sequence[str], decider: str | None) -> None:
        """Set the team's environment. Raises TaskError for a task without a `MathTruth`."""
        truth = self.truth(task, MathTruth)
        team.environment = AnswerEnvironment(truth, voters, decider, self.options.rewards == "shaped")


class TalkPipeline(AnswerPipeline):
    """Base of those whose agents read what the others wrote before."""

    def __init__(self, settings: PipelineConfig) -> None:
        super().__init__(settings)
        self._earlier = load_text("earlier", {"work"}, settings, self.name)

    def prompt_fields(self, kind: str) -> Collection[str]:
        return {"problem", "history", "token_limit"}

    async def answer(self, task: Task, team: Team, name: str, parts: Mapping[str, AgentTrajectory]) -> AgentTrajectory:
        """The part of the agent `name`, which is told of `parts`, what the agents wrote before."""
        history = fill(self._earlier, {"work": told(parts, reader=name)}) if parts else ""
        return await team[name].act_on({"problem": task.prompt, "history": history})

    async def answers(
        self, task: Task, team: Team, names: Sequence[str], parts: Mapping[str, AgentTrajectory]
    ) -> dict[str, AgentTrajectory]:
        """The parts of the agents `names`, who answer side by side."""
        written = await together(self.answer(task, team, name, parts) for name in names)
        return dict(zip(names, written, strict=True))


def told(parts: Mapping[str, AgentTrajectory], reader: str = "") -> str:
    """What agents wrote last, each under its name with what its code printed; `reader`'s own under "You"."""
    pieces = []
    for name, part in parts.items():
        head = "You" if name == reader else name.replace("_", " ").capitalize()
        pieces.append(f"## {head}\n\n{clip_middle(part.transcript, _REPLY_CHARS) or '(nothing)'}")
    return "\n\n".join(pieces)
