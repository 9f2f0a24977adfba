"""How a served team draws what it is asked, behind no server: one token a character."""

import pytest
from thinking import ThinkingTokenizer

pytest.importorskip("starlette", reason="needs the gateway extra")

from coachrl.errors import ContextOverflow
from coachrl.gateway.calls import Call, UnknownModel, WrongToken
from coachrl.gateway.conversation_tokens import as_message
from coachrl.gateway.external import LiteLLMProviders
from coachrl.gateway.served_team import ServedTeam
from coachrl.seeding import derive_seed
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import Role, SamplingParams

ROLES = (Role("planner", "p", max_new_tokens=30), Role("critic", "p", max_new_tokens=5))


def team(context: int = 1000, key: str = "", said: str = "well") -> tuple[ServedTeam, ScriptedPolicy]:
    policy = ScriptedPolicy(lambda call: said, context)
    sampling = SamplingParams(temperature=0.7, top_p=0.9)
    return ServedTeam(ROLES, policy, LiteLLMProviders({}), sampling, key), policy


def asked(role: str = "planner", **fields) -> Call:
    return Call(role, ({"role": "user", "content": "?"},), **fields)


@pytest.mark.parametrize("seed", [0, 5, -1])
async def test_a_seed_is_one_whatever_its_number_and_each_reply_has_its_own(seed):
    served, policy = team()
    for _ in range(2):
        await served.answer(asked(seed=seed, n=2), "")
    seeds = [call.sampling.seed for call in policy.calls]
    assert seeds == [derive_seed(seed, place) for place in (0, 1)] * 2 and seeds[0] != seeds[1]


async def test_calls_without_a_seed_are_drawn_apart():
    served, policy = team()
    for _ in range(2):
        await served.answer(asked(), "")
    assert policy.calls[0].sampling.seed != policy.calls[1].sampling.seed


@pytest.mark.parametrize(
    ("fields", "temperature", "top_p"),
    [
        ({}, 0.7, 0.9),
        ({"temperature": 0.0, "top_p": 0.0}, 0.0, 0.0),
        ({"temperature": 1.5, "top_p": 1.0}, 1.5, 1.0),
        ({"temperature": 0.001}, 0.001, 0.9),
        ({"temperature": 0.0009}, 0.0, 0.9),
    ],
)
async def test_what_a_call_leaves_open_is_the_teams(fields, temperature, top_p):
    served, policy = team()
    await served.answer(asked(**fields), "")
    assert (policy.calls[0].sampling.temperature, policy.calls[0].sampling.top_p) == (temperature, top_p)


@pytest.mark.parametrize(
    ("role", "limit", "room", "most"),
    [("planner", None, 100, 30), ("critic", None, 100, 5), ("critic", 20, 100, 20), ("planner", 20, 12, 12)],
)
async def test_a_reply_is_as_long_as_the_call_the_role_and_the_context_let_it(role, limit, room, most):
    prompt = len((await drawn(role)).prompt)
    served, policy = team(prompt + room)
    await served.answer(asked(role, max_tokens=limit), "")
    assert policy.calls[0].sampling.max_new_tokens == most
    with pytest.raises(
        ContextOverflow, match=f"the conversation has {prompt} tokens, and {role}'s context is {prompt}"
    ):
        await team(prompt)[0].answer(asked(role), "")


async def drawn(role: str):
    served, policy = team()
    await served.answer(asked(role), "")
    return policy.calls[0]


async def test_each_role_thinks_or_not_as_it_is_set():
    policy = ScriptedPolicy(lambda call: "well")
    policy._tokenizer = ThinkingTokenizer()
    roles = [Role("quick", "p"), Role("slow", "p", thinking=True)]
    served = ServedTeam(roles, policy, LiteLLMProviders({}), SamplingParams())
    for role in roles:
        await served.answer(asked(role.name), "")
    assert ["<thinks>" in call.prompt for call in policy.calls] == [False, True]


async def test_a_conversation_goes_on_with_what_was_written_and_not_shown():
    served, policy = team(said="<think>hm</think>yes")
    [reply] = await served.answer(asked(), "")
    talk = ({"role": "user", "content": "?"}, as_message(reply), {"role": "user", "content": "And?"})
    await served.answer(Call("planner", talk), "")
    assert reply.text == "yes" and "<think>hm</think>yes" in policy.calls[1].prompt


async def test_equal_replies_to_one_call_ask_for_functions_by_ids_of_their_own():
    asks = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    replies = await team(said=asks * 2)[0].answer(asked(n=3, tools=(look,), max_tokens=200), "")
    assert len({function.id for reply in replies for function in reply.tool_calls}) == 6


async def test_a_stop_text_ends_the_reply_that_is_told_with_its_tokens():
    [reply] = await team(said="One. END two")[0].answer(asked(stop=("END",)), "")
    assert (reply.text, reply.stop_text, reply.finish_reason) == ("One.", "END", "stop")
    assert reply.written_tokens == len("One. END")


async def test_who_may_ask_and_whom():
    served, _ = team(key="open sesame")
    assert served.models("open sesame") == ("planner", "critic") and team()[0].models("any") == ("planner", "critic")
    for token in ("", "open", "öffne"):
        with pytest.raises(WrongToken):
            served.models(token)
    with pytest.raises(UnknownModel, match="there is no model 'coder'; the models are the roles planner, critic"):
        await served.answer(asked("coder"), "open sesame")


async def test_the_tokens_of_a_call_are_made_once_for_all_of_its_replies():
    served, policy = team()
    made, encode = [], policy._tokenizer.encode_chat
    policy._tokenizer.encode_chat = lambda *given, **named: made.append(given) or encode(*given, **named)
    assert len(await served.answer(asked(n=5), "")) == 5
    assert len(made) == 1
