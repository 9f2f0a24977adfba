"""One episode at the endpoint, called directly: what is recorded, when the coach is asked, and what is counted."""

import asyncio

import pytest
from gateway_apps import LOOK_UP, user

from coachrl.errors import AppBroken, BackendError, ContextOverflow
from coachrl.gateway.calls import Call, EngineFailed, EpisodeEnded, FunctionCall, Reply, UnknownModel
from coachrl.gateway.conversation_tokens import as_message
from coachrl.gateway.external import LiteLLMProviders
from coachrl.gateway.played_episode import PlayedEpisode
from coachrl.pipelines.team.team import Team
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import Role, SamplingParams, Task

ROLES = {name: Role(name, name, max_new_tokens=200) for name in ("planner", "critic")}
ASKS = "".join(
    f'<tool_call>{{"name": "height_of", "arguments": {{"mountain": "{name}"}}}}</tool_call>' for name in ("K2", "Eiger")
)


def episode(policy, unscored=()):
    """The episode, its team, and what the coach was asked."""
    submitted = []
    team = Team("e", Task("t", "k", "p"), ROLES.values(), policy, SamplingParams(), submit=submitted.append)
    return PlayedEpisode(team, ROLES, frozenset(unscored), LiteLLMProviders({}), set()), team, submitted


def call(*messages, role="planner", **fields):
    return Call(role, messages or (user("a"),), tools=(LOOK_UP,), **fields)


def result(function, said):
    return {"role": "tool", "tool_call_id": function.id, "content": said}


async def test_the_coach_sees_an_action_once_its_results_are_told_and_what_is_told_later_changes_nothing():
    replies = iter([ASKS, "well", "again", "last"])
    played, team, submitted = episode(ScriptedPolicy(lambda _: next(replies)))
    [asked] = await played.answer(call())
    assert submitted == [] and [one.arguments["mountain"] for one in asked.tool_calls] == ["K2", "Eiger"]
    high, low = (result(function, said) for function, said in zip(asked.tool_calls, ("8611", "3967"), strict=True))
    talk = (user("a"), as_message(asked))
    await played.answer(call(*talk, high, low))
    assert [[made.result for made in request.action.tool_calls] for request in submitted] == [["8611", "3967"], []]
    await played.answer(call(*talk, low))
    assert [made.result for made in team.actions[0].tool_calls] == ["8611", "3967"]
    assert [request.action.id for request in submitted] == ["e/0", "e/1", "e/2"]


async def test_equal_replies_are_told_apart_by_the_ids_of_their_functions():
    replies = iter([ASKS, ASKS, ASKS, "well", "well", "well"])
    played, team, submitted = episode(ScriptedPolicy(lambda _: next(replies)))
    asked = [*await played.answer(call(n=2)), *await played.answer(call())]
    assert len({function.id for reply in asked for function in reply.tool_calls}) == 6
    for place in (2, 0, 1):
        told = [result(function, f"{place}") for function in asked[place].tool_calls]
        await played.answer(call(user("a"), as_message(asked[place]), *told))
    found = {request.action.id: [made.result for made in request.action.tool_calls] for request in submitted}
    assert [found[action.id] for action in team.actions[:3]] == [["0", "0"], ["1", "1"], ["2", "2"]]


async def test_equal_ids_of_a_providers_functions_are_told_apart_too():
    """Many servers count them anew in each reply."""
    function = FunctionCall("call_0", "height_of", {"mountain": "K2"})

    class Providers:
        async def complete(self, call):
            return [Reply("", "tool_calls", 1, (), tool_calls=(function, function))]

    roles = {"critic": Role("critic", "critic", external="openai/judge")}
    submitted = []
    team = Team("e", Task("t", "k", "p"), roles.values(), None, SamplingParams(), submit=submitted.append)
    played = PlayedEpisode(team, roles, frozenset(), Providers(), set())
    asked = [reply for _ in range(2) for reply in await played.answer(call(role="critic"))]
    ids = [function.id for reply in asked for function in reply.tool_calls]
    assert ids == ["call_0", "call_0_2", "call_0_3", "call_0_4"]
    for place in (1, 0):
        told = [result(function, function.id) for function in asked[place].tool_calls]
        await played.answer(call(user("a"), as_message(asked[place]), *told, role="critic"))
    found = {request.action.id: [made.result for made in request.action.tool_calls] for request in submitted}
    assert found == {"e/0": ids[:2], "e/1": ids[2:]}


async def test_what_was_never_told_goes_to_the_coach_at_the_end():
    played, team, submitted = episode(ScriptedPolicy(lambda _: ASKS))
    await played.answer(call())
    await played.close()
    assert [request.action for request in submitted] == list(team.actions)


@pytest.mark.parametrize("text", ["well", ASKS])
async def test_an_unscored_role_is_recorded_and_no_coach_is_asked(text):
    played, team, submitted = episode(ScriptedPolicy(lambda _: text), unscored=["critic"])
    await played.answer(call(role="critic"))
    await played.close()
    assert len(team.actions) == 1 and submitted == []


async def test_calls_count_as_answered_or_as_too_long_and_unknown_roles_as_neither():
    played, team, _ = episode(ScriptedPolicy(lambda _: "well", context_length=2000))
    await played.answer(call(n=2))
    with pytest.raises(ContextOverflow):
        await played.answer(call(user("word " * 500)))
    with pytest.raises(UnknownModel, match="the roles planner, critic"):
        await played.answer(call(role="coder"))
    assert (played.answered, played.overflowed, played.given_up) == (1, 1, 0) and len(team.actions) == 2


class Waiting(ScriptedPolicy):
    """Draws nothing until it may."""

    def __init__(self):
        super().__init__(lambda _: "well")
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def generate(self, policy, prompt_ids, sampling):
        self.asked.set()
        await self.go.wait()
        return await super().generate(policy, prompt_ids, sampling)


@pytest.mark.parametrize("closed", [True, False])
async def test_who_gives_a_call_up_is_told_or_counted(closed):
    policy = Waiting()
    played, team, submitted = episode(policy)
    waiting = asyncio.create_task(played.answer(call()))
    await policy.asked.wait()
    if closed:
        await played.close()
        with pytest.raises(EpisodeEnded, match="this episode is over"):
            await waiting
    else:
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await played.close()
    assert (played.answered, played.given_up) == (0, 0 if closed else 1)
    [action] = team.actions
    assert (action.text, action.response_ids, submitted) == ("", (), [])


async def test_an_app_idles_where_no_call_is_under_way():
    policy = Waiting()
    played, _, _ = episode(policy)
    waiting = asyncio.create_task(played.answer(call()))
    await policy.asked.wait()
    played._quiet_since -= 1000
    watching = asyncio.create_task(played.stuck(100))
    await asyncio.sleep(0)
    assert not watching.done(), "it waits for its team"
    watching.cancel()
    policy.go.set()
    await waiting
    watching = asyncio.create_task(played.stuck(100))
    await asyncio.sleep(0)
    assert not watching.done(), "it idles from its last call on"
    watching.cancel()
    played._quiet_since -= 101
    with pytest.raises(AppBroken, match="it made no call and came to no end for 100 s"):
        await played.stuck(100)


async def test_what_breaks_the_engine_breaks_the_episode_whatever_the_client_is_told():
    class Broken(ScriptedPolicy):
        async def generate(self, policy, prompt_ids, sampling):
            raise BackendError("burnt down")

    played, _, _ = episode(Broken(str))
    for _ in range(2):
        with pytest.raises(EngineFailed, match="BackendError: burnt down"):
            await played.answer(call())
    with pytest.raises(BackendError, match="burnt down"):
        await played.broken
    assert played.answered == 0


async def test_the_tokens_of_a_call_are_made_once_for_all_of_its_replies():
    policy, made = ScriptedPolicy(lambda _: "well"), []
    tokenizer = policy.tokenizer("planner")
    policy.tokenizer = lambda _: tokenizer
    encode = tokenizer.encode_chat
    tokenizer.encode_chat = lambda *given, **named: made.append(given) or encode(*given, **named)
    played, team, _ = episode(policy)
    assert len(await played.answer(call(n=5))) == len(team.actions) == 5
    assert len(made) == 1
