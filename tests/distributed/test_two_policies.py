"""Two policies, each with ZeRO-3 on two processes and its own engine: they train at once, and stay apart."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import get_args

import ledger
import numpy as np
import pytest
from drawing import draw, fresh, samples_of
from flat_config import with_settings
from openrlhf_cpu import free_gpus
from safetensors.torch import load_file

from coachrl.config import OpenRLHFConfig
from coachrl.config.training import LossAggregation
from coachrl.errors import BackendError, CheckpointError, ConfigError, ContextOverflow, EngineLost, PolicyError
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers
from coachrl.trainers.backends.openrlhf.training import trainers
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.loss import optimizer_steps
from coachrl.types import SamplingParams


@pytest.fixture(scope="module")
def backend(pair):
    return pair


def share_of_equal(replies, others):
    """Of replies with equal seeds. What runs beside a request changes its rounding, and so now and then a draw."""
    return np.mean([reply.token_ids == other.token_ids for reply, other in zip(replies, others, strict=True)])


def test_replies_are_token_ids_with_the_samplers_logprobs(backend):
    prompts, replies = draw(backend, "solver", 8)
    for reply in replies:
        assert len(reply.token_ids) == len(reply.logprobs) <= 12
        assert all(logprob <= 0 for logprob in reply.logprobs)
        ended = reply.token_ids[-1] in backend.tokenizer("solver").eos_ids
        assert reply.finish_reason == ("stop" if ended else "length")
    again = draw(backend, "solver", 8)[1]
    assert share_of_equal(again, replies) > 0.7
    assert prompts[0] != prompts[1]


def test_trainer_and_engine_agree_after_each_update_and_only_if_weights_are_sent(backend):
    """Unequal numbers of actions over the ranks: 7 and 3 samples on 2 ranks."""
    gaps = []
    for step in range(3):
        samples = {"solver": fresh(backend, "solver", 7, step), "verifier": fresh(backend, "verifier", 3, step)}
        stats = backend.update(samples)
        gaps += [stats["sampler_trainer_logprob_gap/solver"], stats["sampler_trainer_logprob_gap/verifier"]]
        for policy, group in samples.items():
            assert stats[f"tokens/{policy}"] == sum(len(sample.response_ids_L) for sample in group)
            assert stats[f"grad_norm/{policy}"] > 0
            assert abs(stats[f"approx_kl/{policy}"]) < 0.01
            assert stats[f"clip_fraction/{policy}"] < 0.05
        backend.sync_weights()
    assert max(gaps) < 0.01, gaps

    backend.update({"solver": fresh(backend, "solver", 7, 3)})
    stale = backend.update({"solver": fresh(backend, "solver", 7, 4)})  # the weights were not sent in between
    assert stale["sampler_trainer_logprob_gap/solver"] > 0.02
    backend.sync_weights()
    assert backend.update({"solver": fresh(backend, "solver", 7, 5)})["sampler_trainer_logprob_gap/solver"] < 0.01
    backend.sync_weights()


@pytest.mark.parametrize(("bucket_bytes", "least", "most"), [(trainers.BUCKET_BYTES, 1, 1), (40_000, 2, 12)])
def test_weights_go_to_an_engine_in_buckets_and_arrive_as_they_are(backend, monkeypatch, bucket_bytes, least, most):
    """The model has some twenty tensors of 200,000 bytes in all, sharded over two ranks."""
    monkeypatch.setattr(trainers, "BUCKET_BYTES", bucket_bytes)
    for step in range(2):
        stats = backend.update({"solver": fresh(backend, "solver", 7, 20 + step)})
        begin = len(ledger.read())
        backend.sync_weights()
        messages = [event for event in ledger.read(begin) if event["event"] == "weights"]
        assert least <= len(messages) <= most
    assert stats["sampler_trainer_logprob_gap/solver"] < 0.01


def test_a_rank_without_a_sample_keeps_step_with_the_other(backend):
    stats = backend.update({"verifier": fresh(backend, "verifier", 1, 6)})
    assert stats["padding/verifier"] == 1 and stats["grad_norm/verifier"] > 0
    backend.sync_weights()


def test_minibatches_and_epochs_take_a_step_each(backend, monkeypatch):
    """Five samples in minibatches of two: from the second step on the ratio is not one, and the clip holds it."""
    trainer = backend.processes.trainers["solver"]
    with_train(monkeypatch, trainer, ppo_mini_batch_size=2, ppo_epochs=2)
    samples = fresh(backend, "solver", 5, 8)
    steps = list(optimizer_steps(samples, trainer.config.train, "ppo", np.random.permutation, 9))
    assert [len(step) for step, _ in steps] == [2, 2, 1] * 2
    before = _steps_taken(trainer)
    stats = backend.update({"solver": samples})
    assert _steps_taken(trainer) == before + 6
    assert stats["sampler_trainer_logprob_gap/solver"] < 0.01 and stats["clip_fraction/solver"] > 0
    backend.sync_weights()


def test_every_optimizer_step_of_an_update_has_its_learning_rate(backend, monkeypatch):
    trainer = backend.processes.trainers["solver"]
    with_train(monkeypatch, trainer, ppo_mini_batch_size=2)
    samples = fresh(backend, "solver", 5, 9)
    before, moved = np.concatenate(trainer.trainer_logprobs(samples)), []
    for given, rate in ((1e-12, 1e-12), (None, 1e-2)):
        assert backend.update({"solver": samples}, given)["learning_rate/solver"] == rate
        moved.append(np.abs(np.concatenate(trainer.trainer_logprobs(samples)) - before).mean())
    assert moved[0] == 0 and moved[1] > 0.01
    backend.sync_weights()


def test_the_clip_above_is_a_setting_of_its_own(backend, monkeypatch):
    trainer = backend.processes.trainers["solver"]
    samples = samples_of(*draw(backend, "solver", 5, 10), "solver", [1.0] * 5)
    for sample in samples:
        sample.old_logprobs_L[:] -= 0.3  # each token is likelier by e^0.3 = 1.35, and good
    held = []
    for high in (None, 0.5, 0.25):
        with_train(monkeypatch, trainer, clip_range_high=high)
        held.append(backend.update({"solver": samples}, 1e-12)["clip_fraction/solver"])
    assert held == [1.0, 0.0, 1.0]
    backend.sync_weights()


@pytest.mark.parametrize("aggregation", get_args(LossAggregation))
def test_each_aggregation_of_the_loss_is_over_all_micro_batches_and_ranks(backend, tmp_path, monkeypatch, aggregation):
    """Seven samples of several lengths on two ranks; the torch backend takes all of them at once."""
    backend.save(tmp_path)
    settings = with_settings(learning_rate=1e-12, device="cpu", loss_aggregation=aggregation)
    alone = TorchBackend({"solver": tmp_path / "solver"}, settings)
    with_train(monkeypatch, backend.processes.trainers["solver"], loss_aggregation=aggregation)
    advantages = [1.0, -0.5, 0.25, 2.0, -1.0, 0.0, 1.5]
    samples = {"solver": samples_of(*draw(backend, "solver", 7, 17), "solver", advantages)}
    for number, sample in enumerate(samples["solver"]):
        sample.mask_L[2 + 2 * number :] = 0
    expected, got = alone.update(samples), backend.update(samples, 1e-12)
    alone.close()
    for name in ("loss", "grad_norm"):
        assert got[f"{name}/solver"] == pytest.approx(expected[f"{name}/solver"], rel=0.05, abs=1e-6), name
    backend.sync_weights()


def with_train(monkeypatch, trainer, **settings):
    train = trainer.config.train.model_copy(update=settings)
    monkeypatch.setattr(trainer, "config", trainer.config.model_copy(update={"train": train}))


def _steps_taken(trainer):
    return answers(trainer.call(lambda actor: actor.actor.model.global_steps), "asking for steps", 600)[0]


def test_the_weights_version_counts_syncs(backend):
    before = draw(backend, "verifier", 1)[1][0].weights_version
    backend.sync_weights()
    assert draw(backend, "verifier", 1)[1][0].weights_version == before + 1


def test_samples_without_weight_take_no_step(backend):
    samples = fresh(backend, "solver", 4)
    for sample in samples:
        sample.advantages_L[:] = 0
    assert backend.update({"solver": samples}) == {}


def test_checkpoints_are_hugging_face_folders_and_bring_everything_back(backend, tmp_path, model):
    backend.sync_weights()
    backend.save(tmp_path)
    solver, verifier, initial = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "solver", tmp_path / "verifier", model)
    )
    head = "lm_head.weight"
    assert (solver[head].float() - initial[head].float()).abs().max() > 0.005
    assert (solver[head] != verifier[head]).any()  # two policies, two sets of weights

    torch_backend = TorchBackend({"solver": tmp_path / "solver"}, with_settings(device="cpu"), keep_reference=True)
    prompts, drawn = draw(backend, "solver", 7, 9)
    samples = samples_of(prompts, drawn, "solver")
    ours = np.concatenate([sample.old_logprobs_L for sample in samples])
    [loaded] = torch_backend.with_reference({"solver": samples}).values()
    theirs = np.concatenate([sample.ref_logprobs_L for sample in loaded])
    assert np.abs(ours - theirs).mean() < 0.02
    torch_backend.close()

    version = draw(backend, "solver", 1)[1][0].weights_version
    first = backend.update({"solver": samples})
    backend.sync_weights()
    backend.load(tmp_path)
    replies = draw(backend, "solver", 7, 9)[1]
    assert replies[0].weights_version == version
    assert share_of_equal(replies, drawn) > 0.7
    again = backend.update({"solver": samples})
    assert again == pytest.approx(first, rel=1e-3, abs=1e-4)  # optimizer and order of samples are back too
    backend.sync_weights()


def test_checkpoints_of_another_layout_or_none_are_refused(backend, tmp_path):
    with pytest.raises(CheckpointError, match="nothing was saved there for policy solver"):
        backend.load(tmp_path)
    for policy in ("solver", "verifier"):
        (tmp_path / policy).mkdir()
        state = '{"weights_version": 1, "updates": 1, "layout": {"trainers": 8, "zero_stage": 2}}'
        (tmp_path / policy / "state.json").write_text(state)
    with pytest.raises(CheckpointError, match=r"'zero_stage': 2.*'zero_stage': 3"):
        backend.load(tmp_path)


async def test_a_prompt_that_does_not_fit_is_an_overflow(backend):
    with pytest.raises(ContextOverflow, match="context of 1024 tokens"):
        await backend.generate("solver", [3] * 1013, SamplingParams(12))


def test_an_engine_that_dies_is_replaced_with_the_trained_weights(backend, ray_cluster):
    backend.update({"verifier": fresh(backend, "verifier", 4, 20)})
    backend.sync_weights()
    before = draw(backend, "verifier", 4, 21)[1]
    ray_cluster.kill(backend.processes.engines["verifier"].handles[0])
    after = draw(backend, "verifier", 4, 21)[1]
    assert share_of_equal(after, before) >= 0.5
    samples = fresh(backend, "verifier", 4, 22)
    ray_cluster.kill(backend.processes.engines["verifier"].handles[0])
    with pytest.raises(EngineLost, match="died for the second time in one step"):
        draw(backend, "verifier", 4, 23)
    backend.update({"verifier": samples})
    backend.sync_weights()  # starts the engine again: trainers would wait for it
    assert (
        backend.update({"verifier": fresh(backend, "verifier", 4, 24)})["sampler_trainer_logprob_gap/verifier"] < 0.01
    )
    backend.sync_weights()  # through the group that the new engine joined
    assert (
        backend.update({"verifier": fresh(backend, "verifier", 4, 25)})["sampler_trainer_logprob_gap/verifier"] < 0.01
    )


def test_an_engine_whose_weights_are_garbage_is_replaced_with_the_trained_weights(backend, ray_cluster):
    handle = backend.processes.engines["solver"].handles[0]

    def spoil(actor):
        loop = actor._listener._serving.get_loop()
        asyncio.run_coroutine_threadsafe(actor.llm.collective_rpc("spoil_weights"), loop).result(60)

    draw(backend, "solver", 1)  # it listens then
    ray_cluster.get(handle.__ray_call__.remote(spoil))
    samples = fresh(backend, "solver", 4, 26)
    assert backend.processes.engines["solver"].handles[0] is not handle
    assert backend.update({"solver": samples})["sampler_trainer_logprob_gap/solver"] < 0.01
    backend.sync_weights()


@contextlib.contextmanager
def stopped(ray, handle):
    """A process that is there and does nothing."""
    pid = ray.get(handle.__ray_call__.remote(lambda actor: os.getpid()))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_trainer_that_does_not_answer_is_named(backend, ray_cluster, monkeypatch):
    samples = {"verifier": fresh(backend, "verifier", 4, 30)}
    monkeypatch.setattr(backend, "_limit_s", 5.0)
    with (
        stopped(ray_cluster, backend.processes.trainers["verifier"].handles[1]),
        pytest.raises(BackendError, match=r"training policy verifier took longer than 5 s; no answer from .*trainer 1"),
    ):
        backend.update(samples)
    monkeypatch.undo()
    answers(backend.processes.trainers["verifier"].call(lambda actor: None), "the end of what was given up", 600)
    backend._changed.add("verifier")
    backend.sync_weights()


async def test_an_engine_that_does_not_answer_is_named(backend, ray_cluster, monkeypatch):
    monkeypatch.setattr(backend._sampler._lines["solver"], "timeout_s", 5.0)
    with (
        stopped(ray_cluster, backend.processes.engines["solver"].handles[0]),
        pytest.raises(EngineLost, match="engine 0 of policy solver has not answered a request for 5 s"),
    ):
        await backend.generate("solver", [3, 4, 5], SamplingParams(4))


def test_what_does_not_fit_the_cluster_is_refused_and_leaves_nothing(backend, start, ray_cluster):
    free = free_gpus(ray_cluster)
    with pytest.raises(ConfigError, match=f"needs 5 GPUs, {free:g} available"):
        start("solver", gpus=4)
    with pytest.raises(ConfigError, match=r"needs 22 processor cores, .* and of 20 rollout workers"):
        start("solver", workers=20)
    with pytest.raises(ConfigError, match="takes 1024 tokens"):
        start("solver", max_length=4096)
    with pytest.raises(PolicyError, match="no such folder"):
        start("solver", model="/no/such/model")
    assert free_gpus(ray_cluster, once_there_are=free) == free


def test_no_cluster_at_an_address_is_said_at_once(ray_cluster):
    from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import _knock

    for address in ("127.0.0.1:9", "..a..:6379"):  # a host that no name can be, too: the environment may hold it
        with pytest.raises(BackendError, match=rf"no Ray cluster answers at {address}.*set openrlhf.ray_address=local"):
            _knock(address)
    for address in ("http://127.0.0.1:8265", "ray://head:10001"):  # which RAY_ADDRESS holds for other commands of Ray's
        with pytest.raises(BackendError, match=f"^RAY_ADDRESS={address} is of Ray's dashboard or of Ray Client: name"):
            _knock(address)
    assert OpenRLHFConfig().ray_address is None


def test_where_any_cluster_would_do_an_address_of_ray_client_in_the_environment_is_said_too():
    code = "from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect; connect('auto')"
    environment = {**os.environ, "RAY_ADDRESS": "http://127.0.0.1:8265"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert "BackendError: RAY_ADDRESS=http://127.0.0.1:8265 is of Ray's dashboard" in done.stderr


def test_a_folder_whose_path_is_too_long_for_rays_sockets_is_said_with_the_way_out(tmp_path):
    long = tmp_path / ("long" * 25)
    long.mkdir()
    code = "from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import connect; connect('local')"
    environment = {**os.environ, "RAY_TMPDIR": str(long)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert "BackendError: Ray at local:" in done.stderr and "; set RAY_TMPDIR to a short folder" in done.stderr


def test_an_advantage_that_is_not_a_number_is_named_before_a_step_is_taken_and_leaves_nothing(backend):
    samples = fresh(backend, "verifier", 4, 40)
    samples[2].advantages_L[1] = np.nan
    before = _steps_taken(backend.processes.trainers["verifier"])
    why = r"a gradient is not finite, so no step .* \(action verifier/2: nan is its advantage\)"
    with pytest.raises(BackendError, match=f"training policy verifier failed: .*{why}"):
        backend.update({"verifier": samples})
    assert _steps_taken(backend.processes.trainers["verifier"]) == before
    samples[2].advantages_L[1] = 1.0
    assert np.isfinite(backend.update({"verifier": samples})["grad_norm/verifier"])
