"""What a run is put together of, and what is worked out of it before anything starts."""

from pathlib import Path

import pytest

from coachrl.commands.build import _make_sandbox, check_backend, needs_sandbox, policies_of
from coachrl.commands.gpu_estimates import _Engines, _engines, _time_lines, _work
from coachrl.commands.run import _may_go_on
from coachrl.commands.try_coach import SavedAction, _residual_after, find_action
from coachrl.config import PolicyConfig, load_config
from coachrl.errors import BudgetExceeded, CheckpointError, ConfigError, NothingTrained
from coachrl.pipelines import make_pipeline
from coachrl.runs.folder import Run
from coachrl.runs.records import ScoredEpisode
from coachrl.sandbox.cgroups import workspaces_mb
from coachrl.testing.actions import make_action
from coachrl.trainers.backends.openrlhf.cluster.memory import ModelShape
from coachrl.trainers.backends.roofline import Card, StepTime
from coachrl.types import CoachScore, Episode, Outcome

SHAPE = ModelShape(1000, 2, 8, 16, 8, 8, 50, 2000)


@pytest.mark.parametrize(("workers", "each"), [(1, 7), (2, 3), (7, 1), (8, 1)])
def test_executions_at_once_are_divided_among_those_who_play_and_each_has_one(workers, each):
    config = load_config(None, ["sandbox.kind=local-unsafe", "sandbox.concurrency=7"])
    assert _make_sandbox(config, workers).free._value == each


@pytest.mark.parametrize(("workers", "turns", "sharers"), [(1, 0, 1), (1, 3, 2), (2, 0, 3), (2, 3, 4)])
def test_the_memory_is_divided_among_those_who_play_and_coaches_that_run_programs(workers, turns, sharers):
    """Beside workers the driver has a sandbox, too."""
    given = ["coach.name=some/model", f"coach.tools.turns={turns}", "backend=openrlhf", f"rollout.workers={workers}"]
    assert _make_sandbox(load_config(None, given)).all_files_mb == workspaces_mb() // sharers


def test_a_sandbox_is_needed_where_a_role_runs_code_or_the_pipeline_does():
    def needs(*overrides):
        return needs_sandbox(make_pipeline(load_config(None, overrides).pipeline))

    assert needs() and not needs("pipeline.name=debate") and needs("pipeline.name=code")
    assert not needs("pipeline.roles.code_executor.python=false")


def test_policies_come_in_the_order_in_which_roles_use_them_with_their_own_settings(tmp_path):
    def policies(*overrides):
        config = load_config(None, overrides)
        return policies_of(config, make_pipeline(config.pipeline))

    found = policies("policies.verifier.trainable=false", "pipeline.roles.code_executor.policy=verifier")
    assert [(name, policy.trainable) for name, policy in found.items()] == [
        ("problem_solver", True),
        ("verifier", False),
    ]
    with pytest.raises(ConfigError, match="no role plays with 'verifer', did you mean 'verifier'"):
        policies("policies.verifer.trainable=false")
    made = ["policies.verifier.made_by=make it", f"policies.verifier.model={tmp_path}/made"]
    with pytest.raises(ConfigError, match=r"policies\.verifier\.model: no folder .*/made yet; make it makes it"):
        policies(*made)
    (tmp_path / "made").mkdir()
    assert policies(*made)["verifier"].model == f"{tmp_path}/made"


def work(*overrides, engines=_Engines(2, 4, 256, None, 8, None), kept=10**9, trained=True, task_tokens=100):
    config = load_config(None, ["pipeline.max_new_tokens=50", "algorithm.kl_beta=0", *overrides])
    pipeline = make_pipeline(config.pipeline)
    return _work(config, pipeline, "code_executor", SHAPE, trained, engines, kept, task_tokens)


def test_a_step_asks_of_a_policy_every_turn_and_every_token_that_it_may_take():
    sizes = ("train.tasks_per_step=3", "train.group_size=2")
    one = work(*sizes)
    assert (one.replies, one.reply_tokens) == (6 * 5, 6 * 5 * 50)
    prompt = 100 + 7 * 50 // 2  # the task, and half of what seven replies hold
    assert one.prompt_tokens == 30 * prompt
    assert (one.engine_gpus, one.trainer_gpus, one.at_once) == (8, 8, 3)  # six episodes on two engines
    tree = work(*sizes, "sampling.scheme=tree", "algorithm={name: at_grpo}", "coach.evidence.ground_truth=none")
    assert (tree.replies, tree.reply_tokens) == (4 * one.replies, 4 * one.reply_tokens)


@pytest.mark.parametrize(
    ("limit", "task_tokens", "prompt"),
    [(None, 10_000, 2000 - 50), (500, 10_000, 500 - 50), (3000, 10_000, 2000 - 50), (50, 10_000, 1), (None, 0, 175)],
)
def test_a_prompt_leaves_room_for_its_reply_in_the_shorter_of_limit_and_context(limit, task_tokens, prompt):
    made = work("train.tasks_per_step=1", engines=_Engines(1, 1, 9, limit, 1, 1), task_tokens=task_tokens)
    assert made.prompt_tokens == 5 * prompt


@pytest.mark.parametrize(
    ("most", "kept", "at_once"), [(256, 10**9, 4), (3, 10**9, 3), (256, 2 * 325, 2), (256, 2 * 325 - 1, 1), (256, 0, 1)]
)
def test_so_many_replies_are_drawn_at_once_as_engine_episodes_and_cache_allow(most, kept, at_once):
    made = work("train.tasks_per_step=8", engines=_Engines(2, 1, most, None, 1, None), kept=kept)
    assert made.prompt_tokens + made.reply_tokens == 8 * 5 * 325 and made.at_once == at_once


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        ([], 3),  # forward, and a backward pass of twice that
        (["torch.gradient_checkpointing=true"], 4),
        (["torch.lora_rank=4"], 2),
        (["backend=openrlhf"], 4),
        (["backend=openrlhf", "openrlhf.gradient_checkpointing=false"], 3),
        (["train.ppo_epochs=2"], 6),
    ],
)
def test_an_update_takes_the_passes_of_its_backend_and_an_untrained_policy_none(overrides, passes):
    assert work(*overrides).trained == passes
    assert (
        work(*overrides, trained=False).trained == work(*overrides, "algorithm.kl_beta=1", trained=False).forwards == 0
    )
    assert work(*overrides, "algorithm.kl_beta=1").forwards == work(*overrides).forwards + 1


def test_the_time_of_a_step_is_told_by_its_parts():
    card = Card("X1", 100.0, 2000.0)
    first, by, counted = _time_lines(StepTime(30.2, 10.0, 40.0), card)
    assert first == "about 81 s at most: 31 s generating, 10 s log-probabilities, 40 s training"
    assert by == "by roofline, on X1 of 100 TFLOP/s and 2,000 GB/s, of which 40% and 70% are counted on;"
    assert counted.startswith("every turn taken and every reply full")
    first, _, _ = _time_lines(StepTime(30.0, 0.0, 40.0, one_step_off=True), card)
    assert first == "about 40 s at most: 30 s generating, 40 s training, at the same time"


def test_of_a_step_whose_arithmetic_takes_next_to_nothing_no_time_is_told():
    told = _time_lines(StepTime(0.2, 0.0, 0.4), Card("X1", 100.0, 2000.0))
    assert told[0].startswith("about 0.6 s of arithmetic, on X1; ") and told[1].endswith("and are not counted")
    assert not any("at most" in line for line in told)


def test_the_engine_of_one_gpu_is_that_of_all_policies():
    config = load_config(None, ["backend=vllm", "vllm.max_num_seqs=7", "vllm.max_length=99"])
    assert _engines(config, None, ["a", "b"]) == dict.fromkeys("ab", _Engines(1, 1, 7, 99, 1, 1))


def test_only_a_run_that_can_be_resumed_says_so_where_an_error_ends_it(tmp_path):
    run, config = Run(tmp_path), load_config(None)
    none = load_config(None, ["train.keep_checkpoints=0"])
    assert not _may_go_on(config, run, ValueError("x"))  # nothing was trained
    run.append_metrics({"step": 0})
    assert _may_go_on(config, run, ValueError("x")) and not _may_go_on(none, run, ValueError("x"))
    for error in (CheckpointError("x"), NothingTrained("x"), BudgetExceeded("go on with --resume")):
        assert not _may_go_on(config, run, error)


def played(name, *residuals, step=1):
    actions = tuple(make_action(episode=name, index=index) for index in range(len(residuals)))
    scores = {
        action.id: CoachScore(action.id, "scored", 5.0, residual=residual)
        for action, residual in zip(actions, residuals, strict=True)
        if residual is not None
    }
    return ScoredEpisode(Episode(name, "t", "k", "p", actions, Outcome(True)), scores)


def test_an_action_is_found_by_its_number_from_one_or_by_its_id(tmp_path):
    run = Run(tmp_path)
    (tmp_path / "episodes").mkdir()
    for step, name in ((1, "a"), (2, "b")):
        each = played(name, "", "")
        run.write_episodes(f"step-00000{step}", [each.episode], each.scores)
    found = [find_action(f"{tmp_path}#{wanted}").action.id for wanted in ("1", "2", "3", "4", "b/1")]
    assert found == ["a/0", "a/1", "b/0", "b/1", "b/1"]
    assert find_action(f"{tmp_path}#3").score.action_id == "b/0"
    for wanted, hint in (("0", "1$"), ("5", "1$"), ("b/2", r"1, did you mean '[ab]/\d'\?$")):
        with pytest.raises(ConfigError, match=f"the run has 4 actions, numbered from {hint}"):
            find_action(f"{tmp_path}#{wanted}")
    for unclear in ("runs/latest", "#3", "runs/latest#"):
        with pytest.raises(ConfigError, match="write RUN#NUMBER or RUN#ID"):
            find_action(unclear)


@pytest.mark.parametrize(
    ("residuals", "place", "left"),
    [
        (("a", "b", "c"), 0, "b"),  # what the next one left; the pass goes backwards
        (("a", "", "c"), 0, "c"),
        (("a", None, "c"), 0, "c"),
        (("a", "b", "c"), 2, ""),
        (("a", "", ""), 0, ""),
    ],
)
def test_what_is_left_to_be_explained_is_what_the_nearest_later_action_left(residuals, place, left):
    scored = played("e", *residuals)
    assert _residual_after(SavedAction(Run(Path("x")), scored, scored.episode.actions[place])) == left


def test_thinking_that_the_models_template_cannot_ask_for_is_told(caplog):
    pytest.importorskip("torch", reason="needs the torch extra")
    for settings in ([], ["pipeline.thinking=true"], ["pipeline.roles.verifier.thinking=true"]):
        check_backend(load_config(None, ["model=tiny-random", *settings]), {"verifier": PolicyConfig()})
    line = "tiny-random: its chat template has no enable_thinking, so that thinking changes nothing"
    assert caplog.messages == [line, line]
