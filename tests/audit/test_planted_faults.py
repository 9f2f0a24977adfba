"""Planted faults: real plays of real pipelines, whose culprits are known, scored beside the sound play of a task."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from cases import but
from typer.testing import CliRunner

from benchmarks import blame
from coachrl.audit.faults.arithmetic import Chain, mathchat_faults
from coachrl.audit.faults.localization import FaultCase, FaultLocalization, localize_faults, summarize_cases
from coachrl.audit.faults.play import FAMILIES, PlayedFaults, play_faults, sound_action
from coachrl.audit.faults.programs import mutants
from coachrl.audit.probes.asked import Asked, asked_verdicts
from coachrl.audit.probes.asking import ProbeSettings, ask_coach
from coachrl.cli.main import app
from coachrl.coach.clients.cost_estimate import CostEstimate
from coachrl.coach.pool import CoachPool
from coachrl.commands.build import make_coach_pool
from coachrl.config import PipelineConfig, RoleConfig, SandboxConfig, load_config
from coachrl.errors import ConfigError, SandboxUnavailable
from coachrl.runs.folder import Run
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import ScriptedCoach

FREE = CostEstimate((1, 1), (1, 1), (1, 1), (0.0, 0.0))


@pytest.fixture(scope="module")
def played():
    """Plays faults of a pipeline in one sandbox for all tests of this file: starting it takes seconds."""
    with asyncio.Runner() as runner:
        sandbox = make_sandbox(SandboxConfig(disk_mb=64))
        try:
            runner.run(sandbox.start())
        except SandboxUnavailable as error:
            pytest.skip(str(error))

        def play(settings: PipelineConfig, folder: Path, count: int, outcome_to: str = "last") -> PlayedFaults:
            return runner.run(play_faults(settings, sandbox, folder, count, outcome_to, seed=1))

        yield play
        runner.run(sandbox.close())


def localized(found: PlayedFaults, score) -> FaultLocalization:
    async def ask() -> FaultLocalization:
        pool = CoachPool(ScriptedCoach(score))
        try:
            return await localize_faults(pool, found, resamples=100)
        finally:
            await pool.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("name", but(["code"], FAMILIES))
def test_planted_faults_are_played_for_real_and_each_did_harm(name, tmp_path, played):
    found = played(PipelineConfig(name=name), tmp_path, 7)
    assert len(found.pairs) == 7
    for pair in found.pairs:
        assert pair.sound.episode.outcome.success
        assert pair.planted.culprits <= set(pair.faulty.actions)
        told = {place: (action.text, sound_action(pair.sound, place)) for place, action in pair.faulty.actions.items()}
        changed = {place for place, (text, sound) in told.items() if sound is None or sound.text != text}
        assert pair.planted.culprits <= changed, pair.planted.fault
    assert {role for pair in found.pairs for role, _ in pair.planted.culprits} >= {
        role for pair in found.pairs for role, _ in pair.sound.actions
    }, "every role is a culprit somewhere"
    assert any(len(pair.planted.culprits) == 2 for pair in found.pairs) or name == "mathchat"
    assert len({pair.sound.episode.id for pair in found.pairs}) < len(found.pairs), "one sound play for each task"


def test_a_coach_that_knows_finds_every_culprit_and_one_that_reads_nothing_does_not(tmp_path, played):
    found = played(PipelineConfig(name="mathchat"), tmp_path, 10)
    guilty = {pair.faulty.actions[place].id for pair in found.pairs for place in pair.planted.culprits}
    knows = localized(found, lambda request: 2.0 if request.action.id in guilty else 8.0)
    assert knows.accuracy.value == knows.against_sound.value == knows.ordered.value == 1
    assert knows.culprit_loss.value == 6 and knows.innocent_loss.value == 0
    blind = localized(found, lambda request: 5.0)
    assert blind.accuracy.value == blind.blind["the same score for all"].value < 0.5
    assert blind.ordered.value == 0.5
    partial = localized(found, lambda request: 2.0 if request.role.name == "verifier" else 8.0)
    assert partial.against_sound.value == blind.accuracy.value, "always low for one role is no blame"


def test_the_coach_is_shown_the_outcome_as_in_the_run(tmp_path, played):
    shown = {}
    for outcome_to in ("last", "all", "none"):
        requests = played(PipelineConfig(name="mathchat"), tmp_path / outcome_to, 2, outcome_to).requests
        shown[outcome_to] = {request.role.name for request in requests if request.outcome is not None}
    assert shown == {"last": {"verifier"}, "all": {"problem_solver", "code_executor", "verifier"}, "none": set()}


def test_faults_in_turns_that_the_runs_agents_do_not_take_are_left_out_and_said(tmp_path, played):
    once = PipelineConfig(name="mathchat", roles={"code_executor": RoleConfig(max_turns=1, policy="shared")})
    found = played(once, tmp_path, 6)
    assert not any(("code_executor", 1) in pair.planted.culprits for pair in found.pairs)
    assert any("in turns that the run's agents do not take" in note for note in found.left_out)


def test_a_pipeline_without_planted_faults_is_refused(tmp_path, played):
    with pytest.raises(ConfigError, match="no faults are planted in pipeline debate, only in mathchat, math_duo, code"):
        played(PipelineConfig(name="debate"), tmp_path, 1)
    several = PipelineConfig(name="math_duo", options={"reasoners": 2})
    with pytest.raises(ConfigError, match="this run's team has reasoner_1, reasoner_2"):
        played(several, tmp_path, 1)


def test_the_same_seed_plants_the_same_faults_and_another_seed_others():
    first, again, other = (
        [fault for group in islice(mathchat_faults(seed), 3) for fault in group] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_chain_states_what_its_program_prints():
    chain = Chain(12, (("+", 4), ("/", 8), ("*", 3)), slip=(1, 1))
    assert chain.draft().splitlines()[1:] == ["12 + 4 = 16", "16 / 8 = 3", "3 * 3 = 9"]
    assert chain.program() == "x = 3\nx = x * 3\nprint(x)" and chain.result == 9
    assert not Chain(3, (("/", 2),)).is_plain


def test_a_mutant_differs_in_one_expression_and_loops_that_might_never_end_are_left_alone():
    program = "def f(n):\n    while n < 3:\n        n += 1\n    return n + 1 if n > 2 else 0"
    found = mutants(program)
    assert {name for name, _ in found} == {"off by one", "off by one at a limit", "a sign", "a condition turned round"}
    for _, text in found:
        assert "while n < 3:\n        n += 1" in text and text != ast.unparse(ast.parse(program))


def test_fault_localization_is_counted_by_construction():
    sound = {"a, turn 1": 9.0, "b, turn 1": 9.0, "c, turn 1": 8.0}

    def case(task, culprits, fault, *scores):
        return FaultCase(
            task, [f"{name}, turn 1" for name in culprits], fault, dict(zip(sound, scores, strict=True)), sound
        )

    cases = [
        case("t1", "a", "x", 2.0, 9.0, 5.0),
        case("t2", "a", "x", 3.0, 9.0, 3.0),
        case("t3", "b", "y", 9.0, 9.0, 2.0),
        case("t4", "ab", "z", 9.0, 1.0, 2.0),
        case("t5", "b", "y", 9.0, None, 2.0),
    ]
    found = summarize_cases(cases, 200)
    assert found.accuracy.value == pytest.approx((1 + 0.5 + 0 + 1) / 4) and found.accuracy.n == 4
    assert found.against_sound.value == pytest.approx((1 + 1 + 0 + 1) / 4)
    assert found.ordered.value == pytest.approx(np.mean([1, 1, 0.25, 0.5]))
    assert found.innocent_loss.value == pytest.approx((1.5 + 2.5 + 3.0 + 6.0) / 4)
    assert found.culprit_loss.value == pytest.approx((7 + 6 + 0 + 4) / 4)
    assert (found.by_fault["a: x"].value, found.by_fault["b: y"].value, found.by_fault["z"].value) == (1, 0, 1)
    assert found.blind["the same score for all"].value == pytest.approx((1 / 3 + 1 / 3 + 1 / 3 + 2 / 3) / 4)
    assert found.notes == ["1 of 5 planted faults have an action without a score"]
    assert summarize_cases([cases[4]], 200).accuracy is None
    (verdict,) = asked_verdicts(Asked("m", "p", FREE, None, found))
    assert verdict.grade == "unknown" and "it misses: b: y" in verdict.text and verdict.pipeline == "p"


def test_planted_faults_are_played_in_the_sandbox_that_the_run_names(tmp_path):
    server = ["sandbox.kind=fusion", "sandbox.url=http://127.0.0.1:9"]
    config = load_config(None, [f"out={tmp_path}", "name=r", *server])
    ledger, wanted = tmp_path / "ledger.jsonl", ProbeSettings(faults=1)
    asking = ask_coach(Run.create(config), config, wanted, ledger, lambda cost: None, make_coach_pool)
    with pytest.raises(SandboxUnavailable, match=r"http://127\.0\.0\.1:9 cannot be used"):
        asyncio.run(asking)


def test_the_command_line_plants_faults_in_the_runs_own_pipeline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "pipeline.roles.code_executor.max_turns=1"]))
    options = ["--fault-localization", "6", "--resamples", "100", "--json", "a.json"]
    done = CliRunner().invoke(app, ["audit", str(run.folder), *options])
    if isinstance(done.exception, SandboxUnavailable):
        pytest.skip(str(done.exception))
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "a.json").read_text())["asked"]["fault_localization"]
    assert len(found["cases"]) == 6 and found["against_sound"]["n"] == 6
    assert set(found["cases"][0]["scores"]) == {
        "problem_solver, turn 1",
        "code_executor, turn 1",
        "verifier, turn 1",
    }
    assert "in turns that the run's agents do not take" in found["notes"][0]


def documented() -> dict[tuple[str, str], tuple[float, float]]:
    """(pipeline, outcome shown to) -> the interval of `loses most` in docs/audit_statistics.md."""
    page = (Path(__file__).parents[2] / "docs" / "audit_statistics.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    found = {}
    for row in rows:
        if len(row) == len(blame.COLUMNS) and row[0] in FAMILIES:
            low, high = re.search(r"\[([\d.]+), ([\d.]+)\]", row[blame.COLUMNS.index("loses most")]).groups()
            found[row[0], row[1]] = float(low), float(high)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("bare_sandboxes")
@pytest.mark.parametrize("name", but(["code", "dsbench", "mathchat"], FAMILIES))
def test_the_documented_table_holds_at_small_size(name):
    """With a seed that the table does not have: the intervals meet."""
    assert set(documented()) == {(family, shown) for family in FAMILIES for shown in blame.SHOWN}
    try:
        [found] = blame.measure(name, ["last"], count=14, seed=77)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    low, high = documented()[name, "last"]
    against = found.against_sound
    assert (against.low or against.value) <= high and low <= (against.high or against.value)


def test_blame_is_measured_against_the_sound_play_and_against_blame_without_reading():
    sound = {"a, turn 1": 4.0, "b, turn 1": 9.0, "c, turn 1": 9.0}

    def case(task, culprit, fault, scores, crashed=()):
        scores = dict(zip(sound, scores, strict=True))
        return FaultCase(task, [f"{culprit}, turn 1"], fault, scores, sound, [f"{name}, turn 1" for name in crashed])

    cases = [
        case("t1", "b", "x", (4.0, 5.0, 9.0), "c"),  # a is always the lowest
        case("t2", "a", "y", (1.0, 9.0, 9.0), "ac"),
        case("t3", "c", "z", (4.0, 9.0, 9.0)),
    ]
    found = summarize_cases(cases, resamples=100)
    assert found.accuracy.value == pytest.approx(1 / 3)
    assert found.against_sound.value == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert {name: share.value for name, share in found.blind.items()} == pytest.approx(
        {
            "the same score for all": 1 / 3,
            "always the first action": 1 / 3,
            "always the last action": 1 / 3,
            "the first whose code fails": (0 + 1 + 1 / 3) / 3,
        }
    )
