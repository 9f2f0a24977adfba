"""`coachrl` in a process whose engine goes into a call that never comes back.

    python stuck_run.py MODULE:CLASS.METHOD,... UPDATES ARGUMENT...

Once the engine was told of so many updates, these methods wait in C, where no Python can interrupt them. What then
waits for them when the process ends, as CUDA's own last words do, waits for ever.
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


def stand_still(call, made, updates):
    module, _, path = call.partition(":")
    owner, name = path.split(".")
    owner = getattr(importlib.import_module(module), owner)
    original = getattr(owner, name)

    def still(*arguments, **options):
        if len(made) >= updates:
            atexit.register(threading.Event().wait)
            while True:
                ctypes.CDLL(None).pause()
        return original(*arguments, **options)

    setattr(owner, name, still)


updates = count_updates()
for call in sys.argv[1].split(","):
    stand_still(call, updates, int(sys.argv[2]))
sys.argv = ["coachrl", *sys.argv[3:]]
main()
