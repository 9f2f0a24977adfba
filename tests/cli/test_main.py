"""The table of commands: what is slow to import waits until a verb needs it."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from command_line import coachrl
from typer.testing import CliRunner

from coachrl import __version__
from coachrl.cli import main
from coachrl.cli.main import EXAMPLES, app

VERBS = ["train", "eval", "rollout", "sft", "report", "view", "compare", "audit", "rescore", "export"]
VERBS += ["serve", "doctor"]
GROUPS = ["tasks", "coaches", "checkpoints"]


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def test_help_imports_nothing_that_takes_long():
    code = "import coachrl.cli.main, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    heavy = {"asyncio", "httpx", "jinja2", "matplotlib", "numpy", "pandas", "pydantic", "scipy", "torch", "yaml"}
    assert heavy & set(done.stdout.split()) == set()


def test_the_package_runs_as_a_program():
    done = python("-m", "coachrl", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


def test_a_run_that_loses_the_current_folder_says_how_it_goes_on(tmp_path, monkeypatch, capsys):
    def lose_it(**_):
        (tmp_path / "gone").rmdir()
        error = FileNotFoundError(2, "No such file or directory")
        error.add_note("continue with: coachrl train --resume /runs/a")
        raise error

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(main, "app", lose_it)
    with pytest.raises(SystemExit):
        main._run()
    told = capsys.readouterr().err.replace("\n", " ")
    assert told.startswith("error: the current folder cannot be used") and "coachrl train --resume /runs/a" in told


def test_a_command_in_a_folder_that_is_gone_begins_nothing(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    train = ["train", "--config", "quickstart", "--model", "tiny-random", "--out", str(tmp_path / "out")]
    done = python("-m", "coachrl", *train)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr.startswith("error: the current folder cannot be used (No such file or directory)")
    assert python("-m", "coachrl", "train", "--help").returncode == 0


@pytest.mark.parametrize("does", ["sys.stdout.close(); sys.stderr.close()", "sys.stdout = sys.stderr = None"])
def test_a_command_goes_on_printing_where_code_of_the_users_own_has_closed_its_streams(tmp_path, does):
    (tmp_path / "my_tasks.py").write_text(
        "import sys\nfrom coachrl.types import Task\n"
        f"def load(config):\n    {does}\n"
        "    return [Task(f'sum-{n}', 'sums', 'Add.', ground_truth='1') for n in range(10)]\n"
    )
    done = coachrl("tasks", "list", "tasks.source=my_tasks:load", cwd=tmp_path)
    assert done.returncode == 0 and "sum-3" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "train --resume --help",
        "train --resume -h",
        "rollout -h",
        "coaches try --action --help",
        "sft --data x --out --help",
    ],
)
def test_help_is_no_value_of_an_option(line):
    """Who stops in the middle of a line to ask what comes next."""
    done = CliRunner().invoke(app, line.split())
    verb = " ".join(word for word in line.split()[:2] if not word.startswith("-"))
    assert done.exit_code == 0 and f"Usage: root {verb}" in " ".join(done.output.split()), done.output


def test_a_command_without_standard_streams_prints_into_nothing():
    code = (
        "import os, sys\n"
        "if len(sys.argv) == 1:\n"
        "    for stream in (0, 1, 2): os.close(stream)\n"
        "    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], 'again'])\n"
        "from coachrl.cli.main import main\n"
        "sys.argv = ['coachrl', 'configs', 'list']\n"
        "main()\n"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tr", "coachrl: no command 'tr', did you mean 'train'?"),
        ("ex", "coachrl: no command 'ex', did you mean 'export'?"),
        ("trian", "coachrl: no command 'trian', did you mean 'train'?"),
        ("co", "did you mean 'compare' or 'coaches' or 'configs' or 'config'?"),
        ("nothing-like-it", "coachrl: no command 'nothing-like-it' (coachrl --help says what there is)"),
        ("tasks lst", "coachrl tasks: no command 'lst', did you mean 'list'?"),
        ("train --stpes 4", "coachrl train: no option '--stpes', did you mean '--steps'?"),
        ("train --lr 1e-5", "coachrl train: no option '--lr': as a setting it is train.learning_rate=VALUE (coachrl"),
        ("train --warmup-steps=2", "no option '--warmup-steps': as a setting it is train.warmup_steps=VALUE"),
        ("train --heldout mine.jsonl", "no option '--heldout': as a setting it is tasks.heldout=VALUE"),
        ("train --output_dir there", "no option '--output_dir', did you mean '--out'?"),
        ("view --warmup-steps 1", "coachrl view: no option '--warmup-steps' (coachrl view --help says what there is)"),
        ("train --steps four", "coachrl train: Invalid value for '--steps'"),
        ("train --steps", "Option '--steps' requires an argument"),
        ("train -c quickstart --config=one_gpu", "--config is given twice: name one file"),
        ("train -c quickstart -cone_gpu", "--config is given twice: name one file"),
        ("tasks list -c quickstart -c one_gpu", "--config is given twice: name one file"),
        ("view", "coachrl view: Missing argument 'RUN' (coachrl view --help says what there is)"),
    ],
)
def test_a_line_that_is_mistyped_is_answered_in_one_line_with_the_nearest_name(typed, said, tmp_path):
    done = coachrl(*typed.split(), cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize("typed", [[], ["tasks"]])
def test_a_group_of_verbs_without_one_shows_its_verbs(typed):
    done = CliRunner().invoke(app, typed)
    assert done.exit_code == 2 and "Commands" in done.output


def test_every_command_is_in_the_table_in_order():
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"│ {name} ") for name in VERBS + GROUPS]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_what_it_does_and_takes(verb):
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0 and f" {verb} [OPTIONS]" in shown.output


@pytest.mark.parametrize(
    ("verb", "has", "lacks"),
    [
        ("train", ["--config", "--pipeline", "--model", "--ray-address", "--coach-prompt", "--steps"], []),
        ("rollout", ["--config", "--pipeline", "--model", "--ray-address", "--coach-prompt", "--count"], ["--steps"]),
        ("eval", ["--config", "--pipeline", "--model", "--ray-address", "--episodes"], ["--coach"]),
        ("rescore", ["--coach", "--coach-prompt", "--coach-api-base"], ["--pipeline"]),
        ("audit", ["--coach", "--coach-prompt", "--coach-api-base"], ["--pipeline"]),
    ],
)
def test_options_of_a_group_are_the_verbs_own(verb, has, lacks):
    shown = CliRunner().invoke(app, [verb, "--help"]).output
    assert all(option in shown for option in has) and not any(option in shown for option in lacks)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_examples_in_a_help_name_options_that_there_are(verb):
    shown = CliRunner().invoke(app, [verb, "--help"]).output
    for example in EXAMPLES[verb]:
        said = re.findall(r" (--[a-z-]+)", example.partition("     ")[0])
        assert all(f" {option} " in shown for option in said), example


class InterruptedAsItGoes:
    """As what Python's import machinery tidies up after itself: what is raised in there is lost."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_that_comes_where_python_loses_it_is_raised_all_the_same(monkeypatch, capsys):
    def interrupted(**_):
        InterruptedAsItGoes()
        threading.Event().wait(5)

    monkeypatch.setattr(main, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["coachrl"])
    told_before = sys.unraisablehook
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            main.main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook is told_before
