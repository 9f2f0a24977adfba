"""`coachrl doctor`: what this machine has, and how well its sandbox holds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from coachrl.cli.console import err, out, print_json
from coachrl.cli.options import ConfigOption, Json, Overrides
from coachrl.errors import ConfigError
from coachrl.text import one_line

if TYPE_CHECKING:
    from coachrl.config import SandboxConfig
    from coachrl.doctor.sandbox import Result
    from coachrl.sandbox.checks import Finding


def doctor(
    overrides: Overrides = None,
    config: ConfigOption = None,
    backend: Annotated[
        Literal["torch", "vllm", "openrlhf"] | None,
        typer.Option(
            "--backend",
            help="vllm, openrlhf: also what one GPU needs, or GPU nodes",
            show_default="that of the settings",
        ),
    ] = None,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="Try to escape from the sandbox, and print how.")] = False,
    as_json: Json = False,
) -> None:
    """Check what this machine has: packages, sandbox, small model, keys. Exits with 1 where something is MISSING;
    what is absent is needed by some runs alone.

    The sandbox is the one that the settings name, e.g. sandbox.kind=fusion sandbox.url=http://127.0.0.1:8080. With
    --backend openrlhf and a configuration for it, main memory is compared with what that run takes; with
    openrlhf.ray_address, or $RAY_ADDRESS, every machine of that cluster is asked. A tiny trainer hands its weights over
    to a tiny engine.
    """
    from coachrl.commands.gpu_estimates import planned_main_memory
    from coachrl.config import find_config, load_config
    from coachrl.doctor.cluster import collectives
    from coachrl.doctor.gpu import diagnose_distributed, diagnose_vllm
    from coachrl.doctor.hand_over import try_hand_over
    from coachrl.doctor.machine import diagnose
    from coachrl.doctor.nodes import diagnose_nodes

    place = find_config(config) if config is not None else None
    run = load_config(place, overrides or ())
    backend = backend or run.backend
    if backend == "openrlhf" and run.openrlhf.ray_address is None and (address := os.environ.get("RAY_ADDRESS")):
        try:
            run = load_config(place, [*(overrides or ()), f"openrlhf.ray_address={address}"])  # where a run would go
        except ConfigError as error:
            raise ConfigError(f"RAY_ADDRESS in the environment: {error}") from error
    settings = run.sandbox
    if sandbox:
        _try_to_escape(settings, as_json)
        return
    findings = diagnose(settings)
    if backend == "vllm":
        findings += [*diagnose_vllm(), try_hand_over(run, backend)]
    elif backend == "openrlhf":
        main_memory = planned_main_memory(run) if run.backend == backend else None
        findings += diagnose_distributed(main_memory, run.openrlhf.attention) + collectives()
        if run.openrlhf.ray_address is not None:
            findings += diagnose_nodes(run.openrlhf.ray_address, run.out)
        findings.append(try_hand_over(run, backend))
    _print(findings, as_json)
    if not all(finding.ok or finding.optional for finding in findings):
        raise typer.Exit(1)


def _print(findings: Sequence[Finding], as_json: bool) -> None:
    if as_json:
        print_json([finding.__dict__ for finding in findings])
        return
    for finding in findings:
        found = "ok" if finding.ok else "absent" if finding.optional else "MISSING"
        found = "skipped" if finding.skipped else found
        out.print(f"{found:7}  {finding.name}: {finding.detail}")
        if not finding.ok and finding.remedy:
            out.print(f"         {finding.remedy}")


def _try_to_escape(settings: SandboxConfig, as_json: bool) -> None:
    if settings.kind == "local-unsafe":
        raise ConfigError("sandbox.kind=local-unsafe isolates nothing: bombs in it would hit this machine; not tried")
    import asyncio

    results = asyncio.run(_results(settings, as_json))
    failed = [result for result in results if not result.held]
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        err.print("this is the short list; the project's tests try every attempt of tests/support/escapes")
        out.print(f"{len(results) - len(failed)} of {len(results)} attempts were held by sandbox {settings.kind}")
    if failed:
        raise typer.Exit(1)


async def _results(settings: SandboxConfig, as_json: bool) -> list[Result]:
    from coachrl.doctor.bait import set_out
    from coachrl.doctor.sandbox import PROBE_LIMITS, run_probes
    from coachrl.sandbox import make_sandbox

    results: list[Result] = []
    with set_out() as bait:
        sandbox = make_sandbox(PROBE_LIMITS.model_copy(update={"kind": settings.kind, "url": settings.url}))
        try:
            async for result in run_probes(sandbox, bait):
                results.append(result)
                if not as_json:
                    word = "held  " if result.held else "FAILED"
                    out.print(f"{word}  {result.area:18} {result.tried:42} {one_line(result.detail, 80)}")
        finally:
            await sandbox.close()
    if not as_json and settings.kind == "fusion":
        err.print("what a server shows of its own container (its users, its settings) counts as read from a host")
    return results
