"""Which of a cluster's GPUs each process gets: reservations in Ray, and the part of them that one engine sits on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from coachrl.errors import ConfigError
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import Wanted, release, reserve


@dataclass(frozen=True)
class Seat:
    """Of one engine: bundles of a reservation, a GPU each, all of them on one machine."""

    group: PlacementGroup
    bundles: tuple[int, ...]


@dataclass(frozen=True)
class Seats:
    """Of one policy. trainers: the reservation whose bundle r is that of its r-th trainer and its r-th reference; of a
    policy that has none, that of an engine."""

    trainers: PlacementGroup
    engines: tuple[Seat, ...]


def check_machines(placement: Placement) -> None:
    """Raises ConfigError where the machines that are there now have no room for engines that spread over GPUs, whoever
    else uses them."""
    _check_places(placement, [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]])


def take_seats(placement: Placement, timeout_s: float) -> tuple[dict[str, Seats], list[PlacementGroup]]:
    """The seats of each policy, and all reservations, which are to be given back. Raises BackendError where they are
    not granted in time, and ConfigError where engines that spread over GPUs do not fit the parts of machines that are;
    nothing is reserved then."""
    return (_shared if placement.colocated else _apart)(placement, timeout_s)


def _shared(placement: Placement, timeout_s: float) -> tuple[dict[str, Seats], list[PlacementGroup]]:
    """All on one reservation, engines on places that lie on one machine each."""
    [group] = reserve([Wanted(placement.gpus)], timeout_s)
    machines = _machines(group)
    try:
        _check_places(placement, map(len, machines))
    except ConfigError:
        release([group])
        raise
    places = list(_places(machines, _width(placement)))
    used = sorted({slot for placed in placement.policies for slot in placed.slots})
    of_slot = dict(zip(used, places, strict=False))
    seats = {
        placed.policy: Seats(group, tuple(Seat(group, of_slot[slot]) for slot in placed.slots))
        for placed in placement.policies
    }
    return seats, [group]


def _apart(placement: Placement, timeout_s: float) -> tuple[dict[str, Seats], list[PlacementGroup]]:
    """Engines come first: each needs one machine, and trainers take what is left of any."""
    engines = [Wanted(placed.tensor_parallel, True) for placed in placement.policies for _ in placed.slots]
    trainers = [Wanted(placed.trainers) for placed in placement.policies if placed.trainers]
    groups = reserve([*engines, *trainers], timeout_s)
    of_engines, of_trainers = iter(groups[: len(engines)]), iter(groups[len(engines) :])
    seats = {}
    for placed in placement.policies:
        bundles = tuple(range(placed.tensor_parallel))
        own = tuple(Seat(next(of_engines), bundles) for _ in placed.slots)
        seats[placed.policy] = Seats(next(of_trainers) if placed.trainers else own[0].group, own)
    return seats, groups


def _check_places(placement: Placement, gpus: Iterable[int]) -> None:
    """gpus: of each machine. Raises ConfigError where they have fewer places for engines than are to be taken."""
    gpus, width = sorted(gpus, reverse=True), _width(placement)
    if placement.colocated:
        needed = len({slot for placed in placement.policies for slot in placed.slots})
    else:
        needed = sum(placed.engines for placed in placement.policies)
    room = sum(count // width for count in gpus)
    if width > 1 and room < needed:
        whole = ", or openrlhf.gpus to all that they have" if placement.colocated else ""
        raise ConfigError(
            f"openrlhf.tensor_parallel={width}: engines need {needed} times {width} GPUs of one machine, and the "
            f"machines have {', '.join(map(str, gpus))}: room for {room}. Lower openrlhf.engines, or set "
            f"openrlhf.tensor_parallel to a number that divides the GPUs of each{whole}"
        )


def _machines(group: PlacementGroup) -> list[list[int]]:
    """The bundles of a reservation by machine, in order."""
    by_node: dict[str, list[int]] = {}
    for bundle, node in sorted(placement_group_table(group)["bundles_to_node_id"].items()):
        by_node.setdefault(node, []).append(bundle)
    return list(by_node.values())


def _places(machines: Iterable[list[int]], width: int) -> Iterator[tuple[int, ...]]:
    """Bundles of one machine, `width` at a time; what is left over of a machine is nobody's."""
    for bundles in machines:
        for begin in range(0, len(bundles) - width + 1, width):
            yield tuple(bundles[begin : begin + width])


def _width(placement: Placement) -> int:
    return placement.policies[0].tensor_parallel  # one setting for all
