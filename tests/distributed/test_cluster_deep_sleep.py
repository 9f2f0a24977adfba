"""Engines that throw their weights away while they sleep: whatever they are woken for, new ones are sent first."""

from types import SimpleNamespace

import ledger
import numpy as np
import pytest
import torch
from drawing import draw, fresh
from vllm import SamplingParams
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm

from coachrl.errors import BackendError
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers
from coachrl.trainers.backends.openrlhf.engines import deep_sleep
from coachrl.trainers.backends.openrlhf.engines.buckets import WholeReceiver

pytestmark = pytest.mark.thorough

SAME, MOVED = 0.01, 0.02  # mean |log-prob| of bfloat16's rounding, and of weights that were not sent

MATTERS = ("throw away", "weights", "ran without weights")


@pytest.fixture(scope="module")
def backend(start):
    """Two engines of a policy that is trained, and one of a policy that is not."""
    shape = {"gpus": 2, "engines": 2, "zero_stage": 3, "micro_batch_tokens": 64}
    return start("coder", "judge", trainable={"judge": False}, colocate=True, sleep=True, sleep_level=2, **shape)


@pytest.fixture
def events():
    """What has happened since the test began, of what matters here."""
    begin = len(ledger.read())
    return lambda: [event["event"] for event in ledger.read(begin) if event["event"] in MATTERS]


def gap_to_trainer(backend, samples):
    """Between what engines drew with and what trainers hold, as mean |log-prob|. Puts engines to sleep."""
    [filled] = backend.with_trainer_logprobs({"coder": samples}).values()
    return np.mean([np.abs(sample.trainer_logprobs_L - sample.old_logprobs_L).mean() for sample in filled])


def test_the_first_replies_of_a_run_come_from_weights_that_were_sent(backend, events):
    """Engines slept while the trainers started."""
    assert backend.processes.engines["coder"].lacks_weights and not backend.processes.engines["judge"].lacks_weights
    samples = fresh(backend, "coder", 8)
    assert set(events()) == {"weights"} and not backend.processes.engines["coder"].lacks_weights
    assert gap_to_trainer(backend, samples) < SAME
    assert draw(backend, "judge", 2)[1], "which kept its own"


def test_engines_of_a_policy_that_was_not_trained_in_a_step_are_sent_weights_too(backend, events):
    draw(backend, "coder", 1)
    backend.with_trainer_logprobs({"coder": fresh(backend, "coder", 4, 1)})
    assert backend.update({"coder": []}) == {}
    backend.sync_weights()
    assert events() == ["throw away", "throw away", "weights", "weights"]
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 2)) < SAME


def test_engines_that_slept_for_an_update_hold_what_it_made(backend):
    for step in range(2):
        before = fresh(backend, "coder", 8, 3 + step)
        assert backend.update({"coder": before})["sampler_trainer_logprob_gap/coder"] < SAME
        backend.sync_weights()
        assert not backend.processes.engines["coder"].lacks_weights
    assert gap_to_trainer(backend, before) > MOVED
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 5)) < SAME


def test_a_checkpoint_that_is_loaded_reaches_engines_that_slept(backend, tmp_path):
    backend.save(tmp_path)
    kept = fresh(backend, "coder", 8, 6)
    backend.update({"coder": kept})
    backend.load(tmp_path)
    assert not backend.processes.engines["coder"].lacks_weights
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 9)) < SAME
    assert gap_to_trainer(backend, kept) < SAME


def test_an_engine_that_dies_asleep_or_awake_is_replaced_by_one_that_is_sent_weights(backend, ray_cluster):
    def take_step(samples):
        """An engine is replaced once between two updates."""
        backend.update({"coder": samples})
        backend.sync_weights()

    samples = fresh(backend, "coder", 8, 10)
    assert gap_to_trainer(backend, samples) < SAME
    ray_cluster.kill(backend.processes.engines["coder"].handles[0])  # asleep
    take_step(samples)
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 11)) < SAME
    take_step(fresh(backend, "coder", 8, 12))
    ray_cluster.kill(backend.processes.engines["coder"].handles[0])  # awake
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 13)) < SAME


def test_an_update_that_is_refused_leaves_no_engine_without_weights(backend):
    broken = fresh(backend, "coder", 4, 7)
    broken[0].advantages_L[:] = np.nan
    with pytest.raises(BackendError, match="not finite"):
        backend.update({"coder": broken})
    assert backend.processes.engines["coder"].lacks_weights
    assert gap_to_trainer(backend, fresh(backend, "coder", 8, 8)) < SAME


def test_an_engine_that_was_sent_nothing_cannot_generate(backend, ray_cluster):
    """The ledger sees it, as a GPU would not."""
    pool, begin = backend.processes.engines["coder"], len(ledger.read())
    backend.with_trainer_logprobs({"coder": fresh(backend, "coder", 4, 40)})
    with pytest.raises(ValueError, match="engines of policy coder threw their weights away and were sent none"):
        pool.wake()
    answers([handle.wake_up.remote() for handle in pool.handles], "waking them all the same", 60)
    with pytest.raises(BackendError, match="EngineCore encountered an issue"):
        answers([pool.handles[0].generate.remote([3, 4, 5], SamplingParams(max_tokens=2))], "a reply", 120)
    assert "ran without weights" in [event["event"] for event in ledger.read(begin)]


class Worker(WholeReceiver):
    """As far as the extension asks for it: a model of a layer and a norm."""

    def __init__(self, norm):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), norm)
        model.load_weights = lambda weights: {name for name, _ in weights}
        self.model_runner = SimpleNamespace(model=model)

    def get_draft_model(self):
        return None


def test_a_worker_that_gets_its_weights_in_buckets_says_what_is_missing_after_the_last(monkeypatch):
    """The norm is vLLM's, which keeps a scale that it does not register where it has no weights."""
    monkeypatch.setattr(deep_sleep, "lies_in_weights", lambda: lambda tensor: True)
    weights = [(name, torch.ones(8)) for name in ("0.weight", "0.bias", "1.weight")]
    with set_current_vllm_config(VllmConfig()):
        whole, unregistered = Worker(RMSNorm(8)), Worker(RMSNorm(8, has_weight=False))
    for _ in range(2):
        whole.take_weights(iter(weights[:1]), last=False)
        whole.take_weights(iter(weights[1:]), last=True)
    with pytest.raises(RuntimeError, match=r"does not get back 0\.bias, 1\.weight: set openrlhf\.sleep_level=1"):
        whole.take_weights(iter(weights[:1]), last=True)
    with pytest.raises(RuntimeError, match=r"does not get back 1\.weight: set"):
        unregistered.take_weights(iter(weights), last=True)
