"""Models that are loaded in several threads of one process."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import torch
from tiny_models import write_tiny_model

from coachrl.trainers.backends.torch.policy import load_model


def test_models_that_threads_load_at_once_keep_their_own_precision(tmp_path):
    folder = write_tiny_model(tmp_path / "model")

    def load(dtype):
        model = load_model(folder, dtype, torch.device("cpu"))
        return {parameter.dtype for parameter in model.parameters()} == {dtype}

    with ThreadPoolExecutor(4) as threads:
        right = list(threads.map(load, [torch.float32, torch.bfloat16] * 12))
    assert all(right) and torch.get_default_dtype() == torch.float32
