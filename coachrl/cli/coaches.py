"""`coachrl coaches`: the prompts that ship, one action before a coach, and the lint of rubrics."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coachrl.cli.console import Rows, err, out, print_json, print_table, print_text
from coachrl.cli.options import Coach, CoachBase, CoachOverrides, ConfigOption, ConfigOptions, Json
from coachrl.errors import ConfigError
from coachrl.text import counted, printable

if TYPE_CHECKING:
    from coachrl.coach.rubric.lint import Baseline, Row
    from coachrl.commands.try_coach import CoachAnswer, SavedAction
    from coachrl.config import CoachConfig
    from coachrl.types import CoachScore

coaches_app = typer.Typer(help="Look at coaches and their prompts, try and lint them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="rules, a name from `coaches list`, or a prompt file")]
FINDINGS_EXIT_CODE = 3
_NO_MODEL = "the run's coach is no single language model; name one with --coach"


@coaches_app.command("list")
def list_coaches(as_json: Json = False) -> None:
    """List the rules coach and the prompts that ship."""
    from coachrl.coach.prompt_rendering import load_coach_prompt, shipped_prompts, use_of

    about_rules = "MAPPA's rubric as code: free, offline, deterministic"
    rows: list[dict[str, Any]] = [{"name": "rules", "use": "score", "about": about_rules}]
    for name, path in shipped_prompts().items():
        prompt = load_coach_prompt(path, use=None)
        rows.append(
            {
                "name": name,
                "use": use_of(prompt),
                "about": prompt.header.get("about", ""),
                "categories": prompt.header.get("categories", []),
                "fields": sorted(prompt.fields),
                "sha256": prompt.sha256,
            }
        )
    if as_json:
        print_json(rows)
        return
    table = Rows("name", "use", "about")
    for row in rows:
        table.add(row["name"], row["use"], row["about"])
    print_table(table)


@coaches_app.command()
def show(name: Name) -> None:
    """Print a coach prompt with its header, or the table of the rules."""
    if name == "rules":
        from coachrl.coach.rubric import rules

        out.print(inspect.getdoc(rules))
        return
    from coachrl.coach.prompt_rendering import find_prompt_file
    from coachrl.storage.files import at_home, read_text

    file = find_prompt_file(at_home(name))
    print_text(printable(read_text(file, f"prompt file {file}")))


@coaches_app.command("try")
def try_one(
    name: Name,
    action: Annotated[str, typer.Option("--action", help="RUN#NUMBER (from 1) or RUN#ID, e.g. runs/latest#12")],
    overrides: CoachOverrides = None,
    coach: Coach = None,
    coach_api_base: CoachBase = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Render the prompt, and ask nobody.")] = False,
    as_json: Json = False,
) -> None:
    """Put one action of a saved run before a coach: prints what it is asked, what it says, and what that costs.

    The model is --coach, or the run's own; where that is none, the prompt is shown and nobody is asked."""
    from coachrl.coach.base import is_import_path
    from coachrl.coach.prompt_rendering import render_request, use_of
    from coachrl.commands.configure import rescore_config
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.commands.try_coach import find_action, find_prompt, request_of, try_coach

    prompt = None if name == "rules" or is_import_path(name) else find_prompt(name)
    if prompt is None and (coach is not None or coach_api_base is not None):
        raise ConfigError(f"--coach and --coach-api-base say which model reads a prompt, and {name} is none")
    saved = find_action(action)
    config = rescore_config(saved.run, overrides or [], {})
    request = request_of(saved, config, retrospective=prompt is not None and use_of(prompt) == "retrospective")
    own = config.coach
    settings = own if prompt is None else _with_model(own, coach, coach_api_base)
    if settings is None and as_json and not dry_run:
        raise ConfigError(f"there is no score to print: {_NO_MODEL}")
    if dry_run or settings is None:
        out.print(render_request(prompt, request, own.evidence) if prompt is not None else f"{name} reads no prompt")
        if settings is None and not dry_run:
            err.print(f"nobody was asked: {_NO_MODEL}")
        return
    answer = run_in_loop(try_coach(name, saved, request, settings))
    if as_json:
        print_json({"score": dataclasses.asdict(answer.score), "calls": answer.calls})
    else:
        _print_answer(answer, saved)
    if answer.score.status == "failed":
        raise typer.Exit(1)


@coaches_app.command()
def lint(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="rules, names or files; default: all that ship")
    ] = None,
    config: ConfigOption = None,
    as_json: Json = False,
) -> None:
    """Score constant predictions and idle code under each rubric's caps, and report which task kind is favoured.

    With --config, on the tabular tasks of that config in place of drawn ones. Exits with 3 where there is a finding."""
    from coachrl.coach.prompt_rendering import load_coach_prompt, shipped_prompts, use_of
    from coachrl.coach.rubric.lint import findings

    if not names:
        names = ["rules", *(n for n, p in shipped_prompts().items() if use_of(load_coach_prompt(p, None)) == "score")]
    baselines = _baselines(config)
    rows = {name: _lint_one(name, baselines) for name in names}
    found = {name: findings(its) for name, its in rows.items()}
    if as_json:
        plain = [{**dataclasses.asdict(row), "mean": row.mean} for its in rows.values() for row in its]
        print_json({"scores": plain, "findings": found})
    else:
        _print_lint([row for its in rows.values() for row in its], found)
    if any(found.values()):
        raise typer.Exit(FINDINGS_EXIT_CODE)


def _with_model(own: CoachConfig, coach: str | None, api_base: str | None) -> CoachConfig | None:
    """The run's settings, with the model that is to be asked; None where neither names one."""
    from coachrl.coach.base import is_language_model

    name = coach or (own.name if not own.ensemble else "rules")
    if not is_language_model(name):
        return None
    base = api_base or (own.api_base if coach is None else None)
    return own.model_copy(update={"name": name, "api_base": base, "ensemble": ()})


def _print_answer(answer: CoachAnswer, saved: SavedAction) -> None:
    score = answer.score
    for call in answer.calls:
        out.rule(f"asked of {call['model']}", align="left")
        out.print(call["messages"][-1]["content"])
        out.rule("its reply" if call["reply"] else "no reply", align="left")
        out.print(call["reply"] or call["error"])
    out.rule("verdict", align="left")
    if not answer.calls or score.status == "failed":
        out.print(score.rationale)
    out.print(f"{saved.action.id}, {saved.action.role}: {_given(score)}")
    if saved.score is not None:
        out.print(f"in the run: {_given(saved.score)}, by {saved.score.model}")
    usage = score.usage
    cost = "unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    out.print(
        f"{counted(len(answer.calls), 'call')}, {usage.tokens_in} tokens in, {usage.tokens_out} out "
        f"({usage.tokens_thinking} of them thinking), cost {cost}, {usage.latency_s:.1f} s"
    )


def _given(score: CoachScore) -> str:
    """'7.5', '7.5, contribution -4', or the status of what is no number."""
    shown = [] if score.process_0_10 is None else [f"{score.process_0_10:g}"]
    return ", ".join([*shown, *score.remarks]) or score.status


def _baselines(config: str | None) -> list[Baseline]:
    from coachrl.coach.rubric.lint import drawn_baselines, task_baselines
    from coachrl.tasks import load_tasks

    if config is None:
        return drawn_baselines()
    resolved = ConfigOptions(config=config).resolve()
    baselines = task_baselines(task for split in load_tasks(resolved) for task in split)
    if not any(baseline.shape for baseline in baselines):
        raise ConfigError(f"--config {config}: its tasks are not tabular, so there is no constant to predict")
    return baselines


def _lint_one(name: str, baselines: list[Baseline]) -> list[Row]:
    from coachrl.coach.prompt_rendering import find_coach_prompt
    from coachrl.coach.rubric.lint import lint_prompt, lint_rules
    from coachrl.storage.files import at_home

    return lint_rules(baselines) if name == "rules" else lint_prompt(find_coach_prompt(at_home(name), None), baselines)


def _cell(row: Row | None) -> str:
    """'7.8 (6 to 9)': the mean over the shapes of the targets, and its range."""
    if row is None:
        return ""
    low, high = min(row.scores.values()), max(row.scores.values())
    return f"{row.mean:.1f}" if low == high else f"{row.mean:.1f} ({low:g} to {high:g})"


def _print_lint(rows: list[Row], found: dict[str, list[str]]) -> None:
    categories = list(dict.fromkeys(row.category for row in rows))
    table = Rows("coach", "without any skill", *categories)
    for coach, baseline in dict.fromkeys((row.coach, row.baseline) for row in rows):
        cells = {row.category: row for row in rows if (row.coach, row.baseline) == (coach, baseline)}
        table.add(coach, baseline, *(_cell(cells.get(category)) for category in categories))
    print_table(table)
    out.print()
    for name, sentences in found.items():
        for sentence in sentences or ["no finding"]:
            out.print(f"{name}: {sentence}")
