"""math_duo, debate and mixture with scripted policies: who sees what, what ends a talk, whose answer counts."""

import pytest

from coachrl.commands.dry_run import make_dry_run
from coachrl.config import PipelineConfig, RoleConfig, load_config
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.base import AgentTrajectory
from coachrl.pipelines.math.answers import AnswerEnvironment, answer_of, told, vote
from coachrl.pipelines.team.team import Tree
from coachrl.tasks.math.problems import MathTruth
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.rollout.tree import by_environment
from coachrl.types import Execution, Task

pytestmark = pytest.mark.asyncio(loop_scope="session")

TASK = Task("t", "sums", "What is 3 + 4?", ground_truth=MathTruth("7"))
PROMPT_STYLES = pytest.mark.parametrize("prompt_style", ["full", "short"])


async def play(name, reply, sandbox=None, prompt_style="short", tree=None, roles=None, **options):
    """One episode; `reply` is a function of policy, how often it was asked before, and the prompt."""
    asked = {}

    def answer(call):
        asked[call.policy] = asked.get(call.policy, -1) + 1
        return reply(call.policy, asked[call.policy], call.prompt)

    pipeline = make_pipeline(PipelineConfig(name=name, prompt_style=prompt_style, options=options, roles=roles or {}))
    policy = ScriptedPolicy(answer)
    context = RolloutContext(pipeline, policy, sandbox, tree=tree)
    [episode] = await rollout([EpisodeSpec("e", TASK, seed=0)], context)
    assert episode.infra_error is None
    return episode, policy


def boxed(*answers):
    """Replies that box the given answers, one after another, whoever asks."""
    given = iter(answers)
    return lambda policy, n, prompt: f"so \\boxed{{{next(given)}}}"


def rewards(episode):
    return [(action.role, action.turn, action.reward.team, action.reward.local) for action in episode.actions]


@PROMPT_STYLES
async def test_a_duo_talks_until_it_agrees(code_sandbox, prompt_style):
    def reply(policy, n, prompt):
        if policy == "tool_user":
            return "```python\nprint('working')\nprint(3 + 4)\n```"
        return "I say \\boxed{8}" if n == 0 else "You are right: \\boxed{7.0}"

    episode, policy = await play("math_duo", reply, code_sandbox, prompt_style)
    metrics = episode.outcome.metrics
    assert episode.outcome.success and (metrics["agreed"], metrics["turns"]) == (1, 2)
    assert [(a.role, a.turn) for a in episode.actions] == [
        ("reasoner", 0),
        ("tool_user", 0),
        ("reasoner", 1),
        ("tool_user", 1),
    ]
    first, _, second, _ = (call.prompt for call in policy.calls)
    assert "print(3 + 4)" not in first and "print(3 + 4)" in second and "I say \\boxed{8}" in second
    assert rewards(episode) == [
        ("reasoner", 0, 0.0, 0.2),
        ("tool_user", 0, 1.0, 1.0),  # of as many answers the computed one counts first
        ("reasoner", 1, 1.0, 1.0),
        ("tool_user", 1, 1.0, 1.0),
    ]


async def test_agreeing_on_a_wrong_answer_ends_the_talk_and_is_no_success(code_sandbox):
    def reply(policy, n, prompt):
        return "```python\nprint(8)\n```" if policy == "tool_user" else "\\boxed{8}"

    episode, _ = await play("math_duo", reply, code_sandbox)
    assert len(episode.actions) == 2 and episode.outcome.metrics["agreed"] == 1
    assert not episode.outcome.success and episode.outcome.reason == "wrong answer"
    assert [reward for *_, reward in rewards(episode)] == [0.2, 0.2]


async def test_code_that_fails_or_prints_nothing_is_no_answer(code_sandbox):
    programs = ["```python\n1 / 0\n```", "```python\nx = 7\n```", "no code, 7", "```python\nprint(7)\n```"]
    episode, _ = await play(
        "math_duo", lambda policy, n, prompt: programs[n], code_sandbox, reasoners=0, tool_users=2, turns=2
    )
    assert [reward for *_, reward in rewards(episode)] == [0.0, 0.0, 0.0, 1.0]
    assert episode.outcome.success and episode.outcome.metrics["agreed"] == 0


async def test_one_agent_alone_answers_once():
    episode, _ = await play("math_duo", boxed(8), tool_users=0)
    assert len(episode.actions) == 1 and not episode.outcome.success
    silent, _ = await play("math_duo", lambda *call: "no box", tool_users=0)
    assert len(silent.actions) == 1 and silent.outcome.metrics["turns"] == 1


async def test_reasoners_tool_users_and_a_judge(code_sandbox):
    def reply(policy, n, prompt):
        if policy == "tool_user":
            return "```python\nprint(8)\n```"
        return "\\boxed{7}" if policy == "judge" else f"\\boxed{{{n}}}"

    episode, policy = await play("math_duo", reply, code_sandbox, reasoners=2, tool_users=2, judge=True, turns=1)
    assert [action.role for action in episode.actions] == [
        "reasoner_1",
        "reasoner_2",
        "tool_user_1",
        "tool_user_2",
        "judge",
    ]
    assert {action.policy for action in episode.actions} == {"reasoner", "tool_user", "judge"}
    assert episode.outcome.success, "the judge overrules the majority"
    assert all(shown in policy.calls[-1].prompt for shown in ("\\boxed{0}", "\\boxed{1}", "print(8)"))


async def test_candidates_of_a_duo_are_rewarded_from_one_state(code_sandbox):
    answers = iter(["\\boxed{1}", "\\boxed{7}"])

    def reply(policy, n, prompt):
        return "```python\nprint(2)\n```" if policy == "tool_user" else next(answers)

    tree = Tree(2, by_environment(team_weight=1.0))
    episode, _ = await play("math_duo", reply, code_sandbox, tree=tree, turns=1)
    assert [(a.role, a.candidate, a.reward.local) for a in episode.all_actions] == [
        ("reasoner", 0, 0.2),
        ("reasoner", 1, 1.0),
        ("tool_user", 0, 0.2),
        ("tool_user", 1, 0.2),
    ]
    assert [a.candidate for a in episode.actions] == [1, 0], "the best, and of equals the first"


async def test_outcome_only_rewards():
    episode, _ = await play("debate", boxed(8, 7, 7), agents=3, rounds=1, rewards="outcome")
    assert [(team, local) for _, _, team, local in rewards(episode)] == [(0.0, 1.0), (0.0, 1.0), (1.0, 1.0)]


@PROMPT_STYLES
async def test_a_debate_is_read_and_voted_on(prompt_style):
    episode, policy = await play("debate", boxed(7, 8, 9, "1 + 6", 8, "\\frac{14}{2}"), prompt_style=prompt_style)
    assert episode.outcome.success, "7, written in two ways, has two votes"
    assert [(a.role, a.turn) for a in episode.actions] == [(f"debater_{i}", turn) for turn in (0, 1) for i in (1, 2, 3)]
    assert "\\boxed{7}" not in policy.calls[1].prompt and all(
        f"\\boxed{{{answer}}}" in policy.calls[3].prompt for answer in (7, 8, 9)
    )
    assert policy.calls[3].prompt.count("## You") == 1 and "## Debater 2" in policy.calls[3].prompt


async def test_a_judge_ends_a_debate():
    def reply(policy, n, prompt):
        return "\\boxed{7}" if policy == "judge" else "\\boxed{8}"

    episode, _ = await play("debate", reply, agents=2, rounds=1, decide="judge")
    assert episode.outcome.success and [a.role for a in episode.actions] == ["debater_1", "debater_2", "judge"]
    silent, _ = await play(
        "debate", lambda p, n, t: "no box" if p == "judge" else "\\boxed{7}", rounds=1, decide="judge"
    )
    assert silent.outcome.success, "without its word the vote stands"


async def test_a_debater_alone_revises_its_answer():
    episode, policy = await play("debate", boxed(8, 7), agents=1)
    assert [a.role for a in episode.actions] == ["debater", "debater"] and episode.outcome.success
    assert "\\boxed{8}" in policy.calls[1].prompt


@PROMPT_STYLES
async def test_a_mixture_is_aggregated(prompt_style):
    episode, policy = await play("mixture", boxed(8, 8, 7), prompt_style=prompt_style, proposers=2)
    assert [a.role for a in episode.actions] == ["proposer_1", "proposer_2", "aggregator"]
    assert episode.outcome.success and "\\boxed{8}" not in policy.calls[1].prompt
    assert policy.calls[2].prompt.count("\\boxed{8}") == 2
    assert "## Proposer 1" in policy.calls[2].prompt and "(none)" not in policy.calls[2].prompt
    alone, policy = await play("mixture", boxed(7), prompt_style=prompt_style, proposers=0)
    assert alone.outcome.success and len(alone.actions) == 1 and "(none)" in policy.calls[0].prompt


async def test_a_mixtures_proposers_vote_where_its_aggregator_says_nothing():
    def reply(policy, n, prompt):
        return "no box" if policy == "aggregator" else f"\\boxed{{{(8, 7, 7)[n]}}}"

    episode, _ = await play("mixture", reply)
    assert episode.outcome.success and rewards(episode) == [
        ("proposer_1", 0, 0.0, 0.2),
        ("proposer_2", 0, 0.0, 1.0),
        ("proposer_3", 0, 1.0, 1.0),
        ("aggregator", 0, 1.0, 0.0),
    ]
    overruled, _ = await play("mixture", boxed(7, 7, 8), proposers=2)
    assert not overruled.outcome.success, "its word counts and no majority"


async def test_votes():
    assert vote([None, "8", "7", "7.0"]) == "7"
    assert vote(["8", "7"]) == "8"
    assert vote([None, None]) is None and vote([]) is None


RAN = Execution("ok", stdout="working\n 7 \n\n")


@pytest.mark.parametrize(
    ("text", "execution", "answer"),
    [
        ("so \\boxed{7}", None, "7"),
        ("7", None, None),
        ("\\boxed{8}", RAN, "7"),
        ("\\boxed{8}", Execution("ok", stdout="1\nThus \\boxed{9}.\n"), "9"),
        ("\\boxed{8}", Execution("ok", stdout=" \n"), None),
        ("\\boxed{8}", Execution("error", stdout="7\n", exit_code=1), None),
        ("\\boxed{8}", Execution("timeout", stdout="7\n"), None),
    ],
)
async def test_an_answer_is_what_code_printed_last_or_the_last_box(text, execution, answer):
    assert answer_of(make_action("a", text, execution=execution)) == answer


async def acted(environment, *said):
    """(team's, own) reward of each of (role, text)."""
    steps = [await environment.apply(make_action(role, text), None) for role, text in said]
    return [(step.reward.team, step.reward.local) for step in steps]


async def test_an_agent_is_paid_for_its_own_answer_and_for_what_the_team_answers_then():
    environment = AnswerEnvironment(MathTruth("7"), ("b", "a"))
    said = [("a", "\\boxed{8}"), ("b", "\\boxed{7}"), ("a", "no box"), ("a", "\\boxed{7.0}")]
    assert await acted(environment, *said) == [(0.0, 0.2), (1.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    assert await environment.agreed(("a", "b")) and (await environment.outcome()).success
    tied = AnswerEnvironment(MathTruth("7"), ("a", "b"))
    assert (await acted(tied, *said[:2]))[1] == (0.0, 1.0), "of as many answers that of the earlier voter counts"
    assert not await tied.agreed(("a", "b")) and not (await tied.outcome()).success


async def test_whoever_decides_does_so_once_it_has_an_answer():
    environment = AnswerEnvironment(MathTruth("7"), ("a",), decider="judge")
    said = [("a", "\\boxed{7}"), ("judge", "well"), ("judge", "\\boxed{8}"), ("a", "\\boxed{7}")]
    assert await acted(environment, *said) == [(1.0, 1.0), (1.0, 0.0), (0.0, 0.2), (0.0, 1.0)]
    before = AnswerEnvironment(MathTruth("7"), ("a",))
    copied = before.copy()
    await acted(copied, said[0])
    assert copied.render() == "a: 7" and before.render() == ""
    assert not await before.agreed(("a",)), "nobody has answered yet"


async def test_what_others_wrote_is_told_under_their_names_and_cut_where_it_is_long():
    short, long = (AgentTrajectory("", (make_action("a", text),)) for text in ("brief", "x" * 2001))
    assert told({"tool_user_1": short, "me": short}, reader="me") == "## Tool user 1\n\nbrief\n\n## You\n\nbrief"
    assert "x" * 2001 not in told({"a": long}) and len(told({"a": long})) > 1000
    assert told({"a": AgentTrajectory("", (make_action("a", "x" * 2000),))}).endswith("x" * 2000)
    assert told({"a": AgentTrajectory("", (make_action("a", " "),))}).endswith("(nothing)")


@pytest.mark.parametrize("name", ["math_duo", "debate", "mixture"])
async def test_other_tasks_are_refused(name):
    pipeline = make_pipeline(PipelineConfig(name=name))
    with pytest.raises(
        TaskError,
        match=f"x: its ground truth .* and pipeline {name} takes a MathTruth, as those of",
    ):
        await pipeline.run(Task("x", "k", "p", ground_truth=3), None, None)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("math_duo", {"reasoner": 2}, "no option 'reasoner', did you mean 'reasoners'"),
        ("math_duo", {"reasoners": 0, "tool_users": 0}, "nobody would answer"),
        ("debate", {"decide": "dice"}, "decide: Input should be 'vote' or 'judge'"),
        ("debate", {"agents": 0}, "agents: Input should be greater than or equal to 1"),
        ("mixture", {"proposers": -1}, "proposers"),
    ],
)
async def test_wrong_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make_pipeline(PipelineConfig(name=name, options=options))
    with pytest.raises(ConfigError, match=f"partial_information: {name} has no such variant"):
        make_pipeline(PipelineConfig(name=name, partial_information=True))


async def test_every_debater_may_have_weights_of_its_own():
    roles = {"debater_2": RoleConfig(policy="second")}
    episode, _ = await play("debate", lambda *call: "\\boxed{7}", roles=roles, rounds=1)
    assert [a.policy for a in episode.actions] == ["debater", "second", "debater"]


async def test_the_dry_run_counts_every_round():
    overrides = ["pipeline.name=debate", "pipeline.options.rounds=3", "train.steps=1", "train.tasks_per_step=2"]
    plan = make_dry_run(load_config(None, overrides))
    assert plan.coach_calls == (2 * 3, 2 * 3 * 3)
    tree = ["sampling.scheme=tree", "algorithm.name=at_grpo", "coach.evidence.ground_truth=none"]
    assert make_dry_run(load_config(None, [*overrides, *tree])).coach_calls == (4 * 2 * 3, 4 * 2 * 3 * 3)


OFTEN = """
from coachrl.pipelines.math.mathchat import MathChat


class Often(MathChat):
    async def run(self, task, team, workspace): ...


class Counted(Often):
    rounds = 4


class Same(MathChat):
    pass
"""


async def test_a_run_of_ones_own_has_no_bound_that_it_did_not_declare(tmp_path, monkeypatch):
    (tmp_path / "own_runs.py").write_text(OFTEN)
    monkeypatch.chdir(tmp_path)
    for name, bounded in [("mathchat", True), ("own_runs:Same", True), ("own_runs:Often", False)]:
        plan = make_dry_run(load_config(None, [f"pipeline.name={name}", "train.steps=1", "train.tasks_per_step=2"]))
        assert plan.bounded is bounded
        shown = "\n".join((*plan.lines(), *plan.brief_lines()))
        assert ("or more" in shown) is not bounded and ("generated tokens  at most" in shown) is bounded
        assert (f"at most {plan.coach_calls[1]} coach calls" in shown) is bounded
        assert (f", {plan.coach_calls[0]} coach calls or more" in shown) is not bounded
        assert ("the pipeline does not say how often they act (`rounds`)" in shown) is not bounded
    assert make_dry_run(load_config(None, ["pipeline.name=own_runs:Counted", "train.steps=1"])).bounded
