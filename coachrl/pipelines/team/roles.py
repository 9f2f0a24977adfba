"""Builds a pipeline's roles from its prompt files and the run's settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError
from coachrl.pipelines.team.team import FEEDBACK_FIELDS
from coachrl.pipelines.team.tools import load_tools
from coachrl.prompts import NO_PROMPT, Prompt, load_prompt, parse_prompt
from coachrl.resources import resource
from coachrl.runs.records import role_as_kept
from coachrl.text import brief, nearest, one_line
from coachrl.types import Example, Role, policy_names

_LONGEST_NAME = 255  # bytes of a file's name
OBSERVED = parse_prompt("---\nfields: [observation]\n---\n{{observation}}", "what came of a turn")


def prompt_folder(settings: PipelineConfig, pipeline: str) -> Path:
    """Folder of one prompt_style of a pipeline's agent prompts. Raises ConfigError naming the prompt_styles there
    are."""
    if settings.prompts is not None:
        return settings.prompts
    root = resource("prompts", "agents", pipeline)
    prompt_styles = sorted(folder.name for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    if not prompt_styles:
        raise ConfigError(
            f"pipeline {pipeline} has roles without a prompt: give each its Role(prompt=...), or name a folder with "
            "<role>.md files by pipeline.prompts"
        )
    if settings.prompt_style not in prompt_styles:
        raise ConfigError(
            f"pipeline.prompt_style: {pipeline} has no prompt_style "
            f"'{settings.prompt_style}'{nearest(settings.prompt_style, prompt_styles)}; "
            f"prompt_styles: {', '.join(prompt_styles)}"
        )
    return root / settings.prompt_style


def load_role(role: Role, settings: PipelineConfig, pipeline: str, kind: str, prompt_name: str) -> Role:
    """`role` with its prompt, feedback template and examples, and the run's settings on top.

    A role that was declared with a prompt keeps it; without feedback of its own it is told what its code and its tools
    came to. For others the file is `<prompt_name>.md` in the prompt_style's folder, or `<prompt_name>.partial.md` under
    partial information; `feedback.md` serves every role. A header may hold `examples`, a list of {user, assistant}.
    kind: what several roles of a team have in common; settings of the kind count for each of them. Raises ConfigError.
    """
    is_declared = role.prompt is not NO_PROMPT
    if not is_declared:
        role = _with_files(role, settings, pipeline, prompt_name)
    own_length = role.max_new_tokens != Role.max_new_tokens  # what the code says of a role is nearer to it
    role = replace(
        role,
        policy=settings.shared_policy or role.policy,
        max_new_tokens=role.max_new_tokens if own_length else settings.max_new_tokens,
        thinking=role.thinking or settings.thinking,
    )
    for name in dict.fromkeys((kind, role.name)):
        if name in settings.roles:
            role = replace(role, **settings.roles[name].model_dump(exclude_none=True))
    _check_tools(role)
    if role.max_turns > 1 and role.feedback is NO_PROMPT and (role.tools or (role.python and is_declared)):
        role = replace(role, feedback=OBSERVED)
    if role.max_turns > 1 and role.feedback is NO_PROMPT:
        raise ConfigError(
            f"role {role.name} has {role.max_turns} turns, but there is no feedback between them: pipeline {pipeline} "
            "needs a feedback.md beside its prompts, or a role with Role(feedback=...)"
        )
    check_fields(role.feedback, FEEDBACK_FIELDS)
    return role


def _check_tools(role: Role) -> None:
    """Raises ConfigError for tools that cannot be used."""
    if not role.tools:
        return
    load_tools(role.tools)
    if role.max_turns == 1:
        raise ConfigError(
            f"role {role.name} has tools, and one turn, so that it would never read a result: set max_turns to 2 or "
            "more"
        )


def _with_files(role: Role, settings: PipelineConfig, pipeline: str, prompt_name: str) -> Role:
    folder = prompt_folder(settings, pipeline)
    file = folder / f"{prompt_name}{'.partial' if settings.partial_information else ''}.md"
    if settings.partial_information and not file.is_file():
        raise ConfigError(f"pipeline.partial_information: {pipeline} has no such variant (there is no {file})")
    prompt = load_prompt(file)
    feedback = folder / "feedback.md"
    return replace(
        role,
        prompt=prompt,
        examples=_examples(prompt),
        feedback=load_prompt(feedback) if feedback.is_file() else role.feedback,
    )


def load_text(name: str, fields: Collection[str], settings: PipelineConfig, pipeline: str) -> Prompt:
    """A template of the prompt_style's folder that is no role's own, such as how earlier turns are told; it may use
    `fields`. Raises ConfigError."""
    prompt = load_prompt(prompt_folder(settings, pipeline) / f"{name}.md")
    check_fields(prompt, fields)
    return prompt


def fill(prompt: Prompt, values: Mapping[str, object]) -> str:
    """`prompt` with those of `values` that it asks for."""
    return prompt.render(**{name: values[name] for name in prompt.fields})


def check_fields(prompt: Prompt, available: Collection[str]) -> None:
    """Raises ConfigError where a prompt declares a field that its pipeline does not give it."""
    unknown = sorted(prompt.fields - set(available))
    if unknown:
        raise ConfigError(
            f"prompt {prompt.name}: there is no field {', '.join(unknown)}{nearest(unknown[0], available)}; "
            f"its fields may be {', '.join(sorted(available))}"
        )


def load_team(
    members: Sequence[tuple[Role, int]],
    settings: PipelineConfig,
    pipeline: str,
    prompt_name: Callable[[str], str] = str,
    prompt_fields: Callable[[str], Collection[str] | None] = lambda kind: None,
) -> tuple[Role, ...]:
    """`count` roles of each kind: `debater_1`, `debater_2`, ... or `debater` alone where there is one.

    Roles of a kind have its prompt and, unless the settings say otherwise, play with one policy. Settings may be given
    for the kind and for single roles. prompt_name, prompt_fields: see `Pipeline`. Raises ConfigError, also for settings
    that would not reach any role.
    """
    _check_members(members, pipeline)
    named = [(replace(kind, name=name), kind.name) for kind, count in members for name in _names(kind.name, count)]
    known = [name for role, kind in named for name in (role.name, kind)]
    for name in settings.roles:
        if name not in known:
            listed = ", ".join(role.name for role, _ in named)
            raise ConfigError(f"pipeline.roles: {pipeline} has no role '{name}'{nearest(name, known)}; roles: {listed}")
    if named and all(role.prompt is not NO_PROMPT for role, _ in named):
        _refuse_prompt_files(settings, pipeline)
    team = []
    for declared, kind in named:
        role = load_role(declared, settings, pipeline, kind, prompt_name(kind))
        check_name(role.policy, f"pipeline {pipeline}, role {role.name}: its policy")
        fields = prompt_fields(kind)
        if fields is not None:
            check_fields(role.prompt, fields)
        team.append(role)
    return tuple(team)


def _check_members(members: Sequence[tuple[Role, int]], pipeline: str) -> None:
    """Raises ConfigError where a pipeline of the user's own declares what are no roles, or one twice."""
    kinds = []
    for member in members:
        role, count = member if isinstance(member, tuple) and len(member) == 2 else (member, -1)
        if not isinstance(role, Role) or not isinstance(count, int) or count < 0:
            raise ConfigError(
                f"pipeline {pipeline}: {brief(role)} is no role: `roles` is a tuple of Role(name, policy=…), and "
                "`members()` gives pairs of a Role and how many there are of it"
            )
        _check_role(role, pipeline)
        if role.name in kinds:
            raise ConfigError(f"pipeline {pipeline} has two roles called '{one_line(role.name)}'")
        kinds.append(role.name)


def _check_role(role: Role, pipeline: str) -> None:
    """Raises ConfigError for a declaration that would break an episode."""
    shown = f"pipeline {pipeline}, role {brief(role.name)}"
    check_name(role.name, f"{shown}: its name")
    for what in ("prompt", "feedback"):
        if not isinstance(getattr(role, what), Prompt):
            raise ConfigError(f"{shown}: its {what} must be a Prompt, as parse_prompt and load_prompt make one")
    for what in ("max_turns", "max_new_tokens"):
        if getattr(role, what) < 1:
            raise ConfigError(f"{shown}: its {what} must be 1 or more")
    if not isinstance(role.tools, (tuple, list)) or not all(isinstance(tool, str) for tool in role.tools):
        raise ConfigError(f"{shown}: its tools are a tuple of import paths, as in ('my_module:my_function',)")
    try:
        role_as_kept(role)
    except (ValueError, TypeError) as error:  # a run would be trained, and nobody could go on with it or read it
        raise ConfigError(f"{shown}: {error}") from error


def check_name(name: object, what: str) -> None:
    """Raises ConfigError for what could not be the name of a file: policies are folders of a checkpoint, and pipelines
    of prompts. what: what messages begin with."""
    plain = isinstance(name, str) and name.isprintable() and "/" not in name and not name.startswith(".")
    if not plain or not 0 < len(str(name).encode()) <= _LONGEST_NAME:
        raise ConfigError(f"{what} must be a plain name (it is {brief(name)})")


def _refuse_prompt_files(settings: PipelineConfig, pipeline: str) -> None:
    given = {
        "prompts": settings.prompts is not None,
        "partial_information": settings.partial_information,
        # "short" comes with the bundled model, without being asked for.
        "prompt_style": settings.prompt_style not in (PipelineConfig.model_fields["prompt_style"].default, "short"),
    }
    for key, is_given in given.items():
        if is_given:
            raise ConfigError(f"pipeline.{key}: the prompts of {pipeline} stand in its code, so that no file is read")


def with_swapped_policies(roles: Sequence[Role], names: str) -> tuple[Role, ...]:
    """The roles with the policies of two of them exchanged. names: two policies, as "a,b". Raises ConfigError."""
    known = policy_names(roles)
    pair = [name.strip() for name in names.split(",")]
    for name in pair:
        if name not in known:
            listed = ", ".join(known)
            raise ConfigError(
                f"--swap-policies {names}: no role plays with '{name}'{nearest(name, known)}; policies: {listed}"
            )
    if len(set(pair)) != 2:
        raise ConfigError(f"--swap-policies {names}: it takes two different policies, as a,b")
    other = {pair[0]: pair[1], pair[1]: pair[0]}
    return tuple(replace(role, policy=other.get(role.policy, role.policy)) for role in roles)


def _names(kind: str, count: int) -> list[str]:
    return [kind] if count == 1 else [f"{kind}_{number}" for number in range(1, count + 1)]


def _examples(prompt: Prompt) -> tuple[Example, ...]:
    entries = prompt.header.get("examples", [])
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and e.keys() == {"user", "assistant"} for e in entries
    ):
        raise ConfigError(
            f"prompt {prompt.name}: 'examples' must be a list of mappings with the keys user and assistant"
        )
    return tuple(Example(str(e["user"]).rstrip("\n"), str(e["assistant"]).rstrip("\n")) for e in entries)
