"""`coachrl coaches`, on the shipped prompts and on a small saved run."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.config import load_config
from coachrl.errors import CoachrlError
from coachrl.runs.folder import Run
from coachrl.tasks import load_tasks
from coachrl.testing.actions import make_action
from coachrl.types import Action, CoachScore, Episode, Outcome


def coachrl(*arguments: str):
    return CliRunner().invoke(app, ["coaches", *arguments])


@pytest.mark.parametrize("flags", [("--coach", "openai/judge"), ("--coach-api-base", "http://127.0.0.1:1/v1")])
def test_a_model_for_a_coach_that_asks_none_is_refused(flags):
    done = coachrl("try", "rules", "--action", "runs/latest#1", *flags)
    assert str(done.exception) == "--coach and --coach-api-base say which model reads a prompt, and rules is none"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Two episodes of a mathchat run whose coach was rules; the second broke. Four actions."""
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["name=saved", "tasks.train_count=2", "tasks.heldout_count=1"])
    made, (tasks, _) = Run.create(config), load_tasks(config)
    episodes = [
        Episode(
            name,
            task.id,
            task.category,
            "mathchat",
            (
                _action(name, 0, "problem_solver", "3 * 4"),
                _action(name, 1, "verifier", "\\boxed{12}"),
            ),
            Outcome(False, reason="wrong", summary="The reference answer is 13."),
            infra_error=fault,
        )
        for name, task, fault in zip(("good", "broken"), tasks, (None, "sandbox: gone"), strict=True)
    ]
    made.write_episodes("step-000001", episodes, {"good/1": CoachScore("good/1", "scored", 3.0, model="rules")})
    return made


def _action(episode: str, index: int, role: str, text: str) -> Action:
    return make_action(role, text, episode=episode, index=index, prompt_text="Solve")


def test_list_and_show():
    rows = {row["name"]: row for row in json.loads(coachrl("list", "--json").stdout)}
    assert {"rules", "mathchat", "mathchat-strict", "dsbench", "dsbench-strict", "generic", "strict"} <= rows.keys()
    assert (rows["retrospective"]["use"], rows["strategic"]["use"]) == ("retrospective", "preface")
    shown = coachrl("list").stdout
    assert all(name in shown for name in rows)
    assert coachrl("show", "dsbench").stdout.startswith("---\nabout:")
    assert "ROC-AUC" in coachrl("show", "rules").stdout


def test_a_prompt_in_the_home_is_found_by_its_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.md").write_text(coachrl("show", "generic").stdout)
    assert "PROCESS_SCORE" in coachrl("show", "~/own.md").stdout
    assert "~/own.md: " in coachrl("lint", "~/own.md").stdout


def test_lint_finds_the_papers_rubric_and_exits_with_3():
    done = coachrl("lint", "--json")
    found = json.loads(done.stdout)["findings"]
    assert done.exit_code == 3
    assert {name for name, sentences in found.items() if sentences} == {"rules", "dsbench"}
    shown = coachrl("lint", "dsbench").stdout
    assert "7.8 (6 to 9)" in shown and "dsbench: regression is favoured" in shown
    clean = coachrl("lint", "dsbench-strict", "mathchat")
    assert clean.exit_code == 0 and "dsbench-strict: no finding" in clean.stdout


def test_a_saved_action_before_the_rules(run):
    done = coachrl("try", "rules", "--action", "runs/saved#2")
    assert done.exit_code == 0, done.output
    assert "good/1, verifier: 3" in done.stdout and "in the run: 3, by rules" in done.stdout
    assert "0 calls" in done.stdout and "cost $0.0000" in done.stdout
    by_id = json.loads(coachrl("try", "rules", "--action", "runs/saved#good/0", "--json").stdout)
    assert by_id["score"]["action_id"] == "good/0" and by_id["calls"] == []


def test_a_saved_action_before_a_coach_of_ones_own(run):
    Path("my_tried_coach.py").write_text("def brevity(request):\n    return 10 - len(request.action.text)\n")
    done = coachrl("try", "my_tried_coach:brevity", "--action", "runs/saved#1")
    assert done.exit_code == 0, done.output
    assert "good/0, problem_solver: 5" in done.stdout and "0 calls" in done.stdout
    dry = coachrl("try", "my_tried_coach:brevity", "--action", "runs/saved#1", "--dry-run")
    assert "my_tried_coach:brevity reads no prompt" in dry.stdout


def test_a_dry_run_renders_what_a_model_would_read(run):
    shown = coachrl("try", "mathchat", "--action", "runs/saved#2", "--dry-run").stdout
    assert "\\boxed{12}" in shown and "The reference answer is 13." in shown
    upstream = coachrl("try", "mathchat", "--action", "runs/saved#1", "--dry-run").stdout
    assert "The reference answer is 13." not in upstream
    to_all = coachrl("try", "mathchat", "--action", "runs/saved#1", "--dry-run", "coach.evidence.ground_truth=all")
    assert "The reference answer is 13." in to_all.stdout
    retrospective = coachrl("try", "retrospective", "--action", "runs/saved#1", "--dry-run").stdout
    assert "The reference answer is 13." in retrospective and "no later action has explained any" in retrospective


def test_a_run_without_a_model_shows_the_prompt_and_says_that_nobody_was_asked(run):
    tried = coachrl("try", "strict", "--action", "runs/saved#2")
    rendered = coachrl("try", "strict", "--action", "runs/saved#2", "--dry-run")
    assert tried.exit_code == 0 and "PROCESS_SCORE" in tried.stdout
    assert rendered.stdout == tried.stdout.replace(tried.stderr, "") and not rendered.stderr
    assert len(tried.stderr.splitlines()) == 1 and "nobody was asked" in tried.stderr and "--coach" in tried.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "strickt"], "did you mean 'strict'"),
        (["lint", "dsbnch"], "did you mean 'dsbench'"),
        (["lint", "-c", "quickstart"], "not tabular"),
        (["try", "strict", "--action", "runs/saved"], "write RUN#NUMBER or RUN#ID"),
        (["try", "strict", "--action", "runs/nothing#1"], "not a run folder"),
        (["try", "strict", "--action", "runs/saved#9"], "4 actions, numbered from 1"),
        (["try", "strict", "--action", "runs/saved#0"], "4 actions, numbered from 1"),
        (["try", "strict", "--action", "runs/saved#good/7"], "did you mean 'good/1'"),
        (["try", "strict", "--action", "runs/saved#1", "--json"], "no score to print: .*name one with --coach"),
        (["try", "strict", "--action", "runs/saved#1", "train.steps=3"], "settings of the coach only can change"),
        (["try", "strategic", "--action", "runs/saved#1", "--coach", "x/y"], "only precedes others"),
        (["try", "strict", "--action", "runs/saved#4", "--coach", "x/y"], "its episode broke .sandbox: gone"),
        (["try", "strict", "--action", "runs/saved#1", "--coach", "gemini-2.5-por"], "did you mean 'gemini-2.5-pro'"),
    ],
)
def test_wrong_input_is_one_clear_line(run, arguments, message):
    pytest.importorskip("litellm", reason="needs the llm extra")
    error = coachrl(*arguments).exception
    assert isinstance(error, CoachrlError) and error.exit_code == 2
    assert re.search(message, str(error)) and "\n" not in str(error)


@pytest.mark.parametrize("prompt", ["strict", "retrospective"])
def test_a_task_that_is_gone_is_named_whatever_is_asked(run, prompt):
    [path] = Path("runs/saved/episodes").glob("step-*.jsonl")
    path.write_text(re.sub('"task_id": *"[^"]*"', '"task_id": "gone"', path.read_text()))
    error = coachrl("try", prompt, "--action", "runs/saved#1", "--dry-run").exception
    assert "its task gone is not in the run's task set any more" in str(error)


HEADER = "fields: [agent_output]"
GOOD = "{{agent_output}} PROCESS_SCORE: n"


@pytest.mark.parametrize(
    ("header", "body", "settings", "message"),
    [
        ("fields: [agent_output, agent_inputs]", GOOD + "{{agent_inputs}}", (), "did you mean 'agent_input'"),
        ("fields: [agent_output, task]", GOOD, (), "header declares .*task.*; they must be the same"),
        ("fields: [agent_output, outcome]\nscore_range: [0, 5]", GOOD + "{{outcome}}", (), r"must be \[0, 10\]"),
        (f"{HEADER}\nuse: retrospective", GOOD, (), "its use is 'retrospective', not 'score'"),
        (f"{HEADER}\ncaps: {{failed: 12}}", GOOD, (), "caps.failed: 12 is no score"),
        (HEADER, GOOD, ("algorithm.name=retrospective", "coach.evidence.ground_truth=none"), "its use is 'score'"),
    ],
)
def test_a_prompt_that_cannot_be_used_stops_a_run_before_it_begins(
    tmp_path, monkeypatch, header, body, settings, message
):
    pytest.importorskip("torch", reason="needs the torch extra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdef")
    (tmp_path / "mine.md").write_text(f"---\n{header}\n---\n{body}\n")
    prompt = ["coach.retrospective.prompt=mine.md"] if settings else ["--coach-prompt", "mine.md"]
    error = CliRunner().invoke(app, ["train", "--coach", "openai/judge", *prompt, *settings]).exception
    assert isinstance(error, CoachrlError) and error.exit_code == 2
    assert re.search(message, str(error)) and "\n" not in str(error) and "sk-0123" not in str(error)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "mine.md"]
