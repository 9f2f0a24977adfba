"""Tree sampling: candidates from one state, each in its own copy of it, the best of them followed."""

import asyncio
import contextlib
import copy
import itertools

import pytest

from coachrl.coach.base import CoachRequest
from coachrl.coach.pool import CoachPool
from coachrl.config import PipelineConfig, RoleConfig, SandboxConfig, load_config
from coachrl.errors import CoachError, ConfigError
from coachrl.pipelines.base import Environment, Pipeline, StepResult, Team
from coachrl.pipelines.team.team import Tree
from coachrl.prompts import parse_prompt
from coachrl.sandbox import make_sandbox
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.advantages.rewards import action_rewards
from coachrl.trainers.metrics import behavior_metrics
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.rollout.tree import by_coach, by_environment, check_rewards, make_tree
from coachrl.trainers.samples import to_samples
from coachrl.types import Outcome, Reward, Role, Task

TASK = Task("t", "sum", "reach 9", ground_truth=9)
PROMPT = parse_prompt("---\nfields: [state]\n---\nAt {{state}}", "add")
TREE_KEYS = ["sampling.scheme=tree", "algorithm.name=at_grpo", "reward.source=environment"]


class Sum(Environment):
    """A number that both agents add to."""

    def __init__(self, value=0):
        self.value = value

    @property
    def solved(self):
        return self.value >= 9

    async def apply(self, action, workspace):
        before = self.value
        self.value += int(action.text)
        return StepResult(f"{before} -> {self.value}", Reward(team=float(self.value), local=0.0))

    def copy(self):
        return Sum(self.value)

    def render(self):
        return str(self.value)


class Adders(Pipeline):
    name = "adders"
    environment = Sum

    def __init__(self, python=False):
        super().__init__(PipelineConfig(roles={name: RoleConfig(python=python) for name in ("first", "second")}))

    def members(self):
        return [(Role(name, name, PROMPT), 1) for name in ("first", "second")]

    async def run(self, task: Task, team: Team, workspace) -> Outcome:
        team.environment = Sum()
        seen = []
        for _ in range(2):
            for agent in (team.first, team.second):
                seen.append(team.environment.render())
                await agent.act(state=team.environment.render())
        return Outcome(team.environment.solved, {"sum": float(team.environment.value)}, summary=" ".join(seen))


def scripted(numbers):
    policy = ScriptedPolicy(lambda call: numbers[(len(policy.calls) - 1) % len(numbers)])
    return policy


async def play(policy, candidates=4, rewards=None, pipeline=None, sandbox=None):
    tree = Tree(candidates, rewards or by_environment(1.0))
    [episode] = await rollout(
        [EpisodeSpec("e", TASK, 7)], RolloutContext(pipeline or Adders(), policy, sandbox, tree=tree)
    )
    return episode


async def test_candidates_share_one_state_and_the_best_is_followed():
    policy = scripted(["1", "3", "2", "0"])
    episode = await play(policy)
    assert [action.text for action in episode.actions] == ["3"] * 4
    assert episode.outcome.metrics["sum"] == 12.0 and episode.outcome.summary == "0 3 6 9"
    states = [[action for action in episode.all_actions if action.index == index] for index in range(4)]
    for index, candidates in enumerate(states):
        assert [a.candidate for a in candidates] == [0, 1, 2, 3]
        assert len({(a.prompt_ids, a.role, a.turn, a.policy) for a in candidates}) == 1
        assert [a.result for a in candidates] == [f"{3 * index} -> {3 * index + n}" for n in (1, 3, 2, 0)]
        # Its own copy of one state: no two candidates' rewards are a single shared one.
        assert [a.reward.team for a in candidates] == [3 * index + n for n in (1, 3, 2, 0)]
    assert [a.id for a in episode.actions] == ["e/0.1", "e/1.1", "e/2.1", "e/3.1"]
    assert [(a.role, a.turn) for a in episode.actions] == [("first", 0), ("second", 0), ("first", 1), ("second", 1)]
    assert len({call.sampling.seed for call in policy.calls}) == 16


async def test_the_second_agent_sees_what_the_first_ones_choice_did():
    policy = scripted(["0", "4"])
    await play(policy, candidates=2)
    assert [call.prompt.split("At ")[1].split("\n")[0] for call in policy.calls[::2]] == ["0", "4", "8", "12"]


async def test_of_ties_the_first_is_followed():
    episode = await play(scripted(["2", "2", "1"]), candidates=3)
    assert {action.candidate for action in episode.actions} == {0}


async def test_every_candidate_is_a_sample_with_its_own_reward():
    episode = await play(scripted(["1", "3", "2", "0"]))
    samples = to_samples([episode])
    assert {policy: len(group) for policy, group in samples.items()} == {"first": 8, "second": 8}
    config = load_config(None, TREE_KEYS)
    of_episode = make_algorithm(config.algorithm).rewards
    rewards = action_rewards(of_episode, [episode], {}, config.reward, None)
    assert [rewards[f"e/0.{i}"] for i in range(4)] == [1.0, 3.0, 2.0, 0.0]
    half = action_rewards(of_episode, [episode], {}, config.reward.model_copy(update={"team_weight": 0.5}), None)
    assert half["e/3.1"] == 6.0
    assert behavior_metrics([episode])["behavior/turns/first"] == 2.0


async def test_parallel_sampling_of_the_same_pipeline_draws_one():
    policy = scripted(["1", "3"])
    [episode] = await rollout([EpisodeSpec("e", TASK, 7)], RolloutContext(Adders(), policy, None))
    assert [action.text for action in episode.actions] == ["1", "3", "1", "3"] and not episode.rejected_candidates
    assert episode.actions[3].result == "5 -> 8" and episode.actions[3].reward.team == 8.0
    assert [action.id for action in episode.actions] == ["e/0", "e/1", "e/2", "e/3"]


async def test_coach_scores_choose_and_are_asked_for_at_once():
    waiting, most = 0, 0

    class Slow(ScriptedCoach):
        async def score(self, request):
            nonlocal waiting, most
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0.01)
            waiting -= 1
            return await super().score(request)

    coach = Slow(lambda request: 9.0 - int(request.action.text))
    pool = CoachPool(coach)
    episode = await play(scripted(["1", "3", "2", "0"]), rewards=by_coach(pool))
    assert most == 4 and {action.text for action in episode.actions} == {"0"}
    assert {len(request.previous) for request in coach.requests} == {0, 1, 2, 3}
    scores = await pool.settle([episode])
    assert len(scores) == 16 and scores["e/0.0"].process_0_10 == 8.0


async def test_a_candidate_without_a_score_is_not_followed():
    def score(request):
        if request.action.candidate != 2:
            raise CoachError("no verdict")
        return 0.0

    episode = await play(scripted(["1", "3", "2", "0"]), rewards=by_coach(CoachPool(ScriptedCoach(score))))
    assert {action.candidate for action in episode.actions} == {2}


class Writers(Adders):
    """Each reply's code appends to a file; the pipeline reads the file through the workspace that it was given."""

    async def run(self, task, team, workspace):
        team.environment = Lengths()
        await team.first.act(state="0")
        await team.second.act(state="1")
        text = (await workspace.read("log.txt")).decode()
        return Outcome(True, summary=text)


class Lengths(Sum):
    async def apply(self, action, workspace):
        text = (await workspace.read("log.txt")).decode()
        return StepResult(text, Reward(float(len(text)), 0.0))

    def copy(self):
        return Lengths()


async def test_every_candidate_runs_in_its_own_copy_of_the_workspace():
    code = "```python\nopen('log.txt', 'a').write('{}')\n```"
    policy = scripted([code.format(letter) for letter in ("a", "bb", "c")])
    sandbox = make_sandbox(SandboxConfig(kind="local-unsafe", timeout_s=30))
    try:
        episode = await play(policy, candidates=3, pipeline=Writers(python=True), sandbox=sandbox)
        assert episode.outcome.summary == "bbbb"
        assert [action.result for action in episode.all_actions] == ["a", "bb", "c", "bba", "bbbb", "bbc"]
    finally:
        await sandbox.close()


class Fixed(Sum):
    copy = Environment.copy


class Joint(Sum):
    async def apply(self, action, workspace):
        return StepResult("", None)

    def copy(self):
        return Joint()


def test_settings_that_cannot_go_together_are_refused():
    for overrides, reason in [
        (["algorithm.name=at_grpo"], "sampling.scheme=tree"),
        ([*TREE_KEYS, "sampling.candidates=1"], "candidates to 2 or more"),
        (["sampling.scheme=tree"], "only algorithm.name=at_grpo"),
        (["sampling.scheme=tree", "algorithm.name=at_grpo"], "coach.evidence.ground_truth=none"),
        (["algorithm.name=magrpo"], "group_size to 2 or more"),
        (["algorithm.name=grpo"], "group_size to 2 or more"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            load_config(None, overrides)


def test_a_world_that_cannot_be_copied_or_is_not_there_is_refused():
    config = load_config(None, TREE_KEYS)
    pipeline = Adders()
    check_rewards(config, pipeline)
    pipeline.environment = Fixed
    with pytest.raises(ConfigError, match=r"not copyable: its environment Fixed has no copy\(\)"):
        check_rewards(config, pipeline)
    check_rewards(load_config(None, ["reward.source=environment"]), pipeline)
    pipeline.environment = None
    with pytest.raises(ConfigError, match="no environment that rewards"):
        check_rewards(config, pipeline)


class Itself(Sum):
    def copy(self):
        return self


class OneList(Sum):
    """A copy that is another object, and holds the same list."""

    def __init__(self, numbers=None):
        self.numbers = [] if numbers is None else numbers

    value = property(lambda self: sum(self.numbers))

    async def apply(self, action, workspace):
        self.numbers.append(int(action.text))
        return StepResult("", Reward(float(self.value), 0.0))

    def copy(self):
        return copy.copy(self)


class Undrawn(Sum):
    def copy(self):
        return Undrawn(self.value)

    def render(self):
        raise NotImplementedError


class Timed(Undrawn):
    ticks = itertools.count()

    def render(self):
        return f"{self.value} after {next(self.ticks)} s"


class InWorld(Adders):
    """`Adders` in an environment that it is given, whose drawing no prompt shows."""

    def __init__(self, world):
        super().__init__()
        self.world = world

    async def run(self, task, team, workspace):
        team.environment = self.world()
        for agent in (team.first, team.second):
            await agent.act(state="?")
        return Outcome(True, {"sum": float(team.environment.value)})


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (Itself, r"environment Itself: copy\(\) gave the environment itself, where it must be another one"),
        (OneList, r"environment OneList: copy\(\) shares its state: .* changed the original from '0' to '4'"),
    ],
)
async def test_a_copy_that_shares_its_state_ends_the_run(world, words):
    with pytest.raises(ConfigError, match=words):
        await play(scripted(["1", "3"]), candidates=2, pipeline=InWorld(world))


@pytest.mark.parametrize("world", [Sum, Undrawn, Timed])
async def test_a_copy_of_its_own_is_taken_however_it_is_drawn(world):
    assert (await play(scripted(["1", "3"]), candidates=2, pipeline=InWorld(world))).outcome.metrics["sum"] == 6.0


COACH_TREE = ["sampling.scheme=tree", "algorithm.name=at_grpo", "coach.evidence.ground_truth=none"]
WORLD = ["reward.source=environment"]


@pytest.mark.parametrize(
    ("overrides", "pipeline", "refused"),
    [
        ([], {"environment": None, "branches": False}, None),
        ([], {"environment": Fixed}, None),
        (WORLD, {"environment": None}, "has no environment that rewards actions"),
        (WORLD, {"environment": None, "joint_rewards": True}, None),
        (WORLD, {"environment": Sum, "joint_rewards": True, "branches": False}, None),
        ([*WORLD, "algorithm.name=outcome"], {"environment": None}, None),
        (COACH_TREE, {"environment": None}, None),
        (COACH_TREE, {"environment": None, "joint_rewards": True}, None),
        (COACH_TREE, {"environment": None, "branches": False}, "nobody can copy the state of an app"),
        (COACH_TREE, {"environment": Fixed}, "is not copyable"),
        (TREE_KEYS, {"environment": Sum, "joint_rewards": True}, "rewards what its agents did together"),
    ],
)
def test_what_a_run_asks_of_its_pipelines_world_must_be_there_and_nothing_else(overrides, pipeline, refused):
    made, config = Adders(), load_config(None, overrides)
    for name, value in pipeline.items():
        setattr(made, name, value)
    with pytest.raises(ConfigError, match=refused) if refused else contextlib.nullcontext():
        check_rewards(config, made)


async def test_candidates_are_rewarded_as_the_run_says_by_the_coach_where_there_is_one():
    action = make_action(text="3", reward=Reward(team=2.0, local=0.25))
    role = Role("first", "first", PROMPT)
    request = CoachRequest(TASK, role, (role,), action)
    by_world = make_tree(load_config(None, [*TREE_KEYS, "reward.team_weight=0.5", "sampling.candidates=3"]), None)
    assert by_world.candidates == 3 and await by_world.rewards([request]) == [1.25]
    pool = CoachPool(ScriptedCoach(lambda request: 9.0))
    assert await make_tree(load_config(None, TREE_KEYS), pool).rewards([request]) == [9.0]
    await pool.close()


async def test_a_walk_back_over_an_episode_sees_the_path_that_was_followed_alone():
    walked = []
    context = RolloutContext(
        Adders(),
        scripted(["1", "3"]),
        None,
        submit_episode=walked.append,
        tree=Tree(2, by_environment(1.0)),
    )
    [episode] = await rollout([EpisodeSpec("e", TASK, 7)], context)
    [requests] = walked
    assert [request.action for request in requests] == list(episode.actions) and len(episode.rejected_candidates) == 4


async def test_rewards_that_come_too_late_for_a_tree_are_refused():
    class Late(Adders):
        async def run(self, task, team, workspace):
            team.environment = Joint()
            await team.first.act(state="0")

    with pytest.raises(ConfigError, match="got no reward from an environment"):
        await play(scripted(["1"]), pipeline=Late())


async def test_a_joint_reward_is_given_after_all_have_acted():
    class Pair(Adders):
        async def run(self, task, team, workspace):
            parts = await asyncio.gather(team.first.act(state="a"), team.second.act(state="b"))
            for part in parts:
                team.reward(part, Reward(team=float(sum(int(p.text) for p in parts)), local=0.0))
            return Outcome(True)

    [episode] = await rollout([EpisodeSpec("e", TASK, 1)], RolloutContext(Pair(), scripted(["2", "5"]), None))
    assert [action.reward.team for action in episode.actions] == [7.0, 7.0]


def needs_coach(config):
    return make_algorithm(config.algorithm).needs_coach(config.reward)


def test_the_run_decides_who_rewards():
    environment = load_config(None, TREE_KEYS)
    assert not needs_coach(environment) and make_tree(environment, None).candidates == 4
    coach = load_config(None, ["sampling.scheme=tree", "algorithm.name=at_grpo", "coach.evidence.ground_truth=none"])
    assert needs_coach(coach) and make_tree(load_config(None, []), None) is None
