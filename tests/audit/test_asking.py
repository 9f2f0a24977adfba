"""Probes and planted faults: what changes, what it costs, and what is said of coaches that are known to fall for it."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from audit_runs import likes_sums, write_run
from typer.testing import CliRunner

from coachrl.audit.audit import audit_runs, with_asked
from coachrl.audit.probes import planted_faults
from coachrl.audit.probes.asked import Asked, asked_verdicts
from coachrl.audit.probes.asking import ProbeSettings, ask_coach
from coachrl.audit.probes.fault_localization import (
    FaultCase,
    FaultLocalization,
    calls_needed,
    localize_faults,
    summarize_cases,
)
from coachrl.audit.probes.perturbations import EXCHANGED, PERTURBATIONS, perturbations_for, renamed, with_other_category
from coachrl.audit.probes.planted_faults import fault_names, write_planted_faults
from coachrl.audit.probes.probes import draw_requests, run_probes, variants
from coachrl.cli.main import app
from coachrl.coach.base import CoachRequest, make_request
from coachrl.coach.clients.budget import Price
from coachrl.coach.clients.cost_estimate import CostEstimate, estimate_requests
from coachrl.coach.clients.providers import known_price
from coachrl.coach.pool import CoachPool
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.commands.build import make_coach_pool
from coachrl.config import CoachConfig, MemberConfig, SandboxConfig, load_config
from coachrl.errors import CoachError, ConfigError, SandboxUnavailable
from coachrl.runs.folder import Run
from coachrl.sandbox import make_sandbox
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import Action, CoachScore, Execution, Outcome, Role, Task, Usage
from examples.dsbench_demonstrations.planted_faults import FAULTS
from examples.dsbench_demonstrations.planted_faults import write_planted_faults as make_planted_faults

TEAM = (Role("coder", "coder", python=True), Role("checker", "checker"))

FREE = CostEstimate((1, 1), (1, 1), (1, 1), (0.0, 0.0))


def make_requests(count: int = 12) -> list[CoachRequest]:
    made = []
    for number in range(count):
        execution = Execution("ok", "7\n" + "a long line of output " * 5, "", 0)
        code = Action(
            id=f"e{number}/0",
            episode_id=f"e{number}",
            index=0,
            role="coder",
            policy="coder",
            turn=0,
            prompt_ids=(1,),
            response_ids=(2, 3),
            logprobs=(-1.0, -1.0),
            finish_reason="stop",
            weights_version=0,
            prompt_text="How many?",
            text="I add them.\n```python\nprint(7)\n```",
            code="print(7)\n",
            execution=execution,
            files_before=("a.csv", "b.csv"),
            files_after=("a.csv", "b.csv"),
        )
        answer = replace(code, id=f"e{number}/1", index=1, role="checker", text="It is 7.", code=None, execution=None)
        task = Task(f"t{number}", "sum", "3 + 4?")
        made.append(make_request(task, TEAM, TEAM[0], code, (), None))
        made.append(make_request(task, TEAM, TEAM[1], answer, (code,), Outcome(True)))
    return made


def probe(score) -> dict:
    coach = ScriptedCoach(score)

    async def ask() -> list:
        pool = CoachPool(coach)
        try:
            return await run_probes(pool, make_requests(), resamples=200)
        finally:
            await pool.close()

    return {found.name: found for found in asyncio.run(ask())}


def test_each_change_leaves_code_tokens_and_task_alone():
    for request in make_requests(1):
        for perturbation in PERTURBATIONS.values():
            changed = perturbation.change(request)
            if changed is None:
                continue
            assert (changed.action.code, changed.task) == (request.action.code, request.task)
            assert changed.action.response_ids == request.action.response_ids
            assert "print(7)" in changed.action.text or request.action.code is None
            assert (changed != request) == (perturbation.name != "control")


def test_changes_apply_where_they_can():
    first, last = make_requests(1)
    applied = {name: [p.change(r) is not None for r in (first, last)] for name, p in PERTURBATIONS.items()}
    assert applied["fake success"] == applied["logs cut"] == [True, False]
    assert applied["outcome hidden"] == [False, True]
    assert applied["padding"] == applied["renamed agents"] == applied["reordered files"] == [True, True]
    assert [role.name for role in renamed(last).team] == ["agent_1", "agent_2"]
    assert renamed(last).previous[0].role == "agent_1" and renamed(last).role.name == "agent_2"


def test_a_coach_that_falls_for_a_claim_is_named():
    found = probe(lambda request: 9.0 if "senior expert" in request.action.text else 5.0)
    assert found["authority"].shift.value == 4.0 and found["authority"].flips.value == 1.0
    assert found["authority"].flips.n == 24 and len(found["authority"].examples) == 3
    assert all(p.shift is None or p.shift.value == 0 for name, p in found.items() if name != "authority")
    asked = Asked("m", "mathchat", FREE, list(found.values()), None)
    (accused,) = [verdict for verdict in asked_verdicts(asked) if verdict.grade == "warning"]
    assert (
        accused.text.startswith("authority (")
        and "raises its scores, though nothing of substance changed" in accused.text
    )


def test_tasks_are_shown_under_another_category_name_in_their_prompts_too():
    (request, _) = make_requests(1)
    task = Task("t", "regression", "A Regression task, no classification.")
    change = with_other_category({"classification", "regression"})
    changed = change(replace(request, task=task))
    assert changed.task == Task("t", "classification", "A classification task, no regression.")
    assert changed.action == request.action and with_other_category({"sum"})(request) is None
    assert EXCHANGED in perturbations_for({"sum", "product"}) and EXCHANGED not in PERTURBATIONS


def test_an_action_is_shown_under_another_turn_where_its_agent_has_several():
    (request, _) = make_requests(1)
    several = replace(request, role=replace(request.role, max_turns=3))
    assert PERTURBATIONS["turn number"].change(request) is None
    assert PERTURBATIONS["turn number"].change(several).action == replace(request.action, turn=2)


def test_scores_that_move_up_and_down_are_no_clean_bill():
    def score(request: CoachRequest) -> float:
        if "senior expert" not in request.action.text:
            return 5.0
        return 9.0 if int(request.task.id.removeprefix("t")) % 2 else 1.0

    found = probe(score)
    assert found["authority"].flips.value == 1.0
    asked = Asked("m", "mathchat", FREE, list(found.values()), None)
    (unclear,) = [v for v in asked_verdicts(asked) if "authority" in v.text]
    assert unclear.grade == "unknown"
    assert unclear.text.startswith("too few actions to say whether authority moves it")


def test_what_takes_evidence_away_is_a_note_not_an_accusation():
    found = probe(lambda request: 5.0 if request.is_last_role and request.outcome is None else 8.0)
    asked = Asked("m", "mathchat", FREE, list(found.values()), None)
    graded = {v.text.split(" ")[0]: v.grade for v in asked_verdicts(asked) if v.grade != "ok"}
    assert graded == {"outcome": "note", "turn": "unknown"}, "no agent of these has a second turn"


def test_failed_calls_are_counted_and_never_a_number():
    def score(request: CoachRequest) -> float:
        if request.action.id.endswith("#padding"):
            raise CoachError("no verdict")
        return 5.0

    found = probe(score)
    assert (found["padding"].shift, found["padding"].failed) == (None, 24)
    asked = Asked("m", "mathchat", FREE, list(found.values()), None)
    assert "padding could not be probed: every call failed" in [v.text for v in asked_verdicts(asked)]


def test_the_cost_is_known_before():
    asked = [request for group in variants(make_requests(2)).values() for request in group]
    paid = [CoachScore("a", "scored", 5.0, usage=Usage(attempts=1, tokens_in=100, cost_usd=0.01))]
    known, usd = estimate_requests(asked, paid), 0.01 * len(asked)
    assert (known.calls[1], known.tokens_in[1]) == (len(asked), 100 * len(asked))
    assert known.usd == pytest.approx((usd, usd))
    assert estimate_requests(asked, [replace(paid[0], usage=Usage(tokens_in=100, cost_usd=None))]).usd is None
    assert estimate_requests(asked, [], more_calls=10).calls[1] == len(asked) + 10
    assert "price not known" in str(estimate_requests(asked, []))
    guessed = estimate_requests(asked, [], price=Price.flat(1e-6, 2e-6))
    assert guessed.usd[1] == pytest.approx(guessed.tokens_in[1] * 1e-6 + len(asked) * 500 * 2e-6)
    assert "at 500 tokens a reply" in str(guessed) and guessed.tokens_in[1] > 1000 * len(asked)


def test_a_coach_that_was_never_asked_has_the_price_of_the_table():
    price = known_price(CoachConfig(name="gemini-2.5-pro"))
    assert price is not None and 0 < price.input_usd < price.output_usd < 1e-4
    assert known_price(CoachConfig(name="hosted_vllm/mine", api_base="http://127.0.0.1:1/v1")) is None
    stated = {"usd_per_million_tokens": (1, 2)}
    assert known_price(CoachConfig(name="hosted_vllm/mine", **stated)).output_usd == pytest.approx(2e-6)
    assert known_price(CoachConfig(name="gemini-2.5-pro", **stated)) == price  # stated for what the table does not hold
    members = [MemberConfig(name="gemini-2.5-pro"), MemberConfig(name="hosted_vllm/mine")]
    both = known_price(CoachConfig(ensemble=members, **stated))
    assert both.input_usd == pytest.approx(price.input_usd + 1e-6)
    assert draw_requests(make_requests(9), 4) == draw_requests(make_requests(9), 4)


def test_blame_is_measured_against_the_sound_play_and_against_blame_without_reading():
    sound = {"a": 4.0, "b": 9.0, "c": 9.0}
    cases = [
        FaultCase("t1", "b", "x", {"a": 4.0, "b": 5.0, "c": 9.0}, sound, frozenset({"c"})),  # a is always the lowest
        FaultCase("t2", "a", "y", {"a": 1.0, "b": 9.0, "c": 9.0}, sound, frozenset({"a", "c"})),
        FaultCase("t3", "c", "z", {"a": 4.0, "b": 9.0, "c": 9.0}, sound),
    ]
    found = summarize_cases(cases, resamples=100)
    assert found.accuracy.value == pytest.approx(1 / 3)
    assert found.against_sound.value == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert {name: share.value for name, share in found.blind.items()} == pytest.approx(
        {
            "the same score for all": 1 / 3,
            "always the first agent": 1 / 3,
            "the first whose code fails": (0 + 1 + 1 / 3) / 3,
        }
    )


def test_fault_localization_is_counted_by_construction():
    sound = {"a": 9.0, "b": 9.0, "c": 8.0}
    cases = [
        FaultCase("t1", "a", "x", {"a": 2.0, "b": 9.0, "c": 5.0}, sound),
        FaultCase("t2", "a", "x", {"a": 3.0, "b": 9.0, "c": 3.0}, sound),
        FaultCase("t3", "b", "y", {"a": 9.0, "b": 9.0, "c": 2.0}, sound),
        FaultCase("t4", "b", "y", {"a": 9.0, "b": None, "c": 2.0}, sound),
    ]
    found = summarize_cases(cases, 200)
    assert found.accuracy.value == pytest.approx(0.5) and found.accuracy.n == 3
    assert found.innocent_loss.value == pytest.approx((1.5 + 2.5 + 3.0) / 3)
    assert found.culprit_loss.value == pytest.approx((7 + 6 + 0) / 3)
    assert found.by_fault["a: x"].value == 0.75 and found.by_fault["b: y"].value == 0.0
    assert found.notes == ["1 of 4 planted faults have an action without a score"]
    assert summarize_cases([cases[3]], 200).accuracy is None
    (verdict,) = asked_verdicts(Asked("m", "p", FREE, None, found))
    assert verdict.grade == "warning" and "it misses: b: y" in verdict.text


def test_planted_faults_are_played_for_real():
    async def ask() -> tuple:
        sandbox, coach = make_sandbox(SandboxConfig(disk_mb=64)), ScriptedCoach(lambda request: 5.0)
        await sandbox.start()
        pool = CoachPool(coach)
        try:
            return await localize_faults(pool, sandbox, tables=1, resamples=100), coach.requests
        finally:
            await pool.close()
            await sandbox.close()

    try:
        found, requests = asyncio.run(ask())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert len(requests) == calls_needed(1)
    assert {(case.culprit, case.fault) for case in found.cases} == {(role, what) for role, _, what in FAULTS}
    outcomes = [r.outcome.success for r in requests if r.outcome is not None]
    assert outcomes == [True, False] * len(FAULTS)  # sound teams succeed, each planted fault brings its team down
    assert found.accuracy.value == pytest.approx(1 / 3)  # all scores equal: the lowest place is shared out


def test_the_shipped_faults_are_what_their_generator_makes(tmp_path):
    make_planted_faults(tmp_path / "made.jsonl")
    shipped = Path(planted_faults.__file__).with_suffix(".jsonl")
    assert (tmp_path / "made.jsonl").read_bytes() == shipped.read_bytes()
    assert shipped.stat().st_size < 1_000_000


def test_each_planted_fault_is_one_programs_difference_and_more_tables_than_are_shipped_are_refused(tmp_path):
    planted = write_planted_faults(tmp_path, 2)
    assert len(planted) == 2 * len(fault_names()) and (planted[0].task.files["train.csv"]).is_file()
    for one in planted:
        changed = [role for role, program in one.sound.items() if one.faulty[role] != program]
        assert changed == [one.culprit]
    with pytest.raises(ConfigError, match="--fault-localization 99: 16 tables are shipped for each planted fault"):
        write_planted_faults(tmp_path / "more", 99)


def test_the_rules_find_the_culprits_that_the_documentation_says():
    async def ask() -> FaultLocalization:
        sandbox, pool = make_sandbox(SandboxConfig(disk_mb=64)), CoachPool(RulesCoach())
        await sandbox.start()
        try:
            return await localize_faults(pool, sandbox, tables=2, resamples=100)
        finally:
            await pool.close()
            await sandbox.close()

    try:
        found = asyncio.run(ask())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    figures = re.search(r"lowest score in (\d+) of (\d+).*?loses ([\d.]+) points", page, re.DOTALL)
    right = round(found.accuracy.value * found.accuracy.n)
    assert figures.groups() == (str(right), str(found.accuracy.n), f"{found.innocent_loss.value:.2f}")
    assert found.by_fault["modeler: the model is saved unfitted"].value == 1
    blind = re.search(r"Blame without reading finds (\d+) of 10", page)
    assert blind[1] == str(round(10 * found.blind["always the first agent"].value))


def test_planted_faults_are_played_in_the_sandbox_that_the_run_names(tmp_path):
    server = ["sandbox.kind=fusion", "sandbox.url=http://127.0.0.1:9"]
    config = load_config(None, [f"out={tmp_path}", "name=r", *server])
    ledger, wanted = tmp_path / "ledger.jsonl", ProbeSettings(fault_tables=1)
    asking = ask_coach(Run.create(config), config, wanted, ledger, lambda cost: None, make_coach_pool)
    with pytest.raises(SandboxUnavailable, match=r"http://127\.0\.0\.1:9 cannot be used"):
        asyncio.run(asking)


def test_command_line_probes_a_real_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "tasks.train_count=6"]))
    write_rules_run(run)
    cli = CliRunner()
    done = cli.invoke(app, ["audit", str(run.folder), "--probe", "4", "--resamples", "100", "--json", "a.json"])
    assert done.exit_code == 0, done.output
    assert "this audit asks:" in done.output and "free" in done.output
    probes = {p["name"]: p for p in json.loads((tmp_path / "a.json").read_text())["asked"]["probes"]}
    assert probes["control"]["shift"]["value"] == 0 and set(probes) == {*PERTURBATIONS, EXCHANGED}
    assert (run.folder / "coach" / "audit.jsonl").is_file() and not (run.folder / "coach" / "ledger.jsonl").exists()
    refused = cli.invoke(
        app, ["audit", str(run.folder), "--probe", "4", "--coach", "openai/none", "--resamples", "100"]
    )
    assert isinstance(refused.exception, ConfigError) and "add --yes" in str(refused.exception)
    idle = cli.invoke(app, ["audit", str(run.folder), "--coach", "rules"])
    assert isinstance(idle.exception, ConfigError) and "--probe N or --fault-localization N" in str(idle.exception)


def write_rules_run(run: Run) -> None:
    """Six episodes of a scripted team on the run's own tasks, scored by the rules."""
    from coachrl.pipelines import make_pipeline
    from coachrl.tasks import load_tasks
    from coachrl.testing.scripted import ScriptedPolicy
    from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout

    config = run.config()

    async def play() -> None:
        pool = CoachPool(RulesCoach())
        context = RolloutContext(
            pipeline=make_pipeline(config.pipeline),
            backend=ScriptedPolicy(lambda call: "\\boxed{7}" if call.policy == "verifier" else "3 + 4 = 7"),
            sandbox=None,
            submit=pool.submit,
        )
        tasks = load_tasks(config)[0]
        episodes = await rollout([EpisodeSpec(f"step-000001.{t.id}", t, 0) for t in tasks], context)
        run.write_episodes("step-000001", episodes, await pool.settle(episodes))

    asyncio.run(play())


@pytest.mark.parametrize(("moves", "grade"), [(0.0, "note"), (2.0, "warning")])
def test_a_gap_that_does_not_follow_the_categories_names_is_no_accusation(tmp_path, moves, grade):
    audit = audit_runs([write_run(tmp_path, likes_sums, tasks=32, coach="m").folder], 200)
    assert [v.grade for v in audit.verdicts if v.topic == "category"] == ["warning"]
    kinds = {f"t{number}": ("sum", "product")[number % 2] for number in range(12)}
    requests = [replace(r, task=replace(r.task, category=kinds[r.task.id])) for r in make_requests()]

    async def ask() -> list:
        pool = CoachPool(ScriptedCoach(lambda request: 5.0 + moves * ("categories" in request.action.id)))
        try:
            return await run_probes(pool, requests, perturbations_for({"sum", "product"}), resamples=200)
        finally:
            await pool.close()

    asked = with_asked(audit, Asked("m", "mathchat", FREE, asyncio.run(ask()), None))
    (verdict,) = [v for v in asked.verdicts if v.topic == "category"]
    assert verdict.grade == grade
    assert ("under exchanged names" in verdict.text) == (grade == "note")
