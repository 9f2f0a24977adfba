"""The fakes that users test their pipelines with say of a reply what a model would."""

import asyncio

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import CheckpointError, ContextOverflow, SandboxError
from coachrl.sandbox import make_sandbox
from coachrl.testing.actions import make_action
from coachrl.testing.faults import FaultySandbox
from coachrl.testing.scripted import Call, CharacterTokenizer, ScriptedPolicy
from coachrl.types import Execution, SamplingParams

PROMPT = tuple(map(ord, "ask"))


def generated(reply, most, context=100):
    policy = ScriptedPolicy(lambda call: reply, context)
    return policy, asyncio.run(policy.generate("a", PROMPT, SamplingParams(most)))


@pytest.mark.parametrize(
    ("most", "tokens", "reason"),
    [(2, "ye", "length"), (3, "yes", "length"), (4, "yes\0", "stop"), (9, "yes\0", "stop")],
)
def test_a_reply_stops_by_itself_where_its_end_fits_too(most, tokens, reason):
    policy, reply = generated("yes", most)
    assert reply.token_ids == tuple(map(ord, tokens)) and reply.finish_reason == reason
    assert reply.logprobs == (-1.0,) * len(tokens) and reply.weights_version == 0
    assert policy.tokenizer("a").decode(reply.token_ids) == tokens.strip("\0")
    assert policy.calls == [Call("a", "ask", SamplingParams(most))]


def test_prompt_and_reply_together_may_fill_the_context_and_no_more():
    assert generated("yes", 7, context=10)[1].finish_reason == "stop"
    with pytest.raises(ContextOverflow, match="a: prompt of 3 tokens and reply of 8 exceed the context of 10"):
        generated("yes", 8, context=10)


def test_a_conversation_goes_on_from_the_tokens_of_its_last_reply():
    tokenizer = CharacterTokenizer()
    first = tokenizer.encode_chat([{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}])
    assert tokenizer.decode(first) == "<system>be\n<user>hi\n<assistant>"
    again = tokenizer.continue_chat(first, (*map(ord, "yo"), 0), [{"role": "user", "content": "ok"}])
    assert again[: len(first)] == first and 0 in again
    assert tokenizer.decode(again[len(first) :]) == "yo\n<user>ok\n<assistant>"


def test_weights_are_numbered_by_their_hand_overs_and_saved_with_their_number(tmp_path):
    policy, _ = generated("yes", 4)
    policy.sync_weights()
    policy.sync_weights()
    policy.save(tmp_path)
    other, _ = generated("yes", 4)
    other.load(tmp_path)
    assert asyncio.run(other.generate("a", PROMPT, SamplingParams(4))).weights_version == 2
    with pytest.raises(CheckpointError, match="no scripted policy was saved there"):
        other.load(tmp_path / "nowhere")


def test_an_action_by_hand_has_a_log_probability_for_each_token():
    action = make_action("r", "x", episode="e", index=2, response_ids=(1, 2, 3), turn=1)
    assert (action.id, action.policy, action.logprobs, action.turn) == ("e/2", "r", (-1.0,) * 3, 1)
    assert len(make_action().logprobs) == len(make_action().response_ids) == 1


class Room:
    """What a sandbox gives, without any."""

    async def run(self, code, timeout_s=None):
        return Execution("ok", code)

    async def copy(self):
        return Room()

    async def open(self, files):
        return Room()


def test_the_nth_workspace_has_the_fault_that_is_told_for_it_counted_from_0():
    sandbox = FaultySandbox(Room(), lambda n: {1: "gone", 2: "broken"}.get(n))

    async def play():
        whole = await sandbox.open({})
        with pytest.raises(SandboxError, match="no workspace could be made"):
            await sandbox.open({})
        broken = await sandbox.open({})
        return [(await each.run("x")).state for each in (whole, broken, await broken.copy())]

    assert asyncio.run(play()) == ["ok", "infrastructure", "infrastructure"]
    assert (sandbox.opened, sandbox.faults) == (3, 2)


async def test_a_faulty_workspace_still_gives_the_files_that_there_are(tmp_path):
    """A whole file of a size that programs leave, as the workspace inside gives it."""
    (tmp_path / "given").write_bytes(b"x" * 100_000)
    sandbox = FaultySandbox(make_sandbox(SandboxConfig(kind="local-unsafe")), lambda n: "broken")
    await sandbox.start()
    try:
        workspace = await sandbox.open({"given": tmp_path / "given"})
        assert await workspace.files() == ("given",) and len(await workspace.read("given")) == 100_000
        with pytest.raises(ValueError):
            await workspace.read("given", 99_999)
        await workspace.close()
    finally:
        await sandbox.close()
