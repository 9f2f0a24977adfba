"""The command line in a process that kills itself, its cluster, or one of its trainers at a given moment."""

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
import ray

from coachrl.cli.main import main


def set_fuse(call, count, after_s, kill):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original, left = getattr(owner, name), [count]

    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(after_s, kill(*args)).start()
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def this_process(*_):
    return partial(os.kill, os.getpid(), signal.SIGKILL)


def what_it_started(pid, *_):
    def kill():
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    return kill


def last_trainer(backend, *_):
    """It stands still until then, so that what is under way cannot end before."""
    [trainer] = backend.processes.trainers.values()
    pid = ray.get(trainer.handles[-1].__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    return partial(os.kill, pid, signal.SIGKILL)


def run(order):
    """order: JSON of {"ray": address of a cluster, "arguments": of coachrl, "kill_at": [call, n, after_s] or null,
    "kill": what is killed in this one's place: the children of a process by its id, "trainer", or null}. A call is
    "module:Class.method"; the kill comes `after_s` after the n-th such call began."""
    order = json.loads(order)
    openrlhf_cpu.join_ray(order["ray"])
    if order["kill_at"]:
        victim = order.get("kill")
        kill = last_trainer if victim == "trainer" else partial(what_it_started, victim) if victim else this_process
        set_fuse(*order["kill_at"], kill)
    sys.argv = ["coachrl", *order["arguments"]]
    main()
