"""Settings that are named on the command line, and that nothing would read."""

import re

import pytest

import coachrl
from coachrl.cli.options import RunOptions
from coachrl.commands.configure import run_config
from coachrl.config import RunConfig, check_read, parse_config, without_effect
from coachrl.config.unread import _NEEDS
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.resources import resource
from coachrl.runs.folder import Run

_MAGRPO = ("algorithm.name=magrpo", "train.group_size=2")
_OUTCOME = ("algorithm.name=outcome",)
_EACH = " ".join(f"pipeline.roles.{role}.{{setting}}" for role in ("problem_solver", "code_executor", "verifier"))


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        (["openrlhf.gpus=4"], "backend=openrlhf"),
        (["openrlhf={gpus: 4}"], "backend=openrlhf"),
        (["openrlhf.engine_args={seed: 3}"], "backend=openrlhf"),
        (["vllm.memory=0.3"], "backend=vllm"),
        (["backend=openrlhf", "torch.device=cpu"], "backend=torch or backend=vllm"),
        (["backend=vllm", "torch.generation_batch=8"], "backend=torch"),
        (["torch.lora_alpha=8"], "torch.lora_rank"),
        (["rollout.silence_timeout_s=5"], "rollout.workers above 1"),
        (["sandbox.url=http://127.0.0.1:8080"], "sandbox.kind=fusion"),
        (["sampling.candidates=8"], "sampling.scheme=tree"),
        (["reward.team_weight=0.5"], "reward.source=environment"),
        (["coach.combine=median"], "coach.ensemble"),
        (["coach.temperature=0.7"], "a language model in coach.name"),
        (["coach.thinking_budget=100"], "a language model in coach.name"),
        (["coach.ensemble=[{name: rules}, {name: rules}]", "coach.structured=true"], "a language model in coach.name"),
        (["coach.tools.seconds=5"], "coach.tools.turns"),
        (["coach.strategic.reliable_at=0.5"], "coach.strategic.window_steps"),
        (["coach.retrospective.name=gemini-2.5-pro"], "algorithm.name=retrospective"),
        (["audit.reference_set=5"], "audit.every"),
        (["train.restarts=9"], "backend=openrlhf or backend=vllm"),
        (["train.keep_checkpoints=0", "train.checkpoint_every=5"], "train.keep_checkpoints of 1 or more"),
        (["sandbox.kind=local-unsafe", "sandbox.max_processes=9"], "sandbox.kind=local"),
        (["pipeline.prompts=mine", "pipeline.prompt_style=terse"], "pipeline.prompts=null"),
    ],
)
def test_a_setting_of_what_is_not_chosen_is_refused_with_what_it_needs(overrides, missing):
    key = overrides[-1].partition("=")[0]
    with pytest.raises(ConfigError, match=f"nothing reads {key}.* without {missing}: set that too, or leave {key}"):
        run_config(None, overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["backend=openrlhf", "openrlhf.gpus=4", "torch.lora_rank=8", "torch.lora_alpha=16"],
        ["backend=vllm", "vllm.memory=0.3", "torch.device=cuda:1"],
        ["openrlhf.gpus=1", "vllm={}", "sampling.candidates=4"],  # what they are anyway
        ["sandbox.kind=fusion", "sandbox.url=http://127.0.0.1:8080"],
        ["coach.name=gemini-2.5-pro", "coach.tools={turns: 2, seconds: 5}"],
        ["algorithm.name=retrospective", "coach.evidence.ground_truth=none", "coach.retrospective.name=gemini-2.5-pro"],
        ["audit={every: 1, reference_set: 5}"],
        ["coach.budget_usd=5"],  # which the rules keep to
        ["coach.temperature=0", "coach.max_tokens=8192"],  # what they are anyway
        ["coach.ensemble=[{name: rules}, {name: gpt-4o}]", "coach.temperature=0.7"],
        ["coach.name=my_module:Mine", "coach.max_tokens=99"],  # which may read them
        [
            *("algorithm.name=retrospective", "coach.evidence.ground_truth=none"),
            *("coach.retrospective.name=gemini-2.5-pro", "coach.reasoning_effort=low"),
        ],
        [  # of which the adviser's price is made
            *("pipeline.name=coop_code", "pipeline.options={feedback: coach, adviser: openai/mine}"),
            *("coach.budget_usd=5", "coach.usd_per_million_tokens=[1, 2]"),
        ],
        ["pipeline.name=gateway", "coach.usd_per_million_tokens=[1, 2]"],  # of external roles
        ["pipeline.name=coachrl.pipelines.code.coop_code:CoopCode", "coach.library=litellm"],  # as may be
        [*_OUTCOME, "coach.name=gpt-4o", "audit.every=1"],  # as the run has it that is compared with this one
        ["pipeline.name=gateway", "reward.source=environment", "coach.timeout_s=9"],  # which external roles obey
        ["backend=vllm", "train.restarts=0"],
        ["openrlhf.ray_address=auto"],  # which a launch file for KubeRay says of every run
        ["algorithm.name=coachrl.trainers.algorithms.outcome:Outcome", "reward.team_weight=2"],  # which is handed it
    ],
)
def test_a_setting_that_is_read_or_is_as_it_would_be_anyway_is_taken(overrides):
    run_config(None, overrides)


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        (["coach.timeout_s=5"], "a language model in coach.name"),
        (["coach.compare=siblings"], "a language model in coach.name"),
        ([*_MAGRPO, "train.clip_range=0.1"], r"an algorithm.name with PPO's loss \(it is magrpo\)"),
        ([*_MAGRPO, "train.clip_range_high=0.3"], r"an algorithm.name with PPO's loss \(it is magrpo\)"),
        ([*_OUTCOME, "reward.source=environment"], r"an algorithm.name that takes rewards .* \(it is outcome\)"),
        ([*_OUTCOME, "reward.source=environment", "reward.team_weight=2"], r"an algorithm.name that takes rewards .*"),
    ],
)
def test_what_one_of_two_compared_runs_does_not_read_is_told_and_not_refused(caplog, tmp_path, overrides, missing):
    run_config(None, overrides)
    key = overrides[-1].partition("=")[0]
    assert re.fullmatch(f"nothing reads {key} without {missing}: set that too, or leave {key} out", caplog.messages[-1])
    caplog.clear()
    (tmp_path / "a.yaml").write_text("coach: {timeout_s: 5}\nreward: {source: environment}\ntrain: {clip_range: 0.1}\n")
    run_config(str(tmp_path / "a.yaml"), overrides[:-1])
    assert key not in " ".join(caplog.messages)


def test_a_model_for_all_policies_of_which_each_has_its_own_is_told(caplog):
    """And not refused: it says that the run is no small one."""
    models = [f"policies.{role}.model=m" for role in ("problem_solver", "code_executor", "verifier")]
    own = ["model=Qwen/Qwen3-4B", *models]
    assert run_config(None, own).train.steps == RunConfig().train.steps > run_config(None, models).train.steps
    assert caplog.messages == [
        "no policy begins as model: each has its own by policies.NAME.model (problem_solver m, code_executor m, "
        "verifier m)"
    ]
    caplog.clear()
    run_config("quickstart", ["model=tiny-random", "policies.verifier.model=smollm2-135m"])
    run_config(None, ["model=m", *models])
    assert not caplog.messages


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["pipeline.max_new_tokens=100"], "problem_solver 16, code_executor 40, verifier 32"),
        (["pipeline.max_new_tokens=40"], ""),  # as one of them has it
        (["train.loss_aggregation=seq-mean-token-sum-norm", "pipeline.max_new_tokens=90"], ""),  # which divides by it
        ([*_EACH.format(setting="policy=a").split(), "pipeline.shared_policy=team"], "problem_solver a, .*"),
        (["pipeline.roles.verifier.policy=a", "pipeline.shared_policy=team"], ""),
        ([*_EACH.format(setting="thinking=false").split(), "pipeline.thinking=true"], "problem_solver False, .*"),
        (["pipeline.roles.verifier.thinking=false", "pipeline.thinking=true"], ""),
    ],
)
def test_what_is_meant_for_all_roles_of_which_each_has_its_own_is_told(caplog, overrides, found):
    run_config("quickstart", overrides)
    key, told = overrides[-1].partition("=")[0], " ".join(caplog.messages)
    assert re.fullmatch(
        rf"nothing reads {key}: each has its own \({found}\); set pipeline.roles.NAME.*" if found else "", told
    )


def test_a_length_for_all_roles_takes_the_place_of_those_that_come_with_the_small_model():
    roles = make_pipeline(run_config(None, ["pipeline.max_new_tokens=300"]).pipeline).roles
    assert {role.max_new_tokens for role in roles} == {300}
    own = ["pipeline.max_new_tokens=300", "pipeline.roles.verifier.max_new_tokens=9"]
    roles = make_pipeline(run_config(None, own).pipeline).roles
    assert [role.max_new_tokens for role in roles] == [300, 300, 9] and roles[1].max_turns == 1


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["train.warmup_steps=32"], "train.warmup_steps=32: the rate rises in all of 8 steps, to 25% of train"),
        (["audit.every=9"], "audit.every=9: no audit is due in 8 steps"),
        (["audit.every=5", "audit.reference_set=3"], "audit.reference_set=3: it is scored again from the second audit"),
        (["eval.every=8", "train.keep_best=true"], "train.keep_best: with eval.every=8 only the last of 8 steps is"),
        ([*_OUTCOME, "coach.name=gpt-4o"], "coach gpt-4o is not asked: algorithm.name=outcome and reward.source=coach"),
        (["reward.source=environment", "coach.name=gpt-4o"], "coach gpt-4o is not asked: algorithm.name=reinforce_pp"),
        ([*_OUTCOME, "audit.every=1", "audit.reference_set=9"], "audit.every=1: no coach is asked"),
        (
            ["pipeline.name=sudoku", "pipeline.options.rewards=outcome"],
            "pipeline.options.rewards: nothing is trained on them",
        ),
        (
            ["pipeline.name=coop_code", "pipeline.options.adviser_api_base=http://h/v1"],
            "pipeline.options.adviser_api_base: it is the adviser's, and pipeline.options.adviser names none",
        ),
        (
            ["pipeline.name=coop_code", "pipeline.options={feedback: coach, adviser: m}"],
            "pipeline.options.adviser: it advises between turns, and with pipeline.options.turns=1 there is one",
        ),
        (["train.clip_range_high=0.3"], "train.clip_range: with train.ppo_epochs=1 and one optimizer step no ratio"),
        (["eval.temperature=0", "eval.samples_per_task=4"], "eval.samples_per_task=4: with eval.temperature=0 they"),
        (["coach.name=gpt-4o", "coach.compare=siblings"], "coach.compare=siblings: with train.group_size=1 an action"),
    ],
)
def test_what_comes_to_nothing_is_told(overrides, line):
    [told] = without_effect(run_config(None, overrides))
    assert told.startswith(line)


def test_nothing_is_told_of_what_comes_to_something():
    audited = ["train.warmup_steps=8", "audit.every=4", "audit.reference_set=3"]
    best = ["eval.every=4", "train.keep_best=true", "coach.name=gpt-4o", "coach.compare=siblings", "train.group_size=2"]
    assert without_effect(run_config(None, [*audited, *best])) == []
    assert without_effect(run_config(None, ["train.clip_range=0.3", "train.ppo_epochs=2"])) == []
    advised = [
        "pipeline.name=coop_code",
        "pipeline.options={feedback: coach, adviser: m, adviser_api_base: h, turns: 2}",
    ]
    assert without_effect(run_config(None, advised)) == []
    by_coach = ["algorithm.name=counterfactual", "algorithm.coach_roles=[verifier]"]
    assert without_effect(run_config(None, [*by_coach, "coach.name=gpt-4o", "audit.every=1"])) == []
    for config in resource("configs").glob("*.yaml"):
        assert without_effect(run_config(str(config))) == []


def test_a_file_may_serve_two_backends(tmp_path):
    path = tmp_path / "shared.yaml"
    path.write_text("backend: openrlhf\nopenrlhf: {gpus: 8}\nsampling: {candidates: 8}\n")
    assert run_config(str(path), ["backend=torch"]).openrlhf.gpus == 8
    assert coachrl.configure({"openrlhf": {"gpus": 8}}, backend="torch").openrlhf.gpus == 8
    path.write_text(
        "model: m\npolicies: {problem_solver: {model: a}, code_executor: {model: a}, verifier: {model: a}}\n"
    )
    assert RunOptions(config=str(path)).resolve().model == "m"  # options that nobody gave name nothing
    assert coachrl.configure(parse_config({"openrlhf": {"gpus": 8}}, ""), seed=3).openrlhf.gpus == 8
    with pytest.raises(ConfigError, match=r"nothing reads openrlhf\.gpus"):
        coachrl.configure({"openrlhf": {"gpus": 8}}, openrlhf={"gpus": 4})


def test_a_run_that_goes_on_is_told_too_and_is_not_changed(tmp_path):
    run = Run.create(parse_config({"name": "a", "out": str(tmp_path)}, ""))
    before = (run.folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"nothing reads openrlhf\.gpus without backend=openrlhf"):
        run.reconfigure(["openrlhf.gpus=4"])
    assert (run.folder / "config.yaml").read_text() == before
    assert run.config(["openrlhf.gpus=4"]).openrlhf.gpus == 4  # serve chooses its engine itself


def test_every_setting_of_the_table_is_one():
    for setting, _, _ in _NEEDS:
        value = RunConfig()
        for key in setting.split("."):
            value = getattr(value, key)
    check_read(RunConfig(), ())
