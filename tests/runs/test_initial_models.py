"""Whether a run goes on over the weights that it began with."""

import json
import os
import shutil
from pathlib import Path

import pytest

from coachrl.config import RunConfig
from coachrl.errors import CheckpointError
from coachrl.runs import initial_models
from coachrl.runs.checkpoints import made_with
from coachrl.runs.folder import Run
from coachrl.runs.initial_models import changed_models, check_models, keep_models, names_at_first
from coachrl.types import Role


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8, "transformers_version": "5.1"}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def run(tmp_path, base):
    run = Run.create(RunConfig(name="one", out=tmp_path))
    keep_models(run, {"a": (str(base), base), "b": ("owner/name", base)})
    return run


def test_the_same_files_are_the_same_wherever_they_lie_and_whatever_lies_beside_them(run, base, tmp_path):
    moved = shutil.copytree(base, tmp_path / "moved")
    (moved / "config.json").write_text('{"transformers_version": "5.2",\n "hidden_size": 8}')
    (moved / "README.md").write_text("A model.")
    for beside in (".cache.json", "notes.json", "trainer_state.json"):
        (moved / beside).write_text("1")
    os.utime(moved / "model.safetensors", (1, 1))
    link = tmp_path / "link"
    link.symlink_to(moved)
    check_models(run, {"a": (str(link), link), "b": ("owner/name", moved), "new": ("x", moved)})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda base: (base / "model.safetensors").write_bytes(bytes(256 * 64)), "changed model.safetensors"),
        (lambda base: (base / "model.safetensors").unlink(), "gone model.safetensors"),
        (lambda base: (base / "chat_template.jinja").write_text("a"), "new chat_template.jinja"),
        (lambda base: (base / "config.json").write_text("no JSON"), "changed config.json"),
        (lambda base: (base / "config.json").write_text("[]"), "changed config.json"),
        (
            lambda base: [(base / "tokenizer.json").unlink(), os.mkfifo(base / "tokenizer.json")],
            "changed tokenizer.json",
        ),
        (
            lambda base: [(base / "tokenizer.json").unlink(), (base / "tokenizer.json").mkdir()],
            "changed tokenizer.json",
        ),
        (lambda base: [(base / f"{n}.model").touch() for n in range(5)], "new 0.model, 1.model, 2.model, …"),
    ],
)
def test_what_took_the_place_of_a_file_is_named(run, base, change, said):
    change(base)
    assert changed_models(run, {"a": (str(base), base)}) == (
        f"not the initial models that the run began with: policies.a.model: {base}, {said}"
    )
    with pytest.raises(
        CheckpointError, match=r"policies\.a\.model: .*; policies\.b\.model: owner/name.* remove .*models\.json"
    ):
        check_models(run, {"a": (str(base), base), "b": ("owner/name", base)})


def test_a_folder_that_is_gone_is_named(run, tmp_path):
    assert "cannot be read" in changed_models(run, {"a": ("gone", tmp_path / "gone")})


def test_a_model_of_the_hub_is_named_with_its_commits(run, base, tmp_path):
    was, now = (tmp_path / "models--owner--name" / "snapshots" / commit for commit in ("aaa", "bbb"))
    for folder in (was, now):
        shutil.copytree(base, folder)
    (run.folder / "models.json").unlink()
    keep_models(run, {"a": ("owner/name", was)})
    (now / "README.md").write_text("A commit that changes no weights.")
    check_models(run, {"a": ("owner/name", now)})
    (now / "tokenizer.json").write_text("[]")
    assert "owner/name at aaa -> owner/name at bbb, changed tokenizer.json" in changed_models(
        run, {"a": ("owner/name", now)}
    )


def test_of_large_files_pieces_from_the_first_byte_to_the_last_are_looked_at(run, base, monkeypatch):
    monkeypatch.setattr(initial_models, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(initial_models, "_PIECES", 100)
    monkeypatch.setattr(initial_models, "_PIECE_BYTES", 10)
    weights = base / "model.safetensors"
    whole, models = weights.read_bytes(), {"a": (str(base), base)}
    (run.folder / "models.json").unlink()
    keep_models(run, models)
    for place in (0, 3, 5000, len(whole) - 170):  # a piece begins at every 166th byte at least
        weights.write_bytes(
            whole[:place] + bytes(255 - byte for byte in whole[place : place + 170]) + whole[place + 170 :]
        )
        assert changed_models(run, models), place
    weights.write_bytes(whole[:-1] + b"\0")
    assert changed_models(run, models)
    weights.write_bytes(whole + b"1")
    assert changed_models(run, models)
    weights.write_bytes(whole)
    assert not changed_models(run, models)


def test_a_checkpoint_bears_the_name_that_a_model_had_at_first(run, base, tmp_path):
    moved = base.rename(tmp_path / "moved")
    config = RunConfig(model=str(moved))
    roles = [Role("r", policy="a"), Role("s", policy="c")]
    assert made_with(config, roles, names_at_first(run)) == {
        "pipeline": "mathchat",
        "model of policy a": str(base),
        "model of policy c": str(moved),
    }


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", '{"a": 1}', '{"a": {"model": 1, "files": {}}}', '{"a": {"model": "m"}}', "[" * 10**5]
)
def test_a_damaged_record_is_named(run, base, text):
    (run.folder / "models.json").write_text(text)
    assert names_at_first(run) == {}
    with pytest.raises(CheckpointError, match=r"models\.json") as told:
        check_models(run, {"a": (str(base), base)})
    assert "\n" not in str(told.value)


def test_a_record_of_odd_values_is_another_one(run, base):
    record = {"a": {"model": "m", "commit": [3], "files": {"config.json": {"x": 1}, "\n": None}}}
    (run.folder / "models.json").write_text(json.dumps(record))
    assert "\n" not in changed_models(run, {"a": (str(base), base)})


def test_a_run_of_before_keeps_its_models_from_then_on(run, base):
    (run.folder / "models.json").unlink()
    models = {"a": (str(base), base)}
    check_models(run, models)
    keep_models(run, models)
    (base / "tokenizer.json").write_text("1")
    keep_models(run, models)
    assert "changed tokenizer.json" in changed_models(run, models)


def test_names_that_are_no_text_are_kept(run, base):
    (run.folder / "models.json").unlink()
    Path(os.fsdecode(os.fsencode(base) + b"/\xff.model")).touch()
    models = {"a": (str(base), base)}
    keep_models(run, models)
    check_models(run, models)
