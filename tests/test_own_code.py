"""Code of one's own changes what it is given, and nobody else finds it changed."""

import copy
import io
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import pytest
from gateway_apps import said, user

from coachrl.coach.base import make_request
from coachrl.coach.kinds.own import OwnCoach
from coachrl.config import PipelineConfig, RewardConfig, load_config
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.runs.trackers import Trackers
from coachrl.tasks import load_tasks
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.algorithms.advantages.rewards import source_rewards
from coachrl.trainers.algorithms.base import Algorithm, AlgorithmConfig, Explored, with_advantages
from coachrl.trainers.algorithms.boundary import batch_of, explored, rewards_of
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.samples import to_samples
from coachrl.types import CoachScore, Episode, Outcome, Reward, Role, Task

ASK = parse_prompt("---\nfields: [problem]\n---\n{{problem}}", "ask")
ACTIONS = tuple(make_action(index=index, turn=index, reward=Reward(1.0, 0.5, {"form": 1.0})) for index in range(2))
EPISODE = Episode("e", "t", "k", "ask", ACTIONS, Outcome(True, {"correct": 1.0}))
SCORES = {"e/0": CoachScore("e/0", "scored", 7.0)}


@dataclass(frozen=True)
class Truth:
    """Frozen, and what is in it is not."""

    answers: list[str]
    notes: dict[str, list[int]] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"y": [1, 2]}), compare=False)


def a_task():
    return Task("t", "k", "What is 1 + 1?", {"a.csv": Path("a.csv")}, Truth(["2"], {"seen": []}))


def spoil(task):
    """Takes an answer each time, as a grader does that thinks of the answers as its own."""
    task.files.clear()
    task.ground_truth.notes["seen"].append(1)
    task.ground_truth.table.loc[:, "y"] = 0
    return task.ground_truth.answers.pop()


def is_whole(task):
    return task == a_task() and task.ground_truth.table["y"].tolist() == [1, 2]


class Spoiling(Pipeline):
    name = "spoiling"
    roles = (Role("one", "one", ASK),)

    async def run(self, task, team, workspace):
        answer = spoil(task)  # before another episode of the task has come to its end
        reply = await team.one.act(problem=task.prompt)
        return Outcome(reply.text == answer)


async def test_a_pipeline_has_its_task_to_itself_in_each_episode():
    task, asked = a_task(), []
    specs = [EpisodeSpec(f"e{n}", task, n) for n in range(3)]
    context = RolloutContext(Spoiling(PipelineConfig()), ScriptedPolicy(lambda call: "2"), None, submit=asked.append)
    for _ in range(2):
        assert [episode.outcome.success for episode in await rollout(specs, context)] == [True] * 3
    assert is_whole(task) and len(asked) == 6 and all(is_whole(request.task) for request in asked)


def app(task, endpoint):
    task.files.clear()
    return said(endpoint.openai(), "solver", user(task.prompt)).content


def grade(task, result):
    assert task.files
    return spoil(task) == result


async def test_a_grader_has_its_task_to_itself_in_each_episode():
    pytest.importorskip("starlette", reason="needs the gateway extra")
    options = {"run": f"{__name__}:app", "grade": f"{__name__}:grade", "roles": {"solver": {}}}
    pipeline = make_pipeline(PipelineConfig(name="gateway", options=options))
    task = a_task()
    context = RolloutContext(pipeline, ScriptedPolicy(lambda call: "2"), None)
    episodes = await rollout([EpisodeSpec(f"e{n}", task, n) for n in range(3)], context)
    assert [(episode.infra_error, episode.outcome.success) for episode in episodes] == [(None, True)] * 3
    assert is_whole(task)


def spoiling_coach(request):
    spoil(request.task)
    request.outcome.metrics.clear()
    request.role.prompt.header.clear()
    for action in (request.action, *request.previous):
        action.reward.checks.clear()
    return 5


async def test_a_coach_has_what_it_is_asked_to_itself():
    role, task = Role("one", "one", ASK), a_task()
    request = make_request(task, (role,), role, ACTIONS[1], ACTIONS[:1], Outcome(True, {"correct": 1.0}))
    for _ in range(2):
        assert (await OwnCoach(f"{__name__}:spoiling_coach").score(request)).process_0_10 == 5
    assert (
        is_whole(task) and request.outcome.metrics == {"correct": 1.0} and role.prompt.header == {"fields": ["problem"]}
    )
    assert [action.reward.checks for action in ACTIONS] == [{"form": 1.0}] * 2


def spoiling_reward(episode, scores):
    scores.clear()
    episode.outcome.metrics["correct"] = 0.0
    return {action.id: action.reward.checks.pop("form") for action in episode.actions}


class SpoilingAlgorithm(Algorithm):
    def rewards(self, episode, scores, reward):
        return spoiling_reward(episode, scores)

    async def explore(self, episodes, specs, context):
        spoil(specs[0].task)
        episodes[0].outcome.metrics.clear()
        return Explored(episodes[:1])

    def advantages(self, samples, rewards):
        batch = with_advantages(samples, dict.fromkeys(rewards, 1.0))
        rewards.clear()
        for group in samples.values():
            group.clear()
        return batch


async def test_rewards_and_an_algorithm_leave_episodes_scores_and_tasks_as_they_were():
    mine, before = SpoilingAlgorithm(AlgorithmConfig(name="mine:Spoiling")), copy.deepcopy(EPISODE)
    for _ in range(2):
        given = source_rewards(EPISODE, SCORES, RewardConfig(source=f"{__name__}:spoiling_reward"))
        assert given == rewards_of(mine, EPISODE, SCORES, RewardConfig()) == {"e/0": 1.0, "e/1": 1.0}
    samples = to_samples([EPISODE])
    assert batch_of(mine, samples, given).samples.keys() == samples.keys()
    assert [len(group) for group in samples.values()] == [2] and len(given) == 2
    specs, context = [EpisodeSpec("e", a_task(), 0)], RolloutContext(Spoiling(PipelineConfig()), None, None)
    assert len((await explored(mine, [EPISODE, EPISODE], specs, context)).episodes) == 1
    assert before == EPISODE and is_whole(specs[0].task) and SCORES.keys() == {"e/0"}


def spoiling_load(config):
    config.tasks.options["size"] = 0
    return [Task(f"t{n}", "k", f"What is {n} + 1?") for n in range(4)]


def test_a_loader_of_tasks_leaves_the_configuration_as_it_was():
    config = load_config(None, [f"tasks.source={__name__}:spoiling_load", "tasks.options.size=3"])
    load_tasks(config)
    assert config.tasks.options == {"size": 3}


def test_a_tracker_leaves_the_figures_to_the_next():
    class Table:
        def __init__(self):
            self.lines = []

        def log(self, step, metrics):
            self.lines.append(dict(metrics))
            metrics.clear()

        def close(self):
            pass

    trackers, tables = Trackers(), [Table(), Table()]
    for number, table in enumerate(tables):
        trackers.add(str(number), table)
    trackers.on_metrics({"step": 1, "loss": 2.0})
    assert [table.lines for table in tables] == [[{"loss": 2.0}]] * 2


class Refusing:
    def __deepcopy__(self, memo):
        raise KeyError("of its own")


@pytest.mark.parametrize("truth", [io.StringIO("open"), (n for n in "ab"), Refusing(), [Refusing()]])
def test_a_ground_truth_that_cannot_be_copied_is_shared(truth):
    task = replace(a_task(), ground_truth=truth)
    copied = copy.deepcopy(task)
    assert copied.files is not task.files
    assert copied.ground_truth is truth or isinstance(truth, io.StringIO)


def test_a_grader_that_hangs_holds_up_its_episode_and_not_the_end_of_the_program(tmp_path):
    (tmp_path / "hanging.py").write_text("import time\ndef grade(answer, reference):\n    time.sleep(600)\n")
    program = (
        "import asyncio\n"
        "from coachrl.pipelines.math.answers import grade_reply\n"
        "from coachrl.tasks.math.problems import MathTruth\n"
        "truth = MathTruth('5', grader='hanging:grade')\n"
        "asyncio.run(asyncio.wait_for(grade_reply('\\\\boxed{5}', truth), 1))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == "TimeoutError"
