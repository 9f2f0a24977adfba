"""A coach that is down while a run trains: what it would have scored is left out, counted, and made good later. And one
that has cost what it may."""

from __future__ import annotations

import asyncio
import importlib.util

import pytest
from cases import every
from command_line import coachrl
from rich.console import Console
from test_kills import SETTINGS
from tiny_models import write_tiny_model

from coachrl.coach.clients.budget import spent_in
from coachrl.commands.run import train_run
from coachrl.config import load_config
from coachrl.errors import BudgetExceeded
from coachrl.runs.folder import Run
from coachrl.storage.jsonl import read_jsonl

if any(importlib.util.find_spec(name) is None for name in ("litellm", "torch", "aiohttp")):
    pytest.skip("needs the extras llm and torch", allow_module_level=True)
from scripted_server import CUT, ScriptedServer, say, status

ACTIONS = 6  # of a step: two episodes of three agents
TOKENS = 16
SIX = "word " * (TOKENS - 2) + "\nPROCESS_SCORE: 6"


class Outage:
    """The server's script: during step 2 connections are cut, or refused with 503; `over` once it is repaired."""

    def __init__(self):
        self.run, self.over, self.refused = None, False, 0

    def __call__(self, request):
        if self.over or self.run is None or [record["step"] for record in self.run.metrics()] != [0, 1]:
            return say(SIX)
        self.refused += 1
        return CUT if self.refused % 2 else status(503)


@pytest.fixture
async def outage(tmp_path, monkeypatch):
    """The outage, and a run of three steps that it hits."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = write_tiny_model(
        tmp_path / "tiny", hidden_size=32, intermediate_size=32, num_hidden_layers=1, max_position_embeddings=4096
    )
    script = Outage()
    async with ScriptedServer(script) as server:
        settings = [*SETTINGS, "train.steps=3", "eval.every=0", f"model={model}", "name=out", f"out={tmp_path}"]
        settings += [f"coach.api_base={server.openai_base}", "coach.give_up_after_s=20", "coach.max_attempts=2"]

        def begun(*more):
            config = load_config(None, [*settings, *more])
            script.run = Run.create(config)
            return config

        yield script, begun


async def train(config, run, resume=False):
    await train_run(config, run, Console(quiet=True), resume=resume)


async def test_what_it_missed_is_left_out_counted_and_filled_in_by_a_rescore(outage, tmp_path):
    script, begun = outage
    config = begun("coach.max_failed_fraction=1")
    await train(config, script.run)
    steps = {record["step"]: record for record in script.run.metrics()}
    assert [steps[n]["coach/failed_fraction"] for n in (1, 2, 3)] == [0.0, 1.0, 0.0]
    assert steps[2]["train/masked/unscored"] == ACTIONS and "train/masked/unscored" not in steps[1]
    assert script.refused > ACTIONS  # each was tried again
    _, scores = script.run.read_episodes("step-000002")
    assert {score.status for score in scores.values()} == {"failed"} and len(scores) == ACTIONS

    done = await asyncio.to_thread(coachrl, "rescore", script.run.folder, "--failed-only", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"rescore: {ACTIONS} scored, 0 abstained, 0 failed" in done.stdout
    again = await asyncio.to_thread(coachrl, "rescore", script.run.folder, "--failed-only", cwd=tmp_path)
    assert f"rescore: {ACTIONS} scored, 0 abstained, 0 failed" in again.stdout


async def test_beyond_the_stated_share_the_run_stops_and_goes_on_when_the_coach_is_back(outage):
    script, begun = outage
    config = begun()
    with pytest.raises(
        BudgetExceeded,
        match=r"step 2: 100% of the coach's calls failed, the last with: .* is 25%\); checkpoint written",
    ):
        await train(config, script.run)
    assert [record["step"] for record in script.run.metrics()] == [0, 1, 2]
    assert script.run.checkpoints()[-1].name == "step-000002"
    script.over = True
    with script.run.ledger.open("a") as ledger:
        ledger.write('{"kind": "ca')  # a full disk or a kill, as it was written
    await train(config, script.run, resume=True)
    assert [record["step"] for record in script.run.metrics()] == [0, 1, 2, 3]
    assert script.run.metrics()[-1]["coach/failed_fraction"] == 0.0
    assert {line["kind"] for line in read_jsonl(script.run.ledger)} == {"call", "score", "resumed"}


@pytest.mark.parametrize(("calls", "ended_in"), every(2, [(22, "step 3"), (16, "audit after step 2")]))
async def test_what_the_audit_of_a_run_asks_counts_in_its_budget_and_no_step_is_lost(outage, calls, ended_in):
    """Every call costs $16: one before the run, six in a step, and six in the audit of every step but the first."""
    script, begun = outage
    script.over = True
    prices = ["coach.usd_per_million_tokens=[0,1000000]", f"coach.max_tokens={TOKENS}"]
    audited = ["audit.every=1", f"audit.reference_set={ACTIONS}"]
    config = begun(*prices, *audited, f"coach.budget_usd={calls * TOKENS}")
    with pytest.raises(BudgetExceeded, match=rf"^{ended_in}: coach\.budget_usd .* is reached.*; go on with: coachrl"):
        await train(config, script.run)
    assert spent_in(script.run.ledger) == calls * TOKENS
    assert [record["step"] for record in script.run.metrics()] == [0, 1, 2]
    assert script.run.checkpoints()[-1].name == "step-000002"
    more = script.run.reconfigure(["coach.budget_usd=10000"])
    await train(more, script.run, resume=True)
    assert [record["step"] for record in script.run.metrics()] == [0, 1, 2, 3]
