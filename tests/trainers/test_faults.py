"""What breaks is marked, counted and left out; the run goes on until a stated share has broken."""

from __future__ import annotations

import contextlib

import pytest

pytest.importorskip("torch", reason="needs the torch extra")

import numpy as np
from flat_config import with_settings
from two_step import Silent, make_tasks

from coachrl.coach.pool import CoachPool
from coachrl.config import SandboxConfig, load_config
from coachrl.errors import BudgetExceeded, CoachError
from coachrl.prompts import parse_prompt
from coachrl.runs.folder import Run
from coachrl.sandbox import make_sandbox
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.faults import FaultySandbox
from coachrl.testing.scripted import ScriptedCoach, ScriptedPolicy
from coachrl.trainers.backends.torch.policy import TrainablePolicy
from coachrl.trainers.loop import Trainer
from coachrl.trainers.schedule import step_specs
from coachrl.types import Outcome, Role, TrainSample


class Coder:
    """One agent writes a program; success where it ran."""

    name = "coder"
    patience_s = None
    place = contextlib.nullcontext
    roles = (Role("coder", "coder", parse_prompt("---\nfields: [question]\n---\n{{question}}", "coder"), python=True),)

    async def run(self, task, team, workspace) -> Outcome:
        part = await team.coder.act(question=task.prompt)
        return Outcome(bool(part.output), {"correct": 1.0})


PROGRAM = "```python\nprint(1)\n```"


def make_trainer(tmp_path, fault, *overrides, reply=lambda call: PROGRAM, coach=None):
    config = load_config(
        None, ["train.steps=2", "train.tasks_per_step=4", "train.checkpoint_every=1", "name=r", *overrides]
    )
    config = config.model_copy(update={"out": tmp_path / "runs"})
    sandbox = FaultySandbox(make_sandbox(SandboxConfig(kind="local-unsafe")), fault)
    policy = ScriptedPolicy(reply)
    trainer = Trainer(
        config, Run.create(config), pipeline=Coder(), backend=policy, sandbox=sandbox,
        coach=CoachPool(coach or ScriptedCoach(lambda request: 5.0)), train_tasks=make_tasks(8),
        heldout_tasks=make_tasks(1, "heldout"), callback=Silent(),
    )  # fmt: skip
    return trainer, sandbox


def nth(fault, *which):
    return lambda n: fault if n in which else None


@pytest.mark.parametrize("fault", ["gone", "broken", "hang"])
async def test_an_episode_that_breaks_is_counted_and_left_out(tmp_path, fault):
    # Workspace 0 is the held-out task's; 1 to 4 are those of the first step.
    # Only the struck episode runs a program: the others end in time, however slow the machine is.
    def reply(call):
        return PROGRAM if struck in call.prompt else "I would rather not."

    trainer, sandbox = make_trainer(tmp_path, nth(fault, 2), "train.episode_timeout_s=5", reply=reply)
    struck = step_specs(trainer.train_tasks, trainer.config, 1)[1].task.prompt
    await trainer.train()
    first, second = trainer.run.metrics()[1:]
    assert sandbox.faults == 1
    assert (first["train/faulty_fraction"], second["train/faulty_fraction"]) == (0.25, 0.0)
    faults = [
        e["infra_error"] for e in read_jsonl(trainer.run.folder / "episodes" / "step-000001.jsonl") if e["infra_error"]
    ]
    assert len(faults) == 1 and faults[0].startswith(
        {"hang": "timeout", "gone": "sandbox"}.get(fault, "infrastructure")
    )
    assert not any(s.mask_L.any() for s in trainer.backend.updates[0].get("coder", []) if s.masked_because)
    await sandbox.close()


@pytest.mark.parametrize("fault", ["gone", "broken"])
async def test_above_the_stated_share_the_run_stops_with_a_checkpoint_and_a_sentence(tmp_path, fault):
    trainer, sandbox = make_trainer(tmp_path, nth(fault, 1, 2, 3))
    with pytest.raises(BudgetExceeded, match=r"step 1: 75% of the episodes broke .*max_faulty_fraction is 50%"):
        await trainer.train()
    assert [path.name for path in trainer.run.checkpoints()] == ["step-000001"]
    await sandbox.close()


async def test_an_agent_that_says_nothing_is_scored_like_any_other(tmp_path):
    trainer, sandbox = make_trainer(tmp_path, nth("gone"), reply=lambda call: "")
    await trainer.train()
    assert [record["train/faulty_fraction"] for record in trainer.run.metrics()[1:]] == [0.0, 0.0]
    assert trainer.run.metrics()[-1]["train/success"] == 0.0
    await sandbox.close()


async def test_a_coach_that_is_away_for_a_while_costs_its_scores_alone(tmp_path):
    asked = []

    def score(request):
        asked.append(request)
        if len(asked) == 2:
            raise CoachError("away")
        return 5.0

    trainer, sandbox = make_trainer(tmp_path, nth("gone"), coach=ScriptedCoach(score))
    await trainer.train()
    assert [r["coach/failed_fraction"] for r in trainer.run.metrics()[1:]] == [0.25, 0.0]
    await sandbox.close()


def sample(length, advantage):
    ids = np.arange(1, length + 1, dtype=np.int64)
    ones = np.ones(length, dtype=np.float32)
    return TrainSample("p", f"a{length}", "e", "t", "r", 0, 0, ids[:3], ids, -ones, ones, advantages_L=ones * advantage)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_micro_batch_out_of_memory_is_left_out_and_counted(tiny_model, monkeypatch, where):
    torch = pytest.importorskip("torch")
    settings = with_settings(learning_rate=1e-2, micro_batch_tokens=64)
    policy = TrainablePolicy(tiny_model, settings, torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in policy.model.parameters()]
    passes = []

    def fails(self, *arguments, **more):
        passes.append(1)
        if len(passes) == 1:
            raise torch.OutOfMemoryError("scripted")
        return real(self, *arguments, **more)

    if where == "forward":
        real = TrainablePolicy._forward
        monkeypatch.setattr(TrainablePolicy, "_forward", fails)
    else:
        real = torch.Tensor.backward
        monkeypatch.setattr(torch.Tensor, "backward", fails)
    stats = policy.train([sample(40, 1.0), sample(45, -1.0), sample(50, 0.5)])
    moved = any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    assert stats["out_of_memory"] == pytest.approx(1 / 3)
    assert (stats["skipped"], moved) == ((0, True) if where == "forward" else (1, False))
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_other_errors_are_no_lack_of_memory(tiny_model, monkeypatch):
    torch = pytest.importorskip("torch")
    policy = TrainablePolicy(tiny_model, with_settings(learning_rate=1e-2), torch.device("cpu"))

    def wrong(*arguments):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(TrainablePolicy, "_forward", wrong)
    with pytest.raises(RuntimeError, match="shapes"):
        policy.train([sample(40, 1.0)])
