"""benchmarks/learning/data_science_team.py: its model's tokens, its held-out tasks, and the whole of it, small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coachrl.config import SandboxConfig, load_config
from coachrl.errors import SandboxUnavailable
from coachrl.sandbox import make_sandbox
from coachrl.tasks import load_tasks
from coachrl.tasks.tabular.grading import grade_submission

ROOT = Path(__file__).parents[1]
LEARNING = ROOT / "benchmarks" / "learning"
PROGRAM = '```python\nimport pandas as pd\n\ny = train["Net wage"]\ny.to_pickle("y_train.pkl")\n```'
PROMPT = "data_engineer. regression\nid: AREA_ID\ntarget: Net wage\nsave: y_train.pkl"


@pytest.fixture
def tiny_coder(monkeypatch):
    pytest.importorskip("torch", reason="needs the torch extra")
    monkeypatch.syspath_prepend(str(LEARNING))
    import tiny_coder

    return tiny_coder


def test_a_name_is_the_same_tokens_in_a_prompt_and_in_a_program(tiny_coder):
    tokenizer = tiny_coder.tokenizer_of([PROMPT, PROGRAM])
    for name in ("Net wage", "AREA_ID", "ph.karno", "gaNz_neu"):
        ids = tokenizer.encode(name).ids
        for around in (f"id: {name}\ntarget", f"text: a, {name}, b", f'drop(columns=["{name}", "{name}"])'):
            found = tokenizer.encode(around).ids
            assert any(found[i : i + len(ids)] == ids for i in range(len(found))), around
    strange = 'é\t→ "x"\n\n    0.5'
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange


def test_a_conversation_has_the_one_id_and_target_in_its_prompt_its_programs_and_its_errors_alone(tiny_coder):
    talk = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": PROGRAM}]
    talk += [{"role": "user", "content": "KeyError: 'Net wage'"}, {"role": "assistant", "content": '["AREA_ID"]'}]
    changed = [message["content"] for message in tiny_coder.renamed(talk)]
    assert changed[0] == "data_engineer. regression\nid: id\ntarget: target\nsave: y_train.pkl"
    assert changed[1] == PROGRAM.replace("Net wage", "target")
    assert changed[2:] == ["KeyError: 'target'", '["id"]']
    modeler = [{"role": "user", "content": "modeler. regression\nsave: model.pkl"}]
    assert tiny_coder.renamed(modeler) == modeler


def test_held_out_tasks_are_those_of_dsbench_lite_and_as_many_made_ones(tiny_coder, tmp_path):
    for _ in range(2):  # the second time they are there
        train, heldout = load_tasks(
            load_config(ROOT / "configs" / "dsbench_lite.yaml", tiny_coder.write_tasks(tmp_path / "tasks", made=3))
        )
    assert len(train) == 14
    assert [task.id for task in heldout[6:]] == ["made-00", "made-01", "made-02"]
    assert {task.id for task in train}.isdisjoint(task.id for task in heldout)
    for task in heldout:
        assert grade_submission(task.ground_truth.answer_csv.read_bytes(), task.ground_truth).success
        assert set(task.files) == {"train.csv", "test.csv"}
        assert (task.ground_truth.id_column, task.ground_truth.target_columns) == ("id", ("target",))


@pytest.mark.thorough
async def test_the_whole_of_it_is_done_once(tmp_path):
    box = make_sandbox(SandboxConfig())
    try:
        await (await box.open({})).close()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    finally:
        await box.close()
    messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": PROGRAM}]
    (tmp_path / "data_engineer.jsonl").write_text(f"{json.dumps({'messages': messages})}\n" * 4)
    first = run(tmp_path)
    results = json.loads((tmp_path / "out" / "data_science_team.json").read_text())
    assert [(r["condition"], r["seed"], len(r["success"])) for r in results] == [("coach", 1, 1), ("shuffled", 1, 1)]
    for result in results:
        assert len(result["before"]) == len(result["after"]) == 2
        assert all(draw["stopped_at"] == "data_engineer" for draw in result["after"])
        assert result["tokens"] > 0
        assert set(result["scores"][0]) == set(result["actions"][0])
    assert "step   1" in first
    assert "| coach less shuffled |" in (tmp_path / "out" / "data_science_team.md").read_text()
    table = (tmp_path / "out" / "data_science_team.md").read_text()
    assert "step   1" not in run(tmp_path)
    assert (tmp_path / "out" / "data_science_team.md").read_text() == table


def run(folder):
    """Its output; one step of two conditions."""
    command = [sys.executable, str(LEARNING / "data_science_team.py"), "--tiny", "--demonstrations", str(folder)]
    size = ["--steps", "1", "--seeds", "1", "--conditions", "coach", "shuffled", "--epochs", "1", "--made", "0"]
    done = subprocess.run(
        [*command, *size, "--out", str(folder / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_quickstarts_runs_become_a_table_and_a_picture_and_are_not_run_again(tmp_path):
    small = ["model=tiny-random", "train.tasks_per_step=2", "tasks.heldout_count=3", "sandbox.kind=local-unsafe"]
    size = ["--steps", "1", "--seeds", "1", "--conditions", "coach", "outcome", "--out", tmp_path]
    command = [sys.executable, LEARNING / "quickstart.py", *small, *size]
    first, again = (subprocess.run(command, capture_output=True, text=True, timeout=300) for _ in range(2))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "step   1" in first.stdout and "step   1" not in again.stdout
    table = (tmp_path / "quickstart.md").read_text()
    assert "| coach minus outcome | 1 |" in table and table in again.stdout
    results = json.loads((tmp_path / "quickstart.json").read_text())
    assert [(r["condition"], r["seed"], len(r["train_success"])) for r in results] == [
        ("coach", 1, 1),
        ("outcome", 1, 1),
    ]
    assert (tmp_path / "quickstart.png").stat().st_size > 0


@pytest.mark.thorough
def test_settings_of_the_update_stand_beside_the_shipped_run_of_their_seed_and_are_not_run_again(tmp_path):
    small = ["model=tiny-random", "train.tasks_per_step=2", "tasks.heldout_count=3", "sandbox.kind=local-unsafe"]
    size = ["--steps", "2", "--out", tmp_path]
    shipped = [sys.executable, LEARNING / "quickstart.py", *small, *size, "--seeds", "1", "2", "--conditions", "coach"]
    changed = [sys.executable, LEARNING / "update_settings.py", *small, *size, "--seeds", "1"]
    two_epochs = [*changed, "--conditions", "two-epochs", "two-epochs-clip-higher"]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=300) for command in (shipped, two_epochs)]
    assert all(run.returncode == 0 for run in runs), [run.stdout + run.stderr for run in runs]
    again = subprocess.run(two_epochs, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and "step   1" not in again.stdout
    table = (tmp_path / "update_settings.md").read_text()
    assert "| coach | 1 |" in table  # its second seed has nothing to stand beside
    assert "| two-epochs minus coach | 1 |" in table and "| two-epochs-clip-higher minus two-epochs | 1 |" in table
    results = json.loads((tmp_path / "update_settings.json").read_text())
    assert [r["condition"] for r in results] == ["two-epochs", "two-epochs-clip-higher"]
