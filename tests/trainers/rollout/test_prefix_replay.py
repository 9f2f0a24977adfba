"""Episodes that are played again from a decision: what is drawn, what is reproduced, and what an action was worth."""

import numpy as np
import pytest

from coachrl.config import PipelineConfig, SandboxConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.algorithms.counterfactual import replay_metrics
from coachrl.trainers.rollout.replay import ReplaySettings, decisions_of, measure
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Outcome, Role, Task

ASK = parse_prompt("---\nfields: [problem]\n---\n{{problem}}", "ask")
CHECK = parse_prompt("---\nfields: [draft]\n---\nCheck {{draft}}", "check")
SPECS = [EpisodeSpec(f"e{number}", Task("t", "k", "Guess a coin."), number) for number in range(6)]


class Coin(Pipeline):
    """A guesser says heads or tails, a checker comments twice; the guess alone decides."""

    name = "coin"
    roles = (Role("guesser", "guesser", ASK), Role("checker", "checker", CHECK))

    async def run(self, task, team, workspace):
        guess = await team.guesser.act(problem=task.prompt)
        for _ in range(2):
            await team.checker.act(draft=guess.text)
        return Outcome(guess.text == "heads")


class Programs(Pipeline):
    """A writer runs a program that leaves a file, and a reader one that shows it."""

    name = "programs"
    roles = (
        Role("writer", "writer", ASK, python=True, required_files=("n.txt",)),
        Role("reader", "reader", CHECK, python=True),
    )

    async def run(self, task, team, workspace):
        await team.writer.act(problem=task.prompt)
        shown = await team.reader.act(draft="n.txt")
        return Outcome(shown.output.strip() == "7")


def coin(call):
    return "heads" if call.sampling.seed % 2 else "tails"


async def played(pipeline, reply, specs=SPECS, sandbox=None):
    policy = ScriptedPolicy(reply)
    context = RolloutContext(pipeline(PipelineConfig()), policy, sandbox)
    return await rollout(specs, context), context, policy


async def test_an_action_is_worth_what_came_of_it_less_what_came_of_others():
    episodes, context, _ = await played(Coin, coin)
    decisions = decisions_of(SPECS, episodes)
    assert [d.action.role for d in decisions[:3]] == ["guesser", "checker", "checker"]
    measured = await measure(decisions, context, ReplaySettings(others=5, playouts=2, recorded_outcome=False))
    for decision, one in zip(decisions, measured, strict=True):
        right = float(decision.episode.outcome.success)
        assert one.action.value == right and one.problem == "" and one.broken == 0
        if decision.action.role == "checker":  # whatever it says changes nothing
            assert {other.value for other in one.others} == {right} and one.advantage == 0
        else:
            assert [other.value for other in one.others] == [float(other.text == "heads") for other in one.others]
            assert one.advantage == pytest.approx(right - np.mean([other.value for other in one.others]))
            assert len({other.text for other in one.others}) == 2, "the others are drawn anew, and not all alike"
        assert [other.id for other in one.others] == [f"{decision.action.id}.{n}" for n in range(1, 6)]


async def test_the_model_is_asked_for_nothing_that_is_on_record():
    """From the second of three draws, with 2 others and 3 playouts each: the reply itself once for each other, then one
    draw a playout. The prefix, and the recorded reply in its own playouts, cost nothing."""
    episodes, context, policy = await played(Coin, coin, SPECS[:1])
    first, second, last = decisions_of(SPECS, episodes)
    settings = ReplaySettings(others=2, playouts=3, recorded_outcome=False)
    for decision, draws in [(first, 2 + 2 * 9), (second, 2 + 9), (last, 2)]:
        policy.calls.clear()
        [one] = await measure([decision], context, settings)
        assert len(policy.calls) == draws and one.playouts == 9
        length = {call: len(coin(call)) + 1 for call in policy.calls}  # and its end of sequence
        assert one.tokens == sum(length[call] for call in policy.calls)
    [one] = await measure([last], context, ReplaySettings(others=2, playouts=1, recorded_outcome=True))
    assert one.playouts == 2 and one.action.value == float(episodes[0].outcome.success)


async def test_figures_of_replay_count_tokens_of_the_others_replies_once():
    episodes, context, _ = await played(Coin, coin, SPECS[:1])
    measured = await measure(decisions_of(SPECS, episodes), context, ReplaySettings(1, 1, True))
    figures = replay_metrics(measured)
    assert figures["replay/decisions"] == figures["replay/playouts"] == 3 and figures["replay/not_reproduced"] == 0
    assert figures["tokens/replayed"] == sum(
        one.tokens - len(other.response_ids) for one in measured for other in one.others
    )


def programs(statement):
    def reply(call):
        if call.policy == "writer":
            return f"```python\nimport os, time\nopen('n.txt', 'w').write('7')\n{statement}\n```"
        return "```python\nprint(open('n.txt').read())\n```"

    return reply


@pytest.mark.parametrize(
    ("statement", "reproduced"),
    [("print(sorted(os.listdir()))", True), ("print(time.time_ns())", False), ("print(os.urandom(8))", False)],
)
async def test_programs_run_again_in_a_fresh_workspace_and_must_come_to_the_same(statement, reproduced):
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe"))
    await sandbox.start()
    try:
        episodes, context, _ = await played(Programs, programs(statement), SPECS[:1], sandbox)
        assert episodes[0].outcome.success
        _, reader = decisions_of(SPECS, episodes)
        [one] = await measure([reader], context, ReplaySettings(1, 1, False))
    finally:
        await sandbox.close()
    if reproduced:
        assert one.problem == "" and one.action.value == 1.0 and one.others[0].value == 1.0
    else:
        assert "e0/0: what came of writer's recorded reply" in one.problem
        assert one.action.value is None and one.others == () and one.advantage is None
    assert replay_metrics([one])["replay/not_reproduced"] == float(not reproduced)


async def test_a_prompt_that_is_not_the_recorded_one_is_not_answered_from_the_record(caplog):
    """The pipeline tells the checker something else each time: only the guesser's decisions can be measured."""

    class Forgetful(Coin):
        told = 0

        async def run(self, task, team, workspace):
            guess = await team.guesser.act(problem=task.prompt)
            Forgetful.told += 1
            await team.checker.act(draft=f"{guess.text}, {Forgetful.told}")
            return Outcome(True)

    episodes, context, _ = await played(Forgetful, coin, SPECS[:1])
    guesser, checker = decisions_of(SPECS, episodes)
    measured = await measure([guesser, checker], context, ReplaySettings(1, 1, True))
    assert measured[0].problem == "" and measured[0].others[0].value == 1.0
    assert "policy checker is prompted with something else than on record" in measured[1].problem
    assert [line[:44] for line in caplog.messages] == ["1 of 2 decisions could not be replayed, e.g."]


async def test_broken_episodes_are_not_replayed_and_a_pipeline_with_an_adviser_is_refused():
    episodes, context, _ = await played(Coin, coin, SPECS[:2])
    from dataclasses import replace

    broken = replace(episodes[0], infra_error="infrastructure: gone")
    assert {d.episode.id for d in decisions_of(SPECS, [broken, episodes[1]])} == {"e1"}
    context.pipeline.adviser = object()
    with pytest.raises(ConfigError, match="pipeline coin cannot be replayed: a model advises its agents"):
        await measure(decisions_of(SPECS, episodes), context, ReplaySettings(1, 1, True))
