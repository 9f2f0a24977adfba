"""Settings of the backend of one process, and what is said of it before vLLM is asked for."""

import pytest

pytest.importorskip("transformers")

from tiny_models import write_tiny_model

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import find_config, load_config
from coachrl.errors import ConfigError
from coachrl.trainers.backends.vllm.shapes import check_shapes


def test_an_engine_of_several_gpus_is_not_for_one_process():
    for argument in ("tensor_parallel_size", "data_parallel_size"):
        with pytest.raises(ConfigError, match=rf"{argument}: the engine runs in one process, .*backend=openrlhf"):
            load_config(None, [f"vllm.engine_args={{{argument}: 2}}"])
        load_config(None, [f"vllm.engine_args={{{argument}: 1}}"])


def test_rollout_workers_are_refused():
    with pytest.raises(ConfigError, match=r"rollout\.workers=3 needs backend=openrlhf: the vllm backend"):
        load_config(None, ["backend=vllm", "rollout.workers=3"])


def test_a_dry_run_says_who_shares_the_gpu():
    config = load_config(find_config("one_gpu"), ["torch.offload_optimizer=false"])
    process, trainers, engine = make_dry_run(config).placement
    assert process == "one process: a vLLM engine that the policies use in turn, and the trainers"
    assert "5.6 GB for weights and optimizers" in trainers
    assert "50% of the GPU's memory, which it leaves while they train" in engine
    awake = load_config(find_config("one_gpu"), ["vllm.sleep=false", "vllm.memory=0.3"])
    assert make_dry_run(awake).placement[2].endswith("30% of the GPU's memory")


def test_models_share_an_engine_where_only_their_weights_differ(tmp_path):
    one, other = write_tiny_model(tmp_path / "one"), write_tiny_model(tmp_path / "other", seed=1)
    check_shapes([one, other, one])
    deeper = write_tiny_model(tmp_path / "deeper", num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"one and .*deeper differ in .*num_hidden_layers.* cannot take turns"):
        check_shapes([one, deeper])
