"""What every sandbox promises: states, persistence, outputs."""

from __future__ import annotations

import asyncio
import re
import textwrap

import pytest

from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.types import Execution

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOREVER_S = 3.0


@pytest.mark.parametrize(
    ("code", "state", "exit_code"),
    [
        ("print('hello')", "ok", 0),
        ("", "ok", 0),
        ("import sys; sys.exit(0)", "ok", 0),
        ("exit()", "ok", 0),
        ("import sys; sys.exit(3)", "error", 3),
        ("raise SystemExit('why')", "error", 1),
        ("1 / 0", "error", 1),
        ("x = = 1", "error", 1),
        ("import nowhere_to_be_found", "error", 1),
        ("input()", "error", 1),
        ("import os; os._exit(7)", "error", 7),
        ("import os; os.abort()", "error", -6),
        ("import ctypes; ctypes.string_at(0)", "error", -11),
        ("def f(): return f()\nf()", "error", 1),
        ("bytearray(4 << 30)", "error", 1),
        ("raise MemoryError", "error", 1),
        ("try:\n    bytearray(4 << 30)\nexcept MemoryError:\n    print('coped')", "ok", 0),
    ],
)
async def test_state_and_exit_code(workspace, code, state, exit_code):
    execution = await workspace.run(code)
    assert (execution.state, execution.exit_code) == (state, exit_code), execution


async def test_code_that_holds_half_a_character_is_the_codes_failure(workspace):
    execution = await workspace.run("print('before')\nprint('\ud800')")
    assert (execution.state, execution.exit_code, execution.stdout) == ("error", 1, ""), execution
    assert execution.stderr.startswith("UnicodeEncodeError: ")
    assert (await workspace.run("print(1)")).stdout == "1\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import signal, time\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\n"
        "time.sleep(600)",
        "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(20); os._exit(0)\ntime.sleep(600)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    ],
    ids=["busy", "sleep", "signals ignored", "forked", "thread"],
)
async def test_timeout_ends_whatever_runs(workspace, code):
    limit_s = max(FOREVER_S, 10 * (await workspace.run("")).wall_s)  # a busy machine is slow to start an interpreter
    execution = await workspace.run("print('started', flush=True)\n" + code, timeout_s=limit_s)
    assert execution.state == "timeout"
    assert execution.exit_code is None
    assert execution.stdout == "started\n"
    assert execution.wall_s >= limit_s


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_limit_keeps_the_head(workspace, stream):
    execution = await workspace.run(f"import sys\nwhile True: sys.{stream}.write('0123456789abcdef')")
    kept = getattr(execution, stream)
    assert execution.state == "output_limit"
    assert kept == "0123456789abcdef" * 1024


async def test_output_up_to_the_limit_is_whole(workspace):
    execution = await workspace.run("print('x' * (16 * 1024 - 1))")
    assert execution.state == "ok"
    assert len(execution.stdout) == 16 * 1024


async def test_traceback_reads_like_plain_python(workspace):
    code = "def half(x):\n    return x / 0\n\nhalf(3)\n"
    execution = await workspace.run(code)
    lines = execution.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1:3] == ['  File "main.py", line 4, in <module>', "    half(3)"]
    assert '  File "main.py", line 2, in half' in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert execution.stderr.count("File ") == 2


async def test_syntax_error_names_the_line(workspace):
    execution = await workspace.run("a = 1\nb = (\n")
    assert execution.stderr.startswith('  File "main.py", line 2\n    b = (\n')
    assert execution.stderr.rstrip().endswith("SyntaxError: '(' was never closed")


async def test_what_a_thread_raises_is_told_with_the_lines_of_its_own_program(workspace):
    starts = "one = threading.Thread(target=f, name='one')\none.start(); one.join()"
    code = f"import threading\ndef f():\n    1 / 0  # here\n{starts}"
    await workspace.run("open('main.py', 'w').write('the first line\\n' * 9)")
    said = (await workspace.run(code)).stderr
    assert said.startswith("Exception in thread one:\nTraceback (most recent call last):\n")
    assert "    1 / 0  # here\n" in said and said.endswith("ZeroDivisionError: division by zero\n")
    assert "the first line" not in said
    assert (await workspace.run("import threading\nthreading.Thread(target=exit).start()")).stderr == ""


@pytest.mark.parametrize("code", ["a = = 1", "def f(:\n    pass", "a = 1\nreturn a", "a = 1\nb = ("])
async def test_a_program_that_was_saved_as_main_says_nothing_of_another_ones_errors(workspace, code):
    alone = await workspace.run(code)
    await workspace.run("open('main.py', 'w').write('the first line\\nthe second line\\n')")
    beside = await workspace.run(code)
    assert "SyntaxError" in alone.stderr and 'File "main.py"' in alone.stderr
    assert (beside.state, beside.stderr) == (alone.state, alone.stderr)


async def test_files_persist_and_are_reported(workspace):
    first = await workspace.run(
        "import os\nos.mkdir('d')\nfor n in ('b.csv', 'a.csv', 'd/c.csv'): open(n, 'w').write(n)"
    )
    assert first.files_written == ("a.csv", "b.csv", "d/c.csv")
    second = await workspace.run(
        "print(open('a.csv').read())\nopen('b.csv', 'a').write('more')\nopen('e', 'w').close()"
    )
    assert second.stdout == "a.csv\n"
    assert second.files_written == ("b.csv", "e")
    assert await workspace.files() == ("a.csv", "b.csv", "d/c.csv", "e")
    assert await workspace.read("b.csv") == b"b.csvmore"


async def test_a_rewrite_of_the_same_bytes_is_reported(workspace):
    code = "import os\nopen('a', 'w').write('same')\nos.utime('a', (0, 0))"
    await workspace.run(code)
    assert (await workspace.run(code)).files_written == ("a",)


async def test_nothing_but_files_persists(workspace):
    await workspace.run("import builtins, sys, json\nkept = 1\nbuiltins.kept = 1\njson.dumps = None\nsys.path.clear()")
    execution = await workspace.run(
        "import sys, json, builtins\n"
        "print('kept' in globals(), hasattr(builtins, 'kept'), json.dumps(1), bool(sys.path))"
    )
    assert execution.stdout == "False False 1 True\n"


async def test_code_runs_as_main_in_its_folder(workspace):
    await workspace.run("open('helper.py', 'w').write('value = 42')")
    execution = await workspace.run(
        "import helper, os, sys\nprint(__name__, helper.value, os.path.dirname(__file__) == os.getcwd(), sys.argv)"
    )
    assert execution.stdout == "__main__ 42 True ['main.py']\n"


async def test_the_end_is_that_of_an_interpreter(workspace):
    code = """
        import atexit, threading
        left_open = open('left_open.txt', 'w')
        left_open.write('flushed at exit')
        atexit.register(print, 'exit handler')
        print('main', end=' ')
        threading.Timer(0.05, print, ['thread']).start()
    """
    execution = await workspace.run(textwrap.dedent(code))
    assert execution.stdout.split() == ["main", "thread", "exit", "handler"]
    assert await workspace.read("left_open.txt") == b"flushed at exit"


@pytest.mark.parametrize(
    ("code", "state", "stdout"),
    [
        ("with open('log', 'w') as sys.stdout: print('logged')", "ok", ""),
        ("print('said'); sys.stdout = None", "ok", "said\n"),
        ("print('said'); del sys.stdout", "ok", "said\n"),
        ("sys.stdout.close()", "ok", ""),
        ("print('said'); sys.stderr.close()", "ok", "said\n"),
        ("kept, sys.stdout = sys.stdout, open('log', 'w'); kept.write('said')", "ok", "said"),
        ("sys.stdout = types.SimpleNamespace(write=sys.stdout.write); print('said')", "error", "said\n"),
        (
            "kept = sys.stdout\nclass Out:\n write = kept.write\n def flush(self): kept.flush()\n"
            "sys.stdout = Out(); print('said')",
            "ok",
            "said\n",
        ),
    ],
)
async def test_output_that_code_has_closed_or_replaced_ends_as_an_interpreters(workspace, code, state, stdout):
    execution = await workspace.run(f"import sys, types\n{code}")
    assert (execution.state, execution.stdout) == (state, stdout), execution


async def test_an_error_is_told_where_no_output_is_left(workspace):
    for code in ("sys.stdout = None", "class Out:\n def flush(self): raise KeyboardInterrupt\nsys.stdout = Out()"):
        execution = await workspace.run(f"import sys\n{code}\n1 / 0")
        assert execution.state == "error", execution
        assert "ZeroDivisionError: division by zero\n" in execution.stderr


async def test_of_calls_in_calls_beyond_all_depth_the_last_are_told_as_by_an_interpreter(workspace):
    code = "import sys, threading\nsys.setrecursionlimit(10_000)\ndef f(n): return 1 / n + f(n - 1)\n"
    execution = await workspace.run(f"{code}f(5_000)")
    assert (execution.state, execution.exit_code) == ("error", 1), execution
    in_thread = await workspace.run(f"{code}threading.Thread(target=f, args=(5_000,)).start()")
    for told in (execution.stderr, in_thread.stderr):
        assert told.endswith("ZeroDivisionError: division by zero\n")
        assert "line repeated 997 more times]" in told and "<module>" not in told


async def test_two_functions_that_call_each_other_without_end_are_told_from_both_ends(workspace):
    """All that an interpreter says of them is more than is kept, and why they ended would be lost."""
    execution = await workspace.run("def even(n): return odd(n - 1)\ndef odd(n): return even(n - 1)\neven(10)")
    assert (execution.state, execution.exit_code) == ("error", 1), execution
    assert "in even" in execution.stderr and execution.stderr.endswith("maximum recursion depth exceeded\n")


@pytest.mark.parametrize(("limit", "told"), [("1", ["f"]), ("0", []), ("-1", []), ("'all'", ["<module>", "f"])])
async def test_as_many_calls_are_told_as_code_has_asked_for(workspace, limit, told):
    execution = await workspace.run(f"import sys\nsys.tracebacklimit = {limit}\ndef f(): 1 / 0\nf()")
    assert re.findall(r"line \d+, in (\S+)", execution.stderr) == told, execution
    assert execution.stderr.endswith("ZeroDivisionError: division by zero\n")


async def test_what_a_module_of_the_code_has_written_is_in_its_file(workspace):
    made = "open('helper.py', 'w').write('file = open(\"kept.txt\", \"w\")')"
    execution = await workspace.run(f"{made}\nimport helper\nhelper.file.write('flushed')")
    assert execution.state == "ok", execution
    assert await workspace.read("kept.txt") == b"flushed"


async def test_what_is_destroyed_together_with_its_file_is_written_to_it(workspace):
    code = "class Log:\n file = open('kept.txt', 'w')\nLog.file.write('flushed')"
    assert (await workspace.run(code)).state == "ok"
    assert await workspace.read("kept.txt") == b"flushed"


async def test_a_thread_that_waits_at_a_pipe_keeps_no_program_from_its_end(workspace):
    code = """
        import builtins, os, threading, time
        builtins.pipe = [os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), ("rb", "wb"))]
        threading.Thread(target=lambda: builtins.pipe[1].write(bytes(1 << 20)), daemon=True).start()
        time.sleep(0.5)
        print("done")
    """
    execution = await workspace.run(textwrap.dedent(code), timeout_s=20.0)
    assert (execution.state, execution.stdout) == ("ok", "done\n"), execution


async def test_classes_of_main_can_be_pickled(workspace):
    code = (
        "import pickle\n"
        "class Model: pass\n"
        "pickle.dump(Model(), open('m.pkl', 'wb'))\n"
        "print(pickle.load(open('m.pkl','rb')))"
    )
    assert "__main__.Model" in (await workspace.run(code)).stdout


async def test_global_generators_start_alike(workspace):
    code = "import random, numpy as np\nprint(random.random(), np.random.rand(), hash('text'))"
    first, second = await workspace.run(code), await workspace.run(code)
    assert first.state == "ok"
    assert first.stdout == second.stdout


async def test_initial_files_are_copies(sandbox, tmp_path):
    source = tmp_path / "train.csv"
    source.write_bytes(b"a,b\n1,2\n")
    workspace = await sandbox.open({"train.csv": source, "data/deep.csv": source})
    execution = await workspace.run("print(open('data/deep.csv').read())\nopen('train.csv', 'w').write('changed')")
    assert execution.stdout.startswith("a,b")
    assert execution.files_written == ("train.csv",)
    assert source.read_bytes() == b"a,b\n1,2\n"
    await workspace.close()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "", "."])
async def test_initial_files_stay_inside(sandbox, tmp_path, name):
    (tmp_path / "f").write_text("x")
    with pytest.raises(ValueError, match="not a plain relative file name"):
        await sandbox.open({name: tmp_path / "f"})


@pytest.mark.parametrize(
    "name", ["link", "folder/inside", "folder", "real", "../main.py", "/etc/passwd", "pipe", "none", "a/../kept"]
)
async def test_read_takes_regular_files_only(workspace, name):
    await workspace.run(
        "import os\nopen('kept', 'w').write('x')\nos.symlink('/etc/hostname', 'link')\nos.mkdir('real')\n"
        "open('real/inside', 'w').close()\nos.symlink('real', 'folder')\nos.mkfifo('pipe')"
    )
    with pytest.raises(FileNotFoundError, match="no regular file"):
        await workspace.read(name)
    assert await workspace.files() == ("kept", "real/inside")


async def test_read_is_bounded(workspace):
    await workspace.run("open('big', 'wb').write(bytes(1000))")
    assert len(await workspace.read("big", max_bytes=1000)) == 1000
    with pytest.raises(ValueError, match="larger than 999 bytes"):
        await workspace.read("big", max_bytes=999)


async def test_odd_output_is_text(workspace):
    execution = await workspace.run(r"import os; os.write(1, b'\xff\x00{\"state\": \"ok\"}\x1b[0m')")
    assert execution.stdout == '�\x00{"state": "ok"}\x1b[0m'


async def test_workspaces_run_at_once(sandbox):
    workspaces = [await sandbox.open({}) for _ in range(4)]
    executions = await asyncio.gather(*(w.run(f"print({n})\nopen('{n}', 'w')") for n, w in enumerate(workspaces)))
    assert [e.stdout for e in executions] == ["0\n", "1\n", "2\n", "3\n"]
    assert [e.files_written for e in executions] == [("0",), ("1",), ("2",), ("3",)]
    for workspace in workspaces:
        await workspace.close()
        await workspace.close()


async def test_a_closed_workspace_says_so(sandbox):
    workspace = await sandbox.open({})
    await workspace.close()
    execution = await workspace.run("print(1)")
    assert isinstance(execution, Execution)
    assert execution.state == "infrastructure"
    assert "closed" in execution.stderr


async def test_unknown_kind_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'local-unsafe'"):
        load_config(None, ["sandbox.kind=local-unsave"])


async def test_a_copy_holds_the_same_and_goes_its_own_way(workspace):
    made = await workspace.run(
        "import os\nos.makedirs('deep/empty')\nopen('deep/a.txt', 'w').write('first')\nopen('b.sh', 'w').write('x')\n"
        "os.chmod('b.sh', 0o750)\nos.symlink('/etc/passwd', 'link')\nos.mkfifo('pipe')"
    )
    assert made.state == "ok", made
    copied = await workspace.copy()
    try:
        assert await copied.files() == await workspace.files() == ("b.sh", "deep/a.txt")
        looked = await copied.run(
            "import os, stat\nprint(stat.S_IMODE(os.stat('b.sh').st_mode) == 0o750, os.path.isdir('deep/empty'), "
            "os.path.islink('link'), os.path.exists('pipe'))\nopen('deep/a.txt', 'w').write('second')"
        )
        assert looked.stdout.split() == ["True", "True", "True", "False"], looked
        assert looked.files_written == ("deep/a.txt",)
        assert await copied.read("deep/a.txt") == b"second" and await workspace.read("deep/a.txt") == b"first"
        with pytest.raises(FileNotFoundError):
            await copied.read("link")
    finally:
        await copied.close()
    assert await workspace.read("deep/a.txt") == b"first"


async def test_folders_in_folders_beyond_all_depth_are_removed(unsafe, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workspace = await unsafe.open({})
    made = await workspace.run("import os\nfor _ in range(2000): os.mkdir('d'); os.chdir('d')")
    assert made.state == "ok", made
    await workspace.close()
    assert not list(tmp_path.iterdir())
