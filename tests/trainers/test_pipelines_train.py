"""One training step of each new pipeline with a tiny model and each advantage that fits it.

The random model writes no programs, so that the quick sandbox without isolation will do."""

import json
import math
from contextlib import suppress
from pathlib import Path

import pytest
from cases import but
from rich.console import Console

from coachrl.commands.build import play_of
from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.errors import ConfigError, NothingTrained, TaskError
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl

WORLD = ["reward.source=environment"]
TREE = [*WORLD, "algorithm.name=at_grpo", "sampling.scheme=tree", "sampling.candidates=2"]
GROUPS = [*WORLD, "train.group_size=2"]
SUMS, PROGRAMS = ["tasks.source=word-problems"], ["tasks.source=coop-code"]
REPLAY = ["algorithm.name=counterfactual", "algorithm.others=2", "algorithm.decisions=2"]
CASES = {
    "code at_grpo": ["pipeline.name=code", *PROGRAMS, *TREE],
    "code grpo": ["pipeline.name=code", *PROGRAMS, *GROUPS, "algorithm.name=grpo"],
    "code rules": ["pipeline.name=code", *PROGRAMS, "pipeline.options.turns=1"],
    "coop_code magrpo, two turns": [
        "pipeline.name=coop_code", *PROGRAMS, *GROUPS, "algorithm.name=magrpo", "pipeline.options.turns=2",
    ],
    "coop_code single": [
        "pipeline.name=coop_code", *PROGRAMS, *GROUPS, "algorithm.name=grpo", "pipeline.options.workflow=single",
    ],
    "coop_code rules": ["pipeline.name=coop_code", *PROGRAMS],
    "math_duo at_grpo": ["pipeline.name=math_duo", *SUMS, *TREE, "pipeline.options.turns=2"],
    "math_duo outcome": ["pipeline.name=math_duo", *SUMS, "algorithm.name=outcome", "pipeline.options.judge=true"],
    "debate at_grpo, shared": ["pipeline.name=debate", *SUMS, *TREE, "pipeline.shared_policy=all"],
    "debate rules": ["pipeline.name=debate", *SUMS, "pipeline.options.agents=2"],
    "mathchat counterfactual": ["pipeline.name=mathchat", *SUMS, *REPLAY],
    "code counterfactual": ["pipeline.name=code", *PROGRAMS, *REPLAY, "pipeline.options.turns=1"],
    "coop_code counterfactual": ["pipeline.name=coop_code", *PROGRAMS, *REPLAY, "pipeline.options.turns=2"],
    "debate counterfactual, shared": ["pipeline.name=debate", *SUMS, *REPLAY, "pipeline.shared_policy=all"],
    "planpath counterfactual": ["pipeline.name=planpath", "tasks.source=planpath", *REPLAY],
    "mixture grpo": ["pipeline.name=mixture", *SUMS, *GROUPS, "algorithm.name=grpo"],
}  # fmt: skip


RARELY = [
    "code grpo",
    "code rules",
    "coop_code single",
    "math_duo outcome",
    *(f"{name} counterfactual" for name in ("code", "coop_code")),
    "debate counterfactual, shared",
]  # parts of which others are made, too


def config_of(folder: Path, model: Path, *overrides: str):
    sizes = [
        "train.steps=1", "train.tasks_per_step=1", "train.learning_rate=1e-3", "train.keep_checkpoints=0",
        "tasks.train_count=2", "tasks.heldout_count=1", "pipeline.max_new_tokens=12", "pipeline.prompt_style=short",
        "train.mask_truncated=false", "sandbox.kind=local-unsafe", "eval.samples_per_task=3", "torch.threads=1",
    ]  # fmt: skip
    return load_config(None, [*sizes, f"model={model}", f"out={folder}", "name=run", *overrides])


SIDE_BY_SIDE = ("debate rules", "coop_code magrpo, two turns")


async def trained(config) -> Run:
    run = Run.create(config)
    with suppress(NothingTrained):  # what a random model plays may score alike in all groups
        await train_run(config, run, Console(quiet=True), resume=False)
    return run


def played(run: Run) -> list[tuple]:
    actions = [a for file in run.episode_files() for e in read_jsonl(file) for a in e["actions"]]
    return [(a["id"], a["role"], a["turn"], a["response_ids"], a["reward"]) for a in actions]


@pytest.mark.parametrize("case", but(RARELY, CASES))
async def test_a_step_and_agents_that_act_side_by_side_repeat_with_their_seed(tmp_path, roomy_model, case):
    config = config_of(tmp_path, roomy_model, *CASES[case])
    run = await trained(config)
    _, after = run.metrics()
    assert after["train/faulty_fraction"] == 0 and after["train/overflowed_fraction"] == 0
    assert after["eval/pass@1"] == after["eval/success"] and after["eval/pass@3"] >= after["eval/pass@1"]
    rewards = {name: value for name, value in after.items() if name.startswith("train/reward/")}
    assert rewards and all(math.isfinite(value) for value in rewards.values())
    if config.algorithm.name == "counterfactual":
        assert after["replay/not_reproduced"] == after["replay/broken"] == 0 < after["replay/decisions"] <= 2
        assert after["replay/playouts"] == 2 * after["replay/decisions"] and after["tokens/replayed"] >= 0
    if case in SIDE_BY_SIDE:
        again = await trained(config.model_copy(update={"name": "again"}))
        assert played(run) == played(again) and len({role for _, role, *_ in played(run)}) == 2


async def test_tasks_whose_reference_fails_stop_a_run_before_a_model_is_loaded(tmp_path):
    line = {
        "prompt": "def f(x): ...",
        "entry_point": "f",
        "test": "assert f(1) == 1",
        "reference": "def f(x): return 2",
    }
    for name in ("train", "heldout"):
        text = json.dumps(line | {"prompt": f"def f(x): ...  # {name}"})
        (tmp_path / f"{name}.jsonl").write_text(text + "\n")
    paths = [f"tasks.{name}={tmp_path / name}.jsonl" for name in ("train", "heldout")]
    config = config_of(tmp_path, tmp_path / "no-model", "pipeline.name=code", "tasks.source=code", *paths)
    with pytest.raises(TaskError, match=r"train-f: f\(1\) == 1: got 2\. Correct them"):
        await train_run(config, Run.create(config), Console(quiet=True), resume=False)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pipeline.name=coop_code", *PROGRAMS, *TREE], "rewards what its agents did together"),
        (
            ["pipeline.name=mathchat", *SUMS, *GROUPS, "algorithm.name=magrpo"],
            "has no environment that rewards actions",
        ),
    ],
)
async def test_what_does_not_fit_is_refused(tmp_path, roomy_model, overrides, words):
    config = config_of(tmp_path, roomy_model, *overrides)
    with pytest.raises(ConfigError, match=words):
        await train_run(config, Run.create(config), Console(quiet=True), resume=False)


def test_counterfactual_credit_refuses_what_cannot_be_replayed(tmp_path, roomy_model):
    advised = ["pipeline.name=coop_code", *PROGRAMS, *REPLAY, "pipeline.options.turns=2"]
    advised += ["pipeline.options.feedback=coach", "pipeline.options.adviser=x/y"]
    with pytest.raises(ConfigError, match="pipeline coop_code cannot be replayed: a model advises its agents"):
        play_of(config_of(tmp_path, roomy_model, *advised))
    stale = ["backend=openrlhf", "openrlhf.colocate=false", "openrlhf.one_step_off=true"]
    with pytest.raises(ConfigError, match="=counterfactual has no correction for that: set "):
        load_config(None, ["algorithm.name=counterfactual", *stale])
