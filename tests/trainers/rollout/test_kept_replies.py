"""Replies on disk: what is answered from there, and what is drawn anew."""

import asyncio
import math
import resource
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs the torch extra")


from coachrl.seeding import generator
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.backends.torch.engine.batcher import LockstepBatcher
from coachrl.trainers.backends.torch.engine.decode import Request
from coachrl.trainers.rollout.kept_replies import KeptReplies
from coachrl.types import Generation, SamplingParams

SAMPLING = SamplingParams(max_new_tokens=9)
PROMPTS = [tuple(range(1, length)) for length in range(3, 8)]


class Exact(ScriptedPolicy):
    """Log-probabilities that no rounded decimal is equal to."""

    async def generate(self, policy, prompt_ids, sampling):
        reply = await super().generate(policy, prompt_ids, sampling)
        logprobs = -generator(sampling.seed, len(prompt_ids)).random(len(reply.token_ids))
        return replace(reply, logprobs=tuple(map(float, logprobs)))


def kept(path, settings="settings"):
    """A generator whose replies are kept at `path`, and the model behind it."""
    model = Exact(lambda call: f"re: {len(call.prompt)}")
    return KeptReplies(model, path, settings), model


async def ask(replies, **changed):
    policy, sampling = changed.pop("policy", "a"), replace(SAMPLING, **changed)
    return [await replies.generate(policy, prompt, sampling) for prompt in PROMPTS]


async def test_what_is_on_disk_is_not_drawn_again_and_equal_to_the_last_bit(tmp_path):
    before = await ask(kept(tmp_path / "replies.jsonl")[0])
    replies, model = kept(tmp_path / "replies.jsonl")
    assert await ask(replies) == before and not model.calls
    replies, model = kept(tmp_path / "replies.jsonl")
    assert await ask(replies) == before and not model.calls, "what was answered from disk stays there for a second kill"


async def test_figures_of_speed_count_only_what_was_drawn(tmp_path):
    before, _ = kept(tmp_path / "replies.jsonl")
    replies = await ask(before)
    actions = [
        make_action(policy="a", prompt_ids=prompt, response_ids=reply.token_ids)
        for prompt, reply in zip(PROMPTS, replies, strict=True)
    ]
    tokens = sum(len(reply.token_ids) for reply in replies)
    assert before.drawn_tokens(actions) == tokens
    after, _ = kept(tmp_path / "replies.jsonl")
    await after.generate("a", PROMPTS[0], SAMPLING)
    assert after.drawn_tokens(actions) == tokens - len(replies[0].token_ids)
    after.put_aside()
    assert after.drawn_tokens(actions[:1]) == 0, "a step that is played ahead is counted after the checkpoint"


async def test_a_reply_for_which_there_was_no_room_costs_itself_alone(tmp_path):
    """RLIMIT_FSIZE stands for the disk."""
    path = tmp_path / "replies.jsonl"
    replies, _ = kept(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number, prompt in enumerate(PROMPTS):
        room = path.stat().st_size + 100 if number == 2 else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            await replies.generate("a", prompt, SAMPLING)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again, model = kept(path)
    await ask(again)
    assert [len(call.prompt) for call in model.calls] == [len(PROMPTS[2])]


@pytest.mark.parametrize("changed", [{"policy": "b"}, {"seed": 1}, {"temperature": 0.5}, {"max_new_tokens": 8}])
async def test_what_is_asked_otherwise_is_drawn(tmp_path, changed):
    await ask(kept(tmp_path / "replies.jsonl")[0])
    replies, model = kept(tmp_path / "replies.jsonl")
    await ask(replies, **changed)
    assert len(model.calls) == len(PROMPTS)


async def test_other_settings_and_weights_draw_anew_and_the_same_updates_lead_to_the_same_weights(tmp_path):
    first, _ = kept(tmp_path / "replies.jsonl")
    before = await ask(first)
    first.note_update({"loss": 0.1})
    after = await ask(first)
    replies, model = kept(tmp_path / "replies.jsonl", "other settings")
    await ask(replies)
    assert len(model.calls) == len(PROMPTS)

    replies, model = kept(tmp_path / "replies.jsonl")
    assert await ask(replies) == before
    replies.note_update({"loss": 0.1})
    assert await ask(replies) == after and not model.calls
    replies, model = kept(tmp_path / "replies.jsonl")
    replies.note_update({"loss": 0.1 + 2**-56})
    await ask(replies)
    assert len(model.calls) == len(PROMPTS)


async def test_weights_are_told_apart_by_all_updates_since_the_first_ones(tmp_path):
    replies, seen = kept(None)[0], set()
    for statistics in ({"loss": 0.1}, {"loss": 0.1}, {"loss": 0.2}, {"loss": 0.1}):
        seen.add(replies.weights)
        replies.note_update(statistics)
    assert len(seen | {replies.weights}) == 5


async def test_a_reply_with_a_figure_that_no_file_holds_is_drawn_again_and_costs_no_other(tmp_path):
    class Damaged(Exact):
        async def generate(self, policy, prompt_ids, sampling):
            reply = await super().generate(policy, prompt_ids, sampling)
            broken = len(prompt_ids) == len(PROMPTS[1])
            return replace(reply, logprobs=(-math.inf,) * len(reply.logprobs)) if broken else reply

    model = Damaged(lambda call: f"re: {len(call.prompt)}")
    await ask(KeptReplies(model, tmp_path / "replies.jsonl", "settings"))
    again, model = kept(tmp_path / "replies.jsonl")
    await ask(again)
    assert [len(call.prompt) for call in model.calls] == [len(PROMPTS[1])]


async def test_a_changed_byte_costs_replies_and_never_changes_one(tmp_path):
    path = tmp_path / "replies.jsonl"
    before = await ask(kept(path)[0])
    whole, rng, lost = path.read_bytes(), generator(0, "bytes"), 0
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        replies, model = kept(path)
        assert await ask(replies) == before
        assert len(model.calls) <= 2, "a line end that is gone makes one line of two"
        lost += len(model.calls)
    assert lost > 80


async def test_a_torn_last_line_goes_and_what_is_kept_next_is_whole(tmp_path):
    path = tmp_path / "replies.jsonl"
    before = await ask(kept(path)[0])
    path.write_bytes(path.read_bytes()[:-40])
    replies, model = kept(path)
    assert await ask(replies) == before and len(model.calls) == 1
    replies, model = kept(path)
    assert await ask(replies) == before and not model.calls


class Lockstep:
    """A model that answers in batches, whose figures depend on what is in the batch."""

    def __init__(self, fails_at=None):
        self.drawn, self._fails_at = [], fails_at
        self._batcher = LockstepBatcher(self._run)

    def _run(self, policy, requests):
        self.drawn.append((policy, len(requests)))
        if policy == self._fails_at:
            raise ConnectionError  # as where the process ends between two groups of a batch
        return [Generation(request.prompt_ids, (-0.1 * len(requests),), "stop", 0) for request in requests]

    def episode(self, patience_s=None):
        return self._batcher.episode(patience_s)

    async def generate(self, policy, prompt_ids, sampling):
        return await self._batcher.submit(policy, Request(tuple(prompt_ids), sampling))


async def play(replies, turns):
    """One episode for each of `turns`: the policies that it asks one after another."""

    async def episode(number, policies):
        async with replies.episode():
            return [await replies.generate(p, (number, turn), SAMPLING) for turn, p in enumerate(policies)]

    return await asyncio.gather(*(episode(*each) for each in enumerate(turns)), return_exceptions=True)


async def test_of_a_batch_that_a_kill_cut_short_every_reply_is_drawn_again_in_the_same_company(tmp_path):
    turns, path = ["aab", "ab", "aa", "a"], tmp_path / "replies.jsonl"
    whole = Lockstep()
    expected = await play(KeptReplies(whole, None, ""), turns)
    assert whole.drawn == [("a", 4), ("a", 2), ("b", 1), ("b", 1)]

    cut = Lockstep(fails_at="b")
    await play(KeptReplies(cut, path, ""), turns)
    assert path.read_text().count("\n") > 4, "one group of the second batch was kept"
    again = Lockstep()
    found = await play(KeptReplies(again, path, ""), turns)
    assert again.drawn == [("a", 2), ("b", 1), ("b", 1)]
    assert [[reply.logprobs for reply in e] for e in found] == [[reply.logprobs for reply in e] for e in expected]


async def test_those_who_ask_at_once_are_answered_in_the_order_in_which_their_replies_were_drawn(tmp_path):
    """As in a batch, in which the shortest reply ends first."""
    drawn, answered = [PROMPTS[2], PROMPTS[0], PROMPTS[1]], []

    async def one(replies, prompt):
        await replies.generate("a", prompt, SAMPLING)
        answered.append(prompt)

    before, _ = kept(tmp_path / "replies.jsonl")
    for prompt in drawn:
        await one(before, prompt)
    for _ in range(2):  # a second kill, too
        answered.clear()
        again, model = kept(tmp_path / "replies.jsonl")
        given_up = asyncio.ensure_future(one(again, PROMPTS[2]))
        asking = asyncio.gather(*(one(again, prompt) for prompt in PROMPTS[:2]))
        await asyncio.sleep(0)
        given_up.cancel()
        await asking
        assert answered == drawn[1:]
        await one(again, PROMPTS[2])  # who was given up may ask again
        assert not model.calls
        answered.clear()
        again, _ = kept(tmp_path / "replies.jsonl")
        await asyncio.gather(*(one(again, prompt) for prompt in PROMPTS[:3]))
        assert answered == drawn


async def test_batches_of_several_processes_are_not_taken_for_one_though_they_have_one_number(tmp_path):
    path = tmp_path / "replies.jsonl"
    for turns in (["a", "a"], ["b", "b"]):
        await play(KeptReplies(Lockstep(), path, ""), turns)
    last = Lockstep()
    await play(KeptReplies(last, path, ""), ["a", "a"])
    await play(KeptReplies(last, path, ""), ["b", "b"])
    assert last.drawn == []


async def test_a_place_that_takes_no_file_costs_the_replies_and_not_the_run(tmp_path, caplog):
    replies, model = kept(tmp_path / "gone" / "replies.jsonl")
    await ask(replies)
    assert len(model.calls) == len(PROMPTS) > 1
    assert caplog.text.count("replies are not kept: No such file") == 1  # and not once for each
    replies.put_aside()()


async def test_replies_stay_until_the_checkpoint_that_is_begun_is_on_disk(tmp_path):
    path = tmp_path / "replies.jsonl"
    replies, _ = kept(path)
    await ask(replies)
    written = replies.put_aside()
    replies.note_update({"loss": 1.0})
    await ask(replies)
    killed, model = kept(path)
    await ask(killed)
    killed.note_update({"loss": 1.0})
    await ask(killed)
    assert not model.calls, "both steps are played from the disk"
    assert [place.name for place in tmp_path.iterdir()] == ["replies.jsonl"]

    written()
    replies.note_update({"loss": 2.0})
    await ask(replies)
    replies.put_aside()()
    assert not list(tmp_path.iterdir())
