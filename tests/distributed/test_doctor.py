"""The doctor's questions to a cluster and to its processes."""

from ray.util import get_node_ip_address

from coachrl.doctor.hand_over import measure
from coachrl.doctor.nodes import diagnose_nodes


def test_every_machine_of_the_cluster_says_what_it_has(ray_cluster, tmp_path):
    [finding] = diagnose_nodes("auto", tmp_path / "runs")
    assert finding.name == f"node {get_node_ip_address()}"
    gpus = f"{ray_cluster.cluster_resources()['GPU']:.0f} GPUs in Ray's books, driver not seen"
    assert gpus in finding.detail and "and here" not in finding.detail, finding
    assert ray_cluster.is_initialized(), "who was connected stays so"


def test_a_tiny_hand_over_agrees_and_one_that_does_not_happen_is_seen(pair, monkeypatch):
    pair.sync_weights()
    found = measure(pair, "solver")
    assert found.agrees, str(found)
    with monkeypatch.context() as patch:
        patch.setattr(pair, "sync_weights", lambda: None)
        assert not measure(pair, "solver").agrees
    pair.sync_weights()
