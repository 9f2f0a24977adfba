"""The untrained model: the same wherever it is written, replies that end, and something that it can learn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch_backends import generate, samples_of

from coachrl.errors import PolicyError
from coachrl.trainers.backends.torch.models.sources import model_folder, parameter_count
from coachrl.trainers.backends.torch.models.tiny_random import NAME, write_tiny_random


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_written_once_and_everywhere_the_same(cache, tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    folder = model_folder(NAME)
    assert torch.rand(1) == expected, "the random state of who asks for it is left alone"
    written = folder.stat().st_mtime_ns
    assert model_folder(NAME) == folder and folder.stat().st_mtime_ns == written
    other = write_tiny_random(tmp_path / "other")
    assert (other / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert parameter_count(NAME) == 394_112
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def texts_of(backend, replies):
    return [backend.tokenizer("solver").decode(reply.token_ids) for reply in replies]


def test_replies_are_short_and_printable(cache, make):
    backend = make(model=NAME)
    _, replies = generate(backend, count=64, max_new_tokens=256)
    lengths = np.array([len(reply.token_ids) for reply in replies])
    assert 15 < lengths.mean() < 60 and (lengths < 256).mean() > 0.9
    assert np.mean([" " <= letter <= "~" for text in texts_of(backend, replies) for letter in text]) > 0.95


def test_what_a_reward_asks_of_its_characters_it_learns(cache, make):
    backend = make(model=NAME)
    means = []
    for _ in range(6):
        prompts, replies = generate(backend, count=48, max_new_tokens=64)
        digits = [sum(map(str.isdigit, text)) / max(1, len(text)) for text in texts_of(backend, replies)]
        means.append(np.mean(digits))
        backend.update({"solver": samples_of(prompts, replies, [5 * (share - means[-1]) for share in digits])})
        backend.sync_weights()
    assert means[-1] > means[0] + 0.05, means


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COACHRL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(PolicyError, match=r"cannot write model tiny-random under .*; set COACHRL_CACHE"):
        model_folder(NAME)


def test_a_mistyped_name_is_answered_by_the_nearest():
    with pytest.raises(PolicyError, match=r"did you mean tiny-random\? \(a model is smollm2-135m or tiny-random, a"):
        model_folder("tiny-radnom")
