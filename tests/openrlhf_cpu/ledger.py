"""Books in place of GPU memory: which process keeps memory in its cache, and what of an engine is awake.

Every process of a cluster writes to one file, whose order is the order of events.
"""

import functools
import json
import os
from pathlib import Path

FILE = "COACHRL_TEST_LEDGER"


def here():
    """The setting that tells other processes where the ledger is."""
    return {FILE: os.environ[FILE]} if FILE in os.environ else {}


def note(event):
    """Write down that this process, on its GPU, did this."""
    if FILE not in os.environ:
        return
    line = json.dumps({"event": event, "process": os.getpid(), "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", "")})
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def note_empty_cache():
    note("empty")


def read(begin=0):
    """Events from line `begin` on."""
    path = Path(os.environ[FILE])
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines[begin:]]


def caches_in_the_way(events):
    """Wakings of an engine while another process kept memory of its GPU in its cache, and wakings in all."""
    full, wakings, blocked = {}, 0, []
    for event in events:
        match event["event"]:
            case "cache":
                full[event["process"]] = event["gpu"]
            case "empty":
                full.pop(event["process"], None)
            case "wake":
                wakings += 1
                blocked += [event] if event["gpu"] in full.values() else []
    return blocked, wakings


def noting(event, function):
    """The same function, which is written down when it is done."""

    @functools.wraps(function)
    def noted(*args, **kwargs):
        result = function(*args, **kwargs)
        note(event)
        return result

    return noted


def optimizers_at_once(events):
    """The most processes of one GPU that held an optimizer at the same time."""
    holding, most = {}, 0
    for event in events:
        if event["event"] == "optimizer here":
            holding[event["process"]] = event["gpu"]
            most = max(most, list(holding.values()).count(event["gpu"]))
        elif event["event"] == "optimizer away":
            holding.pop(event["process"], None)
    return most


class Memory:
    """Of one engine: what of it is in GPU memory, and whether its weights are those that lay there."""

    def __init__(self):
        self.awake, self.thrown_away = {"weights", "kv_cache"}, False

    def sleep(self, level):
        note("sleep" if level == 1 else "throw away")
        self.awake, self.thrown_away = set(), level == 2

    def fill(self):
        """All weights were sent."""
        self.touch("weights")
        self.thrown_away = False

    def wake(self, tags):
        note("wake")
        for tag in tags or ("weights", "kv_cache"):
            if tag in self.awake:
                raise RuntimeError(f"{tag} is mapped already")
            self.awake.add(tag)

    def touch(self, *tags):
        if missing := set(tags) - self.awake:
            raise RuntimeError(f"illegal memory access: {', '.join(sorted(missing))} of a sleeping engine")

    def run(self):
        """A forward pass."""
        self.touch("weights", "kv_cache")
        if self.thrown_away:
            note("ran without weights")
            raise RuntimeError("an engine runs whose weights were thrown away and not sent")
