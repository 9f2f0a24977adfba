"""The example apps, each in its framework, with a team whose replies are known: see scripts/test_gateway_apps.sh."""

import json
import random
from pathlib import Path

import pytest

from coachrl.config import PipelineConfig, SandboxConfig, find_config, load_config
from coachrl.pipelines import make_pipeline
from coachrl.sandbox import make_sandbox
from coachrl.tasks.math.problems import MathTruth
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples" / "gateway"
TASK = Task("t", "k", "A hen lays 3 eggs on each of 6 days. How many eggs is that?", ground_truth=MathTruth("18"))


async def play(monkeypatch, app, roles, reply, grade="last_number"):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    options = {"run": f"{app}:solve", "grade": f"grading:{grade}", "roles": {role: {} for role in roles}}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options=options))
    [episode] = await rollout(
        [EpisodeSpec("e", TASK, 0)], RolloutContext(pipeline, ScriptedPolicy(reply), sandbox=None)
    )
    assert episode.infra_error is None and episode.outcome.success, episode
    return episode.actions


def says(texts):
    """Each role its one reply."""
    return lambda call: texts[call.policy]


def calls(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(("app", "package"), [("plain_openai", "openai"), ("langgraph_app", "langgraph")])
async def test_a_planner_and_a_solver(monkeypatch, app, package):
    pytest.importorskip(package, reason="scripts/test_gateway_apps.sh has it")
    said = {"planner": "3 * 6", "solver": "18"}
    actions = await play(monkeypatch, app, list(said), says(said))
    assert [(action.role, action.text) for action in actions] == list(said.items())
    assert "3 * 6 = ?" in actions[1].prompt_text


async def test_a_langgraph_graph_with_a_loop(monkeypatch):
    pytest.importorskip("langgraph", reason="scripts/test_gateway_apps.sh has it")
    roles, plans = ["planner", "planner", "writer"], iter(["I do not know", "3 x 6"])
    actions = await play(
        monkeypatch, "sums_langgraph", roles[1:], lambda call: next(plans) if call.policy == "planner" else "18 eggs."
    )
    assert [action.role for action in actions] == roles
    assert "That is no sum." in actions[1].prompt_text and "The calculator says: 18" in actions[2].prompt_text


async def test_the_quickstarts_team_in_langgraph(monkeypatch):
    pytest.importorskip("langgraph", reason="scripts/test_gateway_apps.sh has it")
    said = {"problem_solver": "3 * 6", "code_executor": "```python\nprint(3 * 6)\n```", "verifier": "It is \\boxed{18}"}
    actions = await play(monkeypatch, "quickstart_langgraph", list(said), says(said), grade="last_boxed")
    assert actions[2].prompt_text.endswith("Code output: 18")


REPLIES = {
    "problem_solver": ["3 * 6", "3 + 6", "", "I do not know."],
    "code_executor": [
        "```python\nprint(3 * 6)\n```",
        "```python\nprint(7 - 9)\n```",
        "18",
        "```python\nprint(20 - 2)\n```",
    ],
    "verifier": ["The answer is \\boxed{18}", "18", "<think>", "The answer is \\boxed{9}"],
}


async def test_the_quickstarts_team_asks_in_langgraph_just_what_it_asks_as_a_pipeline(monkeypatch):
    """The same prompts, seeds and limits, as long as programs print one sum or product, which is all that the app runs:
    the same weights then draw the same replies, and learn the same from them."""
    pytest.importorskip("langgraph", reason="scripts/test_gateway_apps.sh has it")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    specs = [EpisodeSpec(f"e{seed}", TASK, seed) for seed in range(12)]
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=60))  # the code is this file's own

    def any_of_them(call):
        return random.Random(call.sampling.seed).choice(REPLIES[call.policy])

    async def played(config):
        policy, config = ScriptedPolicy(any_of_them), load_config(config)
        context = RolloutContext(make_pipeline(config.pipeline), policy, sandbox=sandbox)
        episodes = await rollout(specs, context)
        calls = sorted(policy.calls, key=lambda call: (call.sampling.seed, call.policy))
        return calls, [(episode.outcome.success, [action.text for action in episode.actions]) for episode in episodes]

    as_pipeline, as_app = await played(find_config("quickstart")), await played(EXAMPLES / "quickstart_langgraph.yaml")
    await sandbox.close()
    assert {success for success, _ in as_pipeline[1]} == {True, False}
    assert as_app == as_pipeline


async def test_the_agents_sdk_hands_over_and_calls_a_tool(monkeypatch):
    pytest.importorskip("agents", reason="scripts/test_gateway_apps.sh has it")

    def reply(call):
        if call.policy == "triage":
            return calls("transfer_to_solver")
        return "It is 18." if "18" in call.prompt else calls("multiply", first=3, second=6)

    triage, asks, answers = await play(monkeypatch, "agents_sdk_app", ["triage", "solver"], reply)
    assert [call.name for call in triage.tool_calls] == ["transfer_to_solver"]
    assert [(call.name, call.result) for call in asks.tool_calls] == [("multiply", "18")]
    read = (*asks.prompt_ids, *asks.response_ids)
    assert answers.prompt_ids[: len(read)] == read  # the conversation goes on with its very ids


async def test_autogen_takes_turns(monkeypatch):
    pytest.importorskip("autogen_agentchat", reason="scripts/test_gateway_apps.sh has it")
    actions = await play(monkeypatch, "autogen_app", ["writer", "critic"], says({"writer": "3 * 6", "critic": "18"}))
    assert [action.role for action in actions] == ["writer", "critic"] and "3 * 6" in actions[1].prompt_text
