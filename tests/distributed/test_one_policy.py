"""One policy, colocated on one GPU with its engine and its reference: it matches the torch backend, and it learns."""

from itertools import chain

import numpy as np
import pytest
import torch
from drawing import draw, fresh, learn_low_tokens, samples_of
from flat_config import with_settings
from openrlhf_cpu import ENGINE_ARGS, free_gpus
from started_backends import MAX_NUM_BATCHED_TOKENS, MAX_NUM_SEQS
from whole_runs import Judge, configured, needs_sandbox, train_on

from coachrl.commands.build import load_generators
from coachrl.errors import BackendError
from coachrl.trainers.algorithms.reinforce_pp import ReinforcePP, ReinforcePPConfig
from coachrl.trainers.backends.openrlhf.cluster.placement import Placement
from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.trainers.backends.torch.logprobs import micro_batches, token_logprobs

COOP_CODE = {
    "backend": "openrlhf",
    "openrlhf.colocate": "false",
    "pipeline.name": "coop_code",
    "pipeline.prompt_style": "short",
    "pipeline.max_new_tokens": 8,
    "pipeline.options": "{turns: 2}",
    "pipeline.roles.helper.policy": "solver",
    "pipeline.roles.main.policy": "solver",
    "tasks.source": "coop-code",
    "tasks.heldout_count": 1,
    "algorithm.name": "magrpo",
    "train.mask_truncated": "false",
    "coach.max_failed_fraction": 0,
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "train.learning_rate": 1e-3,
}


@pytest.fixture(scope="module")
def backend(start):
    return start(
        "solver",
        colocate=True,
        gpus=1,
        keep_reference=True,
        micro_batch_tokens=64,
        learning_rate=1e-3,
        ppo_mini_batch_size=None,
    )


@pytest.fixture
def torch_backend(model):
    made = TorchBackend({"solver": model}, with_settings(learning_rate=1e-3, device="cpu"), keep_reference=True)
    yield made
    made.close()


def logprobs_of_torch(backend, samples):
    """All response tokens under the trained weights, sample after sample."""
    found = {}
    for batch in chain.from_iterable(micro_batches(samples, 4096, torch.device("cpu"), all_tokens=True)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logprobs, _ = token_logprobs(backend._policies["solver"].model, batch)
        lengths = [len(sample.response_ids_L) for sample in batch.samples]
        for sample, part in zip(batch.samples, logprobs.split(lengths), strict=True):
            found[sample.action_id] = part.float().numpy()
    return np.concatenate([found[sample.action_id] for sample in samples])


def logprobs_of_openrlhf(backend, samples):
    trainer = backend.processes.trainers["solver"]
    return np.concatenate(trainer.trainer_logprobs(samples))


def test_both_backends_give_the_same_advantages_and_nearly_the_same_first_update(backend, torch_backend):
    samples = {"solver": fresh(backend, "solver", 8)}
    rewards = {sample.action_id: float(i % 5) * 2 for i, sample in enumerate(samples["solver"])}
    credited, moves, stats = [], [], []
    for each, logprobs in ((backend, logprobs_of_openrlhf), (torch_backend, logprobs_of_torch)):
        batch = ReinforcePP(ReinforcePPConfig(kl_beta=0.01)).advantages(each.with_reference(samples), rewards)
        credited.append(np.concatenate([sample.advantages_L for sample in batch.samples["solver"]]))
        before = logprobs(each, samples["solver"])
        stats.append(each.update(batch.samples))
        moves.append(logprobs(each, samples["solver"]) - before)
        each.sync_weights()
    ours, theirs = credited
    assert np.abs(ours - theirs).max() < 0.02
    ours, theirs = moves
    assert np.corrcoef(ours, theirs)[0, 1] > 0.95
    assert np.linalg.norm(ours) == pytest.approx(np.linalg.norm(theirs), rel=0.2)
    ours, theirs = stats
    assert ours["grad_norm/solver"] == pytest.approx(theirs["grad_norm/solver"], rel=0.1)
    assert ours["ref_kl/solver"] == pytest.approx(theirs["ref_kl/solver"], abs=0.01)
    assert ours["tokens/solver"] == theirs["tokens/solver"]


def test_an_engine_batches_as_its_settings_say(backend):
    def limits(engine):
        found = engine.llm.vllm_config.scheduler_config
        return found.max_num_seqs, found.max_num_batched_tokens

    asked = [handle.__ray_call__.remote(limits) for handle in backend.processes.engines["solver"].handles]
    assert answers(asked, "asking the engines", 60) == [(MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS)]


def test_forty_steps_raise_the_reward(backend):
    means, stats = learn_low_tokens(backend, "solver", steps=40, count=12)
    assert all(of_step.get("sampler_trainer_logprob_gap/solver", 0.0) < 0.01 for of_step in stats)
    assert np.mean(means[-5:]) > np.mean(means[:5]) + 1.0, means


def test_what_only_plays_is_engines_alone_with_the_weights_of_a_checkpoint(backend, model, tmp_path):
    backend.update({"solver": fresh(backend, "solver", 7, 11)})
    backend.sync_weights()
    backend.save(tmp_path)
    drawn, version = fresh(backend, "solver", 7, 12), draw(backend, "solver", 1)[1][0].weights_version
    players = load_generators(backend.config.model_copy(update={"model": str(model)}), ["solver"], tmp_path)
    try:
        assert not players.processes.trainers
        assert draw(players, "solver", 1)[1][0].weights_version == version
        replies = fresh(players, "solver", 7, 12)
    finally:
        players.close()
    gaps = [
        np.abs(one.old_logprobs_L - other.old_logprobs_L).mean()
        for one, other in zip(drawn, replies, strict=True)
        if one.response_ids_L.tolist() == other.response_ids_L.tolist()
    ]
    assert len(gaps) > 4  # what runs beside a request changes its rounding, and so now and then a draw
    assert np.mean(gaps) < 0.01
    assert backend.update({"solver": drawn})  # its own processes go on


@pytest.fixture
def magrpo(backend):
    """The same backend with another loss, which stays: what needs it comes last."""
    trainer = backend.processes.trainers["solver"]
    trainer._loss = "policy_gradient"
    return backend


def test_magrpos_loss_is_that_of_the_torch_backend(magrpo, tmp_path):
    """Seven samples of several lengths, in micro-batches of one or two."""
    magrpo.save(tmp_path)
    settings = with_settings(learning_rate=1e-3, device="cpu")
    theirs = TorchBackend({"solver": tmp_path / "solver"}, settings, loss="policy_gradient")
    advantages = [1.0, -0.5, 0.25, 2.0, -1.0, 0.0, -1.75]
    samples = {"solver": samples_of(*draw(magrpo, "solver", 7, step=7), "solver", advantages)}
    expected, got = theirs.update(samples), magrpo.update(samples)
    theirs.close()
    magrpo.sync_weights()
    assert got["padding/solver"] == got["clip_fraction/solver"] == 0
    for name in ("grad_norm", "loss", "entropy", "approx_kl"):
        assert got[f"{name}/solver"] == pytest.approx(expected[f"{name}/solver"], rel=0.1, abs=0.02), name


@needs_sandbox
@pytest.mark.thorough
async def test_magrpo_trains_joint_episodes(magrpo, tmp_path, monkeypatch):
    run = await train_on(magrpo, configured(tmp_path, COOP_CODE), monkeypatch, Judge())
    assert len(run.metrics()) == 3
    for metrics in run.metrics()[1:]:
        assert metrics["train/groups"] == 8  # two tasks, two roles, two turns
        assert metrics["train/grad_norm/solver"] > 0 and metrics["train/clip_fraction/solver"] == 0
        assert metrics["train/sampler_trainer_logprob_gap/solver"] < 0.01


def test_an_engine_without_memory_is_an_error_and_its_gpus_are_free_again(start, ray_cluster, backend):
    free = free_gpus(ray_cluster)
    with pytest.raises(BackendError, match=r"starting engines and trainers failed.*lower openrlhf\.engine_memory"):
        start("solver", engine_args={**ENGINE_ARGS, "kv_cache_memory_bytes": 2**12})
    assert free_gpus(ray_cluster, once_there_are=free) == free
    assert isinstance(backend.placement, Placement)
