"""Writes a run's report.html: what was trained, whether it got better, what it cost, how it went, what agents did."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from shlex import quote

import jinja2
import numpy as np
from markupsafe import Markup

from coachrl.coach.base import is_import_path
from coachrl.config.algorithm import algorithm_label
from coachrl.report.agents import agent_colors
from coachrl.report.charts import Chart, Series, number
from coachrl.report.contents import Contents, EpisodeFile, read_contents
from coachrl.report.episodes import (
    PAIR_BYTES,
    PROBLEM_CHARACTERS,
    Shown,
    artifacts,
    choose,
    clear_failure,
    new_files,
    page_bytes,
    role_scores,
)
from coachrl.report.outcome import (
    behavior_rows,
    best_evaluation,
    changed_draws,
    conclusion,
    ends,
    nothing_learned,
    success_by_step,
    success_rows,
    table2_rows,
    unpaired,
)
from coachrl.report.rendering import cut, rendering_svg
from coachrl.runs.folder import Run
from coachrl.stats import Estimate
from coachrl.storage.atomic import write_aside
from coachrl.text import counted, dollars, one_line, printable
from coachrl.types import Episode

_MOST_OWN_MEASURES = 20  # of a team or an app that are drawn
_BRIEF = 300  # characters of an outcome at the head of the page
_TIMES = ("rollout", "coach", "reference", "update", "sync")


def write_report(run: Run, path: Path | None = None) -> Path:
    """The page at `path`, by default `<run>/report.html`, whole or not at all, from the run's folder alone.

    What the folder lacks, or another version wrote, is said on the page. Raises OSError where it cannot be written.
    """
    path = path or run.folder / "report.html"
    write_page(path, render(run))
    return path


def render(run: Run, link: str = "") -> str:
    """The page of a run. link: address of the pages that hold every episode, where there is a server for them."""
    problems: list[str] = []
    entries, total = choose(run, problems)
    contents = read_contents(run)
    contents = replace(contents, problems=list(dict.fromkeys([*contents.problems, *problems])))
    note = "" if len(entries) == total else f"The run has {total:,}; "
    if link:
        note += "the files below hold every one."
    elif note:
        note += f"coachrl view {quote(f'{run.folder.parent.name}/{run.folder.name}')} shows every one."
    colors = agent_colors(run, _role_names(contents, entries))
    context = _context(contents, colors) | {
        "entries": entries,
        "failure": clear_failure(entries),
        "models": contents.config.initial_models(_roles(contents).values()) if contents.config else [],
        "colors": colors,
        "note": note,
        "files": [path.stem for path in run.episode_files()] if link else [],
        "link": link,
    }
    return environment().get_template("page.html.j2").render(context)


def headline(run: Run) -> list[str]:
    """The run in one to six plain lines, for the terminal."""
    contents = read_contents(run)
    first, last = ends(contents)
    ending = [*filter(None, [nothing_learned(contents)]), *_cost_line(contents)]
    if first is None:
        return ["held-out success: not measured", *ending]
    row = success_rows(first, last)[0]
    estimates = [found for found in (row.before, row.after) if found is not None]
    line = "held-out success " + " -> ".join(found.interval() for found in estimates)
    lines = [f"{line} ({estimates[-1].size}; 95% intervals)"]
    if row.difference is not None:
        lines.append(f"paired difference {row.difference.interval(signed=True)}. {conclusion(row.difference)}")
    return [*lines, *filter(None, [unpaired(first, last), best_evaluation(contents)]), *ending]


def _context(contents: Contents, colors: Mapping[str, int]) -> dict[str, object]:
    first, last = ends(contents)
    successes = success_by_step(contents)
    charts = list(_charts(contents, successes, colors))
    rows = success_rows(first, last) if first else []
    return {
        "run": contents,
        "config": contents.config,
        "coach": contents.coach,
        "algorithm": algorithm_label(contents.config.algorithm) if contents.config else "",
        "roles": _roles(contents),
        "first": first,
        "last": last,
        "rows": rows,
        "conclusion": conclusion(rows[0].difference) if rows else None,
        "unpaired": unpaired(first, last) if first else "",
        "best": best_evaluation(contents),
        "nothing_learned": nothing_learned(contents),
        "table2": table2_rows(first, last) if first else [],
        "broken": _broken(contents.evaluations, (first, last)),
        "behavior": behavior_rows(first, last) if first else [],
        "cost": dict(_costs(contents)),
        "charts": [chart for chart in charts if chart.series],
        "not_drawn": [chart.title for chart in charts if not chart.series],
        "pairs": _pairs(first, last),
        "singles": _evaluated(first) if last is None and first else [],
    }


def _broken(evaluations: Sequence[EpisodeFile], ends: Sequence[EpisodeFile | None]) -> list[tuple[str, int]]:
    """How many episodes broke, of the evaluations that are compared and of those of which all did."""
    counts = [(e, len(e.episodes) - len(e.valid)) for e in evaluations]
    return [(e.name, count) for e, count in counts if count and (e in ends or not e.valid)]


@cache  # compiling a page takes as long as filling it
def environment() -> jinja2.Environment:
    environment = page_environment(Path(__file__).parent)
    environment.filters.update(
        number=number,
        cut=cut,
        artifacts=artifacts,
        role_scores=role_scores,
        new_files=new_files,
        brief=partial(one_line, limit=_BRIEF),
        rendering=rendering_svg,
    )
    script = (Path(__file__).parent / "filters.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        problem_characters=PROBLEM_CHARACTERS, script=Markup(script), script_hash=f"sha256-{digest}"
    )
    return environment


def page_environment(*folders: Path) -> jinja2.Environment:
    """Templates of offline pages. Everything is escaped, since what agents and coaches wrote is hostile."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(counted=counted)
    return environment


def _printable(value: object) -> object:
    """Text without what would turn round, hide or colour the words after it; markup is made of such text already."""
    return printable(value) if type(value) is str else value


def write_page(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises OSError."""
    # What agents wrote may hold halves of characters, which UTF-8 has no place for.
    write_aside(path, text.encode("utf-8", "replace").decode("utf-8"))


def _roles(contents: Contents) -> dict[str, str]:
    """Role -> policy as the episodes have it, in order of appearance."""
    files = [*contents.training, *contents.evaluations]
    return {action.role: action.policy for f in files for episode in f.episodes for action in episode.actions}


def _role_names(contents: Contents, entries: Sequence[Shown]) -> list[str]:
    """Every role that the page shows."""
    return list(dict.fromkeys([*_roles(contents), *(a.role for shown in entries for a in shown.episode.actions)]))


def _charts(contents: Contents, successes: Mapping[int, Estimate], colors: Mapping[str, int]) -> Iterator[Chart]:
    """Every figure of the page; one without series has no data."""
    by_suffix = partial(_by_suffix, contents, colors)
    n = "a step's episodes"
    if contents.config is not None:
        training = contents.config.train
        n = counted(training.tasks_per_step * training.group_size, "episode") + " a step"
    actions, tokens = f"mean over a role's actions; {n}", f"mean over a policy's trained tokens; {n}"
    share = (0.0, 1.0)
    scores, rewards = by_suffix("coach/score/"), by_suffix("train/reward/")
    yield _success_chart(contents, successes, n)
    yield from _own_measures(contents, n)
    yield Chart("Coach score", scores, f"{actions}; scale 0 to 10", y_range=(0.0, 10.0))
    if not _alike(rewards, scores):
        yield Chart("Reward", rewards, actions)
    yield Chart("Response length", by_suffix("behavior/response_tokens/"), actions, "tokens")
    yield Chart("Replies that ended by themselves", by_suffix("behavior/finish_rate/"), actions, y_range=share)
    yield Chart("Replies with a code block", by_suffix("behavior/code/"), actions, y_range=share)
    yield Chart("Replies whose code ran", by_suffix("behavior/code_success_rate/"), actions, y_range=share)
    yield Chart("KL to the initial model", by_suffix("train/ref_kl/"), tokens, "nats per token")
    yield Chart("Clipped tokens", by_suffix("train/clip_fraction/"), tokens, "share")
    yield Chart("Gradient norm", by_suffix("train/grad_norm/"), f"by policy, before clipping; {n}")
    yield Chart("Actions left out of the update", by_suffix("train/masked/"), f"number by reason; {n}")
    calls = f"over a step's coach calls; {n}"
    yield Chart("Failed coach calls", _named(contents, {"share": "coach/failed_fraction"}), calls, y_range=share)
    yield Chart("Coach latency", _named(contents, {"mean": "coach/latency_s"}), calls, "s")
    times = _named(contents, {name: f"time/{name}_s" for name in _TIMES})
    yield Chart("Time of a step", times, f"stacked; {n}", "s", stacked=True)


def _success_chart(contents: Contents, successes: Mapping[int, Estimate], n: str) -> Chart:
    series = []
    counts = []
    if trained := contents.series("train/success"):
        series.append(Series("training", trained))
        counts.append(f"training: {n}")
    if successes:
        intervals = {float(step): e.bounds for step, e in successes.items() if e.low is not None}
        points = [(float(step), e.value) for step, e in successes.items()]
        series.append(Series("held-out", points, 1, intervals))
        counts.append(f"held-out: {next(iter(successes.values())).size}, 95 % intervals over tasks")
    elif evaluated := contents.series("eval/success"):
        series.append(Series("held-out", evaluated, 1, {}))
        counts.append("held-out: from metrics.jsonl, without intervals")
    return Chart("Success", series, "; ".join(counts), "share", y_range=(0.0, 1.0))


def _own_measures(contents: Contents, n: str) -> Iterator[Chart]:
    """What a team or an app of somebody's own measures of an episode (`Outcome.metrics`), the first twenty, each on
    its own scale, but for the success by another name."""
    pipeline = contents.config.pipeline.name if contents.config is not None else ""
    if not is_import_path(pipeline) and pipeline != "gateway":
        return
    success = _named(contents, {"training": "train/success", "held-out": "eval/success"})
    files = (*contents.training, *contents.evaluations)
    names = dict.fromkeys(name for file in files for episode in file.episodes for name in episode.outcome.metrics)
    own = [name for name in names if not name.startswith("external/")]
    for name in own[:_MOST_OWN_MEASURES]:
        lines = _named(contents, {"training": f"train/{name}", "held-out": f"eval/{name}"})
        if not _alike(lines, success):
            yield Chart(one_line(name), lines, f"mean over episodes; training: {n}")


def _by_suffix(contents: Contents, colors: Mapping[str, int], prefix: str) -> list[Series]:
    """One line for each role, policy or reason; a role has its color on all pages."""
    keys = dict.fromkeys(key for metrics in contents.steps.values() for key in metrics if key.startswith(prefix))
    lines = _named(contents, {key.removeprefix(prefix): key for key in keys})
    return [replace(line, number=colors[line.name], of_agent=True) if line.name in colors else line for line in lines]


def _alike(some: Sequence[Series], others: Sequence[Series]) -> bool:
    """Whether lines are the same but for the order in which their means were summed."""
    return [line.name for line in some] == [line.name for line in others] and all(
        len(a.points) == len(b.points) and np.allclose(a.points, b.points) for a, b in zip(some, others, strict=True)
    )


def _named(contents: Contents, keys: dict[str, str]) -> list[Series]:
    found = [(name, points) for name, key in keys.items() if (points := contents.series(key))]
    return [Series(name, points, number) for number, (name, points) in enumerate(found)]


def _costs(contents: Contents) -> Iterator[tuple[str, str]]:
    """What the run cost as (name, value with its unit and n)."""
    steps = contents.trained_steps
    sums: tuple[tuple[str, str, Callable[[float], str], str], ...] = (
        ("Training time", "time/step_s", _duration, "step"),
        ("Evaluation time", "time/eval_s", _duration, "evaluation"),
        ("Tokens generated", "tokens/generated", "{:,.0f}".format, "training step"),
        ("Coach calls", "coach/calls", "{:,.0f}".format, "training step"),
    )
    for name, key, form, noun in sums:
        if values := _total(contents, key):
            yield name, f"{form(sum(values))} in {counted(len(values), noun)}"
    known = _total(contents, "cost/usd")
    if known:
        text = f"{dollars(sum(known))} in {counted(len(known), 'training step')}"
        unpriced = len(steps) - len(known)
        yield "Coach spend", text if unpriced <= 0 else f"at least {text}; the price of {unpriced} more is not known"
    elif steps:
        yield "Coach spend", "not known"
    for name, key, noun in (
        ("External models", "external", "training step"),
        ("Reference set", "reference_set", "audit"),
    ):
        if calls := _total(contents, f"cost/{key}/calls"):
            usd = _total(contents, f"cost/{key}/usd")
            spent = dollars(sum(usd)) if len(usd) == len(calls) else "at a price that is not known"
            yield name, f"{sum(calls):,.0f} calls, {spent}, in {counted(len(calls), noun)}"


def _cost_line(contents: Contents) -> list[str]:
    costs = [f"{name.lower()} {value}" for name, value in _costs(contents)]
    return ["; ".join(costs)] if costs else []


def _total(contents: Contents, key: str) -> list[float]:
    return [value for _, value in contents.series(key)]


def _pairs(first: EpisodeFile | None, last: EpisodeFile | None) -> list[tuple[str, Shown, Shown]]:
    if first is None or last is None:
        return []

    def shown(before: Episode, after: Episode) -> tuple[Shown, Shown]:
        return Shown("before", first.name, before, {}), Shown("after", last.name, after, {})

    def fits(before: Episode, after: Episode) -> bool:
        return sum(map(page_bytes, shown(before, after))) <= PAIR_BYTES

    return [(why, *shown(before, after)) for why, before, after in changed_draws(first, last, fits)]


def _evaluated(evaluation: EpisodeFile) -> list[Shown]:
    """One success and one failure of the only evaluation: of each the first that is not too long for the page."""
    found: list[Shown] = []
    for why, success in (("a success", True), ("a failure", False)):
        shown = (
            Shown(why, evaluation.name, e, evaluation.scores) for e in evaluation.valid if e.outcome.success is success
        )
        found += islice((one for one in shown if page_bytes(one) <= PAIR_BYTES), 1)
    return found


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
