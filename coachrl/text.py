"""Readings of what agents and their code wrote, alike for agents, coaches, graders and people."""

from __future__ import annotations

import re

from coachrl.types import Execution

_CODE_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_SHOWN_CHARS = 2000  # of each stream of an execution


def visible(text: str) -> str:
    """A reply without its hidden thinking; empty where the thinking was never closed."""
    if "</think>" in text:
        return text.rsplit("</think>", 1)[1].strip()
    return "" if text.lstrip().startswith("<think>") else text.strip()


def extract_code(text: str) -> str | None:
    """The Python of a reply: its closed ```python blocks, joined in order. None where there is none."""
    blocks = _CODE_BLOCK.findall(visible(text))
    return "\n".join(block.rstrip() for block in blocks) + "\n" if blocks else None


def clip_middle(text: str, limit: int = _SHOWN_CHARS) -> str:
    """`text`, or its two ends with a note of how much was cut between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def shown(execution: Execution) -> str:
    """Both streams of an execution, as an agent reads them."""
    streams = [clip_middle(stream.strip()) for stream in (execution.stdout, execution.stderr)]
    return "\n".join(stream for stream in streams if stream) or "(no output)"


def brief_output(execution: Execution) -> str:
    """Standard output of a run that went well, else the last line of its error."""
    if execution.state == "ok":
        return clip_middle(execution.stdout.strip())
    lines = execution.stderr.strip().splitlines()
    return f"{execution.state}: {clip_middle(lines[-1], 400) if lines else 'no message'}"
