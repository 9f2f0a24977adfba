"""`coachrl sft`: supervised training on demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli.console import out, print_metrics
from coachrl.config import SftConfig, make_section
from coachrl.errors import ConfigError
from coachrl.pipelines.defaults import BUNDLED_MODEL

_DEFAULTS = SftConfig()


def sft(
    data: Annotated[Path, typer.Option("--data", help='JSONL; each line {"messages": [{"role": …, "content": …}, …]}')],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder of the trained model, in Hugging Face form")],
    model: Annotated[str, typer.Option("--model", help="Model to start from")] = BUNDLED_MODEL,
    epochs: Annotated[int, typer.Option("--epochs", min=1)] = _DEFAULTS.epochs,
    learning_rate: Annotated[float, typer.Option("--learning-rate")] = _DEFAULTS.learning_rate,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = _DEFAULTS.batch_size,
    max_length: Annotated[int, typer.Option("--max-length", min=8, help="Tokens; longer lines are refused")] = (
        _DEFAULTS.max_length
    ),
    seed: Annotated[int, typer.Option("--seed")] = _DEFAULTS.seed,
) -> None:
    """Supervised warm start on demonstrations, for models that cannot start a pipeline from nothing."""
    try:
        from coachrl.trainers.backends.torch.sft import run_sft
    except ImportError as error:
        raise ConfigError(f"coachrl sft needs {error.name}: pip install 'coachrl[quickstart]'") from error

    settings = make_section(
        SftConfig,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        max_length=max_length,
        seed=seed,
    )
    stats = run_sft(data, model, out_folder, settings, lambda line: out.print(line))
    print_metrics(stats)
