"""Python functions that an agent may call: `Role(tools=("my_module:look_up",))`, or `pipeline.roles.<role>.tools`.

A tool is a function of the user's own, trusted, and runs in the process that plays the episode. Its arguments come
from a model and are not trusted: they are JSON, checked against the function's signature, and never evaluated. The
model calls it as most chat models are taught to:

    <tool_call>{"name": "look_up", "arguments": {"word": "coach"}}</tool_call>

Whatever a call comes to, a result or what was wrong with it, is recorded and told to the agent in its next turn.
docs/pipelines.md has an example.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic_core import to_jsonable_python

from coachrl.config.choices import awaited, check_no_generator, import_by_path, is_own_doing
from coachrl.errors import ConfigError, ToolError
from coachrl.parsing import parse_json
from coachrl.pipelines.team.threads import in_a_thread
from coachrl.text import brief, clip_middle, nearest, one_line, said, visible
from coachrl.types import Role, ToolCall

MOST_CALLS = 8
"""Calls of one reply; what stands after them is not run, and the agent is told so."""
OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_ARGUMENTS = ("arguments", "parameters")  # models differ in what they call them


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=False)


@dataclass(frozen=True)
class Tool:
    """A function with what a model is told of it."""

    name: str
    description: str
    function: Callable[..., Any]
    arguments: type[BaseModel]

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and servers take it: a JSON schema of its parameters."""
        parameters = self.arguments.model_json_schema(by_alias=True)
        parameters.pop("title", None)
        for property_ in parameters.get("properties", {}).values():
            property_.pop("title", None)
        named = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": named}

    def read(self, arguments: Any) -> dict[str, Any]:
        """The function's arguments by name. Raises ToolError that says what is wrong with the first wrong one."""
        if not isinstance(arguments, dict):
            raise ToolError(f"the arguments of {self.name} must be a JSON object, not {brief(arguments)}")
        try:
            read = self.arguments.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            known = [str(field.alias) for field in self.arguments.model_fields.values()]
            if wrong["type"] == "extra_forbidden":
                close = f"{nearest(place, known)}; it takes {', '.join(known) or 'none'}"
                raise ToolError(f"{self.name} has no argument '{one_line(place)}'{close}") from None
            raise ToolError(f"{self.name}, argument '{one_line(place)}': {one_line(wrong['msg'])}") from None
        return {str(field.alias): getattr(read, key) for key, field in type(read).model_fields.items()}


def load_tools(paths: Iterable[str]) -> dict[str, Tool]:
    """Name -> tool, for the functions at these import paths. Raises ConfigError where one is none, or cannot be
    described to a model."""
    tools: dict[str, Tool] = {}
    for path in paths:
        if ":" not in path:
            raise ConfigError(f"tool '{one_line(path)}' is no import path: write my_package.my_module:my_function")
        found = import_by_path(path, "tool")
        if not inspect.isroutine(found):
            raise ConfigError(f"tool '{one_line(path)}' is no function")
        tool = _described(found)
        if tool.name in tools:
            raise ConfigError(f"tool '{one_line(path)}': there are two tools called {tool.name}")
        tools[tool.name] = tool
    return tools


@cache
def _described(function: Callable[..., Any]) -> Tool:
    name, description = function.__name__, inspect.getdoc(function)
    if not description:
        raise ConfigError(f"tool {name} has no docstring, which is what the model is told of it")
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except Exception as error:  # annotations are code, which may raise anything; what is written in C has no signature
        raise ConfigError(f"tool {name}: its annotations cannot be read: {one_line(said(error))}") from error
    check_no_generator(function, f"tool {name}")
    fields: dict[str, Any] = {}
    for place, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {name}: its parameter {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise ConfigError(f"tool {name}: its parameter {parameter.name} has no type, as in `{parameter.name}: str`")
        _check_type(name, parameter.name, hints[parameter.name])
        default = ... if parameter.default is parameter.empty else parameter.default
        # Under a name of our own, so that a parameter may be called as an attribute of pydantic's is.
        fields[f"argument_{place}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    try:
        arguments = create_model(name, __base__=_Arguments, **fields)
        arguments.model_json_schema()
    except Exception as error:  # the types and defaults are the user's own, and so is what they raise
        raise ConfigError(f"tool {name}: its parameters have no JSON schema: {one_line(said(error))}") from error
    return Tool(name, description, function, arguments)


def _check_type(tool: str, parameter: str, hint: Any) -> None:
    """Raises ConfigError for a type that no JSON value stands for."""
    try:
        TypeAdapter(hint).json_schema()
    except Exception as error:  # types are the user's own, and so is what they raise
        shown = one_line(getattr(hint, "__name__", str(hint)))
        raise ConfigError(
            f"tool {tool}: its parameter {parameter} has the type {shown}, which has no JSON schema: take str, int, "
            "float, bool, Literal, an Enum, a list or dict of such, a data class or a pydantic model"
        ) from error


def told_of(tools: Iterable[Mapping[str, Any]]) -> str:
    """What stands before an agent's first message where its model's chat template knows no tools. tools: schemas."""
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You have these tools, each with a JSON schema of its arguments:\n"
        f"{schemas}\n"
        'To call one, write <tool_call>{"name": "...", "arguments": {...}}</tool_call> and end your reply; '
        "its result is your next message."
    )


def calls_in(text: str) -> list[str]:
    """The JSON of each call in a reply, unread; one that was never closed is there as far as it goes."""
    closed, rest = _around_last_end(text)
    found = _CALL.findall(closed)
    return [*found, rest.partition(OPEN)[2]] if OPEN in rest else found


def without_calls(text: str) -> str:
    """A reply's words beside its calls."""
    closed, rest = _around_last_end(text)
    return (_CALL.sub("", closed) + rest).partition(OPEN)[0].strip()


def _around_last_end(text: str) -> tuple[str, str]:
    """A reply up to where its last call ends, and the rest, in which none does: the pattern would look through all of
    it from each of thousands of beginnings."""
    closed, end, rest = visible(text).rpartition(_CLOSE)
    return closed + end, rest


async def call_tools(text: str, tools: Mapping[str, Tool], role: Role) -> tuple[ToolCall, ...]:
    """Every call of a reply, in order, one after another, each with what came of it. Never raises for what the agent
    wrote or the function did."""
    asked = calls_in(text)
    made = [await _call(call, tools, role) for call in asked[:MOST_CALLS]]
    if len(asked) > MOST_CALLS:
        made.append(ToolCall("", "", f"error: only the first {MOST_CALLS} calls of a reply are made", ok=False))
    return tuple(made)


def results_of(calls: Sequence[ToolCall]) -> str:
    """What an agent is told of its calls."""
    return "\n".join(f"{call.name or 'tool'}: {call.result}" for call in calls)


async def _call(text: str, tools: Mapping[str, Tool], role: Role) -> ToolCall:
    name, began = "", time.monotonic()
    try:
        name, arguments = _parsed(text, tools)
        result = await _within(role.tool_timeout_s, tools[name], tools[name].read(arguments))
        told, ok = _as_text(result), True
    except ToolError as error:
        told, ok = f"error: {one_line(str(error))}", False
    # A lone half of a character, which no tokenizer takes, becomes a question mark.
    told = clip_middle(told, role.tool_result_chars).encode("utf-8", "replace").decode()
    return ToolCall(name, clip_middle(text.strip(), role.tool_result_chars), told, ok, time.monotonic() - began)


def _parsed(text: str, tools: Mapping[str, Tool]) -> tuple[str, Any]:
    """(name, arguments) of a call. Raises ToolError."""
    call = parse_json(text, "the call", ToolError)
    if not isinstance(call, dict):
        raise ToolError(f"a call is a JSON object with name and arguments, not {brief(call)}")
    if unknown := [key for key in call if key not in ("name", *_ARGUMENTS)]:
        raise ToolError(f"a call has name and arguments, and no {brief(unknown[0])}")
    name = call.get("name")
    if not isinstance(name, str) or name not in tools:
        close = nearest(name, tools) if isinstance(name, str) else ""
        raise ToolError(f"there is no tool {brief(name)}{close}; tools: {', '.join(tools)}")
    return name, next((call[key] for key in _ARGUMENTS if key in call), {})


async def _within(timeout_s: float, tool: Tool, arguments: dict[str, Any]) -> Any:
    """What the function gives. Raises ToolError where it takes too long, or raises anything."""
    try:
        async with asyncio.timeout(timeout_s) as clock:
            if inspect.iscoroutinefunction(tool.function):
                return await awaited(tool.function(**arguments))
            given = await in_a_thread(lambda: tool.function(**arguments), "coachrl-tool")
            # A decorator may hide that it is async.
            return await awaited(given) if inspect.isawaitable(given) else given
    except BaseException as error:  # the boundary to the user's own function, whatever it raises
        if not is_own_doing(error):
            raise
        if clock.expired():
            raise ToolError(f"{tool.name} did not end within {timeout_s:g} s") from None
        raise ToolError(f"{tool.name} failed: {type(error).__name__}: {said(error)}") from error


def _as_text(result: Any) -> str:
    """A text as it is, anything else as JSON: a data class and a model by their fields, what JSON does not know as its
    text. Raises ToolError where it cannot be written."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False, default=partial(to_jsonable_python, fallback=str))
    except Exception as error:  # what the user's own objects say of themselves is code too
        raise ToolError(f"its result cannot be written as JSON: {said(error)}") from error
