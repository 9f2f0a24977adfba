"""Mathchat with a scripted policy and a scripted workspace: who sees what, how parts end, what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.math.mathchat import MathChat
from coachrl.pipelines.team.team import Team
from coachrl.tasks.math.problems import MathTruth
from coachrl.testing.scripted import Call, ScriptedPolicy
from coachrl.types import Action, Execution, Outcome, SamplingParams, Task

PROBLEM = "Ada has 3 apples and {finds} {{draft}} 4 more. How many apples does Ada have now?"
SECRET = "98127"
PROMPT_STYLES = pytest.mark.parametrize("prompt_style", ["full", "short"])


class PrintingWorkspace:
    """Answers every program with the next of its scripted executions; the last one stays. Its own sandbox, too."""

    def __init__(self, *executions: Execution) -> None:
        self._executions = list(executions)
        self.programs: list[str] = []

    async def open(self, files: Mapping[str, Path]) -> "PrintingWorkspace":
        return self

    async def run(self, code: str, timeout_s: float | None = None) -> Execution:
        self.programs.append(code)
        return self._executions[min(len(self.programs), len(self._executions)) - 1]

    async def files(self) -> tuple[str, ...]:
        return ()

    async def read(self, name: str, max_bytes: int = 0) -> bytes:
        raise FileNotFoundError(name)

    async def close(self) -> None:
        pass


async def play(
    settings: PipelineConfig,
    replies: Mapping[str, Callable[[int], str]],
    *executions: Execution,
    answer: str = SECRET,
    context_length: int = 100_000,
) -> tuple[Outcome, ScriptedPolicy, list[Action], PrintingWorkspace]:
    """One episode. replies: policy -> text of its n-th reply, from 0."""
    drawn: dict[str, int] = {}

    def reply(call: Call) -> str:
        drawn[call.policy] = drawn.get(call.policy, -1) + 1
        return replies[call.policy](drawn[call.policy])

    policy = ScriptedPolicy(reply, context_length)
    pipeline = MathChat(settings)
    workspace = PrintingWorkspace(*(executions or (Execution("ok", stdout="7\n"),)))
    task = Task("t", "k", PROBLEM, ground_truth=MathTruth(answer, solution=f"{SECRET} + 0"))
    team = Team("e", task, pipeline.roles, policy, SamplingParams())
    outcome = await pipeline.run(task, team, await team.open(workspace))
    return outcome, policy, list(team.actions), workspace


CODE = "```python\nprint(3 + 4)\n```"
REPLIES: dict[str, Callable[[int], str]] = {
    "problem_solver": lambda turn: "<think>HIDDEN</think> DRAFTED {{problem}} 3 + 4",
    "code_executor": lambda turn: CODE if turn == 0 else "REPORTED it is 7",
    "verifier": lambda turn: r"so \boxed{7}",
}


def prompts(policy: ScriptedPolicy, name: str) -> list[str]:
    return [call.prompt for call in policy.calls if call.policy == name]


@PROMPT_STYLES
async def test_three_agents_reach_the_graded_answer(prompt_style: str) -> None:
    outcome, _, actions, workspace = await play(PipelineConfig(prompt_style=prompt_style), REPLIES, answer="7")
    assert outcome.success and outcome.metrics == {"correct": 1.0, "boxed": 1.0}
    assert [action.role for action in actions] == ["problem_solver", "code_executor", "code_executor", "verifier"]
    assert workspace.programs == ["print(3 + 4)\n"]
    wrong, *_ = await play(PipelineConfig(prompt_style=prompt_style), REPLIES, answer="8")
    assert not wrong.success and wrong.reason == "wrong answer"


@PROMPT_STYLES
async def test_who_sees_what(prompt_style: str) -> None:
    _, policy, _, _ = await play(PipelineConfig(prompt_style=prompt_style), REPLIES)
    (solver,), (first, second), (verifier,) = (prompts(policy, role.name) for role in MathChat(PipelineConfig()).roles)
    for prompt in (solver, first, verifier):
        assert prompt.count(PROBLEM) == 1, "braces of the problem stay text, and it is told once"
    assert "DRAFTED {{problem}} 3 + 4" in first and "HIDDEN" not in first + verifier
    assert second.startswith(first) and "7" in second.removeprefix(first).replace(CODE, "")
    assert ("REPORTED" in verifier) is (prompt_style == "full"), "the full prompt_style hands on the transcript"


@PROMPT_STYLES
async def test_partial_information_hides_the_problem(prompt_style: str) -> None:
    settings = PipelineConfig(prompt_style=prompt_style, partial_information=True)
    _, policy, _, _ = await play(settings, REPLIES)
    (solver,) = prompts(policy, "problem_solver")
    assert PROBLEM in solver
    for prompt in prompts(policy, "code_executor"):
        assert "DRAFTED" in prompt and "Ada" not in prompt
    (verifier,) = prompts(policy, "verifier")
    assert "Ada" not in verifier and "DRAFTED" not in verifier and "7" in verifier


@pytest.mark.parametrize("partial", [False, True])
@PROMPT_STYLES
async def test_ground_truth_is_in_no_prompt(prompt_style: str, partial: bool) -> None:
    _, policy, _, _ = await play(PipelineConfig(prompt_style=prompt_style, partial_information=partial), REPLIES)
    assert len(policy.calls) == 4
    assert not any(SECRET in call.prompt for call in policy.calls)


@PROMPT_STYLES
async def test_executor_stops_at_its_last_turn(prompt_style: str) -> None:
    settings = PipelineConfig(prompt_style=prompt_style, roles={"code_executor": RoleConfig(max_turns=3)})
    failed = Execution("error", stderr="Traceback ...\nNameError: name 'x' is not defined", exit_code=1)
    looping = REPLIES | {"code_executor": lambda turn: CODE}
    _, policy, actions, workspace = await play(settings, looping, failed, failed, Execution("ok", stdout="41\n"))
    assert len(workspace.programs) == 3 and [a.turn for a in actions if a.role == "code_executor"] == [0, 1, 2]
    assert "NameError" in prompts(policy, "code_executor")[1]
    assert "41" in prompts(policy, "verifier")[0]
    default = await play(PipelineConfig(prompt_style=prompt_style), looping)
    assert len(default[3].programs) == 5


async def test_silent_agents_leave_a_word_for_the_next_one() -> None:
    silent = {name: (lambda turn: "") for name in REPLIES}
    outcome, policy, _, workspace = await play(PipelineConfig(prompt_style="short"), silent)
    assert outcome.reason == r"no \boxed answer" and workspace.programs == []
    assert "(nothing)" in prompts(policy, "code_executor")[0]
    assert "(no output)" in prompts(policy, "verifier")[0]


async def test_stated_limit_is_the_roles_own() -> None:
    settings = PipelineConfig(roles={"verifier": RoleConfig(max_new_tokens=777)})
    _, policy, _, _ = await play(settings, REPLIES)
    assert "777" in prompts(policy, "verifier")[0] and "4096" in prompts(policy, "problem_solver")[0]


def own_prompts(folder: Path, **bodies: tuple[str, str]) -> Path:
    for name, (fields, body) in bodies.items():
        (folder / f"{name.replace('__', '.')}.md").write_text(f"---\nfields: [{fields}]\n---\n{body}\n")
    return folder


def test_a_prompt_may_ask_only_for_what_its_role_gets(tmp_path: Path) -> None:
    files = {
        "problem_solver": ("problem", "{{problem}}"),
        "code_executor": ("draft, execution", "{{draft}} {{execution}}"),
        "verifier": ("output", "{{output}}"),
        "feedback": ("brief", "{{brief}}"),
    }
    folder = own_prompts(tmp_path, **files)
    with pytest.raises(ConfigError, match=r"code_executor: there is no field execution.* draft, problem, token_limit"):
        MathChat(PipelineConfig(prompts=folder))
    own_prompts(tmp_path, code_executor=("draft", "{{draft}}"))
    assert MathChat(PipelineConfig(prompts=folder)).roles[1].prompt.fields == {"draft"}
    partial = {f"{name}__partial": files[name] for name in ("problem_solver", "verifier")}
    own_prompts(tmp_path, **partial, code_executor__partial=("draft, problem", "{{draft}} {{problem}}"))
    with pytest.raises(ConfigError, match=r"no field problem.*may be draft, token_limit"):
        MathChat(PipelineConfig(prompts=folder, partial_information=True))


def test_shipped_by_name() -> None:
    pipeline = make_pipeline(PipelineConfig(name="mathchat", prompt_style="short"))
    assert isinstance(pipeline, MathChat)
    assert [role.name for role in pipeline.roles] == ["problem_solver", "code_executor", "verifier"]
    assert len({role.policy for role in pipeline.roles}) == 3
    assert [role.python for role in pipeline.roles] == [False, True, False]
    assert all(role.description and len(role.examples) == 2 for role in pipeline.roles)


def test_tasks_of_ones_own_with_another_ground_truth_are_refused_before_a_run() -> None:
    pipeline = make_pipeline(PipelineConfig(name="mathchat"))
    pipeline.check_tasks([Task("a", "k", "p", ground_truth=MathTruth("5"))])
    with pytest.raises(
        TaskError, match=r"task b: its ground truth is a str, and pipeline mathchat takes a MathTruth, as"
    ):
        pipeline.check_tasks([Task("a", "k", "p", ground_truth=MathTruth("5")), Task("b", "k", "p", ground_truth="5")])
