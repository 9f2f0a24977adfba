"""What a checkpoint of the distributed backend is refused for, before anything is loaded."""

import json

import pytest

from coachrl.errors import CheckpointError
from coachrl.trainers.backends.openrlhf.training.saved_state import SavedState

LAYOUT = {"trainers": 2, "zero_stage": 3}


def test_what_was_saved_is_read_again(tmp_path):
    state = SavedState(weights_version=7, updates=12, layout=LAYOUT)
    state.write(tmp_path)
    assert SavedState.read("solver", tmp_path, LAYOUT) == state
    assert SavedState.read("solver", tmp_path, {**LAYOUT, "trainers": 8}).layout == LAYOUT, "which had to be converted"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "nothing was saved there for policy solver"),
        ("{", "nothing was saved there for policy solver"),
        ("[1]", "nothing was saved there for policy solver"),
        (json.dumps({"weights_version": "x", "layout": LAYOUT}), "nothing was saved there for policy solver"),
        (json.dumps({"weights_version": 1, "steps": 0}), "the torch backend wrote it"),
        (json.dumps({"weights_version": 1, "layout": {**LAYOUT, "zero_stage": 2}}), "'zero_stage': 2.*this run has"),
        (json.dumps({"weights_version": 1, "layout": {**LAYOUT, "lora_rank": 4}}), "'lora_rank': 4.*this run has"),
        (json.dumps({"weights_version": 1, "layout": [2, 3]}), "nothing was saved there for policy solver"),
    ],
)
def test_another_folder_is_refused_by_what_is_wrong_with_it(tmp_path, record, words):
    if record is not None:
        (tmp_path / "state.json").write_text(record)
    with pytest.raises(CheckpointError, match=words):
        SavedState.read("solver", tmp_path, LAYOUT)
