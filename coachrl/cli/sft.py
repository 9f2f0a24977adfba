"""`coachrl sft`: supervised training on demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coachrl.cli.console import out, print_metrics
from coachrl.cli.options import path_option
from coachrl.errors import ConfigError, lacking


# The defaults are the section's; they are only shown here, so that help needs no configuration.
def sft(
    data: Annotated[
        Path,
        path_option(
            "--data",
            help='JSONL; each line {"messages": [{"role": …, "content": …}, …]}, of which all replies are learned, or '
            '{"prompt": […], "completion": […]}, of which the completion is',
        ),
    ],
    out_folder: Annotated[Path, path_option("--out", help="Folder of the trained model, in Hugging Face form")],
    model: Annotated[
        str | None, typer.Option("--model", help="Model to start from", show_default="smollm2-135m")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Passes over the conversations", show_default="1")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", show_default="2e-05")] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="Conversations of an optimizer step", show_default="16")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Tokens; longer lines are refused", show_default="1024")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", show_default="0")] = None,
) -> None:
    """Supervised warm start on demonstrations, for models that cannot start a pipeline from nothing."""
    from coachrl.config import SftConfig, make_section
    from coachrl.pipelines.defaults import BUNDLED_MODEL

    try:
        from coachrl.trainers.backends.torch.sft import run_sft
    except ImportError as error:
        raise ConfigError(f"coachrl sft needs {lacking(error)}: pip install 'coachrl[quickstart]'") from error

    given = {
        "epochs": epochs,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "max_length": max_length,
        "seed": seed,
    }
    settings = make_section(SftConfig, **{key: value for key, value in given.items() if value is not None})
    stats = run_sft(data, BUNDLED_MODEL if model is None else model, out_folder, settings, lambda line: out.print(line))
    print_metrics(stats)
