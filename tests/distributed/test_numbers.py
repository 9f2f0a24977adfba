"""Gradients over two ranks: summed in float32, and refused where they are not finite."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from openrlhf_cpu import HERE

PATHS = os.pathsep.join(
    filter(None, [str(HERE), str(HERE.parents[1]), str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])
)


def start_python(script, *arguments):
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name(script)), *arguments],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        text=True,
    )


def last_line(process):
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def ranks():
    """What each of two ranks found, by ZeRO context."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [last_line(rank) for rank in [start_python("two_ranks.py", str(i), port) for i in range(2)]]


@pytest.mark.parametrize("context", ["2", "3"])
def test_two_hundred_small_gradients_add_up(ranks, context):
    """Each is a two hundredth in 1,024 places; a sum in bfloat16 stops growing where a two hundredth rounds away."""
    assert ranks[0][context]["norm"] == pytest.approx(32, rel=0.005)


@pytest.mark.parametrize("context", ["2", "3"])
def test_a_gradient_of_one_rank_that_is_not_finite_is_stepped_with_by_none(ranks, context):
    for rank in ranks:
        assert rank[context]["nan"].startswith("a gradient is not finite, so no step was taken with it")
        assert rank[context]["kept"]


@pytest.mark.parametrize("context", ["2", "3"])
def test_weights_that_are_not_finite_after_a_step_are_an_error(ranks, context):
    assert all(rank[context]["overflow"].startswith("weights are not finite after a step") for rank in ranks)


def test_a_child_that_fails_is_seen_to_fail_in_workers_too(ray_cluster):
    """Ray ignores the signal of a child's end there, and every child then seems to end well."""
    address = ray_cluster.get_runtime_context().gcs_address
    assert last_line(start_python("child_status.py", address)) == [1, 1]
