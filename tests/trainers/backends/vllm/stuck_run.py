"""`coachrl` in a process whose engine goes into a call that never comes back.

    python stuck_run.py MODULE:CLASS.METHOD UPDATES ARGUMENT...

Once the engine was told of so many updates, that method waits in C, where no Python can interrupt it. What then waits
for it when the process ends, as CUDA's own last words do, waits for ever.
"""

import atexit
import ctypes
import importlib
import sys
import threading

from coachrl.cli.main import main
from coachrl.trainers.backends.vllm.backend import VllmBackend


def stand_still(call, updates):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original, sync, made = getattr(owner, name), VllmBackend.sync_weights, []

    def counted(backend):
        made.append(backend)
        sync(backend)

    def still(*arguments, **options):
        if len(made) >= updates:
            atexit.register(threading.Event().wait)
            while True:
                ctypes.CDLL(None).pause()
        return original(*arguments, **options)

    VllmBackend.sync_weights = counted
    setattr(owner, name, still)


stand_still(sys.argv[1], int(sys.argv[2]))
sys.argv = ["coachrl", *sys.argv[3:]]
main()
