"""Python functions that agents may call: what a model is told of them, and what comes of each way to call them."""

import asyncio
import functools
import json
import threading
import time
from dataclasses import dataclass
from typing import Literal

import pytest

from coachrl.coach.base import make_request
from coachrl.coach.prompt_rendering import find_coach_prompt, render_request
from coachrl.config import PipelineConfig, RoleConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.base import Pipeline
from coachrl.pipelines.team.tools import MOST_CALLS, OPEN, call_tools, load_tools, told_of, without_calls
from coachrl.prompts import parse_prompt
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Outcome, Role, Task

HUNG = threading.Event()


def add(first: int, second: int = 1, schema: Literal["plain", "loud"] = "plain") -> str:
    """The sum of two numbers."""
    return f"{first + second}{'!' if schema == 'loud' else ''}"


async def later(what: list[str]) -> dict:
    """What it was given, a moment later."""
    await asyncio.sleep(0)
    return {"what": what}


def broken() -> str:
    """Always fails."""
    raise ValueError("no\nluck")


def unspeakable() -> str:
    """Fails without a text."""

    class Unspeakable(BaseException):
        def __str__(self) -> str:
            raise ValueError

    raise Unspeakable


def leaves() -> str:
    """Ends the program."""
    raise SystemExit(3)


def hangs() -> str:
    """Never ends by itself."""
    HUNG.wait(60)
    return "late"


def long() -> str:
    """A long text with half a character."""
    return "a" * 500 + "\ud800" + "b" * 500


def undocumented(first: int) -> int:
    return first


def untyped(first):
    """Has no types."""
    return first


def unheard(first: int, thing: threading.Event) -> int:
    """Takes what no JSON stands for."""
    return first


def starred(*first: int) -> int:
    """Takes any number."""
    return len(first)


@dataclass
class Point:
    x: int
    y: int = 2


class Mute:
    def __str__(self):
        raise RuntimeError("no words")


def decorated(function):
    @functools.wraps(function)
    def call(**arguments):
        return function(**arguments)

    return call


@decorated
async def hidden(first: int) -> int:
    """Is async beneath its decorator."""
    return first + 1


def moved(by: Point) -> Point:
    """A point."""
    return Point(by.x + 1)


def mute() -> Mute:
    """Gives what has no text."""
    return Mute()


async def leaves_later() -> str:
    """Ends the program, and waits for that."""
    raise SystemExit(3)


async def cancels() -> str:
    """Cancels the task that it runs in."""
    asyncio.current_task().cancel()
    await asyncio.sleep(0)
    return "never"


def drawn() -> int:
    """Gives one after another."""
    yield 1


def misread(first: "json.Nothing") -> int:
    """Has a type that there is not."""
    return first


builtin = max

ASK = parse_prompt("---\nfields: [problem]\n---\n{{problem}}", "ask")
ROLE = Role("asker", policy="asker", prompt=ASK, tool_timeout_s=5.0, tool_result_chars=60, max_turns=3)
NAMES = ("add", "later", "broken", "leaves", "unspeakable", "hangs", "long", "hidden", "moved", "mute")
NAMES += ("leaves_later", "cancels")


def paths(*names):
    return tuple(f"{__name__}:{name}" for name in names)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def made(text, role=ROLE):
    return asyncio.run(call_tools(text, load_tools(paths(*NAMES)), role))


def test_a_model_is_told_the_signature_and_the_docstring():
    schema = load_tools(paths("add"))["add"].schema
    assert schema["function"]["description"] == "The sum of two numbers."
    assert schema["function"]["parameters"] == {
        "type": "object",
        "additionalProperties": False,
        "required": ["first"],
        "properties": {
            "first": {"type": "integer"},
            "second": {"type": "integer", "default": 1},
            "schema": {"type": "string", "enum": ["plain", "loud"], "default": "plain"},
        },
    }
    assert '"name": "add"' in told_of([tool.schema for tool in load_tools(paths("add")).values()])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (call("add", first=2), "3"),
        (call("add", first=2, second=3, schema="loud"), "5!"),
        ('<tool_call>\n{"name": "add", "parameters": {"first": 4}}\n</tool_call>', "5"),
        ('<tool_call>{"name": "add", "parameters": {"first": 9}, "arguments": {"first": 4}}</tool_call>', "5"),
        (call("later", what=["a`b`"]), '{"what": ["a`b`"]}'),
        (call("later", what=["é"]), '{"what": ["é"]}'),
        (call("add", first="2"), "error: add, argument 'first': Input should be a valid integer"),
        (call("add", first=True), "error: add, argument 'first': Input should be a valid integer"),
        (call("add"), "error: add, argument 'first': Field required"),
        (call("add", first=1, secnd=2), "error: add has no argument 'secnd', did you mean 'second'?; it takes first,"),
        (call("ad", first=1), "error: there is no tool 'ad', did you mean 'add'?"),
        ("<tool_call>add(1)</tool_call>", "error: the call: not JSON"),
        ("<tool_call>[1]</tool_call>", "error: a call is a JSON object with name and arguments, not [1]"),
        ('<tool_call>{"name": "add", "arguments": {"first": 1}', "error: the call: not JSON"),
        (
            '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
            "error: the arguments of add must be",
        ),
        ('<tool_call>{"name": "add", "code": "1"}</tool_call>', "error: a call has name and arguments, and no 'code'"),
        (f"<tool_call>{'[' * 5000}</tool_call>", "error: the call: not JSON"),
        (call("broken"), "error: broken failed: ValueError: no luck"),
        (call("leaves"), "error: leaves failed: RuntimeError: SystemExit: 3"),
        (call("unspeakable"), "error: unspeakable failed: RuntimeError: Unspeakable: (its text cannot be made"),
        (call("leaves_later"), "error: leaves_later failed: SystemExit: 3"),
        (call("cancels"), "error: cancels failed: CancelledError:"),
        (call("hidden", first=2), "3"),
        (call("moved", by={"x": 2}), '{"x": 3, "y": 2}'),
        (call("mute"), "error: its result cannot be written as JSON"),
    ],
)
def test_each_call_comes_to_one_line(text, told):
    [done] = made(f"I will call it. {text}", Role("asker", "asker", tool_result_chars=400))
    assert done.result.startswith(told) and done.ok == (not told.startswith("error")), done
    assert len(done.result.splitlines()) == 1


def test_text_without_a_call_and_hidden_thinking_call_nothing():
    assert made("add(1, 2)") == () == made(f"<think>{call('add', first=1)}</think>Three.")


def test_a_reply_of_thousands_of_beginnings_is_read_at_once():
    began = time.process_time()
    text = f"Adding. {call('add', first=1)} {OPEN * 10_000}"
    assert made(text)[0].result == "2" and without_calls(text) == "Adding."
    assert time.process_time() - began < 2


def test_results_are_cut_and_can_be_tokenized():
    [done] = made(call("long"))
    assert len(done.result) < 120 and "characters cut" in done.result
    done.result.encode()


def test_a_long_call_is_kept_cut_as_its_result_is():
    [done] = made(call("later", what=["a" * 500]))
    assert done.ok and max(len(done.call), len(done.result)) < 120 and "characters cut" in done.call


def test_a_tool_that_hangs_is_given_up_and_nobody_waits_for_it():
    [done] = made(call("hangs"), Role("asker", "asker", tool_timeout_s=0.05))
    assert done.result == "error: hangs did not end within 0.05 s" and not HUNG.is_set()
    HUNG.set()


def test_a_reply_makes_a_limited_number_of_calls():
    assert [one.ok for one in made(call("add", first=1) * MOST_CALLS)] == [True] * MOST_CALLS
    done = made("".join(call("add", first=number) for number in range(MOST_CALLS + 5)))
    assert [one.ok for one in done] == [True] * MOST_CALLS + [False]
    assert [one.result for one in done[:-1]] == [str(number + 1) for number in range(MOST_CALLS)], "in their order"
    assert f"only the first {MOST_CALLS}" in done[-1].result


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("undocumented",), "has no docstring"),
        (("untyped",), "its parameter first has no type"),
        (("unheard",), "its parameter thing has the type Event, which has no JSON schema: take str, int, "),
        (("starred",), "cannot be given by name"),
        (("drawn",), "tool drawn is a generator"),
        (("misread",), "its annotations cannot be read: module 'json' has no attribute 'Nothing'"),
        (("builtin",), "its annotations cannot be read: no signature found"),
        (("ad",), "did you mean 'add'"),
        (("NAMES",), "is no function"),
        (("add", "add"), "two tools called add"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(names, words):
    with pytest.raises(ConfigError, match=words):
        load_tools(paths(*names))


class Ask(Pipeline):
    name = "ask"
    roles = (Role("asker", policy="asker", prompt=ASK, max_turns=3),)

    async def run(self, task, team, workspace):
        said = await team.asker.act(problem=task.prompt)
        return Outcome("5" in said.text, summary=said.transcript)


def played(reply, **settings):
    pipeline = Ask(PipelineConfig(roles={"asker": RoleConfig(tools=paths(*NAMES), **settings)}))
    policy, task = ScriptedPolicy(reply), Task("t", "sums", "2 + 3?")
    [episode] = asyncio.run(rollout([EpisodeSpec("e", task, 0)], RolloutContext(pipeline, policy, None)))
    return pipeline, policy, task, episode


def test_a_role_that_is_given_tools_by_setting_calls_reads_and_answers():
    turns = iter([call("add", first=2, second=3), "It is 5."])
    pipeline, policy, task, episode = played(lambda _: next(turns))
    assert episode.outcome.success and len(episode.actions) == 2
    assert "You have these tools" in policy.calls[0].prompt and "<user>add: 5" in policy.calls[1].prompt
    assert "add: 5" in episode.outcome.summary
    request = make_request(task, pipeline.roles, pipeline.roles[0], episode.actions[0], (), None)
    shown = render_request(find_coach_prompt(None, "ask"), request)
    assert "It called tools:" in shown and "=> 5" in shown and "It may call these tools: add, later" in shown


def test_an_agent_that_only_calls_ends_with_its_turns():
    _, _, _, episode = played(lambda _: call("ad"))
    assert [len(action.tool_calls) for action in episode.actions] == [1, 1, 1] and not episode.outcome.success


def test_tools_are_kept_in_a_runs_files():
    from coachrl.runs.records import episode_from_record, episode_record, role_from_record, role_record

    pipeline, _, _, episode = played(lambda _: call("add", first=1))
    assert episode_from_record(json.loads(json.dumps(episode_record(episode, {})))).episode == episode
    assert role_from_record(json.loads(json.dumps(role_record(pipeline.roles[0]), default=list))).tools == paths(*NAMES)


def test_tools_without_a_second_turn_are_refused():
    with pytest.raises(ConfigError, match="set max_turns to 2 or more"):
        Ask(PipelineConfig(roles={"asker": RoleConfig(tools=paths("add"), max_turns=1)}))
