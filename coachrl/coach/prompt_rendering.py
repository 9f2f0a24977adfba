"""Coach prompts: finds the file, checks its fields, and renders a `CoachRequest` into it.

What an agent wrote is data. It stands between two lines that hold a digest of the very text between them, so no text
can hold the line that would close its own fence; braces in it stay text, since places are filled in one pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import Literal

from coachrl.coach.base import CoachRequest
from coachrl.coach.criteria import criteria_words, parse_criteria
from coachrl.coach.rubric.caps import parse_caps
from coachrl.config import EvidenceConfig
from coachrl.errors import ConfigError
from coachrl.prompts import Prompt, load_prompt
from coachrl.resources import resource
from coachrl.text import clip_tokens, defused, nearest
from coachrl.types import Action, Execution, Role

Use = Literal["score", "retrospective", "preface"]

HEADER = ("about", "use", "categories", "fields", "score_range", "caps", "criteria")
"""Keys of a coach prompt's header. categories: the task categories that its caps are linted for."""
CATEGORIES = ("classification", "regression", "math")
SCORE_RANGE = [0, 10]
SIGNED_RANGE = [-10, 10]
NEEDED = {
    "score": {"agent_output": "nothing to score"},
    "retrospective": {
        "agent_output": "nothing to score",
        "outcome": "nothing to share out",
        "residual": "nothing of what later actions explained",
    },
    "preface": {"statistics": "nothing of the run"},
}
"""Use of a prompt -> the fields without which it is worth nothing, with what the coach then sees."""
OF_THE_HEADER = frozenset({"caps", "criteria"})
"""Fields that show the model what the prompt's own header says."""
_MAX_FILES_SHOWN = 200
_MANY_FILES = 20  # of more their number is told, since the list may be cut
_NONE = "(none)"
_HIDDEN = "N/A: not shown to you."
_EVERYTHING = EvidenceConfig()


def find_coach_prompt(prompt: Path | None, pipeline: str | None) -> Prompt:
    """The prompt file `prompt` (a path, or the name of a shipped one), else the pipeline's own, else the generic one.

    Raises ConfigError where there is no such file, or it is not a coach prompt.
    """
    if prompt is None:
        shipped = shipped_prompts()
        return load_coach_prompt(shipped.get(pipeline or "", shipped["generic"]))
    return load_coach_prompt(find_prompt_file(prompt))


def find_prompt_file(prompt: Path) -> Path:
    """`prompt` as a path, or the shipped file of that name. Raises ConfigError naming the nearest."""
    if prompt.is_file():
        return prompt
    shipped = shipped_prompts()
    if prompt.stem in shipped and prompt.parent.as_posix() in (".", "prompts/coach"):
        return shipped[prompt.stem]
    raise ConfigError(f"no coach prompt {prompt}{nearest(prompt.stem, shipped)} (shipped: {', '.join(shipped)})")


def shipped_prompts() -> dict[str, Path]:
    """Name -> file of every prompt in prompts/coach, of whatever use."""
    return {file.stem: file for file in sorted(resource("prompts", "coach").glob("*.md"))}


def load_coach_prompt(path: Path, use: Use | None = "score") -> Prompt:
    """Read a coach prompt. use: what it must be for, or None for whatever its header says. Raises ConfigError where it
    asks for what cannot be filled, or where its use, its caps or its score range are not what they must be."""
    prompt = load_prompt(path)
    for fault in _faults(prompt, path, use):
        raise ConfigError(f"coach prompt {path}: {fault}")
    return prompt


def _faults(prompt: Prompt, path: Path, use: Use | None) -> Iterator[str]:
    """What keeps it from being a coach prompt of this use. Raises ConfigError for caps and criteria."""
    for key in prompt.header.keys() - HEADER:
        yield f"unknown key '{key}' in the header{nearest(str(key), HEADER)}"
    known = [*FIELDS, *sorted(OF_THE_HEADER)]
    for name in sorted(prompt.fields.difference(known)):
        yield f"unknown field '{name}'{nearest(name, known)}; fields: {', '.join(known)}"
    said = use_of(prompt)
    if said not in NEEDED or (use is not None and said != use):
        yield f"its use is '{said}', not '{use or ', '.join(NEEDED)}'"
    for name, without in NEEDED[said].items():
        if name not in prompt.fields:
            yield f"without {{{{{name}}}}} the coach sees {without}"
    wanted = SIGNED_RANGE if said == "retrospective" else SCORE_RANGE
    if prompt.header.get("score_range", wanted) != wanted:
        yield f"score_range must be {wanted}, the scale that scores are kept on"
    categories = prompt.header.get("categories", list(CATEGORIES))
    if not isinstance(categories, list) or not categories or any(category not in CATEGORIES for category in categories):
        yield f"categories must be a list of {', '.join(CATEGORIES)}, or left out for all"
    parse_caps(prompt.header, prompt.name)
    parse_criteria(prompt.header, str(path))
    if ("criteria" in prompt.header) != ("criteria" in prompt.fields):
        yield "criteria stand in the header, and in the body as {{criteria}}"
    if "criteria" in prompt.header and said != "score":
        yield f"criteria are for prompts that score, not for the use '{said}'"


def use_of(prompt: Prompt) -> str:
    """What the prompt's header says that it is for: "score" unless it says otherwise."""
    return str(prompt.header.get("use", "score"))


def with_preface(preface: Prompt, prompt: Prompt) -> Prompt:
    """One prompt of two: `preface` stands first. Header and caps are those of `prompt`, the hash is of both."""
    return replace(
        prompt,
        name=f"{preface.name}+{prompt.name}",
        body=f"{preface.body}\n\n{prompt.body}",
        fields=preface.fields | prompt.fields,
        sha256=_hash_of_both(preface, prompt),
    )


def with_suggestion(prompt: Prompt) -> Prompt:
    """`prompt`, asking for the agent's better reply too. Its hash covers both texts."""
    section = prompt_section("suggestion")
    return replace(prompt, body=f"{prompt.body}\n\n{section.body}", sha256=_hash_of_both(prompt, section))


def prompt_section(name: str) -> Prompt:
    """What a coach's setting adds to its prompt."""
    return load_prompt(resource("prompts", "coach", "sections", f"{name}.md"))


def _hash_of_both(first: Prompt, second: Prompt) -> str:
    return hashlib.sha256(f"{first.sha256} {second.sha256}".encode()).hexdigest()


def render_request(prompt: Prompt, request: CoachRequest, evidence: EvidenceConfig = _EVERYTHING) -> str:
    """The prompt's text for one action. A pure function of all three: equal requests render equally."""
    return render_siblings(prompt, [request], evidence)


def render_siblings(prompt: Prompt, requests: Sequence[CoachRequest], evidence: EvidenceConfig = _EVERYTHING) -> str:
    """The prompt's text for several actions at once. A field in which they differ holds each one's, under the letters
    A, B, C in the order of `requests`; nothing else says which is whose."""
    values = {
        name: _side_by_side([FIELDS[name](request, evidence) for request in requests])
        for name in prompt.fields - OF_THE_HEADER
    }
    if "caps" in prompt.fields:
        values["caps"] = parse_caps(prompt.header, prompt.name).words()
    if "criteria" in prompt.fields:
        values["criteria"] = criteria_words(parse_criteria(prompt.header, prompt.name))
    return prompt.render(**values)


def _side_by_side(texts: Sequence[str]) -> str:
    if len(set(texts)) == 1:
        return texts[0]
    return "\n\n".join(f"Reply {letter}:\n{text}" for letter, text in zip(ascii_uppercase, texts, strict=False))


def fenced(text: str, label: str, window_tokens: int = _EVERYTHING.window_tokens) -> str:
    """`text` between two lines that it cannot hold itself, with a blank in each token that would end the message. Where
    it is long its middle is cut, and the first of the lines says so too: what says it inside may be the text's own
    word."""
    whole = defused(text)
    text = clip_tokens(whole, window_tokens) or _NONE
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:20]
    cut = " (its middle is cut)" if whole and text != whole else ""
    return f"<<<{label} {digest}{cut}\n{text}\n{label} {digest}>>>"


def _description(request: CoachRequest, _: EvidenceConfig) -> str:
    role = request.role
    lines = [role.description or f"Plays the role '{role.name}'."]
    if role.python:
        lines.append("Python code blocks in its reply are run, and it sees what they print.")
    if role.tools:
        lines.append(f"It may call these tools: {', '.join(path.rpartition(':')[2] for path in role.tools)}.")
    if role.needed_files:
        lines.append(f"It takes from earlier agents: {', '.join(role.needed_files)}.")
    if role.required_files:
        lines.append(f"It must leave behind: {', '.join(role.required_files)}.")
    ending = "was cut off at that limit" if request.action.finish_reason == "length" else "ended by itself"
    most = f" of at most {role.max_turns} in a row" if role.max_turns > 1 else ""
    lines.append(
        f"This was its turn {request.action.turn + 1}{most}; a reply has at most "
        f"{role.max_new_tokens} tokens, and this one {ending}."
    )
    return " ".join(lines)


def _team(request: CoachRequest, _: EvidenceConfig) -> str:
    lines = []
    for number, role in enumerate(request.team, start=1):
        saves = f" Must save: {', '.join(role.required_files)}." if role.required_files else ""
        lines.append(f"{number}. {role.name}: {role.description or 'no description stated.'}{saves}")
    return "\n".join(lines)


def _observation(request: CoachRequest, evidence: EvidenceConfig) -> str:
    if not evidence.tool_log:
        return _HIDDEN
    found = _what_came_of(request.action, evidence.window_tokens)
    return "\n".join(found if request.action.execution is not None else ["No code was run.", *found])


def _what_came_of(action: Action, window_tokens: int, prefix: str = "") -> list[str]:
    """How its code ended, what the functions that it called gave, and what the environment found or did in answer:
    those of the three that there are. prefix: what the labels of their fences begin with."""
    found = []
    if (execution := action.execution) is not None:
        shown = fenced(streams_of(execution), f"{prefix}TOOL_LOG", window_tokens)
        found.append(f"The code ended with state '{execution.state}'.\n{shown}")
    if action.tool_calls:
        told = "\n".join(f"call: {_indented(call.call)}\n=> {_indented(call.result)}" for call in action.tool_calls)
        found.append(f"It called tools:\n{fenced(told, f'{prefix}TOOL_CALLS', window_tokens)}")
    if action.result:
        found.append(f"The environment's answer:\n{fenced(action.result, f'{prefix}ENVIRONMENT', window_tokens)}")
    return found


def _indented(text: str) -> str:
    """`text` with its further lines indented, so that none of them passes for another call, or for what one gave."""
    return "\n   ".join(text.splitlines())


def streams_of(execution: Execution) -> str:
    """Both streams whole: the error stands last, so that it is never what is cut."""
    return "\n".join(filter(None, (execution.stdout.strip(), execution.stderr.strip()))) or "(no output)"


def _files(names: Sequence[str], team: Sequence[Role], window_tokens: int) -> str:
    """File names are the agents' own words too. Those that the team works with come first: whether they are there is
    not to be hidden behind others that are too many, or too long, to be shown."""
    owed = {name for role in team for name in (*role.required_files, *role.needed_files)}
    names = sorted(names, key=lambda name: name not in owed)
    listed = [repr(name) for name in names[:_MAX_FILES_SHOWN]]
    if len(names) > _MANY_FILES:
        listed.insert(0, f"{len(names)} files, those of the team's work first:")
    return fenced("\n".join(listed), "FILES", window_tokens)


def _listed(request: CoachRequest, names: Sequence[str], evidence: EvidenceConfig) -> str:
    return _files(names, request.team, evidence.window_tokens) if evidence.files else _HIDDEN


def _previous(request: CoachRequest, evidence: EvidenceConfig) -> str:
    if not evidence.previous:
        return _HIDDEN
    if not request.previous:
        return "None: this agent acted first."
    return "\n\n".join(_previous_action(action, request.team, evidence) for action in request.previous)


def _previous_action(action: Action, team: Sequence[Role], evidence: EvidenceConfig) -> str:
    pieces = [f"{action.role}, turn {action.turn + 1}:"]
    pieces.append(fenced(action.text, "EARLIER_OUTPUT", evidence.previous_tokens))
    if evidence.tool_log:
        pieces += _what_came_of(action, evidence.previous_tokens, "EARLIER_")
    if action.execution is not None and evidence.files:
        new = tuple(name for name in action.files_after if name not in action.files_before)
        pieces.append("New files:\n" + _files(new, team, evidence.previous_tokens) if new else "No new files.")
    return "\n".join(pieces)


def _outcome(request: CoachRequest, evidence: EvidenceConfig) -> str:
    if request.outcome is None:
        return "N/A: not shown for this agent."
    outcome = request.outcome
    words = outcome.summary or outcome.reason or ("success" if outcome.success else "failure")
    measured = f"The environment measured {'success' if outcome.success else 'failure'}.\n"
    return measured + fenced(words, "OUTCOME", evidence.window_tokens)


def _residual(request: CoachRequest, evidence: EvidenceConfig) -> str:
    if not request.residual:
        return "All of it: no later action has explained any."
    return fenced(request.residual, "RESIDUAL", evidence.window_tokens)


FIELDS: dict[str, Callable[[CoachRequest, EvidenceConfig], str]] = {
    "task": lambda request, evidence: fenced(request.task.prompt, "TASK", evidence.window_tokens),
    "role": lambda request, _: request.role.name,
    "description": _description,
    "team": _team,
    "agent_input": lambda request, evidence: fenced(request.action.prompt_text, "AGENT_INPUT", evidence.window_tokens),
    "agent_output": lambda request, evidence: fenced(request.action.text, "AGENT_OUTPUT", evidence.window_tokens),
    "tool_observation": _observation,
    "files_before": lambda request, evidence: _listed(request, request.action.files_before, evidence),
    "files_after": lambda request, evidence: _listed(request, request.action.files_after, evidence),
    "previous_agents": _previous,
    "outcome": _outcome,
    "residual": _residual,
    "statistics": lambda request, _: defused(request.statistics) or "N/A: no statistics of this run are kept.",
}
"""What a coach prompt may ask for, and how it is made."""
