"""Settings that do not go with each other, and the nearest ones that do."""

import re

import pytest

from coachrl.config import RunConfig, SftConfig, load_config, make_section
from coachrl.config.algorithm import read_algorithm
from coachrl.config.coach import CoachConfig
from coachrl.config.tasks import first_that_reads
from coachrl.errors import ConfigError

MODEL = "coach.name=openai/x"
SIBLINGS, TRIMMED = "coach.compare=siblings", "coach.combine=trimmed"
GRPO, TREE = "algorithm.name=grpo", "sampling.scheme=tree"
TWO = "coach.ensemble=[{name: rules}, {name: openai/x}]"
THREE = "coach.ensemble=[{name: rules}, {name: openai/x}, {name: openai/y}]"


@pytest.mark.parametrize(
    ("refused", "said", "allowed"),
    [
        (["coach.ensemble=[{name: rules}]"], "combine=mean needs 2 coaches or more, not 1", [TWO]),
        (
            [TWO, TRIMMED],
            "combine=trimmed needs 3 coaches or more, not 2",
            [THREE, TRIMMED],
        ),
        ([TWO, "coach.name=openai/x"], "ensemble lists every coach", [TWO, "coach.name=rules"]),
        ([TWO, "coach.prompt=strict"], "ensemble lists every coach", [TWO]),
        ([TWO, "coach.api_base=http://127.0.0.1:1"], "ensemble lists every coach", [TWO]),
        ([TWO, SIBLINGS], "compared by the rules or by one", [MODEL, SIBLINGS]),
        (
            ["coach.name=json:loads", SIBLINGS],
            "compared by the rules or by one",
            [SIBLINGS],
        ),
        (
            [MODEL, SIBLINGS, "coach.suggest=true"],
            "not compared with suggest",
            [MODEL, "coach.suggest=true"],
        ),
        (
            [MODEL, SIBLINGS, "coach.strategic.window_steps=1"],
            "not compared with suggest, strategic or calibration",
            [MODEL, "coach.strategic.window_steps=1"],
        ),
        (
            [MODEL, SIBLINGS, "coach.calibration=people.json"],
            "not compared with suggest, strategic or calibration",
            [MODEL, "coach.calibration=people.json"],
        ),
        (
            [MODEL, SIBLINGS, "coach.tools.turns=1"],
            "compares siblings runs no programs",
            [MODEL, "coach.tools.turns=1"],
        ),
        (
            [MODEL, "coach.thinking_budget=16", "coach.max_tokens=16"],
            "thinking_budget of 16 leaves no room",
            [MODEL, "coach.thinking_budget=15", "coach.max_tokens=16"],
        ),
        (
            [MODEL, "coach.calibration=people.json", "coach.fallbacks=[openai/y]"],
            "curves are coach.name's, and no fallback's",
            [MODEL, "coach.calibration=people.json"],
        ),
        (["coach.evidence.files=false"], "rules read what they need", ["coach.evidence.ground_truth=all"]),
        (["coach.evidence.files=false"], "rules read what they need", [MODEL, "coach.evidence.files=false"]),
        (["coach.fallbacks=[openai/x]"], "rules never fail", [MODEL, "coach.fallbacks=[openai/y]"]),
        (["coach.tools.turns=1"], "rules run no programs", ["coach.tools.seconds=3"]),
        (["coach.strategic.window_steps=1"], "rules read no statistics", ["coach.strategic.reliable_at=0.5"]),
        (["backend=vllm", "rollout.workers=2"], "rollout.workers=2 needs backend=openrlhf", ["rollout.workers=1"]),
        (["rollout.workers=2"], "the torch backend generates", ["backend=openrlhf", "rollout.workers=2"]),
        (
            ["backend=openrlhf", "torch.lora_rank=4", "torch.share_base=true"],
            "share_base is for backend=torch and backend=vllm",
            ["backend=vllm", "torch.lora_rank=4", "torch.share_base=true"],
        ),
        (["torch.compile=true", "torch.lora_rank=4"], "leave out torch.lora_rank or compile", ["torch.compile=true"]),
        (["policies.share_base=true"], "share_base is no policy", ["policies.share_base.trainable=true"]),
        (
            ["vllm.engine_args={pipeline_parallel_size: 2}"],
            "pipeline_parallel_size: the engine runs in one process",
            ["vllm.engine_args={pipeline_parallel_size: 1, seed: 2}"],
        ),
        (
            ["openrlhf.engine_args={tensor_parallel_size: 2}"],
            "tensor_parallel_size is not for engine_args: set openrlhf.tensor_parallel",
            ["openrlhf.tensor_parallel=2", "openrlhf.gpus=2"],
        ),
        (
            ["openrlhf.engine_args={tensor_parallel_size: 1}", "openrlhf.tensor_parallel=2", "openrlhf.gpus=2"],
            "tensor_parallel_size is not for engine_args: set openrlhf.tensor_parallel",
            ["openrlhf.engine_args={pipeline_parallel_size: 1}", "openrlhf.tensor_parallel=2", "openrlhf.gpus=2"],
        ),
        (
            ["openrlhf.engine_args={data_parallel_size: 2}"],
            "data_parallel_size is not for engine_args: engines spread over GPUs by openrlhf.tensor_parallel alone",
            ["openrlhf.engine_args={data_parallel_size: 1}"],
        ),
        (
            ["openrlhf.engine_args={max_model_len: 100}"],
            "set openrlhf.max_length",
            ["openrlhf.max_length=100"],
        ),
        (
            ["openrlhf.engine_args={enable_prefix_caching: true}", "openrlhf.prefix_caching=false"],
            "set openrlhf.prefix_caching",
            ["openrlhf.prefix_caching=true"],
        ),
        (
            ["openrlhf.engine_args={logprobs_mode: raw_logprobs}"],
            "log-probabilities of the distribution that replies are drawn from",
            ["openrlhf.engine_args={enforce_eager: true}"],
        ),
        (["vllm.engine_args={max_model_len: 100}"], "set vllm.max_length", ["vllm.max_length=100"]),
        (["vllm.engine_args={model: other}"], "policies.NAME.model names it", ["policies.solver.model=other"]),
        (["openrlhf.ray_address=10.0.0.1"], "as 10.0.0.1:6379, or auto", ["openrlhf.ray_address=10.0.0.1:6379"]),
        (["openrlhf.ray_address=head:99999"], "as 10.0.0.1:6379, or auto", ["openrlhf.ray_address=''"]),
        (["openrlhf.ray_address=http://head:8265"], "as 10.0.0.1:6379, or auto", ["openrlhf.ray_address='[::1]:6379'"]),
        (["openrlhf.lora_rank=4"], "adapters are set by torch.lora_rank", ["torch.lora_rank=4"]),
        (["openrlhf.sleep_level=2", "openrlhf.sleep=false"], "for engines that sleep", ["openrlhf.sleep_level=2"]),
        (["openrlhf.sleep_level=2", "openrlhf.colocate=false"], "for engines that sleep", ["openrlhf.colocate=false"]),
        (
            ["openrlhf.sleep_level=2", "openrlhf.engine_args={quantization: fp8}"],
            "throws away what engine_args.quantization makes",
            ["openrlhf.engine_args={quantization: fp8}"],
        ),
        (
            ["openrlhf.one_step_off=true"],
            "engines need GPUs of their own",
            ["openrlhf.one_step_off=true", "openrlhf.colocate=false"],
        ),
        (["pipeline.roles.verifier.model=x"], "a role plays with its policy's model", ["policies.verifier.model=x"]),
        (["reward.source=coahc"], "no reward 'coahc', did you mean 'coach'", ["reward.source=mine:reward"]),
        (["track=[tensorbord]"], "no tracker 'tensorbord', did you mean 'tensorboard'", ["track=[wandb, 'mine:T']"]),
    ],
)
def test_what_does_not_go_together_is_refused_and_the_nearest_that_does_is_not(refused, said, allowed):
    with pytest.raises(ConfigError) as caught:
        load_config(None, refused)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    load_config(None, allowed)


def test_a_run_that_compared_siblings_and_was_calibrated_when_both_were_taken_is_read():
    both = load_config(None, [MODEL, SIBLINGS, "coach.calibration=people.json"], saved=True).coach
    assert both.compare == "siblings" and both.calibration is not None
    with pytest.raises(ConfigError, match="not compared with suggest"):
        load_config(None, [MODEL, SIBLINGS, "coach.suggest=true"], saved=True)


@pytest.mark.parametrize(
    ("refused", "said", "allowed"),
    [
        (
            [GRPO, "train.group_size=1"],
            "group_size to 2 or more",
            [GRPO, "train.group_size=2"],
        ),
        (
            ["algorithm.name=at_grpo", TREE, "sampling.candidates=1"],
            "sampling.candidates to 2 or more (they are tree and 1)",
            ["algorithm.name=at_grpo", TREE, "sampling.candidates=2"],
        ),
        (["algorithm.name=at_grpo"], "set sampling.scheme=tree", ["algorithm.name=at_grpo", TREE]),
        (
            [TREE],
            "only algorithm.name=at_grpo compares (it is reinforce_pp)",
            ["sampling.candidates=9"],
        ),
    ],
)
def test_what_does_not_go_with_an_algorithm_is_refused_and_the_nearest_that_does_is_not(refused, said, allowed):
    blind = "coach.evidence.ground_truth=none"  # candidates of a tree are scored before anybody knows how it ends
    with pytest.raises(ConfigError) as caught:
        load_config(None, [*refused, blind])
    assert said in str(caught.value)
    load_config(None, [*allowed, blind])


COUNTS_FROM_0 = """seed coach.strategic.window_steps coach.tools.turns train.checkpoint_every train.keep_checkpoints
    train.restarts train.warmup_steps eval.every audit.every audit.reference_set"""
COUNTS_FROM_1 = """pipeline.max_new_tokens pipeline.roles.verifier.max_turns pipeline.roles.verifier.max_new_tokens
    sampling.candidates rollout.workers coach.max_attempts coach.concurrency coach.requests_per_minute
    coach.tokens_per_minute train.steps train.tasks_per_step train.group_size train.ppo_epochs
    train.ppo_mini_batch_size eval.samples_per_task sandbox.disk_mb sandbox.max_files sandbox.max_processes
    sandbox.output_kb sandbox.concurrency torch.generation_batch torch.lora_rank torch.lora_alpha torch.threads
    vllm.max_num_seqs openrlhf.gpus openrlhf.engines openrlhf.tensor_parallel openrlhf.max_num_seqs
    openrlhf.max_num_batched_tokens tasks.train_count tasks.heldout_count"""
ABOVE_0 = """pipeline.roles.verifier.tool_timeout_s sampling.temperature rollout.silence_timeout_s coach.tools.seconds
    coach.tools.usd coach.timeout_s coach.give_up_after_s coach.budget_usd reward.scale train.learning_rate
    train.max_grad_norm train.clip_range train.clip_range_high train.episode_timeout_s eval.top_p sandbox.timeout_s
    vllm.memory vllm.start_timeout_s vllm.answer_timeout_s openrlhf.engine_memory openrlhf.start_timeout_s
    openrlhf.answer_timeout_s"""
FROM_0 = """coach.temperature coach.strategic.reliable_at coach.max_failed_fraction reward.team_weight
    train.weight_decay train.max_faulty_fraction eval.temperature"""
UP_TO_1 = "coach.strategic.reliable_at coach.max_failed_fraction train.max_faulty_fraction eval.top_p"
ENDS = [
    *((key, -1, 0) for key in COUNTS_FROM_0.split()),
    *((key, 0, 1) for key in COUNTS_FROM_1.split()),
    *((key, 0, 1e-6) for key in ABOVE_0.split()),
    *((key, -1e-6, 0) for key in FROM_0.split()),
    *((key, 1.000001, 1) for key in UP_TO_1.split()),
    *((key, 1, 0.999999) for key in ("vllm.memory", "openrlhf.engine_memory")),
    *((key, 63, 64) for key in ("sandbox.memory_mb", "torch.micro_batch_tokens", "openrlhf.micro_batch_tokens")),
    *((key, 15, 16) for key in ("coach.evidence.window_tokens", "coach.evidence.previous_tokens", "coach.max_tokens")),
    *((key, 1, 2) for key in ("vllm.max_length", "openrlhf.max_length")),
    ("coach.tools.turns", 21, 20),
    ("coach.thinking_budget", -2, -1),
    ("pipeline.roles.verifier.tool_result_chars", 39, 40),
    ("train.steps", 1_000_001, 1_000_000),
]


@pytest.mark.parametrize(("key", "refused", "allowed"), ENDS, ids=lambda value: str(value))
def test_a_number_is_taken_up_to_the_end_of_its_range_and_no_further(key, refused, allowed):
    with pytest.raises(ConfigError, match=re.escape(key)):
        load_config(None, [MODEL, f"{key}={refused}"])
    load_config(None, [MODEL, f"{key}={allowed}"])


def test_who_scores_is_the_ensemble_or_else_the_one_coach():
    one = CoachConfig(name="openai/x", prompt="strict", api_base="http://127.0.0.1:1")
    [member] = one.members
    assert (member.name, str(member.prompt), member.api_base) == ("openai/x", "strict", "http://127.0.0.1:1")
    assert one.label == "openai/x"
    several = load_config(None, [THREE, "coach.combine=median"]).coach
    assert [each.name for each in several.members] == ["rules", "openai/x", "openai/y"]
    assert several.label == "median of rules, openai/x, openai/y"


def test_a_policy_begins_with_its_own_weights_or_those_of_the_run():
    config = load_config(None, ["model=all", "policies.a.model=own", "policies.b.trainable=false"])
    assert [config.initial_model(policy) for policy in "abc"] == ["own", "all", "all"]


def test_asking_anew_changes_the_cache_alone():
    config = load_config(None, [MODEL, "coach.cache=replies.db", "coach.max_tokens=99"])
    anew = config.without_cache()
    assert (anew.coach.cache, anew.coach.max_tokens) == ("none", 99)
    assert anew.model_copy(update={"coach": config.coach}) == config


def test_processes_that_play_are_those_beside_the_driver():
    counts = [load_config(None, ["backend=openrlhf", f"rollout.workers={n}"]).rollout.processes for n in (1, 2, 5)]
    assert counts == [0, 2, 5]


def test_engines_sleep_where_they_share_gpus_and_are_told_to():
    both = [(shared, told) for shared in ("true", "false") for told in ("true", "false")]
    sleeps = [load_config(None, [f"openrlhf.colocate={a}", f"openrlhf.sleep={b}"]).openrlhf.sleeps for a, b in both]
    assert sleeps == [True, False, False, False]


def test_a_reward_of_ones_own_is_told_from_the_named_ones():
    own = [load_config(None, [f"reward.source={source}"]).reward.is_own for source in ("coach", "environment", "m:f")]
    assert own == [False, False, True]


def test_an_algorithm_without_a_name_is_the_default_one():
    assert RunConfig().algorithm == read_algorithm({}) and read_algorithm({}).name == "reinforce_pp"


@pytest.mark.parametrize(
    ("name", "least", "below"),
    [
        ("epochs", 1, 0),
        ("learning_rate", 1e-9, 0),
        ("batch_size", 1, 0),
        ("max_length", 8, 7),
        ("seed", 0, -1),
        ("validation_share", 0, -0.1),
        ("validation_share", 0.9, 1),
        ("warmup_share", 1, 1.1),
        ("warmup_share", 0, -0.1),
        ("log_every", 1, 0),
    ],
)
def test_a_warm_start_keeps_to_the_bounds_of_its_settings(name, least, below):
    assert getattr(make_section(SftConfig, **{name: least}), name) == least
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        make_section(SftConfig, **{name: below})


@pytest.mark.parametrize(
    ("keys", "sources", "first"),
    [
        ((), ("dsbench-lite", "dsbench"), "dsbench-lite"),
        (("root",), ("dsbench-lite", "dsbench"), "dsbench"),
        (("train_count",), ("word-problems", "math"), "word-problems"),
        (("train", "train_count"), ("word-problems", "math"), "math"),
        (("levels",), ("word-problems", "math"), "word-problems"),
        (("levels", "train"), ("word-problems", "math"), "word-problems"),  # none reads both, and the first says so
        (("no-such-key",), ("word-problems", "math"), "word-problems"),
        ((), ("mine:load", "math"), "mine:load"),
        (("options",), ("math", "mine:load"), "mine:load"),
        (("train",), ("mine:load", "math"), "math"),
    ],
)
def test_of_a_pipelines_task_sets_the_first_is_meant_that_reads_what_is_set(keys, sources, first):
    assert first_that_reads(keys, sources) == first


def test_so_many_tasks_are_generated_of_each_split():
    tasks = load_config(None, ["tasks.train_count=3", "tasks.heldout_count=2"]).tasks
    assert (tasks.count("train"), tasks.count("heldout")) == (3, 2)


@pytest.mark.parametrize(
    ("source", "has", "leaves_out"), [("dsbench", True, True), ("dsbench", False, False), ("math", None, False)]
)
def test_tasks_that_cannot_be_graded_are_left_out_where_that_is_asked_for(source, has, leaves_out):
    asked = [] if has is None else [f"tasks.skip_unusable={str(has).lower()}"]
    assert load_config(None, [f"tasks.source={source}", *asked]).tasks.leaves_out_unusable is leaves_out


def test_what_is_no_import_path_is_no_function():
    with pytest.raises(
        ConfigError, match=r"^tasks\.grader: it is an import path, as my_module:my_function \(got 'same'\)$"
    ):
        load_config(None, ["tasks.source=math", "tasks.grader=same"])
