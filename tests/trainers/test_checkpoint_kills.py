"""Command lines on a trained run whose newest checkpoint a kill, or somebody, left in another form."""

import importlib.util

import pytest
from command_line import coachrl

from coachrl.config import dump_config
from coachrl.runs.folder import Run

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs the extra torch", allow_module_level=True)
SMALL = [
    "-c", "quickstart", "name=one", "train.steps=2", "train.checkpoint_every=1", "train.keep_checkpoints=1",
    "train.tasks_per_step=1", "eval.every=0", "tasks.train_count=2", "tasks.heldout_count=1", "coach.name=rules",
    "pipeline.max_new_tokens=6", "pipeline.prompt_style=short", "pipeline.roles.code_executor.python=false",
    "pipeline.roles.code_executor.max_turns=1", "torch.threads=1", "torch.device=cpu", "sandbox.kind=local-unsafe",
]  # fmt: skip


@pytest.fixture
def run(one_layer_model, tmp_path):
    """A run of two steps, of which one more is wanted."""
    done = coachrl("train", *SMALL, f"model={one_layer_model}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "runs" / "one")
    config = run.config()
    longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": 3})})
    (run.folder / "config.yaml").write_text(dump_config(longer))
    (run.folder / "settings.json").unlink()  # which would hold it to two
    return run


def test_a_run_killed_before_its_only_checkpoint_had_its_name_goes_on_from_it(run):
    """Where a step is made once more, its older checkpoint makes room for the newer one: a kill in between."""
    run.last_checkpoint().rename(run.folder / "checkpoints" / ".step-000002.77")
    before = run.metrics()
    done = coachrl("train", "--resume", run.folder, cwd=run.folder)
    assert done.returncode == 0, done.stderr
    assert run.metrics()[:-1] == before and run.metrics()[-1]["step"] == 3
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-000003"]
