"""`python child_status.py ADDRESS` joins a cluster as a run does; prints how a child that fails ends in its workers."""

import json
import subprocess
import sys

import ray

from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect


class Trainer:
    """An actor like OpenRLHF's trainers."""

    def status_of_a_child(self):
        return subprocess.run(["false"]).returncode


class Worker:
    """An actor with an event loop, as rollout workers and engines are."""

    async def status_of_a_child(self):
        return subprocess.run(["false"]).returncode


connect(sys.argv[1])
actors = [ray.remote(kind).remote() for kind in (Trainer, Worker)]
print(json.dumps(ray.get([actor.status_of_a_child.remote() for actor in actors])))
ray.shutdown()
