"""What an algorithm declares about itself, and an own one that trains."""

import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from train_samples import algorithm, grouped, sample

from coachrl.commands.run import train_run
from coachrl.config import RewardConfig, load_config
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.testing.actions import make_action
from coachrl.trainers.algorithms.base import Algorithm, AlgorithmConfig, Explored, with_advantages
from coachrl.trainers.algorithms.boundary import batch_of, compared, explored, rewards_of, state_of
from coachrl.types import Episode, Outcome

OWN = '''
"""Leave one out: each action against the mean of the others of its task and role."""

from pydantic import Field

from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.base import (
    Algorithm, AlgorithmConfig, Groups, all_samples, known_rewards, mask_unscored, of_turn, with_advantages
)


class LeaveOneOutConfig(AlgorithmConfig):
    gain: float = Field(1.0, gt=0)


class LeaveOneOut(Algorithm):
    Config = LeaveOneOutConfig
    min_group_size = 2

    def check(self, config):
        super().check(config)
        if self.settings.gain > config.train.group_size:
            raise ConfigError("algorithm.gain is more than train.group_size")

    def rewards(self, episode, scores, reward):
        return {action.id: float(len(action.response_ids) + action.index) for action in episode.all_actions}

    def advantages(self, samples, rewards):
        batch = mask_unscored(samples, rewards)
        everything = all_samples(batch)
        groups = Groups(everything, known_rewards(everything, rewards), of_turn)
        advantages = {key: self.settings.gain * value for key, value in groups.against_others().items()}
        return with_advantages(batch, advantages, groups=groups)
'''


class Answers(Algorithm):
    """Gives whatever the test hands to it."""

    def __init__(self, given):
        super().__init__(AlgorithmConfig(name="mine:Answers"))
        self.given = given

    def advantages(self, samples, rewards):
        return self.given(samples)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda samples: None, "gave NoneType: `advantages` must return what `with_advantages` makes"),
        (lambda samples: {"x": 1.0}, "gave dict: `advantages` must return"),
        (lambda samples: with_advantages({"a": samples["a"][:1]}, {}), "gave other samples than it got"),
        (lambda samples: with_advantages(samples, {"x": np.zeros(9)}), r"the advantage of action x is an array of"),
        (lambda samples: with_advantages(samples, {}, metrics={"best": None}), "gave the metric 'best' None: it must"),
    ],
)
def test_an_own_algorithm_that_gives_something_else_is_named_in_one_line(given, said):
    with pytest.raises(ConfigError, match=f"^algorithm 'mine:Answers'.*{said}"):
        batch_of(Answers(given), grouped([sample("x", length=3), sample("y")]), {"x": 1.0, "y": 0.0})


def test_metrics_of_an_own_algorithm_are_numbers_that_a_line_of_json_holds():
    """Else the run would end where it writes them down, after the update."""
    metrics = {"gain": np.float32(2), "mean of nothing": np.nan}
    answers = Answers(lambda samples: with_advantages(samples, {}, metrics=metrics))
    assert batch_of(answers, grouped([sample("x")]), {"x": 1.0}).metrics == {"gain": 2.0}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda episodes: episodes, r": its explore gave \[Episode\(.*: it must return `Explored"),
        (lambda episodes: Explored(episodes, {"spent": "much"}), ": its explore gave the metric 'spent' 'much': it"),
        (lambda episodes: 1 / 0, r" failed in explore: ZeroDivisionError: .* \(test_base.py, line"),
    ],
)
async def test_what_an_own_algorithm_explores_is_held_to_what_it_must_be(found, said):
    class Exploring(Answers):
        async def explore(self, episodes, specs, context):
            return found(episodes)

    class Plain(Answers):
        def explore(self, episodes, specs, context):
            return Explored(episodes)

    played = [Episode("e", "t", "c", "p", (make_action(),), Outcome(True))]
    with pytest.raises(ConfigError, match=f"^algorithm 'mine:Answers'{said}"):
        await explored(Exploring(None), played, [], None)
    with pytest.raises(ConfigError, match="its explore is a plain function: it must be `async def`"):
        await explored(Plain(None), played, [], None)


def test_an_own_algorithm_is_shown_the_rewards_of_its_samples_alone():
    class Signs(Answers):
        def advantages(self, samples, rewards):
            return with_advantages(samples, {action: 1.0 for action, reward in rewards.items() if reward})

    batch = batch_of(Signs(None), grouped([sample("x", length=3)]), {"x": 1.0, "of an external model": 7.0})
    assert batch.samples["a"][0].advantages_L.tolist() == [1.0, 1.0, 1.0]


def test_an_own_algorithm_that_says_what_can_be_compared_is_kept_from_what_is_not_its_own():
    class Empties(Answers):
        def tasks_to_compare(self, samples, rewards):
            assert rewards == {"x": 1.0}
            rewards.clear()
            samples["a"].clear()
            return self.given(samples)

    samples, rewards = grouped([sample("x", length=3)]), {"x": 1.0, "of an external model": 7.0}
    assert compared(Empties(lambda _: {"t"}), samples, rewards) == {"t"}
    assert len(samples["a"]) == 1 and len(rewards) == 2
    with pytest.raises(ConfigError, match=r"^algorithm 'mine:Answers' failed in tasks_to_compare: ZeroDivisionError"):
        compared(Empties(lambda _: 1 / 0), samples, rewards)


def test_what_an_own_algorithm_raises_is_one_line():
    with pytest.raises(
        ConfigError, match=r"^algorithm 'mine:Answers' failed: ZeroDivisionError: .* \(test_base.py, line"
    ):
        batch_of(Answers(lambda samples: 1 / 0), grouped([sample("x", length=3)]), {"x": 1.0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda episode: {"x/9": 1.0}, r": its rewards: episode e has no action .x/9"),
        (
            lambda episode: {episode.actions[0].id: float("nan")},
            r": its rewards gave nan for e/0: a reward is a finite",
        ),
        (lambda episode: "7", r": its rewards gave .7. for e: a reward is a finite number"),
        (lambda episode: 1 / 0, r" failed in rewards, on episode e: ZeroDivisionError: .* \(test_base.py, line"),
    ],
)
def test_what_an_own_algorithm_gives_for_rewards_is_held_to_what_they_are(given, said):
    class Rewarding(Answers):
        def rewards(self, episode, scores, reward):
            return given(episode)

    played = Episode("e", "t", "c", "p", (make_action(),), Outcome(True))
    with pytest.raises(ConfigError, match=f"^algorithm 'mine:Answers'{said}"):
        rewards_of(Rewarding(None), played, {}, RewardConfig())


def test_the_state_of_an_own_algorithm_is_plain_data():
    class Remembering(Answers):
        def state(self):
            return {"mean": self.given}

    assert state_of(Answers(None)) == "" and state_of(Remembering(1.5)) == '{"mean": 1.5}'
    for given in ({1, 2}, float("nan")):
        with pytest.raises(ConfigError, match="its state must be plain data, as JSON holds it"):
            state_of(Remembering(given))


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "leave_one_out_rewards.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "algorithm.name=leave_one_out_rewards:LeaveOneOut"


async def test_an_own_algorithm_by_import_path_trains_a_step_of_a_tiny_model(tmp_path: Path, roomy_model, own):
    settings = [
        *(own, "algorithm.gain=2", "train.group_size=2", "train.steps=1", "train.tasks_per_step=2"),
        *("train.learning_rate=1e-3", "train.keep_checkpoints=0", "train.mask_truncated=false"),
        *("pipeline.name=debate", "pipeline.options.agents=2", "pipeline.max_new_tokens=12"),
        *("pipeline.prompt_style=short", "tasks.train_count=2", "tasks.heldout_count=1", "torch.threads=1"),
        *("sandbox.kind=local-unsafe", f"model={roomy_model}", f"out={tmp_path}", "name=run"),
    ]
    config = load_config(None, settings)
    run = Run.create(config)
    await train_run(config, run, Console(quiet=True), resume=False)
    _, after = run.metrics()
    episodes, _ = run.read_episodes("step-000001")
    expected = [len(a.response_ids) + a.index for e in episodes for a in e.actions]
    saved = [(a.credit.reward, a.credit.advantage) for e in episodes for a in e.actions if a.credit is not None]
    assert [reward for reward, _ in saved] == expected and sum(advantage for _, advantage in saved) == pytest.approx(0)
    assert all(e.task_prompt and e.task_prompt in e.actions[0].prompt_text for e in episodes)
    means = {key: value for key, value in after.items() if key.startswith("train/reward/")}
    assert len(means) == 2 and sum(means.values()) / 2 == pytest.approx(sum(expected) / len(expected))
    # Each action of a role and turn has one sibling: two episodes of one task.
    assert after["train/groups"] == len(expected) / 2
    losses = [value for key, value in after.items() if key.startswith("train/loss/")]
    assert losses and all(math.isfinite(loss) for loss in losses)
    assert any(value > 0 for key, value in after.items() if key.startswith("train/grad_norm/"))
    assert Run.open(run.folder).config().algorithm.model_dump() == config.algorithm.model_dump()


def test_an_own_algorithms_check_is_a_configuration_error(own):
    for overrides, message in [
        ([], "LeaveOneOut compares episodes of one task: set train.group_size to 2"),
        (["train.group_size=2", "algorithm.gain=3"], "^algorithm.gain is more than"),
        (["train.group_size=2", "sampling.scheme=tree"], "only algorithm.name=at_grpo compares .it is leave_one_out"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_config(None, [own, *overrides])


@pytest.mark.parametrize(
    ("name", "coach", "environment", "reference", "walks_back"),
    [
        ("reinforce_pp", True, False, True, False),
        ("retrospective", True, False, True, True),
        ("outcome", False, False, True, False),
        ("grpo", True, False, False, False),
        ("at_grpo", True, False, False, False),
        ("magrpo", True, False, False, False),
        ("counterfactual", False, False, False, False),
    ],
)
def test_what_each_shipped_one_needs(name, coach, environment, reference, walks_back):
    made = algorithm(name, **({"kl_beta": 0.01} if reference else {}))
    assert made.needs_coach(RewardConfig()) is coach and made.needs_environment(RewardConfig()) is environment
    assert (made.needs_reference, made.needs_retrospective_pass) == (reference, walks_back)
    by_environment = RewardConfig(source="environment")
    assert not made.needs_coach(by_environment) and made.needs_environment(by_environment) is (
        name not in ("outcome", "counterfactual")
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.name=at_grpo"],
            "set sampling.scheme=tree and sampling.candidates to 2 .* .they are parallel and 4",
        ),
        (["algorithm.name=at_grpo", "sampling.scheme=tree", "sampling.candidates=1"], ".they are tree and 1"),
        (["sampling.scheme=tree"], "draws candidates that only algorithm.name=at_grpo compares .it is reinforce_pp"),
        (
            ["algorithm.name=at_grpo", "sampling.scheme=tree"],
            "ground_truth=none .it is last.*=environment",
        ),
    ],
)
def test_sampling_that_does_not_go_with_the_algorithm_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, overrides)


def test_candidates_that_no_coach_scores_go_with_a_coach_that_would_see_the_outcome():
    tree = ["algorithm.name=at_grpo", "sampling.scheme=tree", "coach.evidence.ground_truth=last"]
    config = load_config(None, [*tree, "reward.source=environment"])
    assert (config.coach.evidence.ground_truth, config.sampling.scheme) == ("last", "tree")
    with pytest.raises(ConfigError, match="needs each score before the episode goes on"):
        load_config(None, tree)
