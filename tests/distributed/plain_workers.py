"""`python plain_workers.py`: the backend's actors in workers that Ray starts itself, which have imported nothing yet.

Prints what each has of flash-attn and of OpenRLHF's module that imports it, as JSON.
"""

import json

import ray
from ray import cloudpickle

from coachrl.trainers.backends.openrlhf.bindings import PolicyModelActor, ReferenceModelActor
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect
from coachrl.trainers.backends.openrlhf.engines.engine_group import Engine


def look(actor=None):
    import sys
    from importlib.util import find_spec

    return {
        "imported": sorted(name for name in sys.modules if name.partition(".")[0] == "flash_attn"),
        "found": find_spec("flash_attn") is not None,
        "openrlhf": "openrlhf.models.ring_attn_utils" in sys.modules,
    }


def look_in_engine(pickled):
    """One that is not started: it needs a model. Its vLLM imports the second module by name."""
    import importlib
    import pickle

    pickle.loads(pickled)
    importlib.import_module("coachrl.trainers.backends.openrlhf.engines.buckets")
    return look()


if __name__ == "__main__":
    found = {"driver": look()}
    connect("local")
    actors = {"policy": PolicyModelActor, "reference": ReferenceModelActor}
    for name, kind in actors.items():
        actor = kind.options(num_cpus=0, num_gpus=0).remote(1, 0, None, None)
        found[name] = ray.get(actor.__ray_call__.remote(look))
        ray.kill(actor)
    engine = cloudpickle.dumps(Engine.__ray_metadata__.modified_class)
    found["engine"] = ray.get(ray.remote(look_in_engine).options(num_cpus=0).remote(engine))
    print(json.dumps(found), flush=True)
