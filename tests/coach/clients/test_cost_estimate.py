"""What a coach will read, write and cost, before it is asked."""

from dataclasses import replace

import pytest
from coach_requests import coded, make_action, request_for

from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.cost_estimate import CostEstimate, TeamWorkload, estimate_requests, estimate_run
from coachrl.coach.clients.providers import known_price
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import CoachConfig, EvidenceConfig, MemberConfig, load_config
from coachrl.errors import CoachUnavailable
from coachrl.resources import resource
from coachrl.text import dollars, rounded
from coachrl.types import CoachScore, Execution, Role, Task, Usage

pytest.importorskip("litellm", reason="needs the llm extra")

SOLVER = Role("solver", policy="solver", max_new_tokens=50)
CODER = Role("coder", policy="coder", max_new_tokens=5000, python=True, max_turns=2)
WORKLOAD = TeamWorkload((SOLVER, CODER), rounds=1, task_tokens=300, rollouts=(10, 10))


@pytest.fixture
def rubric(tmp_path):
    """A prompt of 100 tokens."""
    path = tmp_path / "rubric.md"
    path.write_text("---\nfields: [agent_output]\n---\n" + "{{agent_output}}".ljust(400, "."))
    return path


def settings(rubric, **changes):
    given = {"name": "hosted_vllm/mine", "prompt": rubric, "max_tokens": 1000, "usd_per_million_tokens": (1, 10)}
    return CoachConfig(**given | changes)


@pytest.mark.parametrize("path", sorted(resource("configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_coach_of_every_shipped_config_is_a_model_with_a_price(path):
    assert known_price(load_config(path).coach) is not None


def test_rules_read_and_write_nothing():
    assert estimate_run(CoachConfig(), "mathchat", WORKLOAD, retrospective=False) is None


def test_the_range_goes_from_one_short_turn_to_full_windows(rubric):
    evidence = EvidenceConfig(window_tokens=1000, previous_tokens=100)
    found = estimate_run(settings(rubric, evidence=evidence), "mathchat", WORKLOAD, retrospective=False)
    earlier = 2 * 2 * 100  # two actions before the last, each with its words and its log
    solver = 100 + earlier + 300 + 1000 + 50
    coder = 100 + earlier + 300 + 1000 + 1000 + 1000
    assert found.tokens_in == (10 * 2 * 100, 10 * (solver + 2 * coder))
    assert found.tokens_out == (10 * 2 * 100, 10 * 3 * 1000)
    assert found.usd == pytest.approx((0.002 + 0.02, found.tokens_in[1] / 1e6 + 0.3))


def test_a_team_that_runs_no_code_has_no_logs_and_a_game_of_several_rounds_more_turns(rubric):
    evidence = EvidenceConfig(window_tokens=1000, previous_tokens=100)
    workload = replace(WORKLOAD, roles=(SOLVER, SOLVER), rounds=3, rollouts=(2, 10))
    found = estimate_run(settings(rubric, evidence=evidence), "mathchat", workload, retrospective=False)
    assert found.calls == (2 * 2, 10 * 6)
    assert found.tokens_in == (2 * 2 * 100, 10 * 6 * (100 + 5 * 100 + 300 + 1000 + 50))


def test_programs_of_the_coach_are_calls_that_are_shown_all_that_came_before(rubric):
    given = {"evidence": EvidenceConfig(window_tokens=500, previous=False), "tools": {"turns": 2}}
    alone = estimate_run(settings(rubric, evidence=given["evidence"]), "mathchat", WORKLOAD, retrospective=False)
    found = estimate_run(settings(rubric, **given), "mathchat", WORKLOAD, retrospective=False)
    assert found.calls == (alone.calls[0], 3 * alone.calls[1])
    said_and_shown = (1 + 2) * (1000 + 500)
    assert found.tokens_in == (alone.tokens_in[0], 3 * alone.tokens_in[1] + alone.calls[1] * said_and_shown)
    assert found.tokens_out == (alone.tokens_out[0], 3 * alone.tokens_out[1])


def test_what_is_not_shown_is_not_counted(rubric):
    blind = EvidenceConfig(window_tokens=1000, tool_log=False, previous=False)
    found = estimate_run(settings(rubric, evidence=blind), "mathchat", WORKLOAD, retrospective=False)
    assert found.tokens_in[1] == 10 * ((100 + 300 + 1000 + 50) + 2 * (100 + 300 + 1000 + 1000))


def test_members_and_the_retrospective_pass_are_added_up(rubric):
    one = estimate_run(settings(rubric), "mathchat", WORKLOAD, retrospective=False)
    member = MemberConfig(name="hosted_vllm/mine", prompt=rubric)
    members = (member, member, MemberConfig(name="rules"))
    several = CoachConfig(ensemble=members, max_tokens=1000, usd_per_million_tokens=(1, 10))
    both = estimate_run(several, "mathchat", WORKLOAD, retrospective=False)
    assert both.tokens_in == (2 * one.tokens_in[0], 2 * one.tokens_in[1])
    assert both.usd == pytest.approx((2 * one.usd[0], 2 * one.usd[1]))
    back = estimate_run(settings(rubric), "mathchat", WORKLOAD, retrospective=True)
    assert back.tokens_out == (2 * one.tokens_out[0], 2 * one.tokens_out[1]) and back.tokens_in > both.tokens_in


def test_a_dry_run_says_what_a_model_may_cost():
    plan = make_dry_run(load_config(None, ["coach.name=gemini-2.5-flash", "train.steps=1", "train.tasks_per_step=2"]))
    shown = "\n".join(plan.lines())
    least, most = plan.coach_use.usd
    assert f"coach spend       {dollars(least)} to {dollars(most)}" in shown and 0 < least < most < 5
    assert f"about {' to '.join(map(rounded, plan.coach_use.tokens_in))} in, " in shown
    assert f" in, {' to '.join(map(rounded, plan.coach_use.tokens_out))} out" in shown


def test_a_dry_run_counts_every_candidate_and_tasks_as_long_as_the_longest():
    sizes = ("train.steps=2", "train.tasks_per_step=3", "coach.evidence.ground_truth=none")
    model = ("coach.name=hosted_vllm/mine", "coach.usd_per_million_tokens=[1, 1]")
    config = load_config(None, [*sizes, *model])
    long, short = Task("a", "sums", "x" * 400), Task("b", "sums", "x" * 40)
    plain = make_dry_run(config, 0, ([long, short], [short])).coach_use
    assert plain.calls == (6 * 3, 6 * 7)  # three roles, of which one may take five turns
    shorter = make_dry_run(config, 0, ([short], [short])).coach_use
    assert plain.tokens_in[1] - shorter.tokens_in[1] == 6 * 7 * (400 - 40) // 4
    candidates = load_config(None, [*sizes, *model, "sampling.scheme=tree", "algorithm.name=at_grpo"])
    assert make_dry_run(candidates, 0, ([short], [short])).coach_use.calls == (4 * 6 * 3, 4 * 6 * 7)
    assert make_dry_run(config, 2, ([short], [short])).coach_use is None  # all is done


def test_a_dry_run_says_that_a_price_is_not_known():
    overrides = ["coach.name=hosted_vllm/mine", "coach.api_base=http://127.0.0.1:9/v1"]
    plan = make_dry_run(load_config(None, overrides))
    assert plan.coach_use.usd is None and "price not known" in "\n".join(plan.lines())


def test_a_dry_run_refuses_a_model_that_nobody_knows():
    with pytest.raises(CoachUnavailable, match=r"no coach 'gemini-2\.5-flsh'"):
        make_dry_run(load_config(None, ["coach.name=gemini-2.5-flsh"]))


def test_what_is_shown_of_a_request_is_counted_by_its_characters():
    plain = request_for(make_action("solver", "x" * 42))  # beside 45 characters of the task and 13 of what was asked
    ran = replace(coded("executor", "1", Execution("ok", "o" * 100, "e" * 60)), text="x" * 42)
    later = request_for(replace(ran, index=2), (make_action("solver", "y" * 40), make_action("solver", "z" * 80)))
    assert [estimate_requests([one], []).tokens_in[1] for one in (plain, later)] == [1000 + 25, 1000 + 25 + 40 + 30]
    both = estimate_requests([plain, later], [], price=Price.flat(1.0, 10.0))
    assert both == CostEstimate((2, 2), (2120, 2120), (1000, 1000), (12_120.0, 12_120.0), 500)
    assert estimate_requests([], []).tokens_in == (0, 0)


def test_what_the_same_coach_took_before_is_taken_for_what_it_will_take():
    def took(status, *usage, cost_usd):
        return CoachScore("a", status, usage=Usage(1, *usage, cost_usd=cost_usd))

    saved = [
        took("scored", 100, 20, cost_usd=0.01),
        took("abstained", 300, 40, cost_usd=0.03),
        took("scored", 0, 0, cost_usd=0.02),  # of a provider that did not say
        took("failed", 9000, 900, cost_usd=5.0),
    ]
    asked = [request_for(make_action("solver", "x"))] * 6
    found = estimate_requests(asked, saved)
    assert (found.calls, found.tokens_in, found.tokens_out) == ((6, 6), (1200, 1200), (120, 120))
    assert found.usd == pytest.approx((0.12, 0.12)) and found.assumed_reply_tokens == 0
    without_price = [*saved, took("scored", 200, 1, cost_usd=None)]
    assert estimate_requests(asked, without_price).usd is None
    unpriced = estimate_requests(asked, without_price, Price.flat(0.0, 1.0))
    assert (unpriced.tokens_in, unpriced.tokens_out, unpriced.usd) == ((1200, 1200), (3000, 3000), (3000.0, 3000.0))


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (CostEstimate((1, 2000), (3, 4000), (5, 6), (0.5, 1234.567)), "about $1,234.57"),
        (CostEstimate((1, 2000), (3, 4000), (5, 6), (0.5, 1.0), 500), "about $1.00 at 500 tokens a reply"),
        (CostEstimate((1, 2000), (3, 4000), (5, 6), (0.0, 0.0), 500), "free"),
        (CostEstimate((1, 2000), (3, 4000), (5, 6), None, 500), "price not known"),
    ],
)
def test_an_estimate_is_told_by_the_most_that_it_may_come_to(estimate, words):
    assert str(estimate) == f"2,000 coach calls, about 4,000 prompt tokens, {words}"
    assert estimate.is_free == (words == "free")


def test_estimates_are_added_up_and_one_price_that_is_not_known_is_none_of_both():
    one, other = (
        CostEstimate((1, 2), (3, 4), (5, 6), (0.5, 1.0), 500),
        CostEstimate((10, 20), (30, 40), (50, 60), (2.0, 3.0)),
    )
    assert one + other == CostEstimate((11, 22), (33, 44), (55, 66), (2.5, 4.0), 500)
    assert (one + replace(other, usd=None)).usd is None and (replace(one, usd=None) + other).usd is None
