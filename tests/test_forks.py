"""Processes that tests fork from one that has imported everything."""

import os
import signal
import subprocess
import time

import pytest
from forks import ForkServer, command
from processes import is_running


@pytest.fixture(scope="module")
def server():
    return ForkServer(["json"])


@pytest.fixture
def start(server, tmp_path):
    """Start a Python script of that text."""

    def start(text, *words, **environment):
        script = tmp_path / "script.py"
        script.write_text(text)
        environment = {**os.environ, **environment}
        output = (tmp_path / "out", tmp_path / "err")
        return server.start("forks:script", str(script), *words, cwd=tmp_path, environment=environment, output=output)

    return start


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_has_its_words_folder_environment_and_files(start, tmp_path):
    text = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['GIVEN'], sys.stdin.read(), 'json' in sys.modules)"
    )
    process = start(text, "a", "b c", GIVEN="x")
    assert process.wait() == 0
    assert (tmp_path / "out").read_text() == f"['a', 'b c'] {tmp_path} x  True\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_process_ends_as_one_of_its_own_would(start, text, code):
    assert start(text).wait() == code


def test_what_a_process_of_run_leaves_behind_ends_with_it(server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)")
    started = [*command(server.socket, "forks:script"), str(script)]
    asking = subprocess.run(started, stdout=subprocess.PIPE, env=os.environ)
    assert asking.returncode == 0 and not is_running(int(asking.stdout))


def test_a_process_ends_with_whoever_asked_for_it(server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, signal; print(os.getpid(), flush=True); signal.pause()")
    asking = subprocess.Popen(
        [*command(server.socket, "forks:script"), str(script)], stdout=subprocess.PIPE, env=os.environ
    )
    pid = int(asking.stdout.readline())
    assert pid != asking.pid and is_running(pid)
    asking.send_signal(signal.SIGKILL)
    asking.communicate()
    wait_until(lambda: not is_running(pid))


def test_whoever_asked_ends_as_the_process_does(server, tmp_path):
    script = tmp_path / "script.py"
    for text, code in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 15)", -15)):
        script.write_text(text)
        asking = subprocess.run([*command(server.socket, "forks:script"), str(script)], env=os.environ)
        assert asking.returncode == code


def test_a_server_that_cannot_import_is_heard_of_at_once(tmp_path):
    with pytest.raises((AssertionError, ConnectionError)):
        ForkServer(["no_such_module"]).start("forks:script", "x")
