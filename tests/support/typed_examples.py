"""Examples of the docs as a user types them into a shell."""

import os
import shlex
import subprocess
import sys

from command_line import command


def typed(text, place, **environment):
    """Run a block of shell commands in the folder `place`, with `coachrl` and `python` on the path."""
    programs = place.parent / "bin"
    programs.mkdir(exist_ok=True)
    place.mkdir(exist_ok=True)
    for name, words in (("coachrl", command()), ("python", [sys.executable])):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eu", "-c", text],
        cwd=place,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )
