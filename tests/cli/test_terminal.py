"""What models, task files and servers write reaches a terminal as text: no orders, no markup, no passwords."""

# ruff: noqa: E501
import asyncio
import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from command_line import coachrl
from saved_runs import save_run
from tiny_models import write_tiny_model

from coachrl.cli.console import ConsoleHandler, PlainConsole, Rows, print_table
from coachrl.config import load_config
from coachrl.runs.folder import Run
from coachrl.text import brief, one_line, printable

HOSTILE = (
    "\x1b[2J\x1b]8;;http://evil\x07here\x1b]8;;\x07 \x9b31m \x00\x08 gone\rback \u202egnp.exe\u2066 \u200b\u2028 \U000e0041 "
    "[red]loud[/link=x] [/nope] [bold :warning: end"
)
SPELLED = (
    r"\x1b[2J\x1b]8;;http://evil\x07here",
    r"\x9b31m",
    r"\u202egnp.exe",
    r"\u200b",
    "[red]loud[/link=x] [/nope] [bold",
    ":warning:",
)


def unseen(text):
    """Characters that a terminal obeys, or that a reader does not see."""
    return {
        char for char in text if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    }


def assert_spelled_out(done, code=0):
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-2000:]
    shown = done.stdout + done.stderr
    assert not unseen(shown)
    assert all(words in shown for words in SPELLED), shown[:3000]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext é 日本 🙂", "plain\n\ttext é 日本 🙂"),
        ("a\r\nb\rc", "a\nb\\x0dc"),
        ("\x1b[31m\x7f\x85", r"\x1b[31m\x7f\x85"),
        ("\u202e\ufeff\U000e0041\ud800", r"\u202e\ufeff\U000e0041\ud800"),
        ("at https://ann:hunter2@host/v1", "at https://***@host/v1"),
        ("at http://h/v1?a=1&api_key=hunter2&b=2 or ?token=x", "at http://h/v1?a=1&api_key=***&b=2 or ?token=***"),
        ("at http://ann:hunt@er2@host/v1", "at http://***@host/v1"),
        ("at http://h/v1?pass=hunter2&x-sig=hunter2#auth=hunter2", "at http://h/v1?pass=***&x-sig=***#auth=***"),
        ("mail ann@host, http://host/@x", "mail ann@host, http://host/@x"),
    ],
)
def test_what_a_terminal_obeys_is_spelled_out(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_anything_can_stand_in_one_line_of_an_error():
    loop = []
    loop.append(loop)
    for value in (10**5000, loop, "\x1b\n" * 5000, {"a": "\ud800"}, float("nan")):
        line = brief(value)
        assert "\n" not in line and len(line) <= 310 and not unseen(line)
    assert one_line("a\n  b\u2028c") == "a b c"


def test_a_prompt_file_is_shown_and_not_obeyed(tmp_path):
    (tmp_path / "mine.md").write_text(HOSTILE)
    assert_spelled_out(coachrl("coaches", "show", "mine.md", cwd=tmp_path))


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([{"problem": f"{HOSTILE} {n}?", "answer": n, "source": HOSTILE} for n in range(2)]))
    (tmp_path / "heldout.json").write_text(json.dumps([{"problem": "1 + 1?", "answer": 2}]))
    return (f"tasks.train={path}", f"tasks.heldout={tmp_path / 'heldout.json'}", "tasks.source=math")


def test_a_rollout_shows_texts_and_obeys_none(tmp_path, tasks):
    model = write_tiny_model(tmp_path / "model")
    settings = (*tasks, f"model={model}", "pipeline.max_new_tokens=4", "sandbox.kind=local-unsafe")
    assert_spelled_out(coachrl("rollout", "-c", "quickstart", *settings, "tasks.train_count=1", cwd=tmp_path))
    done = coachrl("rollout", "-c", "quickstart", *settings, "tasks.train_count=1", "--json", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.isascii() and not unseen(done.stdout)
    assert HOSTILE in json.loads(done.stdout)["actions"][0]["prompt_text"]


def test_a_row_of_a_table_is_one_line_whatever_stands_in_it(capsys):
    table = Rows("name\nsuccess", "value")
    table.add("sum\r\nsuccess 1.00\n", "as it is")
    print_table(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "success", "value"],
        ["sum", "success", "1.00", "as", "it", "is"],
    ]


def test_a_pipe_that_is_to_have_colours_has_whole_rows_too(tmp_path):
    """As CI sets it for all programs: a terminal's width would cut names."""
    done = coachrl("pipelines", "list", cwd=tmp_path, FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    plain = coachrl("pipelines", "list", cwd=tmp_path)
    assert re.sub(r"\x1b\[[0-9;]*m", "", done.stdout) == plain.stdout
    assert max(map(len, plain.stdout.splitlines())) > 100


def test_lists_of_tasks_show_texts_and_obey_none(tmp_path, tasks):
    done = coachrl("tasks", "list", *tasks, cwd=tmp_path)
    assert done.returncode == 0 and not unseen(done.stdout)
    assert all(words in done.stdout for words in SPELLED)


async def test_a_coach_that_is_tried_shows_texts_and_obeys_none(tmp_path):
    testing_server = pytest.importorskip("scripted_server")
    run = await save_run(tmp_path, reply=lambda call: f"{HOSTILE} \\boxed{{5}}", samples_per_task=1)
    async with testing_server.ScriptedServer([testing_server.say(f"{HOSTILE}\nPROCESS_SCORE: 8")]) as server:
        asked = ("coaches", "try", "mathchat", "--action", f"{run.folder}#1", "--coach", "openai/judge")
        for more in (["--dry-run"], ["--coach-api-base", server.openai_base]):
            assert_spelled_out(await asyncio.to_thread(coachrl, *asked, *more, cwd=tmp_path, OPENAI_API_KEY="none"))


@pytest.mark.parametrize("model", ["gemini/gemini-2.5-flash", "openai/gpt-4o", "openai/judge"])
async def test_what_a_library_says_of_an_odd_answer_gives_no_orders_and_tells_no_key(tmp_path, model):
    testing_server = pytest.importorskip("scripted_server")
    pytest.importorskip("google.genai", reason="needs the llm extra")
    run = await save_run(tmp_path, samples_per_task=1)
    key = "sk-0123456789abcdef"
    odd = f"{HOSTILE} {key}"
    said, usage = {"role": "assistant", "content": "PROCESS_SCORE: 8"}, {"prompt_tokens": 9, "completion_tokens": 5}
    openai = {"choices": [{"index": 0, "message": said, "finish_reason": odd}], "usage": usage, "model": odd}
    gemini = {"candidates": [{"content": {"parts": [{"text": "PROCESS_SCORE: 8"}]}, "finishReason": odd}]}
    body = json.dumps({"id": "x", "object": "chat.completion", "created": 0, **openai, **gemini})
    async with testing_server.ScriptedServer([testing_server.Step(body=body)]) as server:
        base = server.gemini_base if model.startswith("gemini") else server.openai_base
        asked = (
            "coaches",
            "try",
            "mathchat",
            "--action",
            f"{run.folder}#1",
            "--coach",
            model,
            "--coach-api-base",
            base,
        )
        done = await asyncio.to_thread(coachrl, *asked, cwd=tmp_path, OPENAI_API_KEY=key, GEMINI_API_KEY=key)
    shown = done.stdout + done.stderr
    assert done.returncode == 0 and "8" in done.stdout, shown[-2000:]
    assert not unseen(shown) and key not in shown, shown[-2000:]


def test_an_error_shows_a_wrong_value_in_one_line(tmp_path):
    said = HOSTILE.replace("\x00", "").replace("\U000e0041", "")  # YAML has no place for these
    (tmp_path / "own.yaml").write_text(json.dumps({"tasks": {"source": said}, f"{said}\nkey": 1}))
    done = coachrl("train", "-c", "own.yaml", cwd=tmp_path)
    assert_spelled_out(done, code=2)
    assert len(done.stderr.splitlines()) == 1


def test_the_log_of_a_run_gives_no_orders(tmp_path):
    run = Run.create(load_config(None, ["name=one", f"out={tmp_path}"]))
    with run.logging():
        logging.getLogger("coachrl.test").warning("the agent wrote %s", HOSTILE)
    logged = (run.folder / "log.txt").read_text()
    assert not unseen(logged) and all(words in logged for words in SPELLED)


@pytest.mark.parametrize(
    "setting",
    [
        "coach.api_base={}",
        "coach.retrospective.api_base={}",
        "coach.ensemble=[{{name: a, api_base: '{}'}}]",
        "sandbox.url={}",
        "pipeline.options={{adviser_api_base: '{}'}}",
    ],
)
@pytest.mark.parametrize(
    "url", ["http://ann:hunter2@127.0.0.1:9/v1", "https://hunter2@host", "http://127.0.0.1:9/v1?api_key=hunter2"]
)
def test_a_password_in_an_address_is_refused_and_reaches_no_file_and_no_line(tmp_path, setting, url):
    done = coachrl("train", "-c", "quickstart", setting.format(url), cwd=tmp_path)
    assert done.returncode == 2 and "leave user, password and keys out of the URL" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr and list(tmp_path.iterdir()) == []


def test_a_log_call_whose_arguments_do_not_fit_is_told_and_ends_nothing(capsys):
    record = logging.LogRecord("coachrl", logging.WARNING, "part.py", 1, "%d", ("no number",), None)
    ConsoleHandler().handle(record)
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_the_encoding_of_a_terminal_lacks_is_spelled_out(tmp_path, encoding):
    """It would end the command as an error, after minutes of work."""
    (tmp_path / "réseau….yaml").write_text("seed: 4\n")
    code = f"import sys\nsys.stdout.reconfigure(encoding={encoding!r}, errors='strict')\n"
    code += "sys.argv = ['coachrl', 'config', 'show', '--config', 'réseau….yaml', 'coach.prompt=réseau…']\n"
    code += "from coachrl.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", code], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    assert "prompt: réseau…".encode(encoding, "backslashreplace") in done.stdout


PIPELINE = """
import os

from coachrl.pipelines.base import Pipeline
from coachrl.prompts import parse_prompt
from coachrl.types import Role, Task


class Broken(Pipeline):
    name = "broken"
    ground_truth = str
    roles = (Role("first", policy="first", prompt=parse_prompt("---\\nfields: []\\n---\\nHello", "ask")),)

    async def run(self, task, team, workspace):
        raise ValueError(f"{os.environ['GEMINI_API_KEY']} at http://ann:hunter2@host/v1: \\x1b[2J")


def load(config):
    return [Task(str(n), "k", f"Task {n}", ground_truth="") for n in range(20)]
"""


def test_the_traceback_of_ones_own_pipeline_shows_no_key_and_gives_no_orders(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    (tmp_path / "broken.py").write_text(PIPELINE)
    asked = ("--pipeline", "broken:Broken", "--model", "tiny-random", "tasks.source=broken:load", "train.steps=1")
    key = "sk-0123456789abcdef"
    done = coachrl("train", *asked, cwd=tmp_path, GEMINI_API_KEY=key)
    assert done.returncode == 1 and "broken.py" in done.stderr and "Traceback" in done.stderr
    assert done.stderr.endswith("ValueError: [GEMINI_API_KEY] at http://***@host/v1: \\x1b[2J\n"), done.stderr[-300:]
    assert key not in done.stdout + done.stderr and not unseen(done.stdout + done.stderr)


def test_a_broken_pipe_of_ones_own_pipeline_is_told_and_one_of_the_output_is_not(tmp_path):
    pytest.importorskip("torch", reason="needs the torch extra")
    broken = PIPELINE.replace("raise ValueError(f", 'raise BrokenPipeError(32, "Broken pipe")  # (f')
    (tmp_path / "broken.py").write_text(broken)
    asked = ("--pipeline", "broken:Broken", "--model", "tiny-random", "tasks.source=broken:load", "train.steps=1")
    done = coachrl("train", *asked, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: [Errno 32] Broken pipe\n"), done.stderr
    assert "pipeline broken: BrokenPipeError" in done.stderr and "(broken.py, line " in done.stderr
    unread, output = os.pipe()
    os.close(unread)
    for words in (["coaches", "show", "generic"], ["configs", "list"]):
        code = f"import sys; sys.argv = ['coachrl', *{words}]; from coachrl.cli.main import main; main()"
        ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=output, stderr=subprocess.PIPE)
        assert (ended.returncode, ended.stderr) == (1, b"")
    os.close(output)


UNCAUGHT = """
import asyncio, gc, logging, os, threading
from coachrl.cli import main

def fail(*_):
    raise ValueError(f"a request with {os.environ['GEMINI_API_KEY']} failed")

class Tidied:
    __del__ = fail

async def in_a_task():
    fail()

async def leave():
    asyncio.create_task(in_a_task())
    await asyncio.sleep(0)

def app(**_):
    asyncio.run(leave())
    thread = threading.Thread(target=fail, name="own")
    thread.start()
    thread.join()
    Tidied()
    logging.getLogger("own").error("it says %s", os.environ["GEMINI_API_KEY"])
    gc.collect()

main.app = app
main.main()
"""


def test_errors_that_nobody_catches_hold_no_key():
    key = "sk-0123456789abcdef"
    program = [sys.executable, "-c", UNCAUGHT]
    done = subprocess.run(
        program, env={**os.environ, "GEMINI_API_KEY": key}, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.count("ValueError: a request with [GEMINI_API_KEY] failed") == 3, done.stderr
    assert "it says [GEMINI_API_KEY]" in done.stderr and "Exception in thread own:" in done.stderr
    assert key not in done.stdout + done.stderr


def test_a_traceback_that_is_logged_to_the_terminal_holds_no_key(monkeypatch, capsys):
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("GEMINI_API_KEY", key)
    record = logging.LogRecord("coachrl", logging.INFO, "", 0, "it failed", (), None)
    record.exc_info = (RuntimeError, RuntimeError(f"401 for {key}"), None)
    ConsoleHandler().emit(record)
    shown = capsys.readouterr().err
    assert "RuntimeError: 401 for [GEMINI_API_KEY]" in shown and key not in shown


def test_a_warning_that_a_full_disk_does_not_take_ends_nothing(monkeypatch, capsys):
    record = logging.LogRecord("coachrl", logging.WARNING, "here", 1, "half a %s", ("word",), None)
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    with full, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        ConsoleHandler().handle(record)
    ConsoleHandler().handle(record)
    assert "warning: half a word" in capsys.readouterr().err


class Closed(io.StringIO):
    """What a console writes to, once the terminal or the pipe behind it is closed."""

    def __init__(self, number, file):
        super().__init__()
        self.number, self.under_it = number, file

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))

    def fileno(self):
        return self.under_it.fileno()


@pytest.mark.parametrize(("number", "stderr"), [(errno.EIO, False), (errno.EIO, True), (errno.EPIPE, True)])
def test_a_terminal_that_is_closed_and_warnings_that_nobody_reads_end_nothing(number, stderr, monkeypatch):
    _, terminal = os.openpty()
    with os.fdopen(terminal, "w") as under:
        monkeypatch.setattr(sys, "stderr" if stderr else "stdout", Closed(number, under))
        console = PlainConsole(stderr=stderr)
        for _ in range(2):
            console.print("words")
        os.write(under.fileno(), b"what libraries print")
        assert os.path.samestat(os.fstat(under.fileno()), Path(os.devnull).stat())


def test_a_disk_that_fails_is_no_terminal_that_is_closed(monkeypatch, tmp_path):
    with (tmp_path / "under").open("w") as under:
        monkeypatch.setattr(sys, "stdout", Closed(errno.EIO, under))
        with pytest.raises(OSError, match="Input/output error"):
            PlainConsole().print("words")
