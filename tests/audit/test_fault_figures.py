"""The parts of planted faults that play nothing: what is spoiled, who is at fault, and what counts as harm."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from coachrl.audit.faults.arithmetic import SPOILERS, Chain, _a_slip, _misread, _problems, spoiled
from coachrl.audit.faults.localization import FaultCase, _case, summarize_cases
from coachrl.audit.faults.planted import PlantedFault, in_turn
from coachrl.audit.faults.play import FaultPair, Play, PlayedFaults, _is_worse, _why_left_out, sound_action
from coachrl.audit.faults.programs import _another, _stated, mutants
from coachrl.audit.faults.tables import SLIPS, table_faults
from coachrl.config import PipelineConfig
from coachrl.pipelines import make_pipeline
from coachrl.testing.actions import make_action
from coachrl.types import Action, CoachScore, Episode, Execution, Outcome, Reward, Task

CHAIN = Chain(12, (("+", 4), ("/", 8), ("*", 3)))
CRASH = Execution("error", stderr="KeyError")


def act(role: str, index: int, turn: int = 0, episode: str = "e", **fields: object) -> Action:
    return replace(make_action(role, "?", episode=episode, index=index, turn=turn), **fields)  # type: ignore[arg-type]


def play(*actions: Action, outcome: Outcome | None = None, broken: str | None = None, name: str = "e") -> Play:
    episode = Episode(name, "t", "k", "p", actions, outcome or Outcome(True), infra_error=broken)
    return Play(episode, [])


def pair(sound: Play, faulty: Play, *culprits: tuple[str, int]) -> FaultPair:
    return FaultPair(PlantedFault(Task("t", "k", "?"), "x", frozenset(culprits), {}, {}), sound, faulty)


def test_the_sound_action_is_that_of_the_same_turn_or_the_agents_last_before_it():
    first, second, other = act("a", 0), act("a", 2, turn=1), act("b", 1)
    sound = play(first, other, second)
    found = [sound_action(sound, place) for place in (("a", 0), ("a", 1), ("a", 5), ("b", 3), ("c", 0))]
    assert found == [first, second, second, other, None]


def test_a_case_is_scored_beside_the_sound_play_and_knows_who_crashed_by_the_fault_alone():
    sound = play(act("a", 0, episode="s"), act("b", 1, episode="s", execution=CRASH), act("c", 2, episode="s"))
    faulty = play(
        act("a", 0, execution=CRASH), act("b", 1, execution=CRASH), act("b", 2, turn=1), act("c", 3, execution=CRASH)
    )
    given = {"s/0": 9.0, "s/1": 8.0, "s/2": 7.0, "e/0": 1.0, "e/1": 2.0, "e/2": 3.0}
    scores = {key: CoachScore(key, "scored", value) for key, value in given.items()}
    found = _case(pair(sound, faulty, ("a", 0)), scores)
    assert found == FaultCase(
        "t",
        ["a, turn 1"],
        "x",
        {"a, turn 1": 1.0, "b, turn 1": 2.0, "b, turn 2": 3.0, "c, turn 1": None},
        {"a, turn 1": 9.0, "b, turn 1": 8.0, "b, turn 2": 8.0, "c, turn 1": 7.0},
        ["a, turn 1", "c, turn 1"],
    )
    assert found.kind == "a: x" and replace(found, culprits=["b, turn 1", "a, turn 1"]).kind == "x"
    assert replace(found, culprits=["a, turn 1", "a, turn 2"]).kind == "a: x"
    assert found.losses["b, turn 2"] == 5.0


def test_without_cases_nothing_is_measured():
    assert summarize_cases([]).notes == ["no fault was played"]


@pytest.mark.parametrize(
    ("sound", "faulty", "worse"),
    [
        (Outcome(True), Outcome(False), True),
        (Outcome(False), Outcome(False), False),
        (Outcome(False), Outcome(True), False),
        (Outcome(True), Outcome(True), False),
        (Outcome(True, {"accuracy": 0.75}), Outcome(True, {"accuracy": 0.625}), True),
        (Outcome(True, {"accuracy": 0.75}), Outcome(True, {"accuracy": 0.74}), False),
        (Outcome(True, {"accuracy": 0.75}), Outcome(True, {"accuracy": 0.875}), False),
        (Outcome(True, {"rmse_pct_range": 5.0}), Outcome(True, {"rmse_pct_range": 6.0}), True),
        (Outcome(True, {"rmse_pct_range": 5.0}), Outcome(True, {"rmse_pct_range": 5.5}), False),
        (Outcome(True, {"rmse_pct_range": 5.0}), Outcome(True, {"rmse_pct_range": 3.0}), False),
    ],
)
def test_harm_is_a_failure_or_a_result_that_is_measurably_worse(sound, faulty, worse):
    assert _is_worse(faulty, sound) is worse


def test_a_fault_is_kept_where_it_was_played_and_did_harm():
    fine, failed = play(act("a", 0)), play(act("a", 0), outcome=Outcome(False))
    assert _why_left_out(pair(fine, failed, ("a", 0))) == ""
    assert _why_left_out(pair(fine, fine, ("a", 0))) == "did no harm"
    assert _why_left_out(pair(fine, failed, ("a", 0), ("a", 1))) == "are in turns that the run's agents do not take"
    assert _why_left_out(pair(fine, play(act("a", 0), broken="x"), ("a", 0))) == "were broken off by infrastructure"
    paid, less = (play(act("a", 0, reward=Reward(0.0, local))) for local in (1.0, 0.5))
    assert _why_left_out(pair(paid, less, ("a", 0))) == ""
    assert _why_left_out(pair(less, paid, ("a", 0))) == _why_left_out(pair(paid, paid, ("a", 0))) == "did no harm"


def test_a_coach_is_asked_about_each_sound_play_once():
    sound = replace(play(act("a", 0), name="s"), requests=["s"])
    faults = [pair(sound, replace(play(act("a", 0), name=name), requests=[name]), ("a", 0)) for name in ("x", "y")]
    assert PlayedFaults(faults, []).requests == ["s", "x", "y"]


def test_options_are_taken_in_turn():
    assert [list(in_turn("abc", number)) for number in (0, 1, 5)] == [list("abc"), list("bca"), list("cab")]


def test_a_slip_is_in_no_last_step_and_never_nothing():
    slips = [_a_slip(CHAIN, np.random.default_rng(seed)).slip for seed in range(40)]
    assert {place for place, _ in slips} == {0, 1} and {by for _, by in slips} == {-2, -1, 1, 2}
    assert _a_slip(Chain(3, (("+", 4),)), np.random.default_rng(0)).slip[0] == 0


def test_a_spoiled_chain_comes_to_another_whole_number_above_0():
    for seed in range(12):
        name, wrong = spoiled(CHAIN, SPOILERS, seed, np.random.default_rng(seed))
        assert name in SPOILERS and wrong.is_plain and wrong.result != CHAIN.result == 6
    assert (
        spoiled(Chain(5, (("-", 4),)), {"a step left out": SPOILERS["a step left out"]}, 0, np.random.default_rng(0))
        is None
    )


@pytest.mark.parametrize(
    ("value", "number", "found"),
    [
        (13, 0, ("off by one", 14)),
        (13, 1, ("an earlier step's result", 2)),
        (13, 2, ("digits swapped", 31)),
        (20, 2, ("off by one", 21)),  # 02 would be seen
        (11, 2, ("off by one", 12)),  # swapped they are the same
        (2, 1, ("off by one", 3)),  # the earlier step came to the same
    ],
)
def test_how_a_result_is_misread(value, number, found):
    assert _misread(value, CHAIN, number) == found


def test_a_chain_is_read_from_a_solution():
    task, chain, _ = next(_problems(0))
    assert chain.result == int(task.ground_truth.answer) and len(chain.steps) in (3, 4, 5)
    ids = [task.id for task, _, _ in islice(_problems(0), 70)]
    assert len(set(ids)) == 70  # they go on behind the first 64


def test_what_is_changed_in_a_program():
    assert mutants("x = True\ny = 1") == [("off by one", "x = True\ny = 2")]
    assert [text for _, text in mutants("a - b >= 3")] == ["a - b > 3", "a + b >= 3", "a - b >= 4"]
    assert mutants("f(x) if a == b else c") == [
        ("a condition turned round", "f(x) if not a == b else c"),
    ]


@pytest.mark.parametrize(
    ("value", "other"),
    [(True, False), (0, 1), (1.5, 2.5), ("ab", "a"), ("", ""), ([1, 2], [1]), ((), ()), ((1,), ()), (None, None)],
)
def test_a_value_that_is_not_right(value, other):
    assert _another(value) == other and type(_another(value)) is type(other)


@pytest.mark.parametrize(
    ("test", "value"),
    [("f(1) == 2", 2), ("f(1) == [x]", None), ("f(1) < 2", None), ("0 < f(1) == 2", None), ("f(1)", None)],
)
def test_the_value_that_an_assertion_states(test, value):
    assert _stated(ast.parse(test, mode="eval").body) == value


def test_faults_of_tables_fit_their_category_and_are_two_of_each_role(tmp_path):
    pipeline = make_pipeline(PipelineConfig(name="dsbench"))
    only = {slip.name: slip.only for slip in SLIPS if slip.only and slip.role == "analyst"}
    groups = list(islice(table_faults(pipeline, tmp_path, seed=0), 9))
    assert {group[0].task.category for group in groups} == {"classification", "regression"}
    names = {fault.fault for group in groups for fault in group if "data_engineer" in dict(fault.culprits)}
    assert names == {slip.name for slip in SLIPS if slip.role == "data_engineer"} | {"two agents, each with a fault"}
    pairs = [{fault.fault for fault in group[:2]} for group in groups[:3]]
    assert len(set.union(*pairs)) == 6  # none comes again before all were planted
    for group in groups:
        *single, both = group
        assert [sorted(fault.culprits)[0][0] for fault in single] == [
            *(["data_engineer"] * 2), *(["modeler"] * 2), *(["analyst"] * 2)
        ]  # fmt: skip
        assert len({fault.fault for fault in single if fault.culprits & group[4].culprits}) == 2
        assert len({role for role, _ in both.culprits}) == 2
        for fault in single:
            changed = [role for role in fault.sound if fault.faulty[role] != fault.sound[role]]
            assert changed == [role for role, _ in fault.culprits]
            if ("analyst", fault.fault) in {("analyst", name) for name in only} and changed == ["analyst"]:
                assert fault.task.category == "regression"
