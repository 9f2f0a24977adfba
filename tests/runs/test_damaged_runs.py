"""Run folders with parts missing, cut short or foreign: said in a line, the rest is shown."""

import asyncio
import json
import os
import shutil
import sys

import pytest
import yaml
from saved_runs import save_run

from coachrl.cli.main import main
from coachrl.coach.clients.ledger import Ledger
from coachrl.errors import ConfigError
from coachrl.report.page import render
from coachrl.report.view import episodes_page
from coachrl.rescore.store import RescoreMetadata, append_scores, open_rescore
from coachrl.runs.folder import Run
from coachrl.runs.labels import Label, add_labels
from coachrl.types import CoachScore

# Verb -> its arguments after the run's folder. `view` is a report that is served, see below.
VERBS = {
    "report": [],
    "compare": ["{whole}"],
    "audit": ["--resamples", "100"],
    "export": ["--format", "sft", "--out", "{out}", "--min-score", "7"],
    "rescore": ["--coach", "rules", "--repeat", "1", "--sample", "2"],
    "checkpoints": [],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two steps, an evaluation, a rescore, metrics and a checkpoint."""
    run = asyncio.run(save_run(tmp_path_factory.mktemp("whole"), steps=2, samples_per_task=1))
    for step in (0, 1, 2):
        run.append_metrics({"step": step, "train/success": 0.5, "time/step_s": 1.0})
    by = RescoreMetadata("openai/judge", None, "0123456789", 0, "2026-01-01T00:00:00+00:00")
    action = next(iter(run.read_episodes("step-000001")[1]))
    append_scores(open_rescore(run.folder, by), [CoachScore(action, "scored", 6.0)])
    (run.folder / "checkpoints" / "step-000002").mkdir()
    return run


@pytest.fixture
def run(whole, tmp_path):
    return Run(shutil.copytree(whole.folder, tmp_path / "run"))


@pytest.fixture
def verb(run, whole, tmp_path, monkeypatch, capsys):
    """Runs a verb on the run: its exit code, and what it printed."""

    def call(name):
        places = {"whole": whole.folder, "out": tmp_path / "out.jsonl"}
        first = [name, "list"] if name == "checkpoints" else [name]
        words = [*first, str(run.folder), *(word.format(**places) for word in VERBS[name])]
        monkeypatch.setattr(sys, "argv", ["coachrl", *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        shown = capsys.readouterr()
        return stopped.value.code or 0, shown.out + shown.err

    return call


def edit_config(run, **changes):
    path = run.folder / "config.yaml"
    tree = yaml.safe_load(path.read_text()) | changes
    path.write_text(yaml.safe_dump(tree))


def unknown_settings(run):
    edit_config(run, swarm={"size": 3})
    (run.folder / "roles.json").unlink()


def unknown_fields(run):
    for path in run.episode_files():
        lines = [json.loads(line) | {"mood": {"of": "all"}} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def foreign_lines(run):
    lines = '{"text": "another program wrote this"}\n[1, 2]\nno JSON at all\n\n'
    for path in (run.folder / "metrics.jsonl", *run.episode_files(), *run.folder.glob("rescores/*/scores.jsonl")):
        path.write_text(lines + path.read_text())
    (run.folder / "episodes" / "notes.jsonl").write_text(lines)


def half_lines(run):
    for path in run.folder.rglob("*.jsonl"):
        path.write_text(path.read_text() + path.read_text().splitlines()[0][:40])


def not_text(run):
    for path in (*run.folder.rglob("*.json*"), run.folder / "config.yaml"):
        path.write_bytes(b"\x80\x04\x95 not text \xff\xfe\n" * 3)


def cut_settings(run):
    """At the end of a line: what is left is a configuration, with defaults for the rest."""
    path = run.folder / "config.yaml"
    path.write_text(path.read_text().partition("\nsampling:")[0] + "\n")


def no_settings(run):
    (run.folder / "config.yaml").write_text("")


def endless(run):
    """Nobody ever writes to these pipes: whoever reads one waits for good."""
    checkpoint = run.folder / "checkpoints" / "step-000002" / "trainer.json"
    coach = next(run.folder.glob("rescores/*/coach.json"))
    for path in (
        run.folder / "versions.json",
        run.folder / "metrics.jsonl",
        run.episode_files("step")[0],
        checkpoint,
        coach,
    ):
        path.unlink(missing_ok=True)
        os.mkfifo(path)


WRITES = pytest.mark.parametrize(
    ("name", "write"),
    [
        ("metrics.jsonl", lambda run: run.append_metrics({"step": 1})),
        ("log.txt", lambda run: run.logging().__enter__()),
        ("coach/ledger.jsonl", lambda run: Ledger(run.ledger).resumed(1)),
        ("labels.jsonl", lambda run: add_labels(run, [Label("1.0.0/0", "Ann", 7.0)])),
    ],
)


@WRITES
def test_a_named_pipe_where_a_file_is_written_is_refused(run, name, write):
    (run.folder / name).unlink(missing_ok=True)
    os.mkfifo(run.folder / name)
    reader = os.open(run.folder / name, os.O_RDONLY | os.O_NONBLOCK)  # else whoever writes to it waits
    try:
        with pytest.raises(ConfigError, match=f"{name} cannot be written: it is a named pipe, where a file is needed"):
            write(run)
    finally:
        os.close(reader)


@WRITES
def test_nothing_is_written_through_a_link_that_a_run_came_with(run, name, write, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("half a line")
    (run.folder / name).unlink(missing_ok=True)
    (run.folder / name).symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=f"{name} cannot be written: it is a link, where a file is needed"):
        write(run)
    if name == "metrics.jsonl":
        with pytest.raises(ConfigError, match="it is a link"):
            run.drop_after(1)
    assert elsewhere.read_text() == "half a line"


def without(name):
    def damage(run):
        path = run.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    damage.__name__ = f"without {name}"
    return damage


# Damage -> words that the report must say, and what cannot go on without it.
CASES = [
    (unknown_settings, ["unknown key 'swarm'"], ["export", "rescore"]),
    (
        unknown_fields,
        ["step-000001.jsonl: lines 1, 2", "it has mood, which is no field"],
        ["compare", "export", "rescore"],
    ),
    (foreign_lines, ["metrics.jsonl: lines 1, 2, 3, 4 (4 of 7)", "step-000002.jsonl: lines", "notes.jsonl: not a"], []),
    (half_lines, ["metrics.jsonl: line 4 is left out: cut short", "step-000001.jsonl: line 5"], []),
    (
        not_text,
        ["config.yaml: not UTF-8", "metrics.jsonl: lines", "versions.json"],
        ["compare", "export", "rescore"],
    ),
    (cut_settings, [], ["rescore"]),
    (no_settings, [], ["rescore"]),
    (endless, [f"{name} cannot be read: " for name in ("versions.json", "metrics.jsonl", "step-000001.jsonl")], []),
    (without("config.yaml"), ["config.yaml: No such file"], ["rescore"]),
    (without("roles.json"), [], []),
    (without("versions.json"), ["versions.json cannot be read"], []),
    (without("metrics.jsonl"), ["metrics.jsonl is missing"], []),
    (without("episodes/step-000001.jsonl"), [], []),
    (without("episodes/eval-000001.jsonl"), ["no evaluation that measured anything"], ["compare"]),
    (without("episodes"), ["No episode is written yet"], ["compare", "export", "rescore"]),
    (without("coach/ledger.jsonl"), [], []),
    (without("rescores/openai-judge-01234567/coach.json"), [], []),
    (without("checkpoints"), [], []),
]


@pytest.mark.parametrize(("damage", "words", "lost"), CASES, ids=[case[0].__name__ for case in CASES])
def test_what_is_left_is_shown(run, verb, damage, words, lost):
    damage(run)
    codes = {}
    for name in VERBS:
        codes[name], shown = verb(name)
        assert "Traceback" not in shown, shown
        if codes[name] == 2:
            assert len([line for line in shown.splitlines() if line.startswith("error: ")]) == 1, shown
    assert {name for name, code in codes.items() if code} == set(lost)
    page = (run.folder / "report.html").read_text()
    assert all(word in page.replace("&#39;", "'") for word in words), page[page.find("<header>") :][:3000]


@pytest.mark.parametrize("damage", [foreign_lines, half_lines, not_text])
def test_every_page_of_view_says_what_it_lacks(run, whole, damage):
    damage(run)
    assert "could not be read" in render(run, link="/episodes/")
    for path in run.episode_files():
        page = episodes_page(run, path.stem)
        kept = 0 if damage is not_text else len(whole.read_episodes(path.stem)[0])
        assert page.count('<details class="row"') == kept and "left out" in page


@pytest.mark.parametrize(
    ("damage", "words"),
    [(unknown_settings, "unknown key 'swarm'"), (cut_settings, "cut short: it has no"), (no_settings, "cut short")],
)
def test_a_run_whose_configuration_is_not_understood_is_not_resumed(run, monkeypatch, capsys, damage, words):
    damage(run)
    monkeypatch.setattr(sys, "argv", ["coachrl", "train", "--resume", str(run.folder)])
    with pytest.raises(SystemExit) as stopped:
        main()
    [line] = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2 and line.startswith(f"error: {run.folder}/config.yaml: ")
    assert words in line


def test_a_folder_in_the_place_of_the_metrics_or_of_the_team_is_not_called_missing(run, verb):
    for name in ("metrics.jsonl", "roles.json"):
        (run.folder / name).unlink(missing_ok=True)
        (run.folder / name).mkdir()
    code, shown = verb("report")
    assert code == 0 and "metrics.jsonl cannot be read: Is a directory" in shown and "missing" not in shown
    code, shown = verb("rescore")
    assert code == 2 and "roles.json: Is a directory" in shown  # not the team that its configuration makes today


@pytest.mark.parametrize("name", ["step-99999999999999999999", "step-00000\u0663"])
def test_a_number_that_no_step_has_is_no_file_of_the_run(run, verb, name):
    path = run.folder / "episodes" / "step-000001.jsonl"
    path.with_name(f"{name}.jsonl").write_text(path.read_text().replace("step-000001", name))
    for each in ("audit", "report"):
        code, shown = verb(each)
        assert code == 0, shown
    assert f"{name}.jsonl: not a file of this run" in shown


@pytest.mark.parametrize("step", ["9" * 400, "-1", "true"])
def test_a_step_that_no_run_has_is_left_out_of_the_report(run, verb, step):
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": {step}, "train/success": 0.5}}\n')
    code, _ = verb("report")
    assert code == 0 and "line 4 is left out" in (run.folder / "report.html").read_text()
