from __future__ import annotations

from pathlib import Path

import pytest
from tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with room for a conversation, a token a byte."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # at this size threads only wait for each other
    folder = tmp_path_factory.mktemp("models") / "chat"
    return write_tiny_model(folder, hidden_size=32, num_hidden_layers=1, max_position_embeddings=4096)
