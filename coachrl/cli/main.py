"""The command line: a table of its commands. Each has a file of its own, which parses, calls and prints."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from coachrl import __version__
from coachrl.cli.audit import audit
from coachrl.cli.catalogue import config_app, configs_app, pipelines_app
from coachrl.cli.checkpoints import checkpoints_app
from coachrl.cli.coaches import coaches_app
from coachrl.cli.compare import compare_runs
from coachrl.cli.console import ConsoleHandler, err, has_no_size, print_error, waiting
from coachrl.cli.doctor import doctor
from coachrl.cli.eval import evaluate
from coachrl.cli.export import export
from coachrl.cli.label import label_app
from coachrl.cli.report import report
from coachrl.cli.rescore import rescore
from coachrl.cli.rollout import rollout
from coachrl.cli.runs import runs_app
from coachrl.cli.serve import serve
from coachrl.cli.sft import sft
from coachrl.cli.tasks import tasks_app
from coachrl.cli.train import train
from coachrl.cli.uncaught import uncaught_told_without_keys
from coachrl.cli.view import view
from coachrl.errors import CoachrlError, ConfigError, GoesOnElsewhere
from coachrl.resources import code_goes_on, engine_hangs
from coachrl.text import logged, nearest

_UsageError: Any = typer.BadParameter.__mro__[1]
"""Of the Click that this Typer stands on, which is a package, or a part of Typer itself."""


_HELP = frozenset({"--help", "-h"})


class _Verbs(TyperGroup):
    """Shows its help where no verb is given, and a verb's also where an option before `--help` waits for its value.
    Names the verbs that begin like a mistyped one, or else the nearest."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        given = args[0]
        if given not in self.commands:
            ctx.fail(f"no command {given!r}{self._meant(ctx, given)}")
        name, verb, rest = super().resolve_command(ctx, args)
        own = rest[: rest.index("--")] if "--" in rest else rest
        for word in (word.partition("=")[0] for word in own if word.startswith("-")):
            if f"-{word}" in _options_of(verb):  # Click takes `-config x` for -c onfig
                ctx.fail(f"no option '{word}', did you mean '-{word}'?")
        files = [word for word in own if word.partition("=")[0] == "--config" or word.startswith("-c")]
        if len(files) > 1:  # the last would count alone
            raise ConfigError("--config is given twice: name one file, and what differs from it as key.sub=value")
        return name, verb, ["--help"] if _HELP & {*own} and not isinstance(verb, TyperGroup) else rest

    def _meant(self, ctx: Any, given: str) -> str:
        from coachrl.config.called_elsewhere import COMMANDS  # whose package takes long to import

        begun = [name for name in self.commands if given and name.startswith(given)]
        if ctx.parent is None and given in COMMANDS:
            begun.insert(0, f"coachrl {COMMANDS[given]}")
        if begun:
            return f", did you mean {' or '.join(map(repr, begun))}?"
        return nearest(given, self.commands) or ("" if ctx.parent is None else f": there is {', '.join(self.commands)}")

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Click would take it for that of the output, and end without a word. The console has seen to that one: this
            # is of a program or a server that code of the user's own talks to.
            print_error(error)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Verbs,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    help="Train teams of language-model agents with process rewards from a coach.",
)

# In the order in which `--help` shows them: what makes runs, what looks at them, what goes on from them.
VERBS: dict[str, Callable[..., None]] = {
    "train": train,
    "eval": evaluate,
    "rollout": rollout,
    "sft": sft,
    "report": report,
    "view": view,
    "compare": compare_runs,
    "audit": audit,
    "rescore": rescore,
    "export": export,
    "serve": serve,
    "doctor": doctor,
}
GROUPS = {
    "runs": runs_app,
    "tasks": tasks_app,
    "coaches": coaches_app,
    "checkpoints": checkpoints_app,
    "pipelines": pipelines_app,
    "configs": configs_app,
    "config": config_app,
    "label": label_app,
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "train": (
        "coachrl train --config quickstart --dry-run",
        "coachrl train --pipeline dsbench --coach gemini-2.5-pro tasks.root=data",
        "coachrl train --model tiny-random --steps 1     tries everything in seconds",
        "coachrl train --resume runs/latest",
        "coachrl configs list, coachrl pipelines list and coachrl coaches list say what there is",
    ),
    "eval": (
        "coachrl eval --run runs/latest",
        "coachrl eval --run runs/latest --checkpoint best",
        "coachrl eval --config quickstart",
    ),
    "audit": (
        "coachrl audit runs/latest",
        "coachrl audit --from trl out/scores.jsonl --column score=judge_reward",
        "coachrl audit runs/latest --probe 50 --coach gemini-2.5-pro     asks, after a yes",
    ),
    "rescore": (
        "coachrl rescore runs/latest --coach gemini-2.5-pro --sample 200",
        "coachrl rescore runs/latest --repeat 1     the run's own coach once more: how stable is it?",
    ),
    "export": (
        "coachrl export runs/latest --format dpo --out dpo.jsonl --role verifier",
        "coachrl export runs/latest --format hub --out models/team",
    ),
}
for name, verb in VERBS.items():
    epilog = "\n\n".join(("Examples:", *EXAMPLES[name])) if name in EXAMPLES else None
    app.command(name, epilog=epilog)(verb)
for name, group in GROUPS.items():
    app.add_typer(group, name=name, cls=_Verbs)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show informational log records.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version and stop.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    handler = ConsoleHandler()
    logger = logging.getLogger("coachrl")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    handler.setLevel(logging.INFO if verbose else logging.WARNING)
    if not _HELP & {*sys.argv}:  # which is printed past our own console
        Path.cwd()  # where it is gone, some libraries would end the process in the middle of what it does
        waiting.start(f"{context.command_path} {context.invoked_subcommand}")
        context.call_on_close(waiting.stop)


def _usage_line(error: Any) -> str:
    """What is wrong with how a command was typed, in one line, with the nearest name."""
    option = getattr(error, "option_name", None)
    words = error.format_message().rstrip(".")
    if option is not None and words.lower().startswith("no such option"):
        meant = _option_meant(option, error.ctx) if error.ctx is not None else ""
        close = [other for other in error.possibilities or () if other != "--help"]
        words = f"no option '{option}'{meant or nearest(option, close)}"
    if error.ctx is None:
        return str(words)
    path = error.ctx.command_path
    return f"{path}: {words} ({path} --help says what there is)"


def _option_meant(option: str, context: Any) -> str:
    """What is said behind an option that the command does not have: how to write the setting that stands in the form of
    one (`--lr`), or where another command has it; empty where nothing is known."""
    from coachrl.config.called_elsewhere import behind
    from coachrl.config.explain import setting_called  # which takes longer to import than help does to be shown

    name = option.strip("-")
    there = _options_of(context.command)
    if f"-{name}" in there:
        return f", did you mean '-{name}'?"
    if context.parent is None and option in _options_of(context.command.commands["train"]):
        return f": options of a command stand behind it, as in coachrl train {option}"
    if option in _options_of(context.find_root().command):
        return f": it stands before the command, as in coachrl {option} {context.command_path.partition(' ')[2]}"
    setting = setting_called(name.replace("-", "_"))
    for form in (setting.replace(".", "-"), setting.removesuffix(".name").rpartition(".")[2]):
        if (known := f"--{form.replace('_', '-')}") in there:
            return f", did you mean '{known}'?"
    takes = {parameter.name for parameter in context.command.params}
    if "config" in takes or ("overrides" in takes and setting.startswith("coach.")):
        return behind(setting) if " " in setting else f": as a setting it is {setting}=VALUE" if setting else ""
    return behind(setting) if "--verbose" in setting else ""


def _options_of(command: Any) -> list[str]:
    return [option for parameter in command.params for option in parameter.opts]


def main() -> None:
    """Entry point. Exit codes: 0 done, 1 the run failed, 2 wrong usage or configuration, 3 an audit threshold."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        # What a terminal's encoding lacks (an ellipsis in Latin-1) is spelled out: it would end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with uncaught_told_without_keys():
            _run()
    except SystemExit as end:
        if engine_hangs() or code_goes_on():
            _end_now(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _open_missing_streams() -> None:
    """A command that is started without its standard streams, as some schedulers do, prints into nothing. The next file
    that it opened would get their numbers, and with them what it and its programs print."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  open as long as the process is


def _end_now(code: int) -> NoReturn:
    """Without the libraries' own last words: what waits for a card that hangs, when a process ends, waits for ever."""
    _write_out()
    os._exit(code)


def _go_on_elsewhere(rest: GoesOnElsewhere) -> NoReturn:
    """The rest of a run takes this process's place, and its number, with nothing of it left: no thread, no memory of a
    GPU, no file but the standard streams."""
    verbose = ["--verbose"] * any(handler.level == logging.INFO for handler in logging.getLogger("coachrl").handlers)
    words = ["train", "--resume", str(rest.folder), "--restarted", str(rest.restarts)]
    # Packages are looked for where they were: `-m` would look into the current folder first.
    places = [place for place in sys.path if isinstance(place, str)]
    program = f"import sys; sys.path[:] = {places!r}; from coachrl.cli.main import main; main()"
    flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
    _write_out()
    # The system closes them: threads of libraries still use theirs, and abort where one is gone.
    with contextlib.suppress(OSError):  # where /proc is missing
        for number in (int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2):  # noqa: PTH208
            with contextlib.suppress(OSError):  # that of the list itself
                os.set_inheritable(number, False)
    try:
        os.execv(sys.executable, [sys.executable, *flags, "-c", program, *verbose, *words])
    except OSError as error:  # moved or removed since
        how = f"coachrl train --resume {quote(str(rest.folder))}"
        err.print(f"error: {sys.executable} does not start: {error.strerror}; continue with: {how}")
        os._exit(1)


def _write_out() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run() -> None:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if has_no_size():
        del os.environ["COLUMNS"]  # help has a console of its own
    # Of torch, where vLLM has brought that package along: no concern of a user's.
    warnings.filterwarnings("ignore", message="The pynvml package is deprecated", category=FutureWarning)
    try:
        sys.exit(app(prog_name="coachrl", standalone_mode=False))
    except _UsageError as error:
        print_error(_usage_line(error))
        sys.exit(2)
    except typer.Abort:
        err.print("aborted")
        sys.exit(1)
    except CoachrlError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except GoesOnElsewhere as rest:
        _go_on_elsewhere(rest)
    except OSError as error:  # a full disk, a folder that may not be written; a path that no file system takes
        if lost := _lost_folder():
            print_error(error, instead=lost)
            sys.exit(2)
        print_error(error)
        sys.exit(2 if error.errno in (errno.ENAMETOOLONG, errno.ELOOP) else 1)
    except Exception as error:  # noqa: BLE001  a bug, of coachrl or of somebody's own code: as Python shows it
        sys.stderr.write(logged("".join(traceback.format_exception(error))))
        sys.exit(1)


def _lost_folder() -> str:
    """What is wrong with the current folder, where relative paths can lead nowhere; empty where nothing is."""
    try:
        Path.cwd()  # it may be removed
        Path().stat()  # or locked
    except OSError as error:
        return f"the current folder cannot be used ({error.strerror}): change to one of yours, and start there"
    return ""


if __name__ == "__main__":
    main()
