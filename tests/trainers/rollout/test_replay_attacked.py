"""Pipelines, tools and programs that do not come to the same twice: what cannot be reproduced is counted, and has no
value."""

import asyncio

import pytest
from test_prefix_replay import ASK, CHECK, SPECS, Coin, coin, played

from coachrl.config import SandboxConfig
from coachrl.pipelines.base import Pipeline
from coachrl.sandbox import make_sandbox
from coachrl.trainers.algorithms.counterfactual import replay_metrics
from coachrl.trainers.rollout.replay import ReplaySettings, decisions_of, measure
from coachrl.types import Outcome, Role

SETTINGS = ReplaySettings(others=2, playouts=1, recorded_outcome=False)


async def measured(pipeline, reply=coin, settings=SETTINGS, sandbox=None):
    """Every decision of the first episode by its role and turn."""
    episodes, context, _ = await played(pipeline, reply, SPECS[:1], sandbox)
    decisions = decisions_of(SPECS, episodes)
    found = await measure(decisions, context, settings)
    return {(d.action.role, d.action.turn): one for d, one in zip(decisions, found, strict=True)}


def is_left_out(one, problem):
    assert problem in one.problem and one.action.value is None and one.others == () and one.advantage is None
    figures = replay_metrics([one])
    assert (figures["replay/not_reproduced"], figures["replay/broken"]) == (1.0, 0.0)
    return True


async def test_a_pipeline_that_does_not_come_to_the_decision_again_gives_it_no_value():
    """The checker is asked in the first run alone; its decision would have the value of episodes without it."""

    class Moody(Coin):
        runs = 0

        async def run(self, task, team, workspace):
            Moody.runs += 1
            guess = await team.guesser.act(problem=task.prompt)
            if Moody.runs == 1:
                await team.checker.act(draft=guess.text)
            return Outcome(True)

    found = await measured(Moody)
    assert found["guesser", 0].problem == "" and found["guesser", 0].action.value == 1.0
    assert is_left_out(found["checker", 0], "e0/1: the pipeline did not come to checker's turn again")


async def test_an_action_before_the_decision_that_is_not_on_record_is_no_prefix():
    class Extra(Coin):
        runs = 0

        async def run(self, task, team, workspace):
            Extra.runs += 1
            if Extra.runs > 1:
                await team.checker.act(draft="what nobody said")
            await team.guesser.act(problem=task.prompt)
            return Outcome(True)

    assert is_left_out((await measured(Extra))["guesser", 0], "checker takes a turn that is not on record")


async def test_a_prefix_of_which_an_action_is_left_out_is_no_prefix():
    class Skips(Coin):
        runs = 0

        async def run(self, task, team, workspace):
            Skips.runs += 1
            if Skips.runs == 1:
                await team.guesser.act(problem=task.prompt)
            await team.checker.act(draft="always the same")
            return Outcome(True)

    assert is_left_out((await measured(Skips))["checker", 0], "e0/0: the pipeline did not come to guesser's turn again")


CALLS = []


def counting() -> str:
    """Counts its calls."""
    CALLS.append(1)
    return f"call {len(CALLS)}"


def steady() -> str:
    """Always says the same."""
    return "as ever"


@pytest.mark.parametrize(("tool", "reproduced"), [("counting", False), ("steady", True)])
async def test_tools_that_answer_something_else_are_seen_though_nobody_is_told_of_it(tool, reproduced):
    class Tooled(Pipeline):
        name = "tooled"
        roles = (
            Role("guesser", "guesser", ASK, max_turns=2, tools=(f"{__name__}:counting", f"{__name__}:steady")),
            Role("checker", "checker", CHECK),
        )

        async def run(self, task, team, workspace):
            await team.guesser.act(problem=task.prompt)
            await team.checker.act(draft="the same")
            return Outcome(True)

    def reply(call):
        """The guesser's second call is its last turn: no prompt shows what came of it."""
        called = tool if "as ever" in call.prompt else "steady"
        asked = '<tool_call>{"name": "TOOL", "arguments": {}}</tool_call>'.replace("TOOL", called)
        return asked if call.policy == "guesser" else coin(call)

    checker = (await measured(Tooled, reply))["checker", 0]
    if reproduced:
        assert checker.problem == "" and checker.action.value == 1.0
    else:
        assert is_left_out(checker, "e0/1: what came of guesser's recorded reply is not what came of it before")


@pytest.mark.parametrize(("written", "reproduced"), [("'7'", True), ("str(time.time_ns())", False)])
async def test_files_that_hold_something_else_each_time_are_seen_though_nothing_is_printed(written, reproduced):
    class Programs(Pipeline):
        name = "programs"
        roles = (Role("writer", "writer", ASK, python=True), Role("reader", "reader", CHECK))

        async def run(self, task, team, workspace):
            await team.writer.act(problem=task.prompt)
            await team.reader.act(draft="n.txt")
            return Outcome(int(await workspace.read("n.txt")) % 2 == 1)

    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe"))
    await sandbox.start()

    def reply(call):
        program = f"```python\nimport time\nopen('n.txt', 'w').write({written})\n```"
        return program if call.policy == "writer" else coin(call)

    try:
        found = await measured(Programs, reply, sandbox=sandbox)
    finally:
        await sandbox.close()
    assert found["writer", 0].problem == "", "the files before it are the task's"
    if reproduced:
        assert found["reader", 0].action.value == 1.0
    else:
        assert is_left_out(found["reader", 0], "files in the workspace are not the same")


async def test_agents_that_act_at_once_are_measured_each_with_what_was_done_before_it():
    class AtOnce(Coin):
        async def run(self, task, team, workspace):
            guess, *_ = await asyncio.gather(
                team.guesser.act(problem=task.prompt), *(team.checker.act(draft=str(n)) for n in range(3))
            )
            last = await team.checker.act(draft=guess.text)
            return Outcome("heads" in (guess.text, last.text))

    found = await measured(AtOnce, settings=ReplaySettings(others=4, playouts=1, recorded_outcome=True))
    assert len(found) == 5 and not any(one.problem for one in found.values())
    for (role, turn), one in found.items():
        place = (role, turn, one.action.index)
        assert [(o.role, o.turn, o.index) for o in one.others] == [place] * 4
