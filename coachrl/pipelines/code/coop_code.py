"""Two agents write one program side by side (MAGRPO, Sec. 5): a helper writes `aux`, the main agent the function
that is tested. Their reward is a joint one, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from coachrl.config import PipelineConfig
from coachrl.pipelines.base import AgentTrajectory, PipelineOptions, Team, together
from coachrl.pipelines.code.base import CodePipeline
from coachrl.pipelines.team.adviser import Advice, ModelAdviser
from coachrl.pipelines.team.roles import fill, load_text
from coachrl.sandbox.base import Workspace
from coachrl.tasks.code.cooperation import SCHEMES
from coachrl.tasks.code.joint_reward import LEVELS, JointReward, JointWeights, judge_together
from coachrl.tasks.code.problems import CodeTruth
from coachrl.text import clip_middle, written_code
from coachrl.types import Outcome, Reward, Role, Task

HELPER = Role(
    name="helper",
    policy="helper",
    description="Writes a function `aux` that takes part of the work off the main agent, unseen by that one.",
)
MAIN = Role(
    name="main",
    policy="main",
    description=(
        "Writes the function that the task asks for, which should call the helper's `aux` for part of the work."
    ),
)
ALONE = Role(name="programmer", policy="programmer", description="Writes the function that the task asks for.")


class CoopCode(CodePipeline):
    """One of four workflows.

    "parallel": both write at once; one turn untrained is the paper's naive concatenation. "sequential": the main agent
    reads the helper's code. "discussion": two turns, and in the second each has read the first answers. "single": one
    agent writes alone.
    """

    name = "coop_code"
    joint_rewards = True

    class Options(PipelineOptions):
        workflow: Literal["parallel", "sequential", "discussion", "single"] = Field(
            "parallel", description="Who sees what."
        )
        turns: int = Field(
            1, ge=1, description="Turns at most; an episode ends where all tests pass. (Not in discussion.)"
        )
        feedback: Literal["none", "tests", "coach"] = Field(
            "tests",
            description="What a further turn adds to the answers before it: nothing, failed tests, a model's advice.",
        )
        adviser: str | None = Field(None, description="feedback=coach: the model that advises, named as a coach is.")
        adviser_api_base: str | None = Field(None, description="Its base URL, where it is an OpenAI-compatible server.")
        stop_above: float | None = Field(
            None, description="End where a turn's joint reward is above this; default: never."
        )
        count_saved_turns: bool = Field(
            False,
            description="Where an episode ends early, count its last joint reward for each turn that is left, too: "
            "without it, as in the paper, solving a task late returns more than solving it at once.",
        )
        test_timeout_s: float = Field(10.0, gt=0, description="Of one run of the task's tests.")
        weights: JointWeights = Field(JointWeights(), description="Points of the joint reward.")

        @model_validator(mode="after")
        def _fit(self) -> CoopCode.Options:
            fixed = {"turns": 2, "feedback": "none"}
            wrong = [name for name in fixed if name in self.model_fields_set and getattr(self, name) != fixed[name]]
            if self.workflow == "discussion" and wrong:
                raise ValueError(f"workflow=discussion has two turns and no feedback: leave {' and '.join(wrong)} out")
            if (self.feedback == "coach") != (self.adviser is not None):
                raise ValueError("feedback=coach and adviser=MODEL belong together: give both or neither")
            return self

    options: Options

    def __init__(self, settings: PipelineConfig) -> None:
        super().__init__(settings)
        self._earlier = load_text("earlier", {"answers", "feedback"}, settings, self.name)
        if self.options.adviser is not None:
            prompt = load_text("adviser", {"problem", "entry_point", "answers"}, settings, self.name)
            self.adviser = ModelAdviser(self.options.adviser, self.options.adviser_api_base, prompt)

    def members(self) -> list[tuple[Role, int]]:
        return [(ALONE, 1)] if self.options.workflow == "single" else [(HELPER, 1), (MAIN, 1)]

    @property
    def rounds(self) -> int:
        return 2 if self.options.workflow == "discussion" else self.options.turns

    async def run(self, task: Task, team: Team, workspace: Workspace | None) -> Outcome:
        truth, workspace = self.truth(task, CodeTruth), self.require_workspace(workspace)
        known = {"problem": task.prompt, "entry_point": truth.entry_point, "history": ""}
        parts, judged, advice = dict[str, AgentTrajectory](), list[JointReward](), list[Advice]()
        for turn in range(self.rounds):
            if turn:
                known["history"] = await self._history(known, parts, judged[-1], advice)
            parts = await self._write(team, known)
            judged.append(await self._judge(parts, truth, workspace))
            done = self._is_done(judged[-1])
            times = self.rounds - turn if done and self.options.count_saved_turns else 1
            for part in parts.values():
                team.reward(part, Reward(times * judged[-1].total, 0.0, judged[-1].levels))
            if done:
                break
        return _outcome(judged, advice)

    async def _judge(self, parts: Mapping[str, AgentTrajectory], truth: CodeTruth, workspace: Workspace) -> JointReward:
        code = {name: written_code(part.text) for name, part in parts.items()}
        helper, main = code.get(HELPER.name), code[self.roles[-1].name]
        return await judge_together(workspace, truth, helper, main, self.options.weights, self.options.test_timeout_s)

    async def _write(self, team: Team, known: Mapping[str, str]) -> dict[str, AgentTrajectory]:
        """One answer of each agent, by role."""
        if self.options.workflow != "sequential":
            written = await together(team[role.name].act_on(known) for role in self.roles)
            return {role.name: part for role, part in zip(self.roles, written, strict=True)}
        helper = await team.helper.act_on(known)
        seen = f"{known['history']}\n\n{_answers({HELPER.name: helper})}".strip()
        return {HELPER.name: helper, MAIN.name: await team.main.act_on({**known, "history": seen})}

    async def _history(
        self, known: Mapping[str, str], parts: Mapping[str, AgentTrajectory], judged: JointReward, advice: list[Advice]
    ) -> str:
        """What the next turn is told of this one; `advice` collects what the adviser said."""
        answers, feedback = _answers(parts), ""
        if self.options.workflow != "discussion" and self.options.feedback == "tests":
            feedback = clip_middle(_findings(judged))
        elif self.adviser is not None:
            advice.append(await self.adviser.advise({**known, "answers": answers}))
            feedback = advice[-1].text
        return fill(self._earlier, {"answers": answers, "feedback": feedback or "None: look at the answers yourself."})

    def _is_done(self, judged: JointReward) -> bool:
        if self.options.workflow == "discussion":
            return False
        limit = self.options.stop_above
        return judged.solved or (limit is not None and judged.total > limit)


def _answers(parts: Mapping[str, AgentTrajectory]) -> str:
    return "\n\n".join(f"{name}:\n```python\n{written_code(part.text).strip()}\n```" for name, part in parts.items())


def _findings(judged: JointReward) -> str:
    """What the tests found, in words."""
    if judged.result is not None:
        return judged.result.summary or "All tests pass."
    return "The program could not be run: a part is not Python, or the function that is asked for is missing."


def _outcome(judged: list[JointReward], advice: list[Advice]) -> Outcome:
    """Success: the last program passes every test. Returns are sums over turns; schemes are the last program's."""
    last = judged[-1]
    metrics = {"tests_passed": last.tests_passed, "turns": float(len(judged)), "return": sum(j.total for j in judged)}
    metrics |= {f"return/{level}": sum(j.levels[level] for j in judged) for level in LEVELS}
    metrics |= {f"scheme/{name}": float(name in last.cooperation.schemes) for name in SCHEMES}
    if advice:
        metrics |= {"advice/calls": float(len(advice)), "advice/failed": float(sum(a.failed for a in advice))}
        prices = [a.cost_usd for a in advice if a.cost_usd is not None]
        if len(prices) == len(advice):
            metrics["advice/usd"] = sum(prices)
    return Outcome(
        success=last.solved,
        metrics=metrics,
        reason="" if last.solved else "the joint program fails the task's tests",
        summary=f"The joint program passes {last.tests_passed:.0%} of the tests.\n{clip_middle(_findings(last))}",
    )
