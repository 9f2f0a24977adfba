"""`python child_status.py ADDRESS` joins a cluster as a run does; prints how a child that fails ends in its workers."""

import json
import subprocess
import sys

import ray

from coachrl.trainers.openrlhf.bindings import ReferenceModelActor
from coachrl.trainers.openrlhf.cluster import connect
from coachrl.trainers.openrlhf.worker import RolloutWorker


def status_of_a_child(actor):
    return subprocess.run(["false"]).returncode


connect(sys.argv[1])
actors = [
    ray.remote(RolloutWorker).remote({}, None, 0),
    ReferenceModelActor.options(num_gpus=0).remote(1, 0, None, None),
]
print(json.dumps(ray.get([actor.__ray_call__.remote(status_of_a_child) for actor in actors])))
ray.shutdown()
