"""Gradients over two ranks: summed in float32, and refused where they are not finite."""

import json
import socket
from pathlib import Path

import pytest
from openrlhf_cpu import fork_server


@pytest.fixture(scope="module")
def run_scripts(tmp_path_factory):
    """Run scripts of this folder at once, (name, word, ...) each; of each the JSON in the last line that it prints."""

    def run(*scripts):
        folder = tmp_path_factory.mktemp("scripts")
        started = []
        for number, (name, *words) in enumerate(scripts):
            output = (folder / f"{number}.out", folder / f"{number}.err")
            path = str(Path(__file__).with_name(name))
            started.append((fork_server().start("forks:script", path, *words, output=output), *output))
        for process, _, errors in started:
            assert process.wait(900) == 0, errors.read_text()
        return [json.loads(output.read_text().splitlines()[-1]) for _, output, _ in started]

    return run


@pytest.fixture(scope="module")
def ranks(run_scripts):
    """What each of two ranks found, by ZeRO context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return run_scripts(("two_ranks.py", "0", port), ("two_ranks.py", "1", port))


@pytest.mark.parametrize("context", ["2", "3"])
def test_two_hundred_small_gradients_add_up(ranks, context):
    """Each is a two hundredth in 1,024 places; a sum in bfloat16 stops growing where a two hundredth rounds away."""
    assert ranks[0][context]["norm"] == pytest.approx(32, rel=0.005)


@pytest.mark.parametrize("context", ["2", "3"])
def test_a_gradient_of_one_rank_that_is_not_finite_is_stepped_with_by_none(ranks, context):
    for rank in ranks:
        assert rank[context]["nan"].startswith("a gradient is not finite, so no step was taken with it")
        assert rank[context]["kept"]
        assert rank[context]["next_norm"] == rank[context]["norm"]  # nothing of it is added to the next step's


@pytest.mark.parametrize("context", ["2", "3"])
def test_weights_that_are_not_finite_after_a_step_are_an_error(ranks, context):
    assert all(rank[context]["overflow"].startswith("weights are not finite after a step") for rank in ranks)


def test_parameters_that_are_gathered_at_once_are_all_there(ranks):
    """DeepSpeed waits for the last of them alone. With gloo that says nothing of those before it: engines that were
    started again were sent memory that nobody had filled."""
    for rank in ranks:
        assert rank["gathered"] == [[1.0] * 9] * 3


def test_a_child_that_fails_is_seen_to_fail_in_workers_too(ray_cluster, run_scripts):
    """Ray ignores the signal of a child's end there, and every child then seems to end well."""
    address = ray_cluster.get_runtime_context().gcs_address
    assert run_scripts(("child_status.py", address)) == [[1, 1]]
