"""Agents at work: turns, parts, and what a team holds of its episode."""

import pytest

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, StepResult
from coachrl.pipelines.team.team import Team
from coachrl.prompts import parse_prompt
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import CharacterTokenizer, ScriptedPolicy
from coachrl.types import Role, SamplingParams, Task

ASK = parse_prompt("---\nfields: [problem, token_limit]\n---\n{{problem}} ({{token_limit}} tokens)", "ask")
BACK = parse_prompt("---\nfields: [brief, missing, turns_left]\n---\n{{brief}}; {{missing}}; {{turns_left}}", "back")
TASK = Task("t", "k", "Save it.")


def block(code):
    return f"```python\n{code}\n```"


def saver(stop_when):
    return Role(
        "saver",
        "saver",
        prompt=ASK,
        feedback=BACK,
        python=True,
        max_turns=4,
        stop_when=stop_when,
        required_files=("model.pkl",),
        max_new_tokens=200,
    )


async def play(role, replies, parts=1, **more):
    """The parts of one agent that says `replies` in turn, in a real workspace."""
    said = iter(replies)
    policy = ScriptedPolicy(lambda call: next(said))
    team = Team("e", TASK, (role,), policy, SamplingParams(temperature=0.7, seed=5), **more)
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=30))  # the code is this file's own
    try:
        await team.open(sandbox)
        done = [await team[role.name].act_on({"problem": TASK.prompt, "unused": 1}) for _ in range(parts)]
    finally:
        await team.close()
        await sandbox.close()
    return done, team, policy


SAVE = "open('model.pkl', 'w').write('x')"


async def test_code_that_saves_its_files_and_then_fails_does_not_end_the_part():
    replies = [block(f"{SAVE}\n1 / 0"), block("print('mended')"), block("never asked for")]
    [part], _, policy = await play(saver("saved"), replies)
    assert [action.execution.state for action in part.actions] == ["error", "ok"]
    assert all("model.pkl" in action.files_after for action in part.actions)
    assert "ZeroDivisionError: division by zero; none; 3" in policy.calls[1].prompt


async def test_code_that_runs_without_saving_does_not_end_the_part():
    [part], _, policy = await play(saver("saved"), [block("print(1)"), "no code", block(SAVE)])
    assert len(part.actions) == 3 and "1; model.pkl; 3" in policy.calls[1].prompt


async def test_every_part_has_all_its_turns_and_turns_are_counted_over_all_parts():
    [first, second], team, policy = await play(
        saver("answered"), [block("1")] * 3 + ["done", block("2"), "done"], parts=2
    )
    assert [action.turn for action in first.actions] == [0, 1, 2, 3]
    assert [action.turn for action in second.actions] == [4, 5]
    assert [action.id for action in team.actions] == [f"e/{number}" for number in range(6)]
    assert {call.sampling.max_new_tokens for call in policy.calls} == {200}
    assert {call.sampling.temperature for call in policy.calls} == {0.7}
    assert len({call.sampling.seed for call in policy.calls}) == 6
    assert "Save it. (200 tokens)" in policy.calls[4].prompt


async def test_agents_of_one_policy_draw_apart_and_each_its_own_again():
    roles = [Role(name, "shared", prompt=ASK) for name in ("first", "second")]
    policy = ScriptedPolicy(lambda call: "4")
    for episode_seed in (5, 5, 6):
        team = Team("e", TASK, roles, policy, SamplingParams(seed=episode_seed))
        for role in roles:
            await team[role.name].act(problem="2 + 2", token_limit=1)
    first, second, *again = [call.sampling.seed for call in policy.calls]
    assert first != second and again[:2] == [first, second] and len({first, second, *again}) == 4


class ThinkingTokenizer(CharacterTokenizer):
    """Its prompts show where a reply is opened with thinking."""

    def encode_chat(self, messages, thinking=False, tools=()):
        return (*super().encode_chat(messages), *map(ord, "<thinks>" * thinking))


@pytest.mark.parametrize("thinking", [True, False])
async def test_a_role_that_thinks_is_opened_with_thinking_in_every_turn(thinking, monkeypatch):
    role = Role("asked", "asked", ASK, feedback=BACK, max_turns=2, stop_when="ran", thinking=thinking)
    policy = ScriptedPolicy(lambda call: "4")
    monkeypatch.setattr(policy, "_tokenizer", ThinkingTokenizer())
    await Team("e", TASK, (role,), policy, SamplingParams()).asked.act(problem="2 + 2", token_limit=1)
    assert [call.prompt.count("<thinks>") for call in policy.calls] == ([1, 2] if thinking else [0, 0])


async def test_a_field_that_nobody_gives_is_named():
    team = Team("e", TASK, (saver("ran"),), ScriptedPolicy(lambda call: ""), SamplingParams())
    with pytest.raises(ConfigError, match="no value for problem"):
        await team.saver.act_on({})


def test_an_agent_that_there_is_not_is_named():
    team = Team("e", TASK, (saver("ran"),), ScriptedPolicy(lambda call: ""), SamplingParams())
    with pytest.raises(AttributeError, match=r"no role 'sav', did you mean 'saver'\? \(roles: saver\)"):
        _ = team.sav


class Tally(Environment):
    def __init__(self):
        self.seen = []

    async def apply(self, action, workspace):
        self.seen.append(action.turn)
        return StepResult(f"seen {len(self.seen)}")

    def render(self):
        return str(self.seen)


async def test_every_action_goes_to_the_environment_and_its_answer_stays_with_it():
    team = Team("e", TASK, (saver("answered"),), ScriptedPolicy(lambda call: "words"), SamplingParams())
    team.environment = Tally()
    part = await team.saver.act(problem="p", token_limit=1)
    assert part.result == "seen 1" and team.environment_as(Tally).render() == "[0]"
    with pytest.raises(NotImplementedError, match=r"Tally has no copy\(\)"):
        team.environment.copy()

    class Other(Tally):
        pass

    with pytest.raises(TypeError, match="this team's environment is a Tally, no Other"):
        team.environment_as(Other)


async def test_what_another_agent_left_behind_is_refused_in_place_of_its_text():
    asked = Role("asked", "asked", prompt=ASK)
    team = Team("e", TASK, (asked,), ScriptedPolicy(lambda call: "4"), SamplingParams(temperature=0, seed=0))
    draft = await team.asked.act(problem="2 + 2", token_limit=10)
    with pytest.raises(ConfigError, match=r"role asked: problem is an AgentTrajectory: give its text, as draft\.text"):
        await team.asked.act(problem=draft, token_limit=10)
    forgotten = team.asked.act(problem="2 + 2", token_limit=10)
    with pytest.raises(ConfigError, match="role asked: problem is what `act` gives without `await` before it"):
        await team.asked.act(problem=forgotten, token_limit=10)
    forgotten.close()
    assert (await team.asked.act(problem=4, token_limit=10)).text == "4"
