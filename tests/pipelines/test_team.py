"""Agents at work: turns, parts, and what a team holds of its episode."""

from dataclasses import replace

import numpy as np
import pytest
from thinking import ThinkingTokenizer

from coachrl.config import SandboxConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Environment, StepResult
from coachrl.pipelines.team.team import Team, Tree
from coachrl.prompts import parse_prompt
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.types import Execution, Reward, Role, SamplingParams, Task

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


@pytest.mark.parametrize("thinking", [True, False])
async def test_a_role_that_thinks_is_opened_with_thinking_in_every_turn(thinking, monkeypatch):
    role = Role("asked", "asked", ASK, feedback=BACK, max_turns=2, stop_when="ran", thinking=thinking)
    policy = ScriptedPolicy(lambda call: "4")
    monkeypatch.setattr(policy, "_tokenizer", ThinkingTokenizer())
    await Team("e", TASK, (role,), policy, SamplingParams()).asked.act(problem="2 + 2", token_limit=1)
    assert [call.prompt.count("<thinks>") for call in policy.calls] == ([1, 2] if thinking else [0, 0])


class ScriptedWorkspace:
    """Each program ends as it is told to, and leaves one file more. Its own sandbox."""

    def __init__(self, *executions):
        self.executions, self.names = list(executions), ["data.csv"]

    async def open(self, files):
        return self

    async def run(self, code, timeout_s=None):
        self.names.append(f"file{len(self.names)}")
        return self.executions.pop(0)

    async def files(self):
        return tuple(self.names)

    async def close(self):
        pass


ALL = parse_prompt(
    "---\nfields: [observation, brief, missing, files, turns_left]\n---\n"
    "{{observation}}|{{brief}}|{{missing}}|{{files}}|{{turns_left}}",
    "all",
)


async def test_an_agent_is_told_what_came_of_its_turn_and_how_many_are_left():
    role = Role("coder", "coder", ASK, feedback=ALL, python=True, max_turns=4, stop_when="saved")
    role = replace(role, required_files=("file9", "file1", "model"))
    failed = Execution("error", stderr="Traceback\nValueError: no", exit_code=1)
    replies = iter([block("1"), "no code", block("2"), "end"])
    policy, submitted = ScriptedPolicy(lambda call: next(replies)), []
    team = Team("e", TASK, (role,), policy, SamplingParams(), submit=submitted.append)
    await team.open(ScriptedWorkspace(Execution("ok", stdout="7\n"), failed))
    part = await team.coder.act(problem="p", token_limit=1)
    told = [call.prompt.rpartition("<user>")[2].removesuffix("\n<assistant>") for call in policy.calls[1:]]
    none = "No closed ```python block was found, so nothing was run."
    assert told == [
        "Your code ended with state 'ok'.\n7|7|file9, model|data.csv, file1|3",
        f"{none}|{none}|file9, model|data.csv, file1|2",
        "Your code ended with state 'error'.\nTraceback\nValueError: no|error: ValueError: no|file9, model|"
        "data.csv, file1, file2|1",
    ]
    before_and_after = [(len(action.files_before), len(action.files_after)) for action in part.actions]
    assert before_and_after == [(1, 2), (2, 2), (2, 3), (3, 3)]
    assert part.output == "error: ValueError: no", "of the last code that ran"
    assert [len(request.previous) for request in submitted] == [0, 1, 2, 3]


async def test_an_agent_whose_reply_was_cut_off_is_told_that_it_was_too_long():
    role = Role("coder", "coder", ASK, feedback=ALL, python=True, max_turns=3, max_new_tokens=40, stop_when="saved")
    role = replace(role, required_files=("model",))
    replies = iter(["```python\n" + "x = 1\n" * 20 + "```", block("1") + " " * 40, "end"])
    policy = ScriptedPolicy(lambda call: next(replies))
    team = Team("e", TASK, (role,), policy, SamplingParams())
    await team.open(ScriptedWorkspace(Execution("ok", stdout="7\n")))
    await team.coder.act(problem="p", token_limit=1)
    told = [call.prompt.rpartition("<user>")[2].partition("|")[0] for call in policy.calls[1:]]
    cut = "Your reply was cut off after 40 tokens, before a ```python block was closed, so nothing was run. Write less."
    assert told == [cut, "Your code ended with state 'ok'.\n7"]


def shouted(word: str) -> str:
    """The word, loudly."""
    return word.upper()


async def test_what_tools_gave_stands_behind_what_code_did_and_alone_where_none_was_written():
    role = Role("coder", "coder", ASK, feedback=ALL, python=True, max_turns=3, tools=(f"{__name__}:shouted",))
    call = '<tool_call>{"name": "shouted", "arguments": {"word": "hey"}}</tool_call>'
    replies = iter([call, f"{block('1')}\n{call}", "end"])
    policy = ScriptedPolicy(lambda call: next(replies))
    team = Team("e", TASK, (role,), policy, SamplingParams())
    await team.open(ScriptedWorkspace(Execution("ok", stdout="7\n")))
    await team.coder.act(problem="p", token_limit=1)
    told = [call.prompt.rpartition("<user>")[2].removesuffix("\n<assistant>") for call in policy.calls[1:]]
    assert told == [
        "shouted: HEY|shouted: HEY|none|data.csv|2",
        "Your code ended with state 'ok'.\n7\nshouted: HEY|7\nshouted: HEY|none|data.csv, file1|1",
    ]


async def test_an_execution_that_broke_is_not_the_agents_and_no_coach_is_asked_of_it():
    role, submitted = Role("coder", "coder", ASK, python=True), []
    team = Team("e", TASK, (role,), ScriptedPolicy(lambda call: block("1")), SamplingParams(), submitted.append)
    team.environment = Tally()
    await team.open(ScriptedWorkspace(Execution("infrastructure"), Execution("oom")))
    broken, sound = [(await team.coder.act(problem="p", token_limit=1)).actions[0] for _ in range(2)]
    assert (broken.infra_error, sound.infra_error) == ("infrastructure", None)
    assert (broken.result, sound.result) == ("", "seen 1"), "it is not the environment's to answer"
    assert [request.action for request in submitted] == [sound]


async def test_a_reward_of_the_end_goes_to_the_last_action_of_the_part_alone():
    role = Role("asked", "asked", ASK, feedback=BACK, max_turns=2, stop_when="ran")
    team = Team("e", TASK, (role,), ScriptedPolicy(lambda call: "4"), SamplingParams())
    first, second = [await team.asked.act(problem="p", token_limit=1) for _ in range(2)]
    team.reward(first, Reward(2.0, 1.0))
    assert [action.reward for action in team.actions] == [None, Reward(2.0, 1.0), None, None]
    assert [action.turn for action in second.actions] == [2, 3]


async def test_a_candidate_that_broke_is_asked_no_reward_for_and_never_followed():
    asked = []

    async def rewards(requests):
        asked.append([request.action.candidate for request in requests])
        return [None for _ in requests]

    role = Role("coder", "coder", ASK, python=True)
    team = Team("e", TASK, (role,), ScriptedPolicy(lambda call: block("1")), SamplingParams(), tree=Tree(3, rewards))
    states = [Execution("infrastructure"), Execution("ok"), Execution("ok")]
    workspace = ScriptedWorkspace(*states)

    async def copy():
        return workspace

    workspace.copy = copy
    await team.open(workspace)
    [action] = (await team.coder.act(problem="p", token_limit=1)).actions
    assert asked == [[1, 2]] and action.candidate == 1
    drawn = [*team.actions, *team.rejected_candidates]
    assert [(one.id, one.episode_id) for one in drawn] == [("e/0.1", "e"), ("e/0.0", "e"), ("e/0.2", "e")]


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


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, r"None, where it must return a StepResult"),
        (StepResult(5), r"a StepResult whose text is 5, no text"),
        (StepResult("", Reward(10**400, 0.0)), r"a Reward that holds 10+ … 0+, no finite number"),
        (StepResult("", Reward(1.0, "most")), r"a Reward that holds 'most', no finite number"),
        (StepResult("", Reward(1.0, 0.0, {"form": None})), r"a Reward that holds None, no finite number"),
        (StepResult("", 1.0), r"the reward 1\.0, where it must be a Reward"),
    ],
)
async def test_what_an_environment_must_not_give_is_named(answer, words):
    class Odd(Tally):
        async def apply(self, action, workspace):
            return answer

    team = Team("e", TASK, (saver("ran"),), ScriptedPolicy(lambda call: "words"), SamplingParams())
    team.environment = Odd()
    with pytest.raises(ConfigError, match=rf"environment Odd: apply\(\) gave {words}"):
        await team.saver.act(problem="p", token_limit=1)


async def test_what_is_no_environment_is_named():
    async def late(self):
        return self

    async def rewards(requests):
        return [0.0 for _ in requests]

    team = Team("e", TASK, (saver("ran"),), ScriptedPolicy(lambda call: "w"), SamplingParams(), None, Tree(2, rewards))
    with pytest.raises(ConfigError, match=r"team\.environment: the pipeline gave <class .*Tally'>, where it must be"):
        team.environment = Tally
    for copy, words in (
        (lambda self: None, r"gave None, where it must be an Environment"),
        (late, r"is `async def`: it must be a plain function"),
    ):
        team.environment = type("Odd", (Tally,), {"copy": copy})()
        with pytest.raises(ConfigError, match=rf"environment Odd: copy\(\) {words}"):
            await team.saver.act(problem="p", token_limit=1)


async def test_an_environment_that_waits_for_nobody_is_named_and_numpys_numbers_are_numbers():
    class Plain(Tally):
        def apply(self, action, workspace):
            return StepResult("")

    class Counted(Tally):
        async def apply(self, action, workspace):
            return StepResult("", Reward(np.float32(1), np.int64(0), {"form": np.True_}))

    team = Team("e", TASK, (saver("ran"),), ScriptedPolicy(lambda call: "words"), SamplingParams())
    team.environment = Plain()
    with pytest.raises(ConfigError, match=r"Plain: apply\(\) is a plain function: it must be `async def`"):
        await team.saver.act(problem="p", token_limit=1)
    team.environment = Counted()
    part = await team.saver.act(problem="p", token_limit=1)
    assert repr(part.actions[-1].reward) == "Reward(team=1.0, local=0.0, checks={'form': 1.0})"
    with pytest.raises(ConfigError, match=r"team\.reward\(\) gave the reward 2, where"):
        team.reward(part, 2)


async def test_every_action_goes_to_the_environment_and_its_answer_stays_with_it():
    role = replace(saver("ran"), max_turns=2)
    team = Team("e", TASK, (role,), ScriptedPolicy(lambda call: "words"), SamplingParams())
    team.environment = Tally()
    part = await team.saver.act(problem="p", token_limit=1)
    assert [action.result for action in part.actions] == ["seen 1", "seen 2"] and part.result == "seen 2"
    assert team.environment_as(Tally).render() == "[0, 1]"
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
