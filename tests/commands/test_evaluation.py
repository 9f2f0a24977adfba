"""What an evaluation keeps while it lasts."""

import asyncio
import io
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rich.console import Console
from tiny_models import write_tiny_model

from coachrl.commands import run as commands
from coachrl.commands.run import evaluate_run
from coachrl.config import load_config
from coachrl.errors import ConfigError

SETTINGS = {
    "model": "tiny-random",
    "pipeline.name": "debate",
    "pipeline.prompt_style": "short",
    "pipeline.max_new_tokens": 8,
    "pipeline.options": "{agents: 2, rounds: 2}",
    "tasks.levels": "[1]",
    "tasks.heldout_count": 3,
    "eval.temperature": 1.0,
}


def measured(file, console=None, **settings):
    console = console or Console(file=io.StringIO())
    overrides = [f"{key}={value}" for key, value in {**SETTINGS, **settings}.items()]
    metrics = asyncio.run(evaluate_run(load_config(None, overrides), None, file, console))
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}, metrics


def killed(monkeypatch, file, **settings):
    """An evaluation that is ended when all has been drawn and nothing was written."""
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(commands, "evaluation_metrics", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        measured(file, **settings)
    assert not file.exists()
    return file.with_name(f".{file.name}.replies")


def test_what_was_drawn_before_a_kill_is_not_drawn_again(tmp_path, monkeypatch):
    whole, _ = measured(tmp_path / "whole.jsonl")
    file = tmp_path / "eval.jsonl"
    kept = killed(monkeypatch, file)
    assert kept.stat().st_size
    console = Console(file=io.StringIO())
    again, metrics = measured(file, console)
    assert again == whole and metrics["time/eval_tokens_per_s"] == 0
    assert "12 replies are on disk from before" in console.file.getvalue()
    without_times = [[line.partition('"wall_s"')[0] for line in one.open()] for one in (file, tmp_path / "whole.jsonl")]
    assert without_times[0] == without_times[1] and len(without_times[0]) == 3
    assert sorted(place.name for place in tmp_path.iterdir()) == ["eval.jsonl", "whole.jsonl"]


def test_replies_that_a_kill_cut_short_are_drawn_again(tmp_path, monkeypatch):
    whole, _ = measured(None)
    file = tmp_path / "eval.jsonl"
    kept = killed(monkeypatch, file)
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:-2]) + lines[-2][:40])
    again, metrics = measured(file)
    assert again == whole and metrics["time/eval_tokens_per_s"] > 0


@pytest.mark.parametrize("settings", [{"seed": 7}, {"eval.temperature": 0.5}, {"torch.precision": "float32"}])
def test_replies_of_another_evaluation_are_not_taken(tmp_path, monkeypatch, settings):
    whole, usual = measured(None, **settings)
    file = tmp_path / "eval.jsonl"
    killed(monkeypatch, file)
    again, metrics = measured(file, **settings)
    assert again == whole and metrics["time/eval_tokens_per_s"] > 0 and usual["time/eval_tokens_per_s"] > 0


def test_nor_those_of_other_weights_under_the_same_name(tmp_path, monkeypatch):
    models = [
        write_tiny_model(tmp_path / name, seed, max_position_embeddings=4096)
        for seed, name in enumerate(("model", "other"))
    ]
    file = tmp_path / "eval.jsonl"
    kept = killed(monkeypatch, file, model=models[0])
    for weights in models[1].glob("*.safetensors"):
        weights.replace(models[0] / weights.name)
    assert kept.stat().st_size
    again, metrics = measured(file, model=models[0])
    assert metrics["time/eval_tokens_per_s"] > 0
    assert again == measured(None, model=models[0])[0]


def test_a_file_is_needed(tmp_path):
    with pytest.raises(ConfigError, match="/dev/null is no plain file"):
        measured(Path("/dev/null"))
    (tmp_path / ".eval.jsonl.replies").mkdir()
    with pytest.raises(ConfigError, match=r"\.eval\.jsonl\.replies"):
        measured(tmp_path / "eval.jsonl")
