"""Apps that are commands: what they are told, what is taken from them, and what is ended with them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_apps import play, wait_until
from processes import is_running

from coachrl.config import PipelineConfig
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.testing.scripted import ScriptedPolicy

pytest.importorskip("starlette", reason="needs the gateway extra")
pytest.importorskip("uvicorn", reason="needs the gateway extra")

RESULTS = []


def kept(task, result):
    RESULTS.append(result)
    return result == "fine"


def gateway(**options):
    settings = {"grade": f"{__name__}:kept", "roles": {"planner": {}}, **options}
    return make_pipeline(PipelineConfig(name="gateway", options=settings))


async def played(pipeline):
    return await play(pipeline, ScriptedPolicy(lambda call: "fine"))


APP = """
import json, os, subprocess, sys, urllib.request
task = json.load(open(sys.argv[1]))
assert "truth" not in json.dumps(task) and "MY_API_KEY" not in os.environ and os.environ["MY_PLACE"] == "here"
body = {"model": "planner", "messages": [{"role": "user", "content": task["prompt"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
said = json.load(urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)))
print("a line of its log")
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "ours")
    monkeypatch.setenv("MY_PLACE", "here")

    def write(rest, arguments="{task_file}", **options):
        (tmp_path / "app.py").write_text(APP + rest)
        return gateway(command=f"{sys.executable} {tmp_path / 'app.py'} {arguments}", **options)

    return write


async def test_a_command_finds_its_team_in_the_environment_and_prints_its_result(app):
    with_its_client = "import openai\nsaid = openai.OpenAI().chat.completions.create(**body).choices[0].message"
    [episode] = await played(app(f"{with_its_client}\nprint(said.content)"))
    assert episode.outcome.success
    assert [action.prompt_text for action in episode.actions] == ["task 0", "task 0"]


async def test_the_result_of_a_command_may_be_a_file(app):
    writes = "json.dump({'a': 1}, open(sys.argv[2], 'w'))"
    await played(app(writes, "{task_file} {result_file}"))
    assert RESULTS[-1] == {"a": 1}
    [none] = await played(app("", "{task_file} {result_file}"))
    assert none.outcome.reason == "app: it ended without writing its {result_file}"


async def test_brackets_without_an_end_are_a_result_of_text(app):
    """A model in a loop writes them, and its app prints what it wrote."""
    await played(app("print('[' * 5000)"))
    assert RESULTS[-1] == "[" * 5000


async def test_a_command_may_print_more_than_is_kept_of_it(app):
    floods = "for _ in range(40): sys.stdout.write('x' * 2**19 + chr(10)); sys.stderr.write('y' * 2**19)"
    [episode] = await played(app(f"{floods}\nprint('fine')"))
    assert episode.outcome.success
    [endless] = await played(app("sys.stdout.write('x' * (2**24 + 2))"))
    assert endless.outcome.reason == "app: the last line that it printed has more than 16,777,216 bytes"


async def test_what_a_process_prints_that_fled_from_its_group_is_not_waited_for(app, tmp_path, monkeypatch):
    monkeypatch.setattr("coachrl.gateway.apps._DRAIN_S", 0.1)
    pid = tmp_path / "fled"
    words = ["sh", "-c", f"echo $$ > {pid}; exec sleep 1000"]
    flees = f"print('fine', flush=True)\nsubprocess.Popen({words}, start_new_session=True)"
    wait = f"\nimport time\nwhile not os.path.exists('{pid}'): time.sleep(0.01)"
    [episode] = await played(app(flees + wait))
    await wait_until(lambda: pid.read_text().strip())
    os.kill(int(pid.read_text()), 9)
    assert episode.outcome.success


async def test_a_secret_reaches_a_command_only_where_it_is_named(app):
    [told] = await played(app("print('fine')", pass_env=["MY_API_KEY"]))
    name = Path(sys.executable).name
    assert told.infra_error.startswith(f"app: {name} ended with exit code 1: AssertionError (before it was answered")


async def test_a_secret_that_a_command_fails_with_is_not_written_down(app, monkeypatch):
    monkeypatch.setenv("MY_SEARCH_KEY", "key-0123456789abcdef")
    [told] = await played(app("sys.exit('refused: ' + os.environ['MY_SEARCH_KEY'])", pass_env=["MY_SEARCH_KEY"]))
    assert "refused: [MY_SEARCH_KEY]" in told.outcome.reason


async def test_what_a_command_leaves_running_is_ended_with_it(app, tmp_path):
    left = tmp_path / "left"
    sleeper = f"subprocess.Popen(['sh', '-c', 'echo $$ > {left}.tmp; mv {left}.tmp {left}; sleep 1000'])"
    wait = f"\nimport time\nwhile not os.path.exists('{left}'): time.sleep(0.01)\nprint('fine')"
    [episode] = await played(app(sleeper + wait))
    assert episode.outcome.success
    await wait_until(lambda: not is_running(int(left.read_text())))


async def test_a_command_that_hangs_is_ended(app, tmp_path):
    pid = tmp_path / "pid"
    [episode] = await played(
        app(f"open('{pid}', 'w').write(str(os.getpid()))\nimport time\ntime.sleep(1000)", idle_timeout_s=3.0)
    )
    assert "made no call" in episode.infra_error
    await wait_until(lambda: not pid.exists() or not is_running(int(pid.read_text())))


KILLED = """
import asyncio, sys
from coachrl.gateway.apps import CommandApp, Endpoint
from coachrl.types import Task
asyncio.run(CommandApp(sys.argv[1], ()).play(Task("t", "c", "p"), Endpoint("http://127.0.0.1:9/v1", "k")))
"""


async def test_a_command_ends_with_a_run_that_is_killed(tmp_path):
    (tmp_path / "app.sh").write_text('sleep 1000 & echo "$! $$" > pids.tmp; mv pids.tmp pids; wait')
    (places := tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(places)}
    run = subprocess.Popen([sys.executable, "-c", KILLED, "sh app.sh"], cwd=tmp_path, env=environment)
    pids = tmp_path / "pids"
    try:
        await wait_until(pids.exists)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        await wait_until(lambda: len(children.read_text().split()) == 2)  # its guard begins just after it
    finally:
        run.kill()
        run.wait()
    await wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))
    [left] = places.iterdir()
    assert left.name.startswith("coachrl-app-") and {path.name for path in left.iterdir()} == {"task.json"}
    subprocess.run([sys.executable, "-c", KILLED, "echo done"], cwd=tmp_path, env=environment, check=True)
    assert not list(places.iterdir()), "the next run tidies up"


async def test_a_guard_that_somebody_ends_takes_nothing_with_it(app):
    ends_it = """
import glob, signal, time
def guards():
    for place in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(place).read().split("\\0")
        except OSError:
            continue
        if len(words) > 3 and "kill -s KILL" in words[2] and words[3] == str(os.getpid()):
            yield int(place.split("/")[2])
while not (found := list(guards())):
    time.sleep(0.01)
os.kill(found[0], signal.SIGKILL)
time.sleep(0.2)
print(said["choices"][0]["message"]["content"])
"""
    [episode] = await played(app(ends_it))
    assert episode.outcome.success


async def test_where_nothing_can_watch_over_a_command_it_is_not_run_on(app, monkeypatch, tmp_path):
    pipeline = app("print('fine')")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"command: sh, to watch over it, cannot be run: No such file"):
        await played(pipeline)


async def test_a_command_that_is_not_there_is_the_runs_end():
    with pytest.raises(ConfigError, match="no-such-program cannot be run: No such file"):
        await played(gateway(command="no-such-program {task_file}"))
