"""A cluster of several pretended machines, on each of which are pretended GPUs: who gets which. Called in a process of
its own, as a process works with one cluster of Ray."""

import json
import os
from pathlib import Path

import openrlhf_cpu

MEMORY = 80 * 2**20  # of each machine's object store


def start(machines):
    """Machines of so many GPUs each."""
    from ray.cluster_utils import Cluster

    shape = {"object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "num_gpus": machines[0], **shape})
    for gpus in machines[1:]:
        cluster.add_node(num_cpus=16, num_gpus=gpus, **shape)
    return cluster


def answer(order):
    """order: JSON of {"machines": GPUs of each, "asked": [[function of this module, its arguments by name]], "file":
    where the answers go, as JSON}."""
    order = json.loads(order)
    os.environ |= openrlhf_cpu.ENVIRONMENT
    cluster = start(order["machines"])
    found = [globals()[name](cluster, **given) for name, given in order["asked"]]
    Path(order["file"]).write_text(json.dumps(found), encoding="utf-8")
    _joined(cluster).shutdown()
    cluster.shutdown()


def _joined(cluster):
    import ray

    if not ray.is_initialized():
        openrlhf_cpu.join_ray(cluster.address)
    return ray


def seats(cluster, trainable, settings):
    """The machines that each engine's GPUs are on, by policy, or the words of an error. Machines go by the number of
    GPUs that they have."""
    ray = _joined(cluster)
    from ray.util.placement_group import placement_group_table

    from coachrl.errors import ConfigError
    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import release
    from coachrl.trainers.backends.openrlhf.cluster.seats import check_machines, take_seats

    sizes = {node["NodeID"]: int(node["Resources"]["GPU"]) for node in ray.nodes()}
    placement = _placement(trainable, settings)
    try:
        check_machines(placement)
        taken, groups = take_seats(placement, 60.0)
    except ConfigError as error:
        return str(error)
    nodes = {group.id: placement_group_table(group)["bundles_to_node_id"] for group in groups}
    found = {
        policy: [[(nodes[seat.group.id][bundle], sizes[nodes[seat.group.id][bundle]]) for bundle in seat.bundles]
                 for seat in of_policy.engines]
        for policy, of_policy in taken.items()
    }  # fmt: skip
    release(groups)
    return found


def processes(cluster, trainable, settings):
    """The machine and GPU of every process, by role and policy: trainers and references by rank, engines by worker."""
    ray = _joined(cluster)
    from coachrl.config import RunConfig
    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import release
    from coachrl.trainers.backends.openrlhf.cluster.seats import take_seats
    from coachrl.trainers.backends.openrlhf.engines import engine_group as engines
    from coachrl.trainers.backends.openrlhf.training import ranks

    config = RunConfig(backend="openrlhf", openrlhf=settings)
    placement = _placement(trainable, settings)
    taken, groups = take_seats(placement, 60.0)
    engines.Engine, ranked = _stubs(ray)
    found = {"trainers": {}, "references": {}, "engines": {}}
    kept = []
    for placed in placement.policies:
        policy, own = placed.policy, taken[placed.policy]
        pool = engines.EngineGroup(placed, config, own.engines, 512)
        pool.start("no model")
        kept.append(pool)
        found["engines"][policy] = ray.get([handle.where.remote() for handle in pool.handles])
        for role, count in (("trainers", placed.trainers), ("references", placed.references)):
            if count:
                kept.append(ranks.Ranks(ranked, count, placed, config, own.trainers, policy))
                found[role][policy] = ray.get([handle.where.remote() for handle in kept[-1].handles])
    for group in kept:
        group.kill()
    release(groups)
    return found


def environment(cluster, names, of_driver):
    """What the workers of each machine find of these in their environment. of_driver: what this process has."""
    os.environ |= of_driver
    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect

    connect(cluster.address)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    @ray.remote(num_cpus=1)
    def look():
        return {name: os.environ.get(name) for name in names}

    found = [ray.get(look.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()) for node in ray.nodes()]
    ray.shutdown()
    for name in of_driver:
        del os.environ[name]
    return found


def _placement(trainable, settings):
    from coachrl.config import OpenRLHFConfig
    from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement

    alike = dict.fromkeys(trainable, "owner/model")
    return plan_placement(OpenRLHFConfig(**settings), trainable, True, models=alike)


def _stubs(ray):
    """Actors in the places of OpenRLHF's engine and of its trainers. An engine that spreads over GPUs starts a worker
    on each, as vLLM does."""
    from ray.util.placement_group import get_current_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    class Process:
        def where(self):
            context = ray.get_runtime_context()
            return context.get_node_id(), *context.get_accelerator_ids()["GPU"]

    class Ranked(Process):
        def __init__(self, world_size, rank, address, port):
            pass

        def get_master_addr_port(self):
            return "127.0.0.1", 1

    class Engine(Process):
        def __init__(self, bundle_indices=None, num_gpus=None, **given):
            self.workers = [
                ray.remote(Process)
                .options(
                    num_cpus=0,
                    num_gpus=num_gpus,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=get_current_placement_group(), placement_group_bundle_index=bundle
                    ),
                )
                .remote()
                for bundle in bundle_indices or ()
            ]

        def where(self):
            if not self.workers:
                return [super().where()]
            return ray.get([worker.where.remote() for worker in self.workers])

    return ray.remote(Engine), ray.remote(Ranked)
