"""`coachrl audit --replay` on a run of a tiny model, and how fidelity is told from values that are known."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from coachrl.audit.probes.replay import ReplayedAction as Replayed
from coachrl.audit.probes.replay import ReplayFidelity, _fidelities, replay_verdict
from coachrl.cli.main import app
from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl


@pytest.fixture
async def run(tmp_path, roomy_model) -> Run:
    settings = [
        *("pipeline.name=mathchat", "tasks.source=word-problems", "tasks.train_count=4", "tasks.heldout_count=1"),
        *("coach.evidence.ground_truth=all", "pipeline.max_new_tokens=12", "pipeline.prompt_style=short"),
        *("train.steps=1", "train.tasks_per_step=3", "train.mask_truncated=false", "algorithm.kl_beta=0"),
        *("sandbox.kind=local-unsafe", "torch.threads=1", f"model={roomy_model}", f"out={tmp_path}", "name=run"),
    ]
    config = load_config(None, settings)
    run = Run.create(config)
    await train_run(config, run, Console(quiet=True), resume=False)
    return run


def audit(run: Run, *arguments: str):
    return CliRunner().invoke(app, ["audit", str(run.folder), *arguments])


def test_an_audit_measures_goes_on_where_it_stopped_and_says_what_is_gone(run: Run):
    unasked = audit(run, "--replay", "5", "--probe", "1", "--coach", "openai/none")
    assert "add --yes" in str(unasked.exception) and "replayed" not in unasked.output, "the yes comes before the hours"
    first = audit(run, "--replay", "5", "--json", "-")
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)["replayed"]
    assert (found["checkpoint"], found["others"], found["playouts"]) == ("step-000001", 3, 2)
    assert found["measured"] + found["not_reproduced"] + found["unmeasured"] == 5
    assert found["not_reproduced"] == found["unmeasured"] == 0 and found["tokens"] > 0
    kept = run.folder / "coach" / "replayed.jsonl"
    records = list(read_jsonl(kept))
    digests = {action.id: action.digest for one in run.read_episodes("step-000001")[0] for action in one.actions}
    assert [record["action_digest"] for record in records] == [digests[record["action"]] for record in records]
    assert len(records) == 5 and sum(record["tokens"] for record in records) == found["tokens"]

    lines = kept.read_text().splitlines(keepends=True)
    kept.write_text("".join(lines[:3]) + lines[3][:20])  # killed while it wrote
    again = audit(run, "--replay", "5", "--json", "-")
    assert json.loads(again.stdout)["replayed"] == found, "what is drawn depends on the decision alone"
    assert "replayed 5 of 5 actions" in again.output and kept.read_text() == "".join(lines)
    lost = {**json.loads(lines[4]), "worth": None, "problem": "the sandbox was down"}  # of an earlier version
    kept.write_text("".join(lines[:4]) + json.dumps(lost) + "\n")
    assert json.loads(audit(run, "--replay", "5", "--json", "-").stdout)["replayed"] == found, "it is tried again"
    kept.write_text("".join(lines))
    before = kept.read_text()
    both = json.loads(audit(run, "--replay", "5", "--probe", "1", "--json", "-").stdout)  # asks its rules, too
    assert both["replayed"] == found and both["asked"]["coach"] == "rules"
    assert kept.read_text() == before

    kept.write_text("".join(["[1]\n", lines[0].replace('"tokens"', '"tokenz"'), *lines[1:]]))  # another version's, too
    team = run.folder / "roles.json"
    team.write_text(team.read_text().replace('"description": "', '"description": "once '))
    damaged = audit(run, "--replay", "5", "--json", "-")
    assert "not the team that the run began with" in " ".join(damaged.output.split())
    assert json.loads(damaged.stdout)["replayed"] == found
    assert "replayed.jsonl: lines 1, 2 (2 of 6) are left out" in damaged.output
    kept.unlink()
    kept.mkdir()
    refused = audit(run, "--replay", "5")
    assert refused.exit_code != 0 and "Is a directory" in str(refused.exception)
    assert "replayed" not in refused.output, "it is told before anything is measured"
    kept.rmdir()
    kept.write_text(before)

    for checkpoint in run.checkpoints():
        checkpoint.rename(run.folder / "elsewhere")
    gone = audit(run, "--replay", "5")
    assert gone.exit_code != 0 and "--replay plays with the run's own weights, and no checkpoint is there" in str(
        gone.exception
    )


def replayed(number, score, worth, task=None, role="a"):
    return Replayed(f"e/{number}", task or f"t{number % 6}", role, 0, "k", "rules", score, worth, 10)


def fidelity(actions, problems=0) -> ReplayFidelity:
    known = [one for one in actions if one.worth is not None]
    found = list(_fidelities(known, resamples=200, seed=0))
    return ReplayFidelity("p", "rules", "step-000001", 3, 2, len(known), problems, 0, 10 * len(actions), found)


def test_a_coach_whose_scores_go_with_what_actions_are_worth_is_told_from_one_whose_do_not():
    faithful = fidelity([replayed(n, float(n % 10), (n % 10) / 10 + (n % 3) / 20) for n in range(60)])
    verdict = replay_verdict(faithful)
    assert verdict.grade == "ok" and verdict.value > 0.9 and "600 tokens drawn" in verdict.text
    backwards = fidelity([replayed(n, float(n % 10), -(n % 10) / 10 + (n % 3) / 20) for n in range(60)], problems=2)
    verdict = replay_verdict(backwards)
    assert verdict.grade == "warning" and verdict.value < -0.9 and "2 could not be reproduced" in verdict.text
    assert "do not go with" in verdict.text
    few = replay_verdict(fidelity([replayed(n, float(n), n / 10) for n in range(5)]))
    assert few.grade == "unknown" and few.value is None


def test_fidelity_is_told_apart_by_role():
    actions = [replayed(n, float(n % 10), (n % 10) / 10, role="good") for n in range(40)]
    actions += [replayed(n, float(n % 10), -(n % 10) / 10, role="bad") for n in range(40)]
    by_kind = {one.of: one.rho for one in fidelity(actions).fidelity}
    assert by_kind["role good"].value == pytest.approx(1) and by_kind["role bad"].value == pytest.approx(-1)
    assert list(by_kind) == ["all", "role bad", "role good"], "one turn and one category are not worth a line"
