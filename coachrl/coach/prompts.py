"""Coach prompts: finds the file, checks its fields, and renders a `CoachRequest` into it.

What an agent wrote is data. It stands between two lines that hold a digest of the very text between them, so no text
can hold the line that would close its own fence; braces in it stay text, since places are filled in one pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from coachrl.coach.base import CoachRequest
from coachrl.config import nearest
from coachrl.errors import ConfigError
from coachrl.prompts import Prompt, load_prompt
from coachrl.resources import resource
from coachrl.text import clip_middle, shown
from coachrl.types import Action, Role

SCORE_RANGE = [0, 10]
MAX_FIELD_CHARS = 16_000
_MAX_PREVIOUS_CHARS = 2_000
_MAX_FILES_SHOWN = 200
_NONE = "(none)"


def find_coach_prompt(prompt: Path | None, pipeline: str | None) -> Prompt:
    """The prompt file `prompt` (a path, or the name of a shipped one), else the pipeline's own, else the generic one.

    Raises ConfigError where there is no such file, or it is not a coach prompt.
    """
    folder = resource("prompts", "coach")
    shipped = {file.stem: file for file in sorted(folder.glob("*.md"))}
    if prompt is None:
        return load_coach_prompt(shipped.get(pipeline or "", folder / "generic.md"))
    if prompt.is_file():
        return load_coach_prompt(prompt)
    if prompt.stem in shipped and prompt.parent.as_posix() in (".", "prompts/coach"):
        return load_coach_prompt(shipped[prompt.stem])
    raise ConfigError(f"no coach prompt {prompt}{nearest(prompt.stem, shipped)}; shipped: {', '.join(shipped)}")


def load_coach_prompt(path: Path) -> Prompt:
    """Read a coach prompt. Raises ConfigError where it asks for what cannot be filled, or for another score range."""
    prompt = load_prompt(path)
    for name in sorted(prompt.fields - FIELDS.keys()):
        raise ConfigError(
            f"coach prompt {path}: unknown field '{name}'{nearest(name, FIELDS)}; fields: {', '.join(FIELDS)}"
        )
    if "agent_output" not in prompt.fields:
        raise ConfigError(f"coach prompt {path}: without {{{{agent_output}}}} the coach sees nothing to score")
    if prompt.header.get("score_range", SCORE_RANGE) != SCORE_RANGE:
        raise ConfigError(f"coach prompt {path}: score_range must be [0, 10], the scale that scores are kept on")
    return prompt


def render_request(prompt: Prompt, request: CoachRequest) -> str:
    """The prompt's text for one action. A pure function of both: equal requests render equally."""
    return prompt.render(**{name: FIELDS[name](request) for name in prompt.fields})


def fenced(text: str, label: str, max_chars: int = MAX_FIELD_CHARS) -> str:
    """`text` (cut in the middle where it is long, saying so) between two lines that it cannot hold itself."""
    text = clip_middle(text, max_chars) or _NONE
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    while digest in text:
        digest = hashlib.sha256(digest.encode()).hexdigest()[:20]
    return f"<<<{label} {digest}\n{text}\n{label} {digest}>>>"


def _duties(request: CoachRequest) -> str:
    role = request.role
    lines = [role.duties or f"Plays the role '{role.name}'."]
    if role.python:
        lines.append("Python code blocks in its reply are run, and it sees what they print.")
    if role.needed_files:
        lines.append(f"It takes from earlier agents: {', '.join(role.needed_files)}.")
    if role.required_files:
        lines.append(f"It must leave behind: {', '.join(role.required_files)}.")
    lines.append(
        f"This was turn {request.action.turn + 1} of at most {role.max_turns}; a reply has at most "
        f"{role.max_new_tokens} tokens, and this one {_ending(request.action)}."
    )
    return " ".join(lines)


def _ending(action: Action) -> str:
    return "was cut off at that limit" if action.finish_reason == "length" else "ended by itself"


def _team(request: CoachRequest) -> str:
    return "\n".join(f"{number}. {_member(role)}" for number, role in enumerate(request.team, start=1))


def _member(role: Role) -> str:
    saves = f" Must save: {', '.join(role.required_files)}." if role.required_files else ""
    return f"{role.name}: {role.duties or 'no duties stated.'}{saves}"


def _observation(request: CoachRequest) -> str:
    action = request.action
    if action.execution is None:
        return "No code was run."
    return f"The code ended with state '{action.execution.state}'.\n" + fenced(shown(action.execution), "TOOL_LOG")


def _files(names: tuple[str, ...]) -> str:
    """File names are the agents' own words too."""
    listed = [repr(name) for name in names[:_MAX_FILES_SHOWN]]
    if len(names) > _MAX_FILES_SHOWN:
        listed.append(f"... and {len(names) - _MAX_FILES_SHOWN} more")
    return fenced("\n".join(listed), "FILES")


def _previous(request: CoachRequest) -> str:
    if not request.previous:
        return "None: this agent acted first."
    return "\n\n".join(_previous_action(action) for action in request.previous)


def _previous_action(action: Action) -> str:
    head = f"{action.role}, turn {action.turn + 1}"
    pieces = [fenced(action.text, "EARLIER_OUTPUT", _MAX_PREVIOUS_CHARS)]
    if action.execution is not None:
        head += f", code ended with state '{action.execution.state}'"
        pieces.append(fenced(shown(action.execution), "EARLIER_TOOL_LOG", _MAX_PREVIOUS_CHARS))
        new = tuple(name for name in action.files_after if name not in action.files_before)
        pieces.append("New files:\n" + _files(new) if new else "No new files.")
    return "\n".join([head + ":", *pieces])


def _outcome(request: CoachRequest) -> str:
    if request.outcome is None:
        return "N/A: not shown for this agent."
    outcome = request.outcome
    words = outcome.summary or outcome.reason or ("success" if outcome.success else "failure")
    return f"The environment measured {'success' if outcome.success else 'failure'}.\n" + fenced(words, "OUTCOME")


FIELDS: dict[str, Callable[[CoachRequest], str]] = {
    "task": lambda request: fenced(request.task.prompt, "TASK"),
    "role": lambda request: request.role.name,
    "duties": _duties,
    "team": _team,
    "agent_input": lambda request: fenced(request.action.prompt_text, "AGENT_INPUT"),
    "agent_output": lambda request: fenced(request.action.text, "AGENT_OUTPUT"),
    "tool_observation": _observation,
    "files_before": lambda request: _files(request.action.files_before),
    "files_after": lambda request: _files(request.action.files_after),
    "previous_agents": _previous,
    "outcome": _outcome,
}
"""What a coach prompt may ask for, and how it is made."""
