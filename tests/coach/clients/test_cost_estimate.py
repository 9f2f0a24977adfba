"""What a coach will read, write and cost, before it is asked."""

import pytest

from coachrl.coach.clients.cost_estimate import TeamWorkload, estimate_run
from coachrl.coach.clients.providers import known_price
from coachrl.commands.dry_run import make_dry_run
from coachrl.config import CoachConfig, EvidenceConfig, MemberConfig, load_config
from coachrl.errors import CoachUnavailable
from coachrl.resources import resource
from coachrl.types import Role, Task

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
    assert f"coach spend       ${least:,.2f} to ${most:,.2f}" in shown and 0 < least < most < 5
    assert f"{plan.coach_use.tokens_in[0]:,} to {plan.coach_use.tokens_in[1]:,} in" in shown


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
