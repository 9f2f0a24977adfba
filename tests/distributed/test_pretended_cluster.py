"""Real placement groups of Ray on machines and GPUs that are pretended: who sits with whom."""

import json
import os

import pytest
from openrlhf_cpu import FORKS, fork_server

TWO = {"solver": True, "verifier": True}
NAMES = ("NCCL_SOCKET_IFNAME", "HF_HOME", "VLLM_ATTENTION_BACKEND", "NCCL_DEBUG", "HF_TOKEN", "VLLM_API_KEY",
         "VLLM_HOST_IP", "HF_ENDPOINT", "OPENAI_API_KEY", "HOME_OF_NOBODY")  # fmt: skip
OF_DRIVER = {name: f"{name} of the driver" for name in NAMES} | {"HF_ENDPOINT": "https://someone:secret@hub"}


def ask(folder, machines, *asked):
    """Answers of a process that starts a cluster of these machines."""
    file, output = folder / "found.json", folder / "output.txt"
    order = {"machines": machines, "asked": asked, "file": str(file)}
    environment = {**os.environ, FORKS: fork_server().socket}
    child = fork_server().start(
        "pretended_cluster:answer", json.dumps(order), environment=environment, output=(output, output)
    )
    assert child.wait() == 0, output.read_text()[-3000:]
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    """Two machines of four GPUs."""
    asked = [
        ["environment", {"names": NAMES, "of_driver": OF_DRIVER}],
        ["seats", {"trainable": {**TWO, "judge": False}, "settings": {"gpus": 8, "tensor_parallel": 2}}],
        ["seats", {"trainable": TWO, "settings": {"colocate": False, "gpus": 2, "engines": 1, "tensor_parallel": 2}}],
    ]
    return ask(tmp_path_factory.mktemp("even"), [4, 4], *asked)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Machines of four, four and six GPUs. Engines of five GPUs find one place."""
    asked = [["seats", {"trainable": {"solver": True}, "settings": {"gpus": 14, "tensor_parallel": width}}]
             for width in (1, 2, 3, 4, 5)]  # fmt: skip
    apart = {"colocate": False, "gpus": 2, "engines": 2, "tensor_parallel": 5}
    part = {"gpus": 8, "tensor_parallel": 4}  # room for three on the machines, of which Ray grants eight GPUs
    again = {"gpus": 14, "tensor_parallel": 4}  # so nothing was kept of what was granted
    asked += [["seats", {"trainable": TWO, "settings": settings}] for settings in (apart, part, again)]
    return ask(tmp_path_factory.mktemp("uneven"), [4, 4, 6], *asked)


def on_one_machine(engine):
    return len({machine for machine, _ in engine}) == 1


@pytest.mark.thorough
def test_an_engine_stays_on_one_machine_and_trainers_and_references_meet_on_every_gpu(tmp_path):
    """Two engines of four GPUs, two policies of eight trainers, and one set of references for both: 34 processes."""
    [found] = ask(tmp_path, [4, 4], ["processes", {"trainable": TWO, "settings": {"gpus": 8, "tensor_parallel": 4}}])
    engines = [[tuple(place) for place in engine] for of_policy in found["engines"].values() for engine in of_policy]
    assert len(engines) == 2 and all(map(on_one_machine, engines))
    taken = [place for engine in engines for place in engine]
    assert len(set(taken)) == len(taken) == 8
    trainers = {policy: [tuple(place) for place in places] for policy, places in found["trainers"].items()}
    assert trainers["solver"] == trainers["verifier"], "rank by rank"
    assert set(trainers["solver"]) == set(taken)
    assert found["references"] == {"solver": found["trainers"]["solver"]}


@pytest.mark.slow
def test_policies_engines_are_spread_over_all_gpus_and_those_that_sit_apart_over_their_own(even):
    colocated, apart = even[1:]
    assert {policy: len(engines) for policy, engines in colocated.items()} == {"solver": 2, "verifier": 1, "judge": 1}
    for found in (colocated, apart):
        assert all(on_one_machine(engine) for engines in found.values() for engine in engines)
    assert {policy: len(engines) for policy, engines in apart.items()} == {"solver": 1, "verifier": 1}


@pytest.mark.thorough
def test_machines_of_different_sizes_hold_as_many_engines_as_fit_or_it_is_said_that_they_do_not(uneven):
    *fitting, too_wide, apart, part, again = uneven
    for width, found in zip((1, 2, 3, 4), fitting, strict=True):
        assert len(found["solver"]) == 14 // width, width
        assert all(on_one_machine(engine) and len(engine) == width for engine in found["solver"])
    assert "engines need 2 times 5 GPUs of one machine, and the machines have 6, 4, 4: room for 1. Lower" in too_wide
    assert "engines need 4 times 5 GPUs of one machine" in apart
    assert "engines need 2 times 4 GPUs of one machine, and the machines have 6, 2: room for 1" in part
    assert len(again["solver"]) + len(again["verifier"]) == 3


@pytest.mark.slow
def test_every_machine_gets_the_drivers_settings_of_libraries_and_none_of_its_secrets(even):
    first, second = even[0]
    assert first == second
    kept = {"NCCL_SOCKET_IFNAME", "HF_HOME", "VLLM_ATTENTION_BACKEND", "NCCL_DEBUG"}
    assert first == {name: OF_DRIVER[name] if name in kept else None for name in NAMES}
