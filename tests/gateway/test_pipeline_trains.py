"""Real clients, a real port, a real (tiny) model: what an app calls is what is trained."""

import asyncio
import json

import numpy as np
import pytest
from command_line import coachrl
from gateway_apps import user

from coachrl.commands.build import make_backend, policies_of
from coachrl.config import PipelineConfig, RunConfig
from coachrl.pipelines import make_pipeline
from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.runs.folder import Run
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.trainers.samples import to_samples
from coachrl.types import Outcome, Role, SamplingParams, Task

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"first": {"type": "integer"}}}},
}
TASK = Task("t", "k", "2 + 2?", ground_truth="4")


def with_every_client(task, endpoint):
    """Plain, streamed, with tools, and two replies at once; then from coroutines."""
    client = endpoint.openai()
    talk = [user(task.prompt)]
    first = client.chat.completions.create(model="planner", messages=talk, logprobs=True)
    talk += [first.choices[0].message.model_dump(include={"role", "content"}), user("go on")]
    pieces = client.chat.completions.create(model="planner", messages=talk, stream=True)
    streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    tooled = client.chat.completions.create(
        model="coder", messages=[user("add")], tools=[TOOL], n=2, tool_choice="required"
    )
    responded = client.responses.create(model="coder", input="hello")
    return {
        "logprobs": [token.logprob for token in first.choices[0].logprobs.content],
        "streamed": streamed,
        "tooled": [choice.message.content for choice in tooled.choices],
        "responded": responded.output_text,
        "also": asyncio.run(from_coroutines(endpoint)),
    }


async def from_coroutines(endpoint):
    async with endpoint.async_openai() as client:
        replies = await asyncio.gather(
            *(client.chat.completions.create(model="planner", messages=[user(f"{n}")]) for n in range(3))
        )
        return [reply.choices[0].message.content for reply in replies]


def keep(task, result):
    return Outcome(True, summary=json.dumps(result))


def gateway(run, **more):
    options = {"run": f"{__name__}:{run}", "grade": f"{__name__}:keep", "roles": {"planner": {}, "coder": {}}}
    given = {**options, "patience_s": 60.0, **more}
    return make_pipeline(PipelineConfig(name="gateway", max_new_tokens=12, options=given))


@pytest.fixture
def backend(chat_model):
    config = RunConfig(model=str(chat_model))
    made = make_backend(config, policies_of(config, gateway("with_every_client")))
    yield made
    made.close()


async def play(pipeline, backend, count=1):
    specs = [EpisodeSpec(f"e{n}", TASK, n) for n in range(count)]
    return await rollout(specs, RolloutContext(pipeline, backend, sandbox=None, sampling=SamplingParams()))


async def test_what_is_recorded_is_what_was_read_and_written(backend):
    [episode] = await play(gateway("with_every_client"), backend)
    assert episode.infra_error is None and len(episode.actions) == 8
    said = json.loads(episode.outcome.summary)
    first, second, *rest = episode.actions
    assert said["logprobs"] == pytest.approx(first.logprobs)
    assert second.prompt_ids[: len(first.prompt_ids) + len(first.response_ids)] == (
        *first.prompt_ids,
        *first.response_ids,
    )
    assert texts(second, rest[2]) == stripped(said["streamed"], said["responded"])
    assert sorted(texts(*rest[:2])) == sorted(stripped(*said["tooled"]))
    assert sorted(texts(*rest[3:])) == sorted(stripped(*said["also"]))
    tokenizer = backend.tokenizer("coder")
    assert '"name": "add"' in tokenizer.decode(rest[0].prompt_ids)  # its template knows no tools: told in words


def texts(*actions):
    return stripped(*(action.text for action in actions))


def stripped(*said):
    return [(text or "").strip() for text in said]


async def test_the_trainer_finds_the_log_probabilities_that_were_recorded(backend):
    episodes = await play(gateway("with_every_client"), backend, 3)
    samples = backend.with_trainer_logprobs(to_samples(episodes))
    all_samples = [sample for group in samples.values() for sample in group]
    gaps = [np.abs(sample.trainer_logprobs_L - sample.old_logprobs_L).max() for sample in all_samples]
    assert len(gaps) == 24 and max(gaps) < 0.05


# The same team as a pipeline and as an app: the same prompts, seeds and batches, and so the same replies.

ASK = parse_prompt("---\nfields: [problem]\n---\nPlan for {{problem}}", "ask")
DO = parse_prompt("---\nfields: [plan]\n---\nDo {{plan}}", "do")


class AsPipeline(Pipeline):
    name = "as-pipeline"
    roles = (Role("planner", policy="planner", prompt=ASK), Role("coder", policy="coder", prompt=DO))

    async def run(self, task, team, workspace):
        plan = await team.planner.act(problem=task.prompt)
        done = await team.coder.act(plan=plan.text)
        return Outcome(True, summary=done.text)


async def as_app(task, endpoint):
    async with endpoint.async_openai() as client:
        text = f"Plan for {task.prompt}"
        for role in ("planner", "coder"):
            reply = await client.chat.completions.create(model=role, messages=[user(text)])
            text = f"Do {reply.choices[0].message.content}"
    return text


async def test_a_team_says_the_same_through_the_gateway_as_in_a_pipeline(backend):
    own = await play(AsPipeline(PipelineConfig(max_new_tokens=12)), backend, 5)
    through = await play(gateway("as_app"), backend, 5)
    for one, other in zip(own, through, strict=True):
        for mine, theirs in zip(one.actions, other.actions, strict=True):
            assert mine == theirs


async def test_an_app_that_plays_waits_for_none_that_waits_for_its_place(backend):
    async with asyncio.timeout(60):
        episodes = await play(gateway("as_app", concurrency=1, patience_s=1e6), backend, 3)
    assert [len(episode.actions) for episode in episodes] == [2, 2, 2]


PLAIN = """
def solve(task, endpoint):
    client = endpoint.openai()
    def ask(model, text):
        talk = [{"role": "user", "content": text}]
        return client.chat.completions.create(model=model, messages=talk).choices[0].message.content
    return ask("coder", ask("planner", task.prompt))

def grade(task, result):
    return 0.5
"""
CONFIG = """
pipeline:
  name: gateway
  options:
    run: my_app:solve
    grade: my_app:grade
    roles: {planner: , coder: {policy: planner}}
tasks: {source: word-problems, train_count: 3, heldout_count: 2}
"""


@pytest.mark.slow
def test_ten_lines_of_yaml_train_an_app_and_the_run_reads_as_any_other(tmp_path, chat_model):
    (tmp_path / "my_app.py").write_text(PLAIN)
    (tmp_path / "run.yaml").write_text(CONFIG)
    assert len(CONFIG.strip().splitlines()) <= 10
    small = ["train.steps=1", "train.tasks_per_step=3", f"model={chat_model}", "pipeline.max_new_tokens=8"]
    quick = ["train.mask_truncated=false", "train.keep_checkpoints=0", "name=gateway"]
    done = coachrl("train", "-c", "run.yaml", *small, *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run.open(tmp_path / "runs" / "latest")
    [record] = run.metrics()[1:]
    assert record["train/grad_norm/planner"] > 0 and record["train/calls"] == 2
    episodes, scores = run.read_episodes("step-000001")
    assert [[action.role for action in episode.actions] for episode in episodes] == [["planner", "coder"]] * 3
    assert all(action.credit is not None and scores[action.id].status == "scored" for action in episodes[0].actions)
    for command in ("audit", "rescore --coach rules", "report"):
        verb, *options = command.split()
        done = coachrl(verb, "runs/latest", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
