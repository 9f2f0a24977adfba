"""code and coop_code with scripted policies in the real sandbox: rewards, feedback, what ends an episode, refusals."""

import threading
from dataclasses import replace

import pytest
from scripted_server import ScriptedServer, say, status

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError, TaskError
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.code import environment
from coachrl.pipelines.code.coop_code import _outcome
from coachrl.pipelines.team.adviser import Advice
from coachrl.pipelines.team.team import Tree
from coachrl.tasks.code.cooperation import SCHEMES, Cooperation
from coachrl.tasks.code.joint_reward import LEVELS, JointReward
from coachrl.tasks.code.problems import CodeTruth
from coachrl.tasks.code.suite import SuiteResult, parse_suite
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.rollout.tree import by_environment
from coachrl.types import Task

pytestmark = pytest.mark.asyncio(loop_scope="session")

SUITE = """
def check(candidate):
    for i in range(4):
        assert candidate(i) == i * i
    assert candidate(-3) == 9
"""
REFERENCE = "def square(n):\n    return n * n\n"
TASK = Task(
    "t", "sums", "def square(n): ...", ground_truth=CodeTruth("square", parse_suite(SUITE), "import math", REFERENCE)
)
RIGHT = "```python\ndef square(n):\n    return int(math.pow(n, 2))\n```"
HALF = "```python\ndef square(n):\n    return n * n if n >= 0 else 0\n```"
LOOPS = "```python\nimport time\n\n\ndef square(n):\n    while n < 0:\n        time.sleep(60)\n    return n * n\n```"
GOOD_TESTS = "Tests:\n```\nassert square(2) == 4\nassert square(-2) == 4\n```"
WRONG_TESTS = "```python\nassert square(2) == 4\nassert square(3) == 6\n```"
PROMPT_STYLES = pytest.mark.parametrize("prompt_style", ["full", "short"])


async def play(sandbox, name, replies, task=TASK, prompt_style="short", tree=None, **options):
    """One episode. replies: policy -> its replies in order; the last one stays."""
    drawn = {}

    def reply(call):
        drawn[call.policy] = drawn.get(call.policy, -1) + 1
        return replies[call.policy][min(drawn[call.policy], len(replies[call.policy]) - 1)]

    policy = ScriptedPolicy(reply)
    pipeline = make_pipeline(
        PipelineConfig(name=name, prompt_style=prompt_style, options={"test_timeout_s": 60.0} | options)
    )
    [episode] = await rollout([EpisodeSpec("e", task, seed=0)], RolloutContext(pipeline, policy, sandbox, tree=tree))
    assert episode.infra_error is None
    return episode, policy


def rewards(episode):
    return [(a.role, a.turn, round(a.reward.team, 3), round(a.reward.local, 3)) for a in episode.actions]


@PROMPT_STYLES
async def test_coder_and_tester_refine_until_they_agree(code_sandbox, prompt_style):
    episode, policy = await play(
        code_sandbox, "code", {"coder": [HALF, RIGHT], "tester": [GOOD_TESTS]}, prompt_style=prompt_style
    )
    assert episode.outcome.success and episode.outcome.metrics["turns"] == 2 and episode.outcome.metrics["agreed"] == 1
    assert rewards(episode) == [
        ("coder", 0, 0.5, 0.6),
        ("tester", 0, 0.5, 1.0),
        ("coder", 1, 1.0, 1.0),
        ("tester", 1, 1.0, 1.0),
    ]
    prompts = [call.prompt for call in policy.calls]
    assert "assert square(-2)" not in prompts[0] and "n * n" not in prompts[1], "neither sees the other's first work"
    for again in prompts[2:]:
        assert "n * n if n >= 0" in again and "square(-2) == 4: got 0" in again
    assert not any("candidate" in prompt or "range(4)" in prompt for prompt in prompts), "hidden tests stay hidden"


async def test_a_program_cannot_tell_its_coder_what_the_hidden_tests_asked(code_sandbox):
    """It could keep each call in a file, and give that file to the tester's tests, whose findings both agents read."""
    keeps = "    with open('asked', 'a') as file:\n        file.write(f'<{n}>')\n    return open('asked').read()"
    coder = [f"```python\ndef square(n):\n{keeps}\n```"]
    episode, policy = await play(code_sandbox, "code", {"coder": coder, "tester": [GOOD_TESTS]}, turns=2)
    assert not episode.outcome.success
    again = policy.calls[2].prompt
    assert "square(2) == 4: got '<2>'" in again and "<-3>" not in again


async def test_agreeing_on_a_wrong_program_is_no_success(code_sandbox):
    wrong = {
        "coder": ["```python\ndef square(n):\n    return 2 * n\n```"],
        "tester": ["```python\nassert square(3) == 6\n```"],
    }
    episode, _ = await play(code_sandbox, "code", wrong)
    assert episode.outcome.metrics["agreed"] == 1 and len(episode.actions) == 2
    assert not episode.outcome.success and rewards(episode)[1] == ("tester", 0, 0.0, 0.2)


async def test_a_testers_tests_are_checked_against_the_reference(code_sandbox):
    """Not against the coder's program: a right program fails these tests, and a wrong one would pass them."""
    episode, _ = await play(code_sandbox, "code", {"coder": [RIGHT], "tester": [WRONG_TESTS]}, turns=2)
    assert episode.outcome.success and episode.outcome.metrics["agreed"] == 0
    assert [r[3] for r in rewards(episode)] == [1.0, 0.6, 1.0, 0.6] and episode.outcome.metrics["tester_right"] == 0.5


async def test_a_test_that_the_task_shows_earns_nothing_by_itself(code_sandbox):
    shown = replace(TASK, prompt="def square(n):\n    >>> square(2)\n    4\n")
    copied, own, wrong = "assert square(2) == 4", "assert square(3) == 9", "assert square(2) == 5"
    checked = ["def check(f):", "    assert f(2) == 4"]
    looped = ["for n, value in [(2, 4)]:", "    assert square(n) == value"]
    both = ["for n, value in [(2, 4), (3, 9)]:", "    assert square(n) == value"]
    told = ["is_right = square(2) == 4", "assert square(7) and is_right"]
    alias, by_name = ["g = square", "assert square and g(2) == 4"], ["assert square(n=2) == 4"]
    copies = (checked, looped, told, alias, by_name)
    cases = [([copied], 0.0), ([copied, own], 1.0), ([own, wrong], 0.5), (both, 1.0)]
    cases += [case for copy in copies for case in ((copy, 0.0), ([*copy, own], 1.0))]
    for tests, right in cases:
        said = {"coder": [RIGHT], "tester": ["```python\n" + "\n".join(tests) + "\n```"]}
        episode, _ = await play(code_sandbox, "code", said, shown, turns=1)
        assert episode.actions[1].reward.checks["right"] == right


VACUOUS = {
    "itself": "assert square(2) == square(2)",
    "anything": "assert square(2) is not None",
    "always": "assert square(2) == 5 or True",
    "the kind": "assert isinstance(square(3), int) and callable(square)",
    "never reached": "if square(1) == 2:\n    assert square(2) == 4",
    "reports of its own": "_suite_report(0, True)\nassert square(2) == 17",
    "tells runs apart": "import os\nmine = not os.path.exists('x')\nopen('x', 'w').close()\nassert (square, mine)[1]",
}


@pytest.mark.parametrize("message", [" + ".join(["str(1)"] * n) for n in (500, 700, 900, 2900)] + ["0x" + "f" * 5000])
async def test_tests_that_cannot_be_written_anew_are_none_and_end_no_run(code_sandbox, message):
    replies = {"coder": [RIGHT], "tester": [f"```python\nassert square(2) == 4, {message}\n```"]}
    episode, _ = await play(code_sandbox, "code", replies, turns=1)
    assert rewards(episode)[1] == ("tester", 0, 1.0, 0.0)


@pytest.mark.parametrize("tests", VACUOUS.values(), ids=VACUOUS)
async def test_tests_that_test_nothing_earn_their_form_alone(code_sandbox, tests):
    episode, _ = await play(code_sandbox, "code", {"coder": [RIGHT], "tester": [f"```python\n{tests}\n```"]}, turns=1)
    assert rewards(episode)[1] == ("tester", 0, 1.0, 0.2)


SHARP = {
    "an error": (
        "def f(n):\n    if n < 0: raise ValueError(n)\n    return True",
        "try:\n    raised = f(-1) is ...\nexcept ValueError:\n    raised = True\nassert raised and f\nassert f(1)",
    ),
    "a change in place": ("def f(xs): xs.sort()", "xs = [2, 1]\nf(xs)\nassert (f, xs)[1] == [1, 2]"),
    "a list and a text": ("def f(n): return [str(n)]", "assert f(1) == ['1']\nassert f(2)[-1] == '2'"),
    "recursion": ("def f(n): return 1 if n == 0 else n * f(n - 1)", "assert f(5) == 120\nassert f(0) == 1"),
}


@pytest.mark.parametrize(("reference", "tests"), SHARP.values(), ids=SHARP)
async def test_tests_that_check_what_comes_out_earn_all(code_sandbox, reference, tests):
    task = Task("t", "k", "p", ground_truth=CodeTruth("f", parse_suite("assert f(1)"), "", reference))
    replies = {"coder": ["```python\nf = print\n```"], "tester": [f"```python\n{tests}\n```"]}
    episode, _ = await play(code_sandbox, "code", replies, task, turns=1)
    assert rewards(episode)[1] == ("tester", 0, 0.0, 1.0)


@pytest.mark.parametrize(
    "tests",
    [
        "no tests",
        "```python\nassert 1 + 1 == 2\n```",
        "```python\nassert square(\n```",
        "",
        "```python\ndef square(n): return n\nassert square(2) == 2\n```",
        "```python\ncandidate = abs\nassert candidate(2) == 2\n```",
    ],
)
async def test_what_is_no_test_is_worth_nothing_and_never_agrees(code_sandbox, tests):
    episode, _ = await play(code_sandbox, "code", {"coder": [RIGHT], "tester": [tests]}, turns=2)
    assert rewards(episode)[1] == ("tester", 0, 1.0, 0.0) and len(episode.actions) == 4


async def test_no_look_at_tests_holds_up_the_other_episodes(code_sandbox, monkeypatch):
    found = []
    monkeypatch.setattr(environment, "read_tests", lambda *_: found.append(threading.current_thread()))
    await play(code_sandbox, "code", {"coder": [RIGHT], "tester": [GOOD_TESTS]}, turns=1)
    assert found and threading.current_thread() not in found


async def test_without_a_reference_the_tester_has_no_reward_of_its_own(code_sandbox):
    task = Task("t", "k", "p", ground_truth=CodeTruth("square", parse_suite(SUITE)))
    program = RIGHT.replace("math.pow(n, 2)", "n ** 2")
    episode, _ = await play(code_sandbox, "code", {"coder": [program], "tester": [GOOD_TESTS]}, task)
    assert rewards(episode) == [("coder", 0, 1.0, 1.0), ("tester", 0, 1.0, 0.0)]
    assert episode.actions[1].reward.checks == {"form": 1.0}  # not that they were wrong


@pytest.mark.parametrize(
    ("program", "local"),
    [
        (LOOPS, 0.1 + 0.1 + 0.4),
        ("```python\ndef square(n:\n```", 0.0),
        ("```python\nimport nowhere\n```", 0.0),
        ("None", 0.0),
    ],
    ids=["endless loop", "no Python", "does not load", "no function"],
)
async def test_programs_that_break(code_sandbox, program, local):
    limit = {"test_timeout_s": 3.0} if program is LOOPS else {}
    episode, _ = await play(code_sandbox, "code", {"coder": [program], "tester": [GOOD_TESTS]}, turns=1, **limit)
    assert rewards(episode)[0][3] == pytest.approx(local) and not episode.outcome.success


async def test_a_coder_alone_answers_once(code_sandbox):
    episode, _ = await play(code_sandbox, "code", {"coder": [HALF]}, tester=False)
    assert len(episode.actions) == 1 and episode.outcome.metrics["tests_passed"] == 0.5


async def test_outcome_only(code_sandbox):
    episode, _ = await play(code_sandbox, "code", {"coder": [HALF], "tester": [GOOD_TESTS]}, turns=1, rewards="outcome")
    assert [r[2:] for r in rewards(episode)] == [(0.0, 1.0), (0.0, 1.0)]


async def test_candidates_of_the_tester_see_the_chosen_program(code_sandbox):
    replies = {"coder": [HALF, RIGHT], "tester": [WRONG_TESTS, GOOD_TESTS]}
    episode, _ = await play(code_sandbox, "code", replies, tree=Tree(2, by_environment(1.0)), turns=1)
    drawn = [(a.role, a.candidate, a.reward.team, round(a.reward.local, 3)) for a in episode.all_actions]
    assert drawn == [("coder", 0, 0.5, 0.6), ("coder", 1, 1.0, 1.0), ("tester", 0, 1.0, 0.6), ("tester", 1, 1.0, 1.0)]
    assert episode.outcome.success and episode.outcome.metrics["agreed"] == 1


AUX = "```python\ndef aux(n):\n    return n * n\n```"
USES = "```python\ndef square(n):\n    if n < 0:\n        n = -n\n    return aux(n)\n```"
WRAPS = "```python\ndef square(n):\n    return aux(n)\n```"
COMMENTS = "```python\ndef square(n):\n    # aux(n) would do\n    return n * n\n```"
IGNORES = "```python\ndef square(n):\n    aux(n)\n    return n * n\n```"
ONE_IN_TWO = "```python\ndef square(n):\n    return 9 if aux(n) else 9\n```"
FAILS = "```python\ndef square(n):\n    return aux(n) + 1\n```"
NO_AUX = "```python\ndef other(n):\n    return n\n```"


@pytest.mark.parametrize(
    ("helper", "main", "points", "scheme"),
    [
        (AUX, USES, (1.0, 0.5, 1.0, 1.5), "decorator"),
        (AUX, WRAPS, (1.0, 0.5, 1.0, 0.5), "wrapper"),
        (AUX, COMMENTS, (1.0, 0.5, 1.0, 0.0), "none"),
        (AUX, IGNORES, (1.0, 0.5, 1.0, 0.0), "ignored"),
        (AUX, ONE_IN_TWO, (1.0, 0.5, 0.5, 0.75), "strategy_filter"),
        (AUX, FAILS, (1.0, 0.5, 0.0, 0.0), "decorator"),
        (AUX, HALF, (1.0, 0.5, 0.5, 0.0), "none"),
        (NO_AUX, USES, (0.6, 0.0, 0.0, 0.0), "none"),
        (AUX, "nothing", (0.4, 0.0, 0.0, 0.0), "none"),
        (AUX + "\n```python\nprint((\n```", WRAPS, (1.0, 0.0, 0.0, 0.0), "wrapper"),
    ],
)
async def test_the_joint_reward_counts_a_level_where_the_one_before_is_full(code_sandbox, helper, main, points, scheme):
    episode, _ = await play(code_sandbox, "coop_code", {"helper": [helper], "main": [main]})
    levels = [episode.outcome.metrics[f"return/{name}"] for name in ("structure", "syntax", "tests", "cooperation")]
    assert levels == pytest.approx(points)
    assert [a.reward.team for a in episode.actions] == pytest.approx([sum(points)] * 2), "one reward for both"
    assert [name for name, found in episode.outcome.metrics.items() if name.startswith("scheme/") and found] == [
        f"scheme/{scheme}"
    ]


def judged(passed, levels, scheme="none"):
    ran = SuiteResult((True, passed), (True, True), () if passed else ("f(2) == 4: got 5",), True, True, "ok")
    return JointReward(dict(zip(LEVELS, levels, strict=True)), Cooperation(True, True, False, (scheme,)), ran)


async def test_an_outcome_sums_over_turns_and_speaks_of_the_last_program():
    turns = [judged(False, (1.0, 0.5, 0.5, 0.0), "wrapper"), judged(True, (1.0, 0.5, 1.0, 1.5), "decorator")]
    advice = [Advice("do", cost_usd=0.25), Advice("none", failed=True, cost_usd=0.5)]
    found = _outcome(turns, advice)
    assert found.success and found.reason == "" and "passes 100% of the tests.\nAll tests pass." in found.summary
    expected = {"tests_passed": 1.0, "turns": 2.0, "return": 6.0, "return/structure": 2.0, "return/syntax": 1.0}
    expected |= {"return/tests": 1.5, "return/cooperation": 1.5, "advice/calls": 2.0, "advice/failed": 1.0}
    expected |= {f"scheme/{name}": float(name == "decorator") for name in SCHEMES} | {"advice/usd": 0.75}
    assert found.metrics == expected
    unpriced = _outcome(turns[::-1], [advice[0], Advice("do", cost_usd=None)])
    assert "advice/usd" not in unpriced.metrics and unpriced.metrics["advice/calls"] == 2.0
    assert (unpriced.success, unpriced.metrics["tests_passed"], unpriced.metrics["scheme/wrapper"]) == (False, 0.5, 1.0)
    assert unpriced.reason and "passes 50% of the tests.\nf(2) == 4: got 5" in unpriced.summary


async def test_own_weights(code_sandbox):
    weights = {"tests": 10.0, "beyond_wrapper": 0.0}
    episode, _ = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, weights=weights)
    assert episode.outcome.metrics["return"] == pytest.approx(1.0 + 0.5 + 10.0 + 0.5)


@PROMPT_STYLES
async def test_side_by_side_agents_do_not_see_each_other(code_sandbox, prompt_style):
    episode, policy = await play(
        code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, prompt_style=prompt_style
    )
    assert [a.role for a in episode.actions] == ["helper", "main"] and episode.outcome.success
    assert "return n * n" not in policy.calls[1].prompt and "if n < 0" not in policy.calls[0].prompt


async def test_in_a_sequence_the_main_agent_reads_the_helpers_code(code_sandbox):
    _, policy = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, workflow="sequential")
    assert "return n * n" in policy.calls[1].prompt and "if n < 0" not in policy.calls[0].prompt


async def test_a_discussion_has_two_turns_even_where_the_first_succeeds(code_sandbox):
    episode, policy = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, workflow="discussion")
    assert [(a.role, a.turn) for a in episode.actions] == [("helper", 0), ("main", 0), ("helper", 1), ("main", 1)]
    assert "if n < 0" in policy.calls[2].prompt and "return n * n" in policy.calls[3].prompt
    assert "got" not in policy.calls[2].prompt


async def test_a_single_programmer(code_sandbox):
    episode, policy = await play(code_sandbox, "coop_code", {"programmer": [HALF, RIGHT]}, workflow="single", turns=3)
    assert episode.outcome.success and len(episode.actions) == 2
    assert [a.reward.team for a in episode.actions] == pytest.approx([2.0, 2.5])
    assert "candidate(-3) == 9: got 0" in policy.calls[1].prompt


async def test_a_second_turn_follows_a_failed_first_one(code_sandbox):
    """With no threshold set: a reward above zero must not end an episode without a word."""
    episode, policy = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [FAILS, USES]}, turns=2)
    assert [round(a.reward.team, 3) for a in episode.actions] == [1.5, 1.5, 4.0, 4.0]
    assert episode.outcome.success and episode.outcome.metrics["return"] == pytest.approx(5.5)
    for again in policy.calls[2:]:
        assert "aux(n) + 1" in again.prompt and "return n * n" in again.prompt and "got 1" in again.prompt


async def test_what_ends_an_episode_early(code_sandbox):
    solved, _ = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, turns=3)
    assert len(solved.actions) == 2 and solved.actions[0].reward.team == pytest.approx(4.0)
    counted, _ = await play(
        code_sandbox, "coop_code", {"helper": [AUX], "main": [USES]}, turns=3, count_saved_turns=True
    )
    assert len(counted.actions) == 2 and counted.actions[0].reward.team == pytest.approx(12.0)
    above, _ = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [HALF]}, turns=3, stop_above=1.9)
    below, _ = await play(code_sandbox, "coop_code", {"helper": [AUX], "main": [HALF]}, turns=3, stop_above=2.0)
    assert (len(above.actions), len(below.actions)) == (2, 6)


async def test_feedback_may_be_the_answers_alone(code_sandbox):
    _, policy = await play(
        code_sandbox, "coop_code", {"helper": [AUX], "main": [FAILS, USES]}, turns=2, feedback="none"
    )
    assert "aux(n) + 1" in policy.calls[2].prompt and "got" not in policy.calls[2].prompt


async def test_a_model_advises_between_turns(code_sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    async with ScriptedServer([say("main: do not add one")]) as server:
        adviser = {"feedback": "coach", "adviser": "openai/judge", "adviser_api_base": server.openai_base}
        replies = {"helper": [AUX], "main": [FAILS, USES]}
        episode, policy = await play(code_sandbox, "coop_code", replies, turns=2, **adviser)
        [asked] = server.requests
    assert episode.outcome.success and all("do not add one" in call.prompt for call in policy.calls[2:])
    assert episode.outcome.metrics["advice/calls"] == 1 and episode.outcome.metrics["advice/failed"] == 0
    assert "aux(n) + 1" in asked.prompt and "candidate" not in asked.prompt, "the adviser is shown no tests"


async def test_advice_that_cannot_be_had_is_told_as_such(code_sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    async with ScriptedServer([status(400, "content refused")]) as server:
        adviser = {"feedback": "coach", "adviser": "openai/judge", "adviser_api_base": server.openai_base}
        replies = {"helper": [AUX], "main": [FAILS]}
        episode, policy = await play(code_sandbox, "coop_code", replies, turns=2, **adviser)
    assert "No advice could be had" in policy.calls[2].prompt and episode.outcome.metrics["advice/failed"] == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("coop_code", {"feedback": "coach"}, "feedback=coach and adviser=MODEL belong together"),
        ("coop_code", {"adviser": "openai/x"}, "belong together"),
        ("coop_code", {"workflow": "discussion", "turns": 3, "feedback": "tests"}, "leave turns and feedback out"),
        ("coop_code", {"weights": {"test": 1}}, r"no option 'weights\.test', did you mean 'tests'"),
        ("coop_code", {"workflow": "parallell"}, "workflow"),
        ("code", {"turn": 3}, "no option 'turn', did you mean 'turns'"),
    ],
)
async def test_wrong_options_are_refused(name, options, words):
    with pytest.raises(ConfigError, match=words):
        make_pipeline(PipelineConfig(name=name, options=options))


@pytest.mark.parametrize("name", ["code", "coop_code"])
async def test_other_tasks_and_a_missing_sandbox_are_refused(name):
    pipeline = make_pipeline(PipelineConfig(name=name))
    with pytest.raises(
        TaskError, match=f"x: its ground truth is .*, and pipeline {name} takes a CodeTruth, as those of tasks.source="
    ):
        await pipeline.run(Task("x", "k", "p", ground_truth=3), None, None)
    with pytest.raises(ConfigError, match="needs a sandbox"):
        await pipeline.run(TASK, None, None)
