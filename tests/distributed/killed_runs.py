"""The command line in a process that kills itself, or its cluster, at a given moment."""

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from functools import partial

import openrlhf_cpu
import psutil

from coachrl.cli.main import main


def set_fuse(call, count, after_s, kill):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original, left = getattr(owner, name), [count]

    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(after_s, kill).start()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_what_it_started(pid):
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def run(order):
    """order: JSON of {"ray": address of a cluster, "arguments": of coachrl, "kill_at": [call, n, after_s] or null,
    "kill": the process whose children are killed in this one's place, or null}. A call is "module:Class.method"; the
    kill comes `after_s` after the n-th such call began."""
    order = json.loads(order)
    openrlhf_cpu.join_ray(order["ray"])
    if order["kill_at"]:
        victim = order.get("kill")
        set_fuse(*order["kill_at"], partial(kill_what_it_started, victim) if victim else kill_this_process)
    sys.argv = ["coachrl", *order["arguments"]]
    main()
