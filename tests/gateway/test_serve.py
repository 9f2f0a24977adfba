"""`coachrl serve`: a team that was trained for a step answers the same app as its models."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")
pytest.importorskip("openai", reason="comes with the dev extra")
pytest.importorskip("anthropic", reason="comes with the dev extra")

import anthropic
import openai
from command_line import coachrl, start

from coachrl.commands.serve import serve_run
from coachrl.errors import ConfigError, PackageMissing
from coachrl.runs.folder import Run
from coachrl.trainers.backends.torch.backend import TorchBackend
from coachrl.types import SamplingParams

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
APP = """
import os

from openai import OpenAI

from coachrl.types import Task


def load_tasks(settings):
    tasks = [Task(f"t{n}", "sums", f"{n} + {n}?", ground_truth=str(2 * n)) for n in range(5)]
    return tasks[:4], tasks[4:]


def conversation(client, question):
    messages = [{"role": "user", "content": question}]
    for role in ("planner", "coder", "critic"):
        said = client.chat.completions.create(model=role, messages=messages, max_tokens=12).choices[0].message
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": "Go on."}]
    return messages


def solve(task, endpoint):
    return conversation(endpoint.openai(), task.prompt)[-2]["content"]


def grade(task, result):
    return len(result) / 100


if __name__ == "__main__":
    print(len(conversation(OpenAI(), "1 + 1?")))
"""
CONFIG = """
pipeline:
  name: gateway
  options:
    run: served_app:solve
    grade: served_app:grade
    roles: {planner: {policy: thinker}, coder: {}, critic: {policy: thinker, max_new_tokens: 20}}
tasks: {source: "served_app:load_tasks"}
algorithm: {name: outcome}
train: {steps: 1, tasks_per_step: 2, learning_rate: 1e-3}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, chat_model):
    """A folder with an app, and a run that trained it for a step."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "served_app.py").write_text(APP, encoding="utf-8")
    (folder / "config.yaml").write_text(CONFIG, encoding="utf-8")
    done = coachrl("train", "-c", "config.yaml", f"model={chat_model}", "name=team", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Serving:
    """`coachrl serve` as a process of its own, until the block is left, or it is interrupted before."""

    over = False

    def __init__(self, place, *arguments, **environment):
        self.command = start("serve", "runs/team", "--port", "0", *arguments, cwd=place, **environment)

    def __enter__(self):
        end = time.monotonic() + 300
        while "Ctrl-C" not in (printed := self.command.printed()):
            assert self.command.running, self.command.finish().stderr
            assert time.monotonic() < end, printed
            time.sleep(0.05)
        self.printed = printed
        self.url = re.search(r"http://\S+:\d+(?=/v1)", printed)[0]
        return self

    def interrupt(self):
        os.kill(self.command.pid, signal.SIGINT)
        return self.ended()

    def ended(self):
        self.over = True
        return self.command.finish(300)

    def __exit__(self, *_):
        if not self.over:
            self.interrupt()

    def openai(self, key="any"):
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, timeout=300)


@pytest.fixture(scope="module")
def serving(place):
    with Serving(place) as serving:
        yield serving


def said(client, role, text="Hello.", **settings):
    done = client.chat.completions.create(model=role, messages=[{"role": "user", "content": text}], **settings)
    return done.choices[0]


def test_the_header_names_the_models_and_a_call_that_works(serving):
    assert "the team after step 1 answers at" in serving.printed
    assert "models: planner, coder, critic" in serving.printed
    [line] = [line for line in serving.printed.splitlines() if line.startswith("curl ")]
    done = subprocess.run([*shlex.split(line), "--silent"], capture_output=True, text=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["role"] == "assistant"


def test_the_app_that_was_trained_runs_on_its_trained_team_by_another_url(serving, place):
    environment = {**os.environ, "OPENAI_BASE_URL": f"{serving.url}/v1", "OPENAI_API_KEY": "any"}
    command = [sys.executable, "served_app.py"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["7"], done.stderr


def test_the_example_of_the_page_runs(serving, monkeypatch, capsys):
    [example] = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{serving.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    names = {}
    exec(compile(example, PAGE.name, "exec"), names)
    assert capsys.readouterr().out == f"{names['reply'].choices[0].message.content}\n"


def test_roles_are_answered_by_the_trained_weights_and_roles_that_share_a_policy_alike(serving, place):
    with serving.openai() as client:
        texts = {
            role: said(client, role, "Who?", temperature=0, max_tokens=16, logprobs=True)
            for role in ("planner", "critic", "coder")
        }
    run = Run.open(place / "runs" / "team")
    models = {policy: run.last_checkpoint() / policy for policy in ("thinker", "coder")}
    backend = TorchBackend(models, run.config(), dict.fromkeys(models, False))
    try:
        for role, policy in (("planner", "thinker"), ("coder", "coder")):
            ids = backend.tokenizer(policy).encode_chat([{"role": "user", "content": "Who?"}])
            assert texts[role].message.content == greedy(backend, policy, ids)
    finally:
        backend.close()
    assert texts["planner"].message.content == texts["critic"].message.content


def greedy(backend, policy, ids):
    drawn = asyncio.run(backend.generate(policy, ids, SamplingParams(16, temperature=0.0)))
    return backend.tokenizer(policy).decode(drawn.token_ids).strip()


def test_a_seed_repeats_a_reply_and_n_gives_others(serving):
    """The first of n is drawn by the same numbers as a single reply; three at once are rounded otherwise than one, by
    which a later token may fall the other way."""

    def several(client):
        messages = [{"role": "user", "content": "Hello."}]
        drawn = client.chat.completions.create(model="coder", messages=messages, seed=5, max_tokens=20, n=3)
        return [choice.message.content for choice in drawn.choices]

    with serving.openai() as client:
        one, again = (said(client, "coder", seed=5, max_tokens=20).message.content for _ in range(2))
        texts, repeated = several(client), several(client)
    assert one == again and texts == repeated
    assert one[0] == texts[0][0] and len(set(texts)) == 3


def test_limits_are_the_calls_or_the_roles_and_what_does_not_fit_is_told(serving):
    with serving.openai() as client:
        assert said(client, "coder", max_tokens=3, logprobs=True).finish_reason == "length"
        critic = client.chat.completions.create(model="critic", messages=[{"role": "user", "content": "?"}], seed=1)
        long = client.chat.completions.create(
            model="coder", messages=[{"role": "user", "content": "x" * 4050}], max_tokens=4000, seed=1
        )
        with pytest.raises(openai.BadRequestError) as overflow:
            said(client, "coder", "x" * 5000)
        with pytest.raises(openai.NotFoundError, match="planner, coder, critic"):
            said(client, "gpt-5")
        tiny = said(client, "coder", temperature=1e-300, max_tokens=4)
    assert critic.usage.completion_tokens <= 20
    assert long.usage.total_tokens <= 4096
    assert overflow.value.code == "context_length_exceeded"
    assert tiny.message.content == tiny.message.content.strip()


def test_the_other_endpoints_answer_too(serving):
    with serving.openai() as client:
        response = client.responses.create(model="coder", input="Hello.", max_output_tokens=5)
        stream = client.chat.completions.create(
            model="coder", messages=[{"role": "user", "content": "?"}], max_tokens=30, stream=True, seed=3
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        whole = said(client, "coder", "?", max_tokens=30, seed=3).message.content
        assert [model.id for model in client.models.list()] == ["planner", "coder", "critic"]
    assert (response.status, response.usage.output_tokens) == ("incomplete", 5) or response.status == "completed"
    assert streamed == whole
    with anthropic.Anthropic(base_url=serving.url, api_key="any", timeout=300) as client:
        message = client.messages.create(
            model="planner", max_tokens=4, messages=[{"role": "user", "content": "Hello."}]
        )
    assert message.usage.output_tokens <= 4


def test_a_stop_text_ends_a_reply_and_is_no_part_of_it(serving):
    with serving.openai() as client:
        whole = said(client, "coder", max_tokens=60, seed=7).message.content
        mark = whole[len(whole) // 2]
        cut = said(client, "coder", max_tokens=60, seed=7, stop=[mark])
    assert cut.message.content == whole[: whole.index(mark)].strip()
    assert cut.finish_reason == "stop"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_call_that_is_under_way_is_told_of_the_end_and_does_not_hold_it_up(place, number):
    with Serving(place) as serving:
        with serving.openai() as client, pytest.raises(openai.InternalServerError, match="the server is ending"):
            said(client, "coder", max_tokens=2)
            threading.Timer(0.2, os.kill, (serving.command.pid, number)).start()
            while True:  # a call is under way all the time
                client.chat.completions.create(
                    model="coder", messages=[{"role": "user", "content": "Hello."}], max_tokens=3000, n=64
                )
        done = serving.ended()
    assert done.returncode == 0
    assert "Traceback" not in done.stderr and "rror" not in done.stderr


def test_a_key_is_asked_for_where_one_is_set(place):
    with Serving(place, COACHRL_SERVE_KEY="open sesame") as serving:
        assert "Authorization: Bearer $COACHRL_SERVE_KEY" in serving.printed
        assert "open sesame" not in serving.printed
        with serving.openai("open sesame") as client:
            assert said(client, "coder", max_tokens=2)
        for key in ("another", "open", "open sesame!"):
            with serving.openai(key) as client, pytest.raises(openai.AuthenticationError):
                said(client, "coder", max_tokens=2)
        done = serving.interrupt()
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0)


def refused(place, *arguments, **environment):
    done = coachrl("serve", *arguments, cwd=place, **environment)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_what_cannot_be_served_is_one_line_before_a_model_is_loaded(place):
    assert "set COACHRL_SERVE_KEY" in refused(place, "runs/team", "--host", "0.0.0.0", "--port", "0")
    for key in ("ключ", "sesame\n", " sesame", " "):
        assert "clients can send no such key" in refused(place, "runs/team", "--port", "0", COACHRL_SERVE_KEY=key)
    assert "cannot be used" in refused(place, "runs/team", "--host", "203.0.113.7")
    assert "no such host" in refused(place, "runs/team", "--host", "no such host")
    assert "not a run folder" in refused(place, "runs/none")
    assert "torch.threadz" in refused(place, "runs/team", "torch.threadz=1", "--port", "0")


def test_a_port_that_is_taken_is_named(serving, place):
    port = serving.url.rpartition(":")[2]
    assert f"port {port} cannot be used" in refused(place, "runs/team", "--port", port)


def test_an_engine_that_is_named_and_not_installed_is_not_replaced_by_another(place, monkeypatch):
    monkeypatch.delitem(sys.modules, "coachrl.trainers.backends.vllm.backend", raising=False)
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(PackageMissing, match=r"needs vllm.*: pip install 'coachrl\[vllm\]'"):
        serve_run(Run.open(place / "runs" / "team"), ["backend=vllm"], "127.0.0.1", 0, print, print)


def test_a_machine_without_the_extra_is_told_its_name(place, monkeypatch):
    monkeypatch.delitem(sys.modules, "coachrl.gateway.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"needs uvicorn: pip install 'coachrl\[gateway\]'"):
        serve_run(Run.open(place / "runs" / "team"), (), "127.0.0.1", 0, print, print)
