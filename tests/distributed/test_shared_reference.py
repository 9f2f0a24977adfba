"""Policies that begin alike ask one set of references: as they would ask their own, and in one order on all ranks."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from drawing import fresh

from coachrl.trainers.backends.openrlhf.cluster.ray_cluster import answers
from coachrl.trainers.backends.openrlhf.training import remote

ALIKE = ("solver", "verifier")


@pytest.fixture(scope="module")
def backend(start, model, tmp_path_factory):
    """ZeRO-3 on two ranks. The judge begins from the same weights in another folder, and so has references of its
    own."""
    other = tmp_path_factory.mktemp("other") / "model"
    shutil.copytree(model, other)
    models = {**dict.fromkeys(ALIKE, model), "judge": other}
    shape = {"gpus": 2, "engines": None, "zero_stage": 3, "micro_batch_tokens": 64}
    return start(model=models, colocate=True, sleep=True, keep_reference=True, **shape)


def references(backend, samples):
    """By policy, over all samples."""
    filled = backend.with_reference(samples)
    return {policy: np.concatenate([sample.ref_logprobs_L for sample in group]) for policy, group in filled.items()}


def test_shared_references_know_what_a_policys_own_would_also_after_updates_and_a_resume(backend, tmp_path):
    assert [placed.references for placed in backend.placement.policies] == [2, 0, 2]
    assert len(backend.processes.references) == 2
    samples = fresh(backend, "solver", 7)
    of_all = dict.fromkeys((*ALIKE, "judge"), samples)
    before = references(backend, of_all)
    assert (before["solver"] == before["judge"]).all() and (before["verifier"] == before["judge"]).all()
    backend.save(tmp_path)
    backend.update({policy: fresh(backend, policy, 7, 1) for policy in ALIKE})
    backend.sync_weights()
    [trained] = backend.with_trainer_logprobs({"solver": samples}).values()
    moved = np.concatenate([sample.trainer_logprobs_L for sample in trained]) - before["solver"]
    assert np.abs(moved).mean() > 0.02
    for restore in (lambda: None, lambda: backend.load(tmp_path)):
        restore()
        assert all((found == before["solver"]).all() for found in references(backend, of_all).values())


def test_threads_that_ask_for_several_policies_are_heard_in_one_order_by_all_ranks(backend, monkeypatch):
    """Else two ranks would gather weights for different calls."""
    samples = {policy: fresh(backend, policy, count) for policy, count in zip(ALIKE, (3, 5), strict=True)}
    alone = references(backend, samples)
    logprobs = remote.logprobs

    def noted(actor, micro_batches, of_base):
        """Whose samples: a rank without any is told by their number alone."""
        actor.asked = [*getattr(actor, "asked", []), len(micro_batches)]
        return logprobs(actor, micro_batches, of_base)

    monkeypatch.setattr(remote, "logprobs", noted)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda policy: references(backend, {policy: samples[policy]}), ALIKE * 12))
    assert all((logprobs == alone[policy]).all() for each in found for policy, logprobs in each.items())
    [shared] = {
        id(backend.processes.trainers[policy].references): backend.processes.trainers[policy].references
        for policy in ALIKE
    }.values()
    first, second = answers(shared.call(lambda actor: actor.asked), "asking for the order", 60)
    assert first == second and len(first) == 24 and len(set(first)) == 2


@pytest.mark.thorough
def test_apart_from_engines_they_sit_beside_the_first_policys_trainers(start, ray_cluster):
    def gpu(actor):
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"]

    apart = start(*ALIKE, gpus=1, keep_reference=True)
    [of_all] = apart.processes.references.values()
    places = [
        answers(calling(gpu), "asking for GPUs", 60)
        for calling in (of_all.call, *(apart.processes.trainers[policy].call for policy in ALIKE))
    ]
    assert places[0] == places[1] != places[2]
    samples = {policy: fresh(apart, policy, 4) for policy in ALIKE}
    found = references(apart, samples)
    for policy in ALIKE:
        ours = np.concatenate([sample.old_logprobs_L for sample in samples[policy]])
        assert np.abs(found[policy] - ours).mean() < 0.01
