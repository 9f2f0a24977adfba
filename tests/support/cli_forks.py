"""The command line in a forked process: see command_line.py. Imports everything that a command may need, and of what
tests import beside that the largest."""

import contextlib
import ctypes
import functools
import importlib
import os
import sys
from pathlib import Path

import typer.main

from coachrl.audit.report import page as audit_page
from coachrl.cli.main import app, main
from coachrl.errors import PolicyError
from coachrl.report import page as report_page
from coachrl.sandbox.packages import PRELOAD, resolve

HEAVY = (
    "torch",
    "transformers",
    "litellm",
    "google.genai",
    "coachrl.doctor.machine",
)
HEAVY += ("coachrl.commands.run", "coachrl.trainers.backends.torch.sft", "coachrl.trainers.backends.torch.backend")
HEAVY += ("anthropic", "peft", "sklearn.ensemble")
for name in HEAVY:
    with contextlib.suppress(ImportError):  # an extra that is not installed
        importlib.import_module(name)
typer.main.get_command = functools.cache(typer.main.get_command)  # the tree of commands, made once
typer.main.get_command(app)
for page in (report_page, audit_page):  # a process compiles a template when it first fills it
    for template in Path(page.__file__).parent.glob("*.j2"):
        page.environment().get_template(template.name)
with contextlib.suppress(ImportError, PolicyError):  # kept for all that name the bundled model
    from coachrl.trainers.backends.torch.models.tokenizer import ChatTokenizer

    ChatTokenizer("smollm2-135m")
# Sandboxes import packages when a program asks for them: doing so beforehand takes seconds of computing, and most of
# these commands run no such program. The tests of the sandbox itself, and all others that make one, do it beforehand.
_PRELOAD = dict(PRELOAD)
PRELOAD.clear()
resolve(None)  # the sandbox's packages, which are looked up once in a process


def run(*arguments):
    """As `python -m coachrl.cli.main` would."""
    sys.argv = ["coachrl", *arguments]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    main()


def run_powerless(*arguments):
    """Also root may then write only where its permissions let it (capset(2), version 3, two words of three sets)."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, none) == 0, os.strerror(ctypes.get_errno())
    run(*arguments)


def run_tests(*words):
    """As `python -u -c TEXT` would, which is how a process of pytest's is started: with sandboxes as they are."""
    PRELOAD.update(_PRELOAD)
    resolve.cache_clear()
    exec(words[-1], {"__name__": "__main__"})
