"""Roles of an app that a provider's model plays: passed on, counted, scored or not, and never trained."""

import json

import pytest
from gateway_apps import LOOK_UP, play, said, user
from scripted_server import NO_CANDIDATE, ScriptedServer, Step, say, status

from coachrl.coach.build import make_client_factory
from coachrl.coach.clients.ledger import read_ledger
from coachrl.commands.build import policies_of
from coachrl.commands.replay import replay_run
from coachrl.config import CoachConfig, PipelineConfig, RunConfig
from coachrl.errors import BudgetExceeded, ConfigError
from coachrl.gateway.calls import Call
from coachrl.gateway.external import GatewayRole, LiteLLMProviders
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.replay import decisions_of
from coachrl.trainers.rollout.rollout import EpisodeSpec
from coachrl.trainers.samples import to_samples
from coachrl.types import Task

pytest.importorskip("litellm", reason="needs the llm extra")

SEEN = {}


def is_said(task, result):
    SEEN["result"] = result
    return True


def with_a_critic(task, endpoint):
    client = endpoint.openai()
    plan = said(client, "planner", user(task.prompt)).content
    talk = [user(f"Judge {plan}")]
    asked = said(client, "critic", *talk, tools=[LOOK_UP], temperature=0.3)
    talk += [asked.model_dump(exclude_none=True)]
    talk += [{"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "3715 m"}]
    return said(client, "critic", *talk, tools=[LOOK_UP]).content


def asks_for_a_tool(request):
    if request.body["messages"][-1]["role"] == "tool":
        return say("a fine plan")
    function = {"name": "height_of", "arguments": '{"mountain": "Teide"}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "judge", "choices": [choice]}
    answer["usage"] = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    return Step(body=json.dumps(answer))


def with_external(address, **more):
    roles = {"critic": {"external": "openai/judge", "api_base": address, **more}, "planner": {}}
    options = {"run": f"{__name__}:with_a_critic", "grade": f"{__name__}:is_said", "roles": roles}
    return make_pipeline(PipelineConfig(name="gateway", options=options))


@pytest.mark.parametrize("scored", [True, False])
async def test_an_external_role_is_passed_on_scored_or_not_and_never_trained(monkeypatch, scored):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    submitted = []
    async with ScriptedServer(asks_for_a_tool) as server:
        pipeline = with_external(server.openai_base, scored=scored)
        assert list(policies_of(RunConfig(), pipeline)) == ["planner"]
        [episode] = await play(pipeline, ScriptedPolicy(lambda call: "a plan"), submit=submitted.append)
        assert episode.infra_error is None
        asked_for = [(request.body["model"], request.body.get("temperature")) for request in server.requests]
    assert asked_for == [("judge", 0.3), ("judge", None)]
    assert SEEN["result"] == "a fine plan" and episode.infra_error is None
    planned, asked, judged = episode.actions
    assert (judged.policy, judged.text, judged.prompt_text[:6]) == ("openai/judge", "a fine plan", "[user]")
    assert [call.result for call in asked.tool_calls] == ["3715 m"] and "height_of" in asked.text
    scored_actions = [planned, asked, judged] if scored else [planned]
    assert sorted(request.action.id for request in submitted) == [action.id for action in scored_actions]
    assert [d.action for d in decisions_of([EpisodeSpec(episode.id, Task("t0", "k", "?"), 0)], [episode])] == [planned]
    samples = to_samples([episode])
    assert [sample.action_id for group in samples.values() for sample in group] == [planned.id]


async def test_an_audit_does_not_replay_a_team_that_a_provider_plays_in_since_it_would_be_paid_for_again(tmp_path):
    async with ScriptedServer(asks_for_a_tool) as server:
        pipeline = with_external(server.openai_base).settings
        run = Run.create(RunConfig(name="r", out=tmp_path, pipeline=pipeline))
        (run.folder / "checkpoints" / "step-000001").mkdir(parents=True)
        with pytest.raises(ConfigError, match="a provider's model plays critic in this run"):
            await replay_run(run, 4, 100, 0, lambda done, total: None)
    assert not server.requests


async def test_external_calls_are_counted_and_end_the_run_before_they_pass_its_budget(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    settings = CoachConfig(usd_per_million_tokens=(0.0, 1e6), budget_usd=40)  # a dollar for each token of a reply
    async with ScriptedServer(asks_for_a_tool) as server:
        pipeline = with_external(server.openai_base, max_new_tokens=9)
        with pytest.raises(ConfigError, match=r"coach.budget_usd: the price of 'openai/judge' is not"):
            pipeline.connect(make_client_factory(CoachConfig(budget_usd=1), None), None)
        factory = make_client_factory(settings, tmp_path / "ledger.jsonl")
        pipeline.connect(factory, tmp_path / "ledger.jsonl")
        [episode] = await play(pipeline, ScriptedPolicy(lambda call: "a plan"))
        assert episode.outcome.metrics["external/calls"] == 2
        assert episode.outcome.metrics["external/usd"] == factory.budget.spent_usd > 3
        factory.budget.spent_usd = 35
        with pytest.raises(BudgetExceeded, match=r"coach.budget_usd of \$40 is reached: \$35"):
            await play(pipeline, ScriptedPolicy(lambda call: "a plan"), 2)
        assert len(server.requests) == 2
        assert all(request.body["max_tokens"] == 9 for request in server.requests)
    lines = list(read_ledger(tmp_path / "ledger.jsonl"))
    assert [line["kind"] for line in lines] == ["call"] * 2 and lines[1]["reply"] == "a fine plan"


async def sent_limit(model, asked, budget_usd, max_new_tokens=None):
    """The `max_tokens` that a provider gets where the app asks for so many."""
    async with ScriptedServer([say("well")]) as server:
        providers = LiteLLMProviders(
            {"critic": GatewayRole(external=model, api_base=server.openai_base, max_new_tokens=max_new_tokens)}
        )
        settings = CoachConfig(usd_per_million_tokens=(0.0, 1.0), budget_usd=budget_usd)
        providers.connect(make_client_factory(settings, None), None)
        await providers.complete(Call("critic", (user("?"),), max_tokens=asked))
        return server.requests[0].body.get("max_tokens")


async def test_a_reply_has_at_most_what_the_role_says_and_under_a_budget_what_the_model_can_write(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    assert await sent_limit("openai/gpt-4", None, budget_usd=None) is None
    assert await sent_limit("openai/gpt-4", None, budget_usd=1) == 4096  # by LiteLLM's table
    assert await sent_limit("openai/gpt-4.1", None, budget_usd=1) == 16_384  # it could write twice as much
    assert await sent_limit("openai/mine", None, budget_usd=1, max_new_tokens=300) == 300
    refused = "how long a reply of the external model 'openai/mine' may be is not known; state it as pipeline.options"
    with pytest.raises(ConfigError, match=f"coach.budget_usd: {refused}.roles.critic.max_new_tokens"):
        await sent_limit("openai/mine", None, budget_usd=1)


async def test_two_roles_of_one_model_are_each_asked_at_their_own_address(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    async with ScriptedServer([say("here")]) as one, ScriptedServer([say("there")]) as other:
        roles = {
            name: GatewayRole(external="openai/judge", api_base=s.openai_base) for name, s in (("a", one), ("b", other))
        }
        providers = LiteLLMProviders(roles)
        replies = [await providers.complete(Call(name, (user("?"),))) for name in ("a", "b")]
    assert [reply.text for [reply] in replies] == ["here", "there"]


@pytest.mark.parametrize(("told", "passed_on"), [({"k": 1}, '{"k": 1}'), ("no object", "no object")])
async def test_arguments_reach_a_provider_as_text_once(monkeypatch, told, passed_on):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    asked = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": told}}
    messages = ({"role": "assistant", "content": "", "tool_calls": [asked]}, {"role": "user", "content": "go on"})
    async with ScriptedServer([say("well")]) as server:
        providers = LiteLLMProviders({"critic": GatewayRole(external="openai/judge", api_base=server.openai_base)})
        await providers.complete(Call("critic", messages))
    (call,) = server.requests[0].body["messages"][0]["tool_calls"]
    assert call["function"]["arguments"] == passed_on


@pytest.mark.parametrize("step", [status(500), NO_CANDIDATE], ids=["error", "no reply"])
async def test_a_provider_that_fails_is_no_fault_of_the_agents(monkeypatch, step):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours-and-secret")
    async with ScriptedServer([step]) as server:
        pipeline = with_external(server.openai_base)
        pipeline.connect(make_client_factory(CoachConfig(max_attempts=1), None), None)
        [episode] = await play(pipeline, ScriptedPolicy(lambda call: "a plan"))
    assert episode.infra_error.startswith("provider: openai/judge: ") and "sk-ours" not in episode.infra_error
