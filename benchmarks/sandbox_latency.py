"""How long an execution in the local sandbox takes: cold interpreter against the warm one, and trivial executions a
second. Both are measured in the same run, under the same bubblewrap: `python benchmarks/sandbox_latency.py`."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from coachrl.config import SandboxConfig
from coachrl.sandbox.local import LocalSandbox, LocalWorkspace

ANALYSIS = """
import numpy as np, pandas as pd
from sklearn.linear_model import LogisticRegression
frame = pd.DataFrame(np.random.rand(200, 3), columns=list("abc"))
print(LogisticRegression().fit(frame, frame.a > 0.5).score(frame, frame.a > 0.5))
"""
# A fresh interpreter in the same room imports everything again.
COLD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ANALYSIS!r}], check=True)"


async def seconds_of(workspace: LocalWorkspace, code: str) -> float:
    started = time.perf_counter()
    execution = await workspace.run(code)
    if execution.state != "ok":
        raise RuntimeError(execution.stderr)
    return time.perf_counter() - started


async def measure(repeats: int, concurrency: int) -> None:
    sandbox = LocalSandbox(SandboxConfig(concurrency=concurrency))
    started = time.perf_counter()
    await sandbox.start()
    print(f"start of the sandbox with its self-check: {time.perf_counter() - started:.2f} s")
    workspaces = [await sandbox.open({}) for _ in range(concurrency)]
    times_s: dict[str, list[float]] = {"trivial": [], "warm": [], "cold": []}
    for _ in range(repeats):
        for name, code in (("trivial", "print(1)"), ("warm", ANALYSIS), ("cold", COLD)):
            times_s[name].append(await seconds_of(workspaces[0], code))
    medians_s = {name: statistics.median(values) for name, values in times_s.items()}
    for name, median_s in medians_s.items():
        print(f"{name:8} median {1000 * median_s:7.1f} ms  fastest {1000 * min(times_s[name]):7.1f} ms")
    print(f"cold / warm (pandas + scikit-learn): {medians_s['cold'] / medians_s['warm']:.1f}")

    async def stream(workspace: LocalWorkspace) -> None:
        for _ in range(repeats):
            await seconds_of(workspace, "print(1)")

    started = time.perf_counter()
    await asyncio.gather(*map(stream, workspaces))
    rate = repeats * concurrency / (time.perf_counter() - started)
    print(f"trivial executions, {concurrency} at once: {rate:.1f} a second")
    await sandbox.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=2)
    options = parser.parse_args()
    asyncio.run(measure(options.repeats, options.concurrency))
