from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # at this size threads only wait for each other
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def roomy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose context takes the prompts of programming tasks, a token a byte."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "roomy"
    return write_tiny_model(folder, hidden_size=32, num_hidden_layers=1, max_position_embeddings=8192)


@pytest.fixture(scope="session")
def one_layer_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For whole runs whose replies do not matter."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "max_position_embeddings": 4096}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "one_layer", **sizes)


@pytest.fixture
def write_jsonl(tmp_path: Path):
    def write(*records: object, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write
