"""Probes and planted faults: what changes, what it costs, and what is said of coaches that are known to fall for it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from audit_runs import likes_sums, write_run
from typer.testing import CliRunner

from coachrl.audit.audit import audit_runs, with_asked
from coachrl.audit.faults.localization import FaultLocalization
from coachrl.audit.probes.asked import Asked, asked_verdicts
from coachrl.audit.probes.asking import ProbeSettings, ask_coach, saved_requests
from coachrl.audit.probes.perturbations import EXCHANGED, PERTURBATIONS, perturbations_for, with_other_category
from coachrl.audit.probes.probes import Probe, run_probes
from coachrl.audit.verdicts import AuditVerdict
from coachrl.cli.main import app
from coachrl.coach.base import CoachRequest, make_request
from coachrl.coach.clients.cost_estimate import CostEstimate
from coachrl.coach.clients.ledger import Call, Ledger
from coachrl.coach.clients.providers import known_price
from coachrl.coach.pool import CoachPool
from coachrl.coach.rubric.rules import RulesCoach
from coachrl.config import CoachConfig, MemberConfig, RunConfig, load_config
from coachrl.errors import CoachError, CoachUnavailable, ConfigError
from coachrl.runs.folder import Run
from coachrl.stats import Estimate
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import ScriptedCoach
from coachrl.types import CoachScore, Execution, Outcome, Role, Task, Usage

TEAM = (Role("coder", "coder", python=True), Role("checker", "checker"))

FREE = CostEstimate((1, 1), (1, 1), (1, 1), (0.0, 0.0))


def make_requests(count: int = 12) -> list[CoachRequest]:
    made = []
    for number in range(count):
        execution = Execution("ok", "7\n" + "a long line of output " * 5, "", 0)
        code = make_action(
            "coder",
            "I add them.\n```python\nprint(7)\n```",
            episode=f"e{number}",
            prompt_text="How many?",
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


def test_names_are_changed_one_by_one_where_a_coach_can_have_scored_by_them():
    added = perturbations_for({"sum", "product", ""}, {"coder", "checker"}).keys() - PERTURBATIONS.keys()
    assert added == {
        *(f"{EXCHANGED} {name}" for name in ("sum", "product")),
        *(f"another name for role {name}" for name in ("coder", "checker")),
    }
    assert perturbations_for({"sum"}, set()) == PERTURBATIONS


def test_of_many_names_the_most_frequent_are_changed():
    names = [chr(ord("a") + number) for number in range(14) for _ in range(2 if number else 1)]
    added = perturbations_for(names, names).keys() - PERTURBATIONS.keys()
    assert added == {f"{what} {name}" for what in (EXCHANGED, "another name for role") for name in "bcdefghijklm"}


def test_a_coach_that_pays_for_a_name_is_found_though_all_names_together_keep_the_mean():
    """What a category or a role loses under another name, the next one gains."""
    kinds = {f"t{number}": ("sum", "product")[number % 2] for number in range(12)}
    requests = [replace(r, task=replace(r.task, category=kinds[r.task.id])) for r in make_requests()]
    paid = {"sum": 2.0, "coder": 1.0}

    async def ask() -> list[Probe]:
        pool = CoachPool(ScriptedCoach(lambda r: 5.0 + paid.get(r.task.category, 0.0) + paid.get(r.role.name, 0.0)))
        try:
            return await run_probes(pool, requests, perturbations_for({"sum", "product"}, {"coder", "checker"}))
        finally:
            await pool.close()

    probes = {found.name: found for found in asyncio.run(ask())}
    shifts = {name: found.shift.value for name, found in probes.items() if name.startswith("another") and found.shift}
    assert shifts == {
        f"{EXCHANGED} sum": -2.0,
        f"{EXCHANGED} product": 2.0,
        "another name for role coder": -1.0,
        "another name for role checker": 0.0,
    }
    verdicts = asked_verdicts(Asked("m", "mathchat", FREE, list(probes.values()), None))
    accused = {v.text.partition(" (")[0] for v in verdicts if v.grade == "warning"}
    assert accused == {f"{EXCHANGED} sum", f"{EXCHANGED} product", "another name for role coder"}


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


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_handful_of_tasks_that_all_moved_alike_says_nothing_of_a_coach(shift: float):
    """Three tasks without any spread neither clear a coach, nor its gap between categories, nor accuse it."""

    def said(tasks: int) -> AuditVerdict:
        same = Estimate(shift, None, None, tasks, tasks)
        probe = Probe(f"{EXCHANGED} sum", "other names", False, Estimate(0.0, 0.0, 0.5, tasks, tasks), same, 0, [])
        return asked_verdicts(Asked("coach", "p", FREE, [probe], None))[0]

    assert said(3).grade == "unknown" and said(3).text.startswith(
        f"too few actions to say whether {EXCHANGED} sum moves"
    )
    assert said(6).grade == ("warning" if shift else "ok")


def test_faults_on_one_task_do_not_say_whom_a_coach_blames():
    right = Estimate(1.0, None, None, 4, 1, "cases")
    found = FaultLocalization([], right, Estimate(0.0, None, None, 4, 1, "cases"), None, {}, [], right)
    (verdict,) = asked_verdicts(Asked("coach", "p", FREE, None, found))
    assert verdict.grade == "unknown" and "n = 4 cases, 1 task)" in verdict.text


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


def test_a_coach_that_was_never_asked_has_the_price_of_the_table():
    pytest.importorskip("litellm", reason="needs the llm extra")
    price = known_price(CoachConfig(name="gemini-2.5-pro"))
    assert price is not None and 0 < price.input_usd < price.output_usd < 1e-4
    assert known_price(CoachConfig(name="hosted_vllm/mine", api_base="http://127.0.0.1:1/v1")) is None
    stated = {"usd_per_million_tokens": (1, 2)}
    assert known_price(CoachConfig(name="hosted_vllm/mine", **stated)).output_usd == pytest.approx(2e-6)
    assert known_price(CoachConfig(name="gemini-2.5-pro", **stated)) == price  # stated for what the table does not hold
    members = [MemberConfig(name="gemini-2.5-pro"), MemberConfig(name="hosted_vllm/mine")]
    both = known_price(CoachConfig(ensemble=members, **stated))
    assert both.input_usd == pytest.approx(price.input_usd + 1e-6)


def test_command_line_probes_a_real_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "tasks.train_count=6"]))
    write_rules_run(run)
    cli = CliRunner()
    done = cli.invoke(app, ["audit", str(run.folder), "--probe", "4", "--resamples", "100", "--json", "a.json"])
    assert done.exit_code == 0, done.output
    assert "this audit asks:" in done.output and "free" in done.output
    assert "too few actions to say whether control moves it" in " ".join(done.output.split()), "it was asked for"
    probes = {p["name"]: p for p in json.loads((tmp_path / "a.json").read_text())["asked"]["probes"]}
    assert probes["control"]["shift"]["value"] == 0 and probes.keys() == {
        *PERTURBATIONS,
        *(f"{EXCHANGED} {category}" for category in ("difference", "product", "sum")),
        *(f"another name for role {role}" for role in ("problem_solver", "code_executor")),  # of the four drawn
    }
    assert (run.folder / "coach" / "audit.jsonl").is_file() and not (run.folder / "coach" / "ledger.jsonl").exists()
    idle = cli.invoke(app, ["audit", str(run.folder), "--coach", "rules"])
    assert isinstance(idle.exception, ConfigError) and "--probe N or --fault-localization N" in str(idle.exception)
    pytest.importorskip("litellm", reason="needs the llm extra")
    refused = cli.invoke(
        app, ["audit", str(run.folder), "--probe", "4", "--coach", "openai/none", "--resamples", "100"]
    )
    assert isinstance(refused.exception, ConfigError) and "add --yes" in str(refused.exception)
    both = cli.invoke(app, ["audit", str(run.folder), "--probe", "4", "--coach", "openai/none", "--replay", "2"])
    assert "no checkpoint is there" in str(both.exception), "nobody is asked for money before that is known"


class Heard(ScriptedCoach):
    """Notes what comes to it, and when. refusal: what its check raises."""

    def __init__(self, refusal: Exception | None = None) -> None:
        super().__init__(lambda request: 5.0)
        self.refusal, self.told = refusal, []

    async def check(self) -> None:
        self.told.append("checked")
        if self.refusal is not None:
            raise self.refusal

    async def score(self, request: CoachRequest) -> CoachScore:
        self.told.append("asked")
        return await super().score(request)

    async def close(self) -> None:
        self.told.append("closed")


def asked_of(coach: Heard, run: Run, agreed=lambda cost: None, meanwhile=None) -> Asked:
    def make_pool(config: RunConfig, ledger: Path) -> CoachPool:
        coach.told.append(ledger.name)
        return CoachPool(coach, ledger=ledger)

    wanted = ProbeSettings(probe_actions=2, resamples=100)
    ledger = run.folder / "coach" / "audit.jsonl"
    return asyncio.run(ask_coach(run, run.config(), wanted, ledger, agreed, make_pool, meanwhile))


def test_a_coach_is_asked_once_its_cost_is_agreed_to_and_it_can_be_reached_and_is_closed_in_any_case(tmp_path):
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "tasks.train_count=6"]))
    write_rules_run(run)
    costs = []
    coach = Heard()
    asked = asked_of(coach, run, lambda cost: costs.append((cost, list(coach.told))))
    assert coach.told == ["audit.jsonl", "checked", *["asked"] * len(coach.requests), "closed"]
    assert costs == [(asked.cost, [])] and asked.cost.calls == (len(coach.requests),) * 2
    assert (asked.coach, asked.pipeline, asked.fault_localization) == ("rules", "mathchat", None) and asked.probes

    away, ledger = Heard(CoachUnavailable("no such model")), run.folder / "coach" / "audit.jsonl"
    whole = ledger.read_text()
    ledger.write_text(f'{whole}{{"kind": "ca')  # as a kill leaves it
    with pytest.raises(CoachUnavailable, match="no such model"):
        asked_of(away, run)
    assert ledger.read_text() == whole
    assert away.told == ["audit.jsonl", "checked", "closed"]

    def refuse(cost: CostEstimate) -> None:
        raise ConfigError("too dear")

    dear = Heard()
    with pytest.raises(ConfigError, match="too dear"):
        asked_of(dear, run, refuse)
    assert dear.told == []

    async def replay() -> None:
        coach.told.append("replayed")

    coach = Heard()
    asked_of(coach, run, lambda cost: coach.told.append("agreed"), replay)
    assert coach.told[:5] == ["agreed", "audit.jsonl", "checked", "replayed", "asked"], "hours come after the yes"


def test_an_audit_that_would_use_up_the_budget_before_its_last_reply_is_not_begun(tmp_path):
    pytest.importorskip("litellm", reason="needs the llm extra")
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "tasks.train_count=6"]))
    write_rules_run(run)
    coach = ["coach.name=openai/none", "coach.usd_per_million_tokens=[10,10]"]
    ledger, agreed = run.folder / "coach" / "audit.jsonl", []
    episodes, scores = run.read_episodes("step-000001")
    seen = Usage(attempts=1, tokens_in=500, tokens_out=500, cost_usd=0.01)
    was_asked = {key: replace(score, model="openai/none", usage=seen) for key, score in scores.items()}

    def ask(budget_usd: float) -> None:
        config = run.config([*coach, f"coach.budget_usd={budget_usd}"])
        pool = CoachPool(Heard(), ledger=ledger)
        asyncio.run(ask_coach(run, config, ProbeSettings(2, resamples=100), ledger, agreed.append, lambda *_: pool))

    ask(0.01)
    assert agreed.pop().assumed_reply_tokens, "nobody knows yet what a reply takes: the yes decides"
    ledger.unlink()
    run.write_episodes("step-000001", episodes, was_asked)
    with pytest.raises(ConfigError, match=r"coach.budget_usd=0.01 does not reach so far, of which .* spent \$0"):
        ask(0.01)
    assert not agreed and not ledger.exists()
    ask(20.0)
    [cost] = agreed
    earlier = Ledger(ledger)
    earlier.call(Call("a", "m", "", (), usage=Usage(attempts=1, cost_usd=20.0 - cost.usd[1] / 2)))
    earlier.close()
    with pytest.raises(ConfigError, match=r"coach.budget_usd=20 does not reach"):
        ask(20.0)


def test_what_one_coach_took_says_nothing_of_anothers_price(tmp_path):
    run = Run.create(load_config(None, [f"out={tmp_path}", "name=r", "tasks.train_count=6"]))
    write_rules_run(run)
    requests, scores = saved_requests(run, run.config())
    assert [request.action.id for request in requests] == [score.action_id for score in scores]
    assert len(scores) == 18 and {score.model for score in scores} == {"rules"}
    other = run.config().model_copy(update={"coach": CoachConfig(name="openai/none")})
    assert saved_requests(run, other) == (requests, [])


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
        pool = CoachPool(ScriptedCoach(lambda request: 5.0 + moves * (request.task.category == "sum")))
        try:
            return await run_probes(pool, requests, perturbations_for({"sum", "product"}, ()), resamples=200)
        finally:
            await pool.close()

    asked = with_asked(audit, Asked("m", "mathchat", FREE, asyncio.run(ask()), None))
    (verdict,) = [v for v in asked.verdicts if v.topic == "category"]
    assert verdict.grade == grade
    assert ("under exchanged names" in verdict.text) == (grade == "note")
