"""What a run would do, counted by hand: episodes, replies, memory, disk and time."""

import sys
from dataclasses import replace

import pytest

from coachrl.commands import dry_run
from coachrl.commands.dry_run import _attention_line, _disk_gb, _memory_gb, _size, check_disk, make_dry_run
from coachrl.commands.gpu_estimates import GpuEstimates
from coachrl.config import PolicyConfig, load_config
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.types import Task

TRAIN = [Task("t0", "sums", "x" * 400), Task("t1", "sums", "x" * 40)]
HELDOUT = [Task(f"h{n}", "sums", "x") for n in range(3)]


def plan_of(tmp_path, *overrides, done=0):
    config = load_config(None, overrides, {"out": str(tmp_path)})
    return make_dry_run(config, done, (TRAIN, HELDOUT), tmp_path / "run")


def test_what_comes_to_nothing_stands_in_the_plan_and_in_the_first_lines_of_a_run(tmp_path):
    line = "audit.every=9: no audit is due in 7 steps"
    plan = plan_of(tmp_path, "train.steps=7", "audit.every=9")
    assert line in plan.lines() and line in plan.brief_lines()
    assert line not in plan_of(tmp_path, "train.steps=9", "audit.every=9").lines()


@pytest.mark.parametrize(
    ("every", "done", "evaluations"),
    [
        (0, 0, 2),  # before and after training
        (3, 0, 4),  # and after steps 3 and 6
        (7, 0, 2),  # the last step is evaluated once
        (8, 0, 2),
        (3, 2, 3),  # a run that goes on was evaluated before
        (3, 3, 2),
        (0, 6, 1),
        (3, 7, 0),  # and one that is over is not once more
    ],
)
def test_every_evaluation_that_is_left_is_counted_once(tmp_path, every, done, evaluations):
    (tmp_path / "run").mkdir()
    if done:
        Run(tmp_path / "run").append_metrics({"step": done, "eval/success": 0.5})
    plan = plan_of(tmp_path, "train.steps=7", f"eval.every={every}", "eval.samples_per_task=2", done=done)
    assert plan.heldout_episodes == evaluations * 3 * 2
    assert plan.steps == 7 - done and (plan.tasks, plan.source) == ((2, 3), "word-problems")


def test_an_evaluation_that_was_given_up_is_still_to_come(tmp_path):
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    run.append_metrics({"step": 7, "train/success": 0.5})
    assert plan_of(tmp_path, "train.steps=7", done=7).heldout_episodes == 3
    assert plan_of(tmp_path, "train.steps=8", done=7).heldout_episodes == 3  # only the last step's


def test_episodes_and_tokens_are_those_of_all_steps_roles_turns_and_evaluations(tmp_path):
    sizes = ("train.steps=5", "train.tasks_per_step=3", "train.group_size=2", "pipeline.max_new_tokens=10")
    plan = plan_of(tmp_path, *sizes, "pipeline.roles.verifier.max_new_tokens=7", done=1)
    turns = 1 + 5 + 1  # the executor has five
    assert plan.episodes == (4 * 6, 4 * 6) and plan.coach_calls == (24 * 3, 24 * turns)
    assert plan.generated_tokens_most == (24 + 3) * (10 + 5 * 10 + 7)


def test_a_pass_back_and_several_coaches_are_calls_and_no_coach_is_none(tmp_path):
    one = ("train.steps=1", "train.tasks_per_step=1", "pipeline.roles.code_executor.max_turns=1")
    both = plan_of(tmp_path, *one, "coach.ensemble=[{name: rules}, {name: rules}]")
    assert both.coach_calls == (6, 6) and both.coach == "mean of rules, rules"
    none = plan_of(tmp_path, *one, "algorithm.name=outcome")
    assert (none.coach_calls, none.coach_use) == ((0, 0), None)
    assert none.coach == "none (rewards from the outcome or the environment)"
    assert "coach call" not in none.brief_lines()[0] and "at most 6 coach calls" in both.brief_lines()[0]


@pytest.mark.parametrize(("done", "audits"), [(0, 2), (1, 2), (2, 2), (5, 1), (7, 0)])
def test_calls_about_the_reference_set_are_counted_at_every_audit_but_the_first(tmp_path, done, audits):
    sizes = (
        "train.steps=7",
        "train.tasks_per_step=2",
        "coach.ensemble=[{name: rules}, {name: rules}]",
        "audit.every=2",
    )
    without, with_it = (plan_of(tmp_path, *sizes, f"audit.reference_set={n}", done=done).coach_calls for n in (0, 5))
    assert with_it == (without[0], without[1] + audits * 5 * 2)


def test_what_is_not_known_is_said_to_be_unknown(tmp_path):
    plan = replace(plan_of(tmp_path), memory_gb=None, disk_gb=None)
    for what in ("memory            ", "disk              "):
        assert f"{what}unknown: a model has to be fetched first" in plan.lines()
    assert replace(plan, memory_gb=0.5).lines()[-4].startswith("memory            0.5 GB for weights and optimizers")


BILLION = 10**9
SIZES = {"one": BILLION, "two": 2 * BILLION}


def policies(**trainable):
    return {name: PolicyConfig(model=name, trainable=is_trained) for name, is_trained in trainable.items()}


@pytest.mark.parametrize(
    ("trainable", "settings", "gigabytes"),
    [
        # Each policy has 4 bytes a weight, 8 of AdamW, and either gradients of the largest (4) or a copy of each (2).
        ({"one": True, "two": True}, (), 12 * 3 + 4 * 2),
        ({"one": True, "two": True}, ("algorithm.kl_beta=0.1",), 12 * 3 + 4 * 2 + 2 * 3),
        ({"one": True, "two": False}, (), 16 + 2 * 3),
        ({"one": False, "two": False}, (), 2 * 3),
        ({"one": True}, ("torch.lora_rank=4",), 6),
        ({"one": True, "two": True}, ("torch.lora_rank=4", "torch.share_base=true"), 2 * 3),
    ],
)
def test_memory_is_that_of_trained_copies_and_of_frozen_ones_once(trainable, settings, gigabytes):
    config = load_config(None, ["algorithm.kl_beta=0", "torch.offload_optimizer=false", *settings])
    given = policies(**trainable)
    assert _memory_gb(config, given, {name: SIZES[name] for name in given}) == pytest.approx(gigabytes)


@pytest.mark.parametrize(
    ("machine_gb", "settings", "told"),
    [
        (40, [], ""),
        (
            20,
            [],
            "take 21.0 GB, and this machine has 20.0 GB of memory: with torch.lora_rank=16 torch.share_base=true they ",
        ),
        (
            8,
            ["torch.lora_rank=8"],
            "take 9.0 GB, and this machine has 8.0 GB of memory: with torch.share_base=true they ",
        ),
        (2, ["torch.lora_rank=8", "torch.share_base=true"], ""),
        (0.5, [], "take 21.0 GB, and this machine has 0.5 GB of memory: take a smaller model, or a GPU"),
        (1, ["torch.device=cuda"], ""),
    ],
)
def test_a_run_that_does_not_fit_into_memory_says_so(monkeypatch, tmp_path, machine_gb, settings, told):
    monkeypatch.setattr(dry_run, "machine_bytes", lambda: machine_gb * 10**9)
    monkeypatch.setattr(dry_run, "known_parameters", lambda model: 10**9 // 2)
    monkeypatch.setitem(sys.modules, "torch", None)
    plan = plan_of(tmp_path, "algorithm.kl_beta=0", "torch.offload_optimizer=false", *settings)
    for lines in (plan.lines(), plan.brief_lines()):
        said = [line for line in lines if "weights and optimizers take" in line]
        assert told in said[0] if told else not said, lines


def test_of_a_model_that_is_not_here_neither_memory_nor_disk_is_known():
    given = policies(one=True, two=True)
    assert _memory_gb(load_config(None), given, {**SIZES, "two": None}) is None
    assert _disk_gb(load_config(None), given, {**SIZES, "two": None}) is None
    untrained = policies(one=True, two=False)  # it is in no checkpoint
    assert _disk_gb(load_config(None), untrained, {**SIZES, "two": None}) == 12


@pytest.mark.parametrize(
    ("steps", "every", "keep", "most_at_once"),
    [
        (10, 0, 1, 1),  # after the last step alone
        (10, 5, 1, 2),  # the older one goes when the newer one is there
        (10, 5, 3, 2),
        (10, 4, 5, 3),  # after steps 4, 8 and 10
        (10, 20, 1, 1),  # a step that never comes, and the last
        (10, 1, 3, 4),
        (10, 1, 0, 0),
    ],
)
def test_the_disk_holds_the_kept_checkpoints_and_the_one_that_is_being_made(steps, every, keep, most_at_once):
    times = (f"train.steps={steps}", f"train.checkpoint_every={every}", f"train.keep_checkpoints={keep}")
    given = policies(one=True, two=False)
    assert _disk_gb(load_config(None, times), given, SIZES) == 12 * most_at_once
    assert _disk_gb(load_config(None, [*times, "torch.lora_rank=4"]), given, SIZES) == 4 * most_at_once


@pytest.mark.parametrize(
    ("every", "keep", "evaluations", "most_at_once"),
    [
        (0, 1, 5, 2),  # after step 5, if it is the best so far, and after the last
        (0, 1, 2, 3),  # the best, the newest, and the one that is being made
        (1, 3, 2, 5),
        (0, 1, 20, 1),
        (5, 3, 5, 2),  # the same steps
    ],
)
def test_the_disk_holds_the_best_checkpoint_too(every, keep, evaluations, most_at_once):
    times = ("train.steps=10", f"train.checkpoint_every={every}", f"train.keep_checkpoints={keep}")
    config = load_config(None, [*times, "train.keep_best=true", f"eval.every={evaluations}"])
    assert _disk_gb(config, policies(one=True, two=False), SIZES) == 12 * most_at_once


@pytest.mark.parametrize(("gigabytes", "shown"), [(1.25, "1.2 GB"), (0.1, "0.1 GB"), (0.0991, "100 MB"), (0.0, "0 MB")])
def test_a_size_is_said_in_the_unit_that_shows_more_than_a_zero(gigabytes, shown):
    assert _size(gigabytes) == shown


def test_a_run_on_gpus_is_as_long_as_its_steps_are_foretold_to_be_where_no_run_has_shown_it(tmp_path):
    plan = plan_of(tmp_path, "train.steps=5")
    assert plan.time() == "not known before the first step, which says what is left"
    foretold = replace(plan, gpu=GpuEstimates(step_s=780.0))
    assert foretold.time() == "about 65 min where every step takes as long as below; the first step says what is left"
    assert replace(foretold, seconds=40.0).time().startswith("about 40 s, by the steps of the last run")
    assert replace(foretold, steps=0).time() == plan.time()


def test_checkpoints_that_do_not_fit_are_refused_and_an_unknown_size_is_not(tmp_path):
    plan = replace(plan_of(tmp_path), folder=tmp_path / "not" / "there" / "yet")
    with pytest.raises(ConfigError, match=r"checkpoints take 1000000\.0 GB and the disk has .* left"):
        check_disk(replace(plan, disk_gb=1e6))
    check_disk(replace(plan, disk_gb=None))
    check_disk(replace(plan, disk_gb=0.0))


def test_the_usual_spend_is_what_steps_of_the_last_run_did_cost(tmp_path):
    pytest.importorskip("litellm", reason="needs the llm extra")
    coach = ("coach.name=hosted_vllm/mine", "coach.usd_per_million_tokens=[1, 1]")
    sizes = ("train.tasks_per_step=4", "train.group_size=1")
    assert plan_of(tmp_path, *coach, *sizes).coach_usd_usual is None
    run = Run.create(load_config(None, ["name=before", "train.steps=2", *coach, *sizes], {"out": str(tmp_path)}))
    run.append_metrics({"step": 1, "time/step_s": 10.0, "cost/usd": 0.25})
    run.append_metrics({"step": 2, "time/step_s": 10.0, "cost/usd": 0.75})
    plan = plan_of(tmp_path, "train.steps=6", *coach, *sizes)
    assert plan.coach_usd_usual == 6 * 0.5
    assert "about $3.00 at what steps of the newest run in the same folder did cost" in "\n".join(plan.lines())
    assert plan_of(tmp_path, "train.steps=6", *coach, sizes[0], "train.group_size=2").coach_usd_usual == 6.0
    for other in ("coach.max_tokens=500", "tasks.train_count=7", "pipeline.max_new_tokens=5"):
        assert plan_of(tmp_path, *coach, *sizes, other).coach_usd_usual is None
    run.append_metrics(
        {
            "step": 3,
            "time/step_s": 10.0,
            "cost/usd": 0.5,
            "cost/reference_set/calls": 9.0,
            "cost/reference_set/usd": 1.5,
        }
    )
    assert plan_of(tmp_path, "train.steps=6", *coach, *sizes).coach_usd_usual == 6 * 1.0
    run.append_metrics({"step": 4, "time/step_s": 10.0})
    assert plan_of(tmp_path, *coach, *sizes).coach_usd_usual is None, "one price is not known"


def test_the_time_is_foretold_by_the_last_run_of_the_same_team_and_size(tmp_path):
    sizes = ("train.tasks_per_step=4", "train.group_size=1")
    run = Run.create(load_config(None, ["name=before", "train.steps=2", *sizes], {"out": str(tmp_path)}))
    run.append_metrics({"step": 0, "eval/success": 0.5})
    assert plan_of(tmp_path, "train.steps=5", *sizes).seconds is None  # no step of it has a time
    run.append_metrics({"step": 1, "time/step_s": 10.0})
    run.append_metrics({"step": 2, "time/step_s": 20.0})
    assert plan_of(tmp_path, "train.steps=5", *sizes).seconds == 5 * 15
    assert plan_of(tmp_path, "train.steps=5", *sizes, done=2).seconds == 3 * 15
    assert plan_of(tmp_path, "train.steps=5", sizes[0], "train.group_size=3").seconds == 5 * 15 * 3
    for other in ("pipeline.max_new_tokens=5", "model=somebody/else", "policies.verifier.trainable=false"):
        assert plan_of(tmp_path, *sizes, other).seconds is None


@pytest.mark.parametrize(
    ("settings", "installed", "told"),
    [
        (["backend=openrlhf"], True, ["openrlhf.attention=auto: flash_attention_2, since flash-attn is installed"]),
        (["backend=openrlhf"], False, ["openrlhf.attention=auto: sdpa, since flash-attn is not installed"]),
        (["backend=openrlhf", "openrlhf.attention=sdpa"], False, []),
        ([], False, []),
    ],
)
def test_a_run_says_which_attention_it_takes_where_nobody_chose(monkeypatch, settings, installed, told):
    monkeypatch.setattr("coachrl.trainers.backends.openrlhf.training.flash_attention.has_flash_attn", lambda: installed)
    assert _attention_line(load_config(None, settings)) == told
