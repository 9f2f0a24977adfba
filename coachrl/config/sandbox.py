"""The sandbox's section: where model-written code runs, and what it may use."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coachrl.config.section import MAX_SECONDS, Resumable, Section

_MOST = 2**40  # MiB, and files: the kernel counts in bytes of 64 bits, and of files takes fewer than 2**62


class SandboxConfig(Section):
    """Where model-written code runs, and what one execution of it may use."""

    kind: Literal["local", "local-unsafe", "fusion"] = Field(
        "local",
        description="local runs code on this machine in bubblewrap, fusion on a SandboxFusion server, local-unsafe on "
        "this machine without isolation.",
    )
    url: Resumable[str | None] = Field(
        None, description="With kind=fusion, the address of the server, e.g. http://127.0.0.1:8080."
    )
    timeout_s: float = Field(60.0, gt=0, le=MAX_SECONDS, description="An execution is ended after this many seconds.")
    memory_mb: int = Field(
        2048, ge=64, le=_MOST, description="All processes of an execution together take at most this memory."
    )
    disk_mb: int = Field(
        512,
        ge=1,
        le=_MOST,
        description="The files of a workspace take at most this much room, and those of all workspaces together half "
        "of the machine's memory (kind=local).",
    )
    max_files: int = Field(2048, ge=1, le=_MOST, description="A workspace holds at most this many files.")
    max_processes: int = Field(
        64, ge=1, description="An execution has at most this many processes and threads at once (kind=local)."
    )
    output_kb: int = Field(64, ge=1, description="So much is kept of what an execution prints, of each stream.")
    concurrency: int | None = Field(
        None,
        ge=1,
        description="So many executions run at once, divided among rollout workers; each coach that runs programs "
        "may have as many beside them. By default it is the number of processors that the machine or a container "
        "gives, or fewer where a share of half of its memory does not hold so many (kind=local; workers and coaches "
        "have one each), and 16 with kind=fusion.",
    )
