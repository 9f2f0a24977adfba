"""Write demonstrations for the warm start of the DSBench team: one chat-form JSONL file for each role.

python -m examples.dsbench_demonstrations demos --count 300
coachrl sft --data demos/modeler.jsonl ...
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from coachrl.config import SandboxConfig
from coachrl.errors import CoachrlError
from coachrl.sandbox.local import LocalSandbox

from .demonstrations import CRAFTS, FAULT_SHARE, write_demos


def main(
    folder: Annotated[Path, typer.Argument(help="Where <role>.jsonl files are written.")],
    count: Annotated[int, typer.Option(help="Demonstrations of each role.")] = 300,
    fault_share: Annotated[float, typer.Option(help="Share that begins with a faulty program.")] = FAULT_SHARE,
    role: Annotated[list[str] | None, typer.Option(help="Only this role; may be given more than once.")] = None,
    seed: int = 0,
) -> None:
    """Every program of a demonstration is run in the sandbox as it is written down."""
    try:
        paths = asyncio.run(_write(folder, count, fault_share, seed, tuple(role or CRAFTS)))
    except CoachrlError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    for path in paths.values():
        typer.echo(path)


async def _write(folder: Path, count: int, fault_share: float, seed: int, roles: tuple[str, ...]) -> dict[str, Path]:
    sandbox = LocalSandbox(SandboxConfig())
    try:
        return await write_demos(folder, sandbox, count, fault_share, seed, roles)
    finally:
        await sandbox.close()


if __name__ == "__main__":
    typer.run(main)
