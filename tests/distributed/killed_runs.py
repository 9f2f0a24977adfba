"""Runs the command line in forked processes that kill themselves at a given moment: imported once.

Reads one JSON order a line: {"ray": address of a cluster, "arguments": of coachrl, "kill_at": [call, n, after_s] or
null, "output": file}. Answers the return code. A call is "module:Class.method"; the process is killed `after_s` after
the n-th such call began.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback

import litellm  # noqa: F401
import openrlhf_cpu

import coachrl.trainers.backends.openrlhf.backend  # noqa: F401
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
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background specs begin without one
    openrlhf_cpu.join_ray(order["ray"])
    if order["kill_at"]:
        set_fuse(*order["kill_at"])
    sys.argv = ["coachrl", *order["arguments"]]
    main()


def serve():
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                run(json.loads(line))
                code = 0
            except SystemExit as end:
                code = end.code or 0
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    serve()
