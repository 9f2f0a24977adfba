"""`coachrl audit`: whether a coach can be trusted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coachrl.cli.console import err, out, print_text
from coachrl.cli.options import CoachOptions, page_in, path_argument, path_option, takes_groups
from coachrl.errors import ConfigError

if TYPE_CHECKING:
    from coachrl.audit.audit import Audit
    from coachrl.audit.probes.asked import Asked
    from coachrl.audit.probes.asking import ProbeSettings
    from coachrl.audit.probes.replay import ReplayFidelity
    from coachrl.coach.clients.cost_estimate import CostEstimate

_THRESHOLD_CROSSED = 3
_NOBODY_IS_ASKED = (
    "--coach, --coach-prompt, --coach-api-base and --yes say who is asked: add --probe N or --fault-localization N"
)

_MADE_UP = "--self-test makes its own scores: name no runs with it, and no option but --repeats and --seed"

Runs = Annotated[list[Path] | None, path_argument(metavar="RUN…", help="Run folders, e.g. runs/latest")]
From = Annotated[
    str | None, typer.Option("--from", help="The paths are files of another trainer: trl, verifiers, art or jsonl")
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="With --from: field=column, as score=judge_reward; see docs/audit.md"),
]
Scale = Annotated[
    str | None, typer.Option("--scale", help="With --from: the scores that count as 0 and as 10 of 10; default: 0:1")
]
Html = Annotated[Path | None, path_option("--html", help="The page; default: audit.html in the first run's folder")]
JsonFile = Annotated[Path | None, path_option("--json", help="All figures as JSON; '-' prints them and nothing else")]
FailOn = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-on", help="Exit with 3 where this topic has a warning, no figure, or crosses a limit: category=0.5, any"
    ),
]
Resamples = Annotated[
    int | None, typer.Option("--resamples", min=100, max=100_000, help="Bootstrap resamples of tasks; default: 1000")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Fixes every random choice")]
Probe = Annotated[
    int, typer.Option("--probe", min=0, help="Ask a coach about so many saved actions again, changed in style alone")
]
FaultLocalization = Annotated[
    int,
    typer.Option(
        "--fault-localization",
        min=0,
        help="Plant so many faults in the run's pipeline, and ask a coach about each beside the team without it",
    ),
]
Replay = Annotated[
    int,
    typer.Option(
        "--replay",
        min=0,
        help="Play so many scored actions of the first run again with other replies in their place, and hold the "
        "scores against what they were worth; an interrupted one goes on",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Make the calls of --probe and --fault-localization without asking")]
Calibrate = Annotated[
    Path | None,
    path_option("--calibrate", help="Write a file for coach.calibration: the coach's scores on people's scale"),
]
SelfTest = Annotated[
    bool, typer.Option("--self-test", help="Plant known biases in made-up scores; print how many are found")
]
Repeats = Annotated[
    int | None, typer.Option("--repeats", min=2, help="With --self-test: made-up runs of each condition; default: 20")
]


@takes_groups
def audit(
    coach: CoachOptions,
    runs: Runs = None,
    source: From = None,
    columns: Columns = None,
    scale: Scale = None,
    html: Html = None,
    json_file: JsonFile = None,
    fail_on: FailOn = None,
    resamples: Resamples = None,
    seed: Seed = 0,
    probe: Probe = 0,
    fault_localization: FaultLocalization = 0,
    replay: Replay = 0,
    yes: Yes = False,
    calibrate: Calibrate = None,
    self_test: SelfTest = False,
    repeats: Repeats = None,
) -> None:
    """Ask whether a coach is fair, is right and is being gamed: one page, JSON and plain verdicts from its scores."""
    from coachrl.audit.audit import audit_runs
    from coachrl.audit.probes.asking import ProbeSettings
    from coachrl.audit.thresholds import crossed, parse_threshold

    if self_test:
        of_runs = (runs, source, columns, scale, html, json_file, fail_on, resamples, calibrate)
        if any(of_runs) or probe or fault_localization or replay or yes or coach.given:
            raise ConfigError(_MADE_UP)
        _self_test(repeats or 20, seed)
        return
    if repeats is not None:
        raise ConfigError("--repeats is of made-up runs: add --self-test")
    resamples = resamples or 1000
    thresholds = [parse_threshold(text) for text in fail_on or ()]
    if not runs:
        raise ConfigError("name at least one run folder: coachrl audit runs/latest")
    _check_places(html, json_file, calibrate)
    if (coach.given or yes) and not (probe or fault_localization):
        raise ConfigError(_NOBODY_IS_ASKED)
    runs = _imported(runs, source, columns, scale)
    page = html or page_in(runs[0], "audit.html")
    found = audit_runs(runs, resamples, seed)
    wanted = ProbeSettings(probe, fault_localization, resamples, seed)
    found = _with_measured(found, runs[0], wanted, coach, yes, replay)
    _write(found, page, json_file)
    if calibrate is not None:
        _calibrate(runs, calibrate)
    if reasons := crossed(found.verdicts, thresholds):
        for reason in reasons:
            err.print(f"failed on {reason}")
        raise typer.Exit(_THRESHOLD_CROSSED)


def _check_places(*places: Path | None) -> None:
    """Raises ConfigError where a file that is to be written cannot stand, before anything is counted."""
    from coachrl.storage.atomic import check_place

    for place in places:
        if place is not None and place != Path("-"):
            check_place(place)


def _imported(paths: list[Path], source: str | None, columns: list[str] | None, scale: str | None) -> list[Path]:
    """The run folders: `paths`, or what was made of the files of another trainer that they are."""
    if source is None:
        if columns or scale:
            raise ConfigError("--column and --scale are of another trainer's file: add --from trl|verifiers|art|jsonl")
        return paths
    from coachrl.audit.data.imported import import_scores, import_settings

    settings = import_settings(source, columns or (), scale or "0:1")
    return [import_scores(file, settings, Path("runs")) for file in paths]


def _write(found: Audit, page: Path, json_file: Path | None) -> None:
    from coachrl.audit.report.page import as_html, as_json, lines
    from coachrl.report.page import write_page

    write_page(page, as_html(found))
    if json_file == Path("-"):
        print_text(as_json(found).rstrip("\n"))
        return
    if json_file is not None:
        write_page(json_file, as_json(found))
    for line in [*lines(found), f"page: {page}"]:
        out.print(line)


def _calibrate(folders: list[Path], place: Path) -> None:
    """From people's scores of one run's actions. On the standard error, where the audit's JSON may have the output."""
    from coachrl.audit.data.frame import read_audit_data
    from coachrl.audit.stats.people import fit_calibration
    from coachrl.report.page import write_page
    from coachrl.runs.folder import Run

    if len(folders) > 1:
        raise ConfigError("--calibrate fits the coach of one run: name one run folder")
    fitted = fit_calibration(Run.open(folders[0]), read_audit_data(folders))
    write_page(place, fitted.model_dump_json(indent=1) + "\n")
    for role, curve in fitted.roles.items():
        worse = "" if curve.error_calibrated < curve.error_as_given else "; no better than the scores as they are"
        if curve.people[0] == curve.people[-1]:  # without a spread there is nothing to learn from
            worse += f"; flat: every action would get {curve.people[0]:.2g}, whatever the coach gave"
        err.print(
            f"{role}: mean absolute error against people {curve.error_as_given:.2f} points as given, "
            f"{curve.error_calibrated:.2f} calibrated, on tasks left out ({curve.actions} actions, {curve.tasks} tasks)"
            f"{worse}"
        )
    err.print(f"calibration: {place}; use it with coach.calibration={place}")


def _with_measured(
    found: Audit, folder: Path, wanted: ProbeSettings, coach: CoachOptions, yes: bool, replay: int
) -> Audit:
    """The audit with what `replay` actions were worth, and with what a coach was asked. The yes comes first, then what
    takes hours and is kept, and then what is paid for, and lost where a later part fails."""
    from coachrl.audit.audit import with_asked, with_replayed
    from coachrl.audit.probes.replay import last_checkpoint
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.runs.folder import Run

    replayed: list[ReplayFidelity] = []

    async def play_again() -> None:
        if replay:
            replayed.append(await _replay(folder, replay, wanted.resamples, wanted.seed))

    if replay:
        last_checkpoint(Run.open(folder))  # nobody is asked for a yes where it is missing
    asked: Asked | None = None
    if wanted.probe_actions or wanted.faults:
        asked = _ask(folder, wanted, coach, yes, play_again)
    elif replay:
        run_in_loop(play_again())
    for fidelity in replayed:
        found = with_replayed(found, fidelity)
    return found if asked is None else with_asked(found, asked)


def _ask(
    folder: Path, wanted: ProbeSettings, coach: CoachOptions, yes: bool, meanwhile: Callable[[], Awaitable[None]]
) -> Asked:
    """The first run's coach, or the one that is named, is asked. Replies are not cached: a coach asked twice must
    answer twice. meanwhile: as for `ask_coach`."""
    from coachrl.audit.probes.asking import ask_coach
    from coachrl.commands.build import make_coach_pool
    from coachrl.commands.event_loop import run_in_loop
    from coachrl.runs.folder import Run
    from coachrl.runs.locks import locked
    from coachrl.runs.reading import check_played

    run = Run.open(folder)
    check_played(run)
    flags = coach.of_a_saved_run() | {"coach.cache": "none"}
    config = run.config((), flags)
    ledger = run.folder / "coach" / "audit.jsonl"
    with locked(run.folder / "audit.lock", "asking a coach for an audit"):  # two at once would have two budgets
        return run_in_loop(ask_coach(run, config, wanted, ledger, _agreement(yes), make_coach_pool, meanwhile))


async def _replay(folder: Path, count: int, resamples: int, seed: int) -> ReplayFidelity:
    """The run's fidelity. Its own weights play, and no coach is asked."""
    from coachrl.commands.replay import replay_run
    from coachrl.runs.folder import Run

    run = Run.open(folder)

    def on_progress(done: int, total: int) -> None:
        err.print(f"replayed {done} of {total} actions")

    return await replay_run(run, count, resamples, seed, on_progress)


def _agreement(yes: bool) -> Callable[[CostEstimate], None]:
    def agreed(cost: CostEstimate) -> None:
        err.print(f"this audit asks: {cost}")
        if yes or cost.is_free:
            return
        if not err.is_terminal:
            raise ConfigError("calls that may cost money need a yes: add --yes")
        if not typer.confirm("go on?", err=True):
            raise typer.Exit(0)

    return agreed


def _self_test(repeats: int, seed: int) -> None:
    from coachrl.audit.selftest.selftest import TABLE_HEAD, self_test, table_line

    out.print(TABLE_HEAD)
    for result in self_test(repeats, seed=seed):
        out.print(table_line(result))
