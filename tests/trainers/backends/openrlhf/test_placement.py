"""Who sits on which GPU: counts, shares, and refusals before anything starts."""

import pytest

from coachrl.commands.build import make_placement
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import OpenRLHFConfig, load_config
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.backends.openrlhf.cluster.placement import plan_placement

THREE = {"solver": True, "coder": True, "verifier": True}


def on_gpu(placement, gpu):
    """What all processes on one GPU claim of it from Ray, and its engines of its memory."""
    claimed = memory = 0.0
    for placed in placement.policies:
        claimed += (bool(placed.trainers) + bool(placed.references)) * placed.trainer_share
        meeting = placed.slots.count(gpu // placed.tensor_parallel)
        claimed += meeting * placed.engine_share
        memory += meeting * placed.memory_fraction
    return claimed, memory


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("trainable", [{"one": True}, THREE, {**THREE, "judge": False}])
@pytest.mark.parametrize("width", [1, 2])
def test_colocated_processes_fit_the_gpus_that_they_share(gpus, reference, trainable, width):
    if width > gpus:
        return
    placement = plan_placement(OpenRLHFConfig(gpus=gpus, tensor_parallel=width), trainable, reference)
    assert placement.gpus == gpus
    found = [on_gpu(placement, gpu) for gpu in range(gpus)]
    assert all(claimed <= 1.0 and memory <= 0.7001 for claimed, memory in found)
    assert max(claimed for claimed, _ in found) > 0.99
    placement.check(gpus)


@pytest.mark.parametrize(("gpus", "engines", "crowd"), [(8, None, 1), (8, 2, 1), (8, 4, 2), (4, None, 1), (2, None, 2)])
def test_engines_meet_only_where_there_are_more_of_them_than_gpus(gpus, engines, crowd):
    placement = plan_placement(OpenRLHFConfig(gpus=gpus, engines=engines), THREE, True)
    slots = [slot for placed in placement.policies for slot in placed.slots]
    assert {slots.count(slot) for slot in slots} <= {crowd, crowd - 1}
    assert all(len(set(placed.slots)) == placed.engines for placed in placement.policies)
    assert engines is None or all(placed.engines == engines for placed in placement.policies)
    assert len(set(slots)) == min(gpus, len(slots))


LINES = {
    "side by side": [
        "4 GPUs, shared by all policies",
        "solver: 4 trainers, 4 references, 1 engine over 2 GPUs on GPU 0-1 with 0.35 of a GPU's memory, "
        "0.2 GPU a process",
        "coder: 4 trainers, the references of solver, 1 engine over 2 GPUs on GPU 2-3 with 0.70 of a GPU's memory, "
        "0.2 GPU a process",
        "judge: 1 engine over 2 GPUs on GPU 0-1 with 0.35 of a GPU's memory, 0.2 GPU a process",
        "2 rollout workers, each on a processor core",
    ],
    "on one GPU": [
        "1 GPUs, shared by all policies",
        "solver: 1 trainer, 1 reference, 1 engine on GPU 0 with 0.23 of a GPU's memory, 0.1666 GPU a process",
        "coder: 1 trainer, the references of solver, 1 engine on GPU 0 with 0.23 of a GPU's memory, "
        "0.1666 GPU a process",
        "judge: 1 engine on GPU 0 with 0.23 of a GPU's memory, 0.1666 GPU a process",
    ],
    "apart": [
        "20 GPUs, trainers and engines apart",
        "solver: 4 trainers, 4 references, 2 engines over 2 GPUs with 0.70 of a GPU's memory",
        "coder: 4 trainers, the references of solver, 2 engines over 2 GPUs with 0.70 of a GPU's memory",
        "judge: 2 engines over 2 GPUs with 0.70 of a GPU's memory",
    ],
}


@pytest.mark.parametrize(
    ("name", "settings", "workers", "crowd"),
    [
        ("side by side", {"gpus": 4, "tensor_parallel": 2}, 2, 2),
        ("on one GPU", {"gpus": 1}, 0, 3),
        ("apart", {"gpus": 4, "tensor_parallel": 2, "colocate": False}, 0, 1),
    ],
)
def test_who_sits_where_is_told_in_lines_and_how_many_engines_meet(name, settings, workers, crowd):
    trainable = {"solver": True, "coder": True, "judge": False}
    models = dict.fromkeys(trainable, "Qwen/Qwen3-4B")
    placement = plan_placement(OpenRLHFConfig(**settings), trainable, True, workers, models=models)
    assert placement.lines() == LINES[name]
    assert placement.crowd == crowd


def test_apart_a_policy_has_as_many_engines_as_fit_and_one_at_least():
    counts = {}
    for gpus, width in ((4, 2), (5, 2), (1, 2)):
        settings = OpenRLHFConfig(colocate=False, gpus=gpus, tensor_parallel=width)
        counts[gpus, width] = plan_placement(settings, {"solver": True}, False).policies[0].engines
    assert counts == {(4, 2): 2, (5, 2): 2, (1, 2): 1}


def test_an_engine_that_meets_no_other_has_all_of_the_engines_memory():
    placement = plan_placement(OpenRLHFConfig(gpus=8, engine_memory=0.6), THREE, True)
    assert [placed.engines for placed in placement.policies] == [3, 3, 2]
    assert {placed.memory_fraction for placed in placement.policies} == {0.6}
    shared = plan_placement(OpenRLHFConfig(gpus=1, engine_memory=0.6), THREE, True)
    assert [placed.memory_fraction for placed in shared.policies] == pytest.approx([0.2] * 3)


def test_apart_every_process_has_its_own_gpu_but_a_reference_sits_with_its_trainer():
    settings = OpenRLHFConfig(colocate=False, gpus=2, engines=1, tensor_parallel=2)
    placement = plan_placement(settings, {"solver": True, "judge": False}, reference=True)
    solver, judge = placement.policies
    assert (solver.trainers, solver.references, solver.engine_gpus) == (2, 2, 2)
    assert (judge.trainers, judge.references, judge.engine_gpus) == (0, 0, 2)
    assert solver.trainer_share == 0.5 and solver.engine_share == 1.0
    assert placement.gpus == 6


ALIKE = dict.fromkeys(THREE, "Qwen/Qwen3-4B")


@pytest.mark.parametrize("colocate", [False, True])
def test_policies_that_begin_alike_share_the_references_of_the_first_that_trains(colocate):
    settings = OpenRLHFConfig(colocate=colocate, gpus=2)
    trainable = {"judge": False, **THREE}
    models = {**ALIKE, "judge": "Qwen/Qwen3-4B", "verifier": "Qwen/Qwen3-8B"}
    placement = plan_placement(settings, trainable, True, models=models)
    found = {placed.policy: (placed.references, placed.reference_of) for placed in placement.policies}
    assert found == {"judge": (0, None), "solver": (2, "solver"), "coder": (0, "solver"), "verifier": (2, "verifier")}
    solver, coder = placement.policies[1:3]
    assert (solver.trainer_share, coder.trainer_share) == ((0.1428, 0.1428) if colocate else (0.5, 1.0))
    assert "coder: 2 trainers, the references of solver, " in "\n".join(placement.lines())
    alone = [placed.references for placed in plan_placement(settings, THREE, True).policies]
    assert alone == [2, 2, 2], "nobody said that they begin alike"


def test_folders_are_compared_by_where_they_lie_and_names_as_they_are(tmp_path, monkeypatch):
    for name in ("a", "b", "tiny-random"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    models = {"one": "./a", "two": str(tmp_path / "a"), "three": "./b", "four": "tiny-random", "five": "./tiny-random"}
    placement = plan_placement(OpenRLHFConfig(), dict.fromkeys(models, True), True, models=models)
    first = {placed.policy: placed.reference_of for placed in placement.policies}
    assert first == {"one": "one", "two": "one", "three": "three", "four": "four", "five": "five"}


def test_too_few_gpus_are_refused_with_who_needs_them():
    placement = plan_placement(OpenRLHFConfig(colocate=False, gpus=2, engines=2), THREE, False)
    with pytest.raises(ConfigError, match=r"needs 12 GPUs, 1 available: solver: 2 trainers, 2 engines") as caught:
        placement.check(1)
    assert "openrlhf.colocate=true" in str(caught.value)
    with pytest.raises(ConfigError, match=r"needs 8 GPUs, 0.5 available.*openrlhf.gpus"):
        plan_placement(OpenRLHFConfig(gpus=8), THREE, True).check(0.5)


def test_engines_wider_than_the_shared_gpus_are_refused():
    with pytest.raises(ConfigError, match=r"lower openrlhf\.engines"):
        plan_placement(OpenRLHFConfig(gpus=2, engines=2, tensor_parallel=2), THREE, False)


def test_a_loss_without_a_ratio_takes_no_old_weights():
    settings = ["backend=openrlhf", "algorithm.name=magrpo", "train.group_size=4", "openrlhf.colocate=false"]
    assert make_algorithm(load_config(None, settings).algorithm).loss == "policy_gradient"
    assert make_algorithm(load_config(None, ["backend=openrlhf"]).algorithm).loss == "ppo"
    with pytest.raises(ConfigError, match="has no correction for that"):
        load_config(None, [*settings, "openrlhf.one_step_off=true"])


def test_adapters_are_set_in_one_place():
    with pytest.raises(ConfigError, match=r"adapters are set by torch\.lora_rank and torch\.lora_alpha"):
        load_config(None, ["openrlhf.lora_rank=8"])


def test_adapters_need_no_process_for_the_reference():
    settings = ["backend=openrlhf", "algorithm.kl_beta=0.01", "openrlhf.gpus=4"]
    for more, references in (([], 4), (["torch.lora_rank=8"], 0)):
        [placed] = make_placement(load_config(None, [*settings, *more]), {"solver": True}).policies
        assert (placed.trainers, placed.references) == (4, references)


def test_the_dry_run_shows_the_placement():
    config = load_config(None, ["backend=openrlhf", "openrlhf.gpus=8", "pipeline.prompt_style=short"])
    lines = make_dry_run(config).lines()
    [first] = [number for number, line in enumerate(lines) if line.startswith("placement")]
    assert lines[first].endswith("8 GPUs, shared by all policies")
    solver = (
        "problem_solver: 8 trainers, 8 references, 3 engines on GPU 0-2 with 0.70 of a GPU's memory, 0.2 GPU a process"
    )
    assert lines[first + 1].strip() == solver
    assert "code_executor: 8 trainers, the references of problem_solver, 3 engines" in lines[first + 2]


def test_rollout_workers_are_placed_and_need_cores():
    config = load_config(
        None, ["backend=openrlhf", "pipeline.prompt_style=short", "openrlhf.gpus=2", "rollout.workers=3"]
    )
    assert make_dry_run(config).placement[-1] == "3 rollout workers, each on a processor core"
    placement = make_placement(config, {"solver": True})
    with pytest.raises(ConfigError, match=r"needs 5 processor cores, 4 available: .* 2 GPUs and of 3 rollout workers"):
        placement.check(2, 4)
    placement.check(2, 5)
    with pytest.raises(ConfigError, match=r"rollout\.workers=3 needs backend=openrlhf"):
        load_config(None, ["rollout.workers=3"])
    assert not any("worker" in line for line in make_dry_run(load_config(None, ["backend=openrlhf"])).placement)


def test_a_role_has_no_model_of_its_own_that_could_differ_from_its_policys():
    with pytest.raises(ConfigError, match=r"roles\.verifier: a role plays with its policy's model.*one tokenizer"):
        load_config(None, ["pipeline.roles.verifier.model=other"])


def test_roles_that_share_a_policy_share_its_processes():
    roles = [f"pipeline.roles.{role}.policy=team" for role in ("problem_solver", "verifier")]
    config = load_config(None, ["backend=openrlhf", "pipeline.prompt_style=short", *roles])
    lines = make_dry_run(config).placement
    assert [line.split(":")[0] for line in lines[1:]] == ["team", "code_executor"]
