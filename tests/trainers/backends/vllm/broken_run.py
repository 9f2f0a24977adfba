"""`coachrl` in a process whose engine goes into a call that fails, or never comes back.

    python broken_run.py fails|hangs MODULE:CLASS.METHOD,... UPDATES ARGUMENT...

Once the engine was told of so many updates, these methods raise an error; or they wait in C, where no Python can
interrupt them. What then waits for them when the process ends, as CUDA's own last words do, waits for ever.
"""

import atexit
import ctypes
import importlib
import sys
import threading

from coachrl.cli.main import main
from coachrl.trainers.backends.vllm.backend import VllmBackend


def count_updates():
    sync, made = VllmBackend.sync_weights, []

    def counted(backend):
        made.append(backend)
        sync(backend)

    VllmBackend.sync_weights = counted
    return made


def break_off(how, call, made, updates):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original = getattr(owner, name)

    def broken(*arguments, **options):
        if len(made) >= updates and how == "fails":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if len(made) >= updates:
            atexit.register(threading.Event().wait)
            while True:
                ctypes.CDLL(None).pause()
        return original(*arguments, **options)

    setattr(owner, name, broken)


updates = count_updates()
for call in sys.argv[2].split(","):
    break_off(sys.argv[1], call, updates, int(sys.argv[3]))
sys.argv = ["coachrl", *sys.argv[4:]]
main()
