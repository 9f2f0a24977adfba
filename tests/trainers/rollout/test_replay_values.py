"""What replay makes of playouts: means, seeds, what broke, and what counts as the same answer."""

from dataclasses import replace

import pytest
from test_prefix_replay import ASK, CHECK, SPECS, Coin, coin, played

from coachrl.errors import ReplayDiverged, SandboxError
from coachrl.pipelines.base import Pipeline
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.algorithms.counterfactual import replay_metrics
from coachrl.trainers.rollout.replay import (
    Measured,
    RecordedReplies,
    ReplaySettings,
    _observed,
    _WatchedSandbox,
    decisions_of,
    measure,
)
from coachrl.types import Execution, Generation, Outcome, Reward, Role, SamplingParams, ToolCall


def of_value(value):
    return make_action(value=value)


@pytest.mark.parametrize(
    ("own", "others", "advantage"),
    [
        (1.0, (0.5, None, 0.0), 0.75),
        (0.0, (1.0, 0.5), -0.75),
        (0.0, (0.0,), 0.0),
        (1.0, (), None),
        (1.0, (None,), None),
        (None, (1.0,), None),
    ],
)
def test_an_advantage_is_the_value_less_the_mean_of_those_others_that_have_one(own, others, advantage):
    assert Measured(of_value(own), tuple(map(of_value, others))).advantage == advantage


async def test_a_recorded_draw_is_answered_as_it_was_and_others_have_seeds_of_the_playout_and_of_themselves():
    asked = []

    async def at_the_decision():
        asked.append("decision")

    recorded = make_action(
        prompt_ids=(1, 2), response_ids=(3, 4), logprobs=(-0.5, -0.25), finish_reason="length", weights_version=7
    )

    async def seeds_of(playout):
        policy = ScriptedPolicy(lambda call: "abc")
        replies = RecordedReplies(policy, {10: recorded}, {10: (1, 2), 11: (5,)}, playout, at_the_decision)
        assert await replies.generate("a", (1, 2), SamplingParams(seed=10)) == Generation(
            (3, 4), (-0.5, -0.25), "length", 7
        )
        for prompt, seed in (((5,), 11), ((6,), 12), ((6,), 13)):
            await replies.generate("a", prompt, SamplingParams(temperature=0.5, seed=seed))
        assert replies.tokens == 3 * 4, "three letters and the end, of what was drawn alone"
        for seed in (10, 11):
            with pytest.raises(ReplayDiverged):
                await replies.generate("a", (9,), SamplingParams(seed=seed))
        assert {call.sampling.temperature for call in policy.calls} == {0.5}
        return [call.sampling.seed for call in policy.calls]

    one, again, other = [await seeds_of(playout) for playout in (1, 1, 2)]
    assert one == again and len({*one, *other}) == 6
    assert asked == ["decision"] * 6


class Chance(Coin):
    """A guess of which each is another; then a coin decides, or breaks the sandbox. `ends`: what came of each guess."""

    ends: list[tuple[str, float | None]]
    before_the_guess = frozenset[int]()

    async def run(self, task, team, workspace):
        if len(self.ends) in self.before_the_guess:
            self.ends.append(("", None))
            raise SandboxError("gone")
        guess = await team.guesser.act(problem=task.prompt)
        fell = await team.checker.act(draft="the coin")
        self.ends.append((guess.text, None if fell.text == "lost" else float(fell.text == "heads")))
        if fell.text == "lost":
            raise SandboxError("gone")
        return Outcome(fell.text == "heads")


def guess_and_coin(call):
    if call.policy == "guesser":
        return f"guess {call.sampling.seed}"
    return ("heads", "tails", "lost")[call.sampling.seed % 3]


def sound(reply):
    """Of coins that never break anything."""
    return lambda call: "heads" if reply(call) == "lost" else reply(call)


async def guesses(reply, settings, **attributes):
    """The decision of the guesser, measured, and what came of each guess in all of its playouts."""
    pipeline = type("Chance", (Chance,), {"ends": [], **attributes})
    episodes, context, policy = await played(pipeline, reply, SPECS[1:2])
    recorded, decision = list(pipeline.ends), decisions_of(SPECS, episodes)[0]
    policy.calls.clear()
    pipeline.ends.clear()
    [one] = await measure([decision], context, settings)
    if settings.recorded_outcome:
        pipeline.ends += recorded
    return one, pipeline.ends, policy


def mean_of(ends, text):
    known = [end for guess, end in ends if guess == text and end is not None]
    return sum(known) / len(known) if known else None


@pytest.mark.parametrize("recorded_outcome", [True, False])
async def test_a_value_is_the_mean_over_all_playouts_of_a_reply(recorded_outcome):
    settings = ReplaySettings(others=3, playouts=5, recorded_outcome=recorded_outcome)
    one, ends, policy = await guesses(sound(guess_and_coin), settings)
    assert len({other.text for other in one.others}) == 3 and one.action.text not in {o.text for o in one.others}
    for action in (one.action, *one.others):
        assert sum(guess == action.text for guess, _ in ends) == 5
        assert action.value == mean_of(ends, action.text)
    assert {action.value for action in (one.action, *one.others)} - {0.0, 1.0}, "playouts are not all alike"
    seeds = [call.sampling.seed for call in policy.calls]
    assert len(set(seeds)) == len(seeds) == 3 + one.playouts, "each reply once, and a coin in each playout"
    assert (one.playouts, one.broken, one.problem) == (20 - recorded_outcome, 0, "")


async def test_playouts_that_infrastructure_broke_are_counted_and_in_no_mean():
    one, ends, _ = await guesses(guess_and_coin, ReplaySettings(others=4, playouts=3, recorded_outcome=False))
    assert one.broken == sum(end is None for _, end in ends) > 0 and one.problem == ""
    assert [action.value for action in (one.action, *one.others)] == [
        mean_of(ends, action.text) for action in (one.action, *one.others)
    ]
    assert replay_metrics([one])["replay/broken"] == float(one.broken)


async def test_a_reply_of_which_every_playout_broke_has_no_value():
    def lost(call):
        return "lost" if call.policy == "checker" and not recording else sound(guess_and_coin)(call)

    recording = True
    pipeline = type("Chance", (Chance,), {"ends": []})
    episodes, context, _ = await played(pipeline, lost, SPECS[1:2])
    recording = False
    [one] = await measure(decisions_of(SPECS, episodes)[:1], context, ReplaySettings(2, 2, False))
    assert (one.action.value, [other.value for other in one.others], one.advantage) == (None, [None, None], None)
    assert (one.broken, one.playouts) == (6, 6)


class Memory:
    """A sandbox of one workspace, whose files lie in memory."""

    def __init__(self, **files):
        self.held = files

    async def open(self, files):
        return self

    async def files(self):
        return tuple(sorted(self.held))

    async def read(self, name, max_bytes):
        if isinstance(self.held[name], Exception):
            raise self.held[name]
        if len(self.held[name]) > max_bytes:
            raise ValueError("too large")
        return self.held[name]

    async def close(self):
        pass


async def test_a_playout_that_broke_before_the_reply_gives_no_candidate_and_no_files_that_differ():
    pipeline = type("Chance", (Chance,), {"ends": []})
    episodes, context, _ = await played(pipeline, sound(guess_and_coin), SPECS[1:2], Memory(a=b"1"))
    pipeline.ends.clear()
    pipeline.before_the_guess = frozenset({1})
    [one] = await measure(decisions_of(SPECS, episodes)[:1], context, ReplaySettings(3, 1, True))
    assert one.problem == "" and one.broken == 1 and len(one.others) == 2 and one.playouts == 3


async def test_files_are_told_apart_by_their_names_and_by_what_they_hold():
    digests, too_large, locked = [], ValueError("too large"), FileNotFoundError("no regular file 'b'")
    for files in ({"c": locked}, {"a": b"1"}, {"b": b"1"}, {"a": b"2"}, {"a": too_large}, {"a": b"1", "b": b""}, {}):
        watched = _WatchedSandbox(Memory(**files))
        assert await watched.digest() == "", "nothing is open"
        await watched.open({})
        digests.append(await watched.digest())
        assert await watched.digest() == digests[-1]
    assert len(set(digests)) == 7


async def test_so_much_is_read_of_all_files_together(monkeypatch):
    monkeypatch.setattr("coachrl.trainers.rollout.replay._MOST_BYTES", 3)
    digests = []
    for files in ({"a": b"12", "b": b"12", "c": b"1"}, {"a": b"12", "b": b"34", "c": b"1"}, {"a": b"12", "c": b"1"}):
        watched = _WatchedSandbox(Memory(**files))
        await watched.open({})
        digests.append(await watched.digest())
    assert digests[0] == digests[1] != digests[2], "b counts by its name"


async def test_candidates_have_the_place_of_the_action_and_numbers_of_their_own():
    episodes, context, _ = await played(Coin, coin, SPECS[:1])
    decisions = decisions_of(SPECS, episodes)
    for decision, one in zip(decisions, await measure(decisions, context, ReplaySettings(2, 1, True)), strict=True):
        action = decision.action
        assert [(o.id, o.episode_id, o.index, o.role, o.turn, o.candidate) for o in one.others] == [
            (f"{action.id}.{n}", "e0", action.index, action.role, action.turn, n) for n in (1, 2)
        ]


async def test_every_playout_of_every_decision_draws_with_seeds_of_its_own():
    episodes, context, policy = await played(Coin, coin, SPECS[:2])
    policy.calls.clear()
    await measure(decisions_of(SPECS, episodes), context, ReplaySettings(others=2, playouts=3, recorded_outcome=False))
    seeds = [call.sampling.seed for call in policy.calls]
    assert len(seeds) == len(set(seeds)) == 2 * (20 + 11 + 2)


async def test_nobody_hears_of_playouts_and_no_other_process_plays_them():
    heard = []

    class Elsewhere:
        async def play(self, specs, context):
            heard.append("executor")
            return []

    episodes, context, _ = await played(Coin, coin, SPECS[:1])
    told = replace(
        context, submit=heard.append, submit_episode=heard.append, on_episode=heard.append, executor=Elsewhere()
    )
    measured = await measure(decisions_of(SPECS, episodes), told, ReplaySettings(1, 1, True))
    assert heard == [] and not any(one.problem for one in measured)


SAME = make_action(
    execution=Execution("ok", "out", "err", 0, ("n.txt",), wall_s=1.0),
    files_after=("n.txt",),
    tool_calls=(ToolCall("f", "{}", "7", True, wall_s=1.0),),
    result="moved",
    rendering="#",
    reward=Reward(1.0, 0.0),
)


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"execution": replace(SAME.execution, wall_s=2.0)}, True),
        ({"tool_calls": (replace(SAME.tool_calls[0], wall_s=2.0),)}, True),
        ({"reward": Reward(0.0, 0.0)}, True),
        ({"execution": None}, False),
        ({"execution": replace(SAME.execution, state="error")}, False),
        ({"execution": replace(SAME.execution, stdout="other")}, False),
        ({"execution": replace(SAME.execution, stderr="other")}, False),
        ({"execution": replace(SAME.execution, exit_code=1)}, False),
        ({"execution": replace(SAME.execution, files_written=())}, False),
        ({"files_after": ()}, False),
        ({"tool_calls": ()}, False),
        ({"tool_calls": (replace(SAME.tool_calls[0], result="8"),)}, False),
        ({"tool_calls": (replace(SAME.tool_calls[0], ok=False),)}, False),
        ({"result": "stayed"}, False),
        ({"rendering": "."}, False),
    ],
)
def test_an_answer_is_the_same_where_all_that_was_observed_is_whatever_time_it_took(changed, same):
    assert (_observed(replace(SAME, **changed)) == _observed(SAME)) is same


async def test_of_actions_at_once_those_before_a_decision_are_its_prefix():
    """The guesser's second turn comes between the checker's first and second."""

    class Mixed(Pipeline):
        name = "mixed"
        roles = (Role("guesser", "guesser", ASK), Role("checker", "checker", CHECK))

        async def run(self, task, team, workspace):
            for _ in range(2):
                await team.checker.act(draft="it")
                await team.guesser.act(problem=task.prompt)
            return Outcome(True)

    episodes, _, _ = await played(Mixed, coin, SPECS[:1])
    prefixes = [[action.id for action in decision.prefix] for decision in decisions_of(SPECS, episodes)]
    assert prefixes == [[f"e0/{n}" for n in range(count)] for count in range(4)]
