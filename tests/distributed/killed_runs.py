"""The command line in a process that kills itself at a given moment."""

import importlib
import json
import os
import signal
import sys
import threading

import openrlhf_cpu

from coachrl.cli.main import main


def set_fuse(call, count, after_s):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original, left = getattr(owner, name), [count]

    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def run(order):
    """order: JSON of {"ray": address of a cluster, "arguments": of coachrl, "kill_at": [call, n, after_s] or null}. A
    call is "module:Class.method"; the process is killed `after_s` after the n-th such call began."""
    order = json.loads(order)
    openrlhf_cpu.join_ray(order["ray"])
    if order["kill_at"]:
        set_fuse(*order["kill_at"])
    sys.argv = ["coachrl", *order["arguments"]]
    main()
