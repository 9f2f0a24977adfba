"""What an import path may run into on its way to the user's own code."""

import asyncio
import functools
import importlib
import os
import shutil
import signal
import sys

import pytest

from coachrl.config.choices import (
    check_choice,
    check_plain,
    check_takes,
    find_class,
    import_by_path,
    raised_in,
    user_code,
)
from coachrl.errors import ConfigError, TaskError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, as the path of an installed command has it: last, and only once something is looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    return tmp_path


MUTE = "class Mute(Exception):\n    def __str__(self):\n        return 1 / 0\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit('usage: script FILE')", "SystemExit: usage: script FILE (own_script.py, line 2)"),
        ("raise SystemExit(3)", "SystemExit: 3 (own_script.py, line 1)"),
        ("raise GeneratorExit('why')", "GeneratorExit: why (own_script.py, line 1)"),
        ("class Odd(BaseException): ...\nraise Odd('why')", "Odd: why (own_script.py, line 2)"),
        ("raise KeyboardInterrupt('stop')", "KeyboardInterrupt: stop (own_script.py, line 1)"),
        (MUTE + "raise Mute", "Mute: (its text cannot be made: ZeroDivisionError) (own_script.py, line 4)"),
    ],
)
def test_a_script_that_ends_the_program_when_imported_is_one_line(here, text, words):
    (here / "own_script.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        import_by_path("own_script:load", "tasks")
    assert str(caught.value) == f"tasks 'own_script:load' cannot be imported: {words}"


@pytest.fixture
def ctrl_c():
    """As at a terminal: what is started in the background ignores it, and so do all processes below."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


PRESS = "import signal\ntry: signal.raise_signal(signal.SIGINT)\nexcept BaseException as error: raise "


@pytest.mark.parametrize(
    "text",
    [
        "import signal\nsignal.raise_signal(signal.SIGINT)",
        f"{PRESS} error",
        f"{PRESS} KeyboardInterrupt",
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    ],
    ids=["at once", "raised again", "raised anew", "in a loop"],
)
def test_ctrl_c_while_a_module_is_imported_stays_what_it_is(here, ctrl_c, text):
    (here / "own_interrupted.py").write_text(text)
    sys.modules.pop("own_interrupted", None)
    with pytest.raises(KeyboardInterrupt):
        import_by_path("own_interrupted:load", "tasks")


def test_ctrl_c_in_a_plain_function_that_is_pressed_twice_stays_what_it_is(ctrl_c):
    async def guarded():
        with user_code("load failed", TaskError):
            signal.raise_signal(signal.SIGINT)  # has asyncio cancel the task, once it waits
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(guarded())


async def test_a_task_that_the_users_code_has_cancelled_is_its_failure_and_the_end_of_ours_is_none():
    async def guarded(cancelled):
        with user_code("load failed", TaskError):
            await cancelled

    forever = asyncio.get_running_loop().create_future()
    forever.cancel()
    with pytest.raises(TaskError, match=r"^load failed: CancelledError"):
        await guarded(forever)
    ours = asyncio.ensure_future(guarded(asyncio.sleep(60)))
    await asyncio.sleep(0)
    ours.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ours


def test_an_interrupt_that_a_function_raises_by_itself_is_its_failure():
    words = r"^load failed: KeyboardInterrupt: \(test_choices.py, line \d+\)$"
    with pytest.raises(TaskError, match=words), user_code("load failed", TaskError):
        raise KeyboardInterrupt


def test_a_function_that_ends_the_program_is_one_line():
    words = r"^load failed: SystemExit: bye \(test_choices.py, line \d+\)$"
    with pytest.raises(TaskError, match=words), user_code("load failed", TaskError):
        sys.exit("bye")


@pytest.mark.parametrize(("module", "name"), [("code", "load"), ("json", "load"), ("yaml", "my_tasks")])
def test_a_file_that_another_module_hides_is_named(here, module, name):
    (here / f"{module}.py").write_text(f"def {name}(config): return []\n")
    with pytest.raises(ConfigError) as caught:
        import_by_path(f"{module}:{name}", "tasks")
    assert f"hides {module}.py of the current folder: give that another name" in str(caught.value)


def test_what_is_named_like_an_installed_module_is_that_module(here):
    assert import_by_path("json:loads", "tool")("1") == 1
    (here / "yaml.py").write_text("")
    assert import_by_path("yaml:safe_load", "tool")("1") == 1


@pytest.mark.parametrize("path", ["./own_parts.py:load", "/somewhere/own_parts.py:load", "..own_parts:load"])
def test_a_file_in_the_place_of_a_module_is_answered_by_the_module(here, path):
    (here / "own_parts.py").write_text("")
    with pytest.raises(ConfigError, match=r"is no module's name, as in my_module:my_name, did you mean 'own_parts'\?"):
        import_by_path(path, "tasks")


def test_what_a_module_prints_is_kept_out_of_a_commands_output(here, capsys):
    (here / "own_loud.py").write_text("print('hello')\nload = len\n")
    assert import_by_path("own_loud:load", "tasks") is len
    assert capsys.readouterr() == ("", "hello\n")


def test_the_nearest_name_is_never_one_of_pythons(here):
    (here / "own_empty.py").write_text("")
    with pytest.raises(ConfigError, match=r"module 'own_empty' has no 'loader'$"):
        import_by_path("own_empty:loader", "tasks")


def test_what_gives_no_result_when_called_is_refused():
    async def later(): ...

    def one_by_one():
        yield

    with pytest.raises(ConfigError, match=r"^f is async: it must be a plain function, without `async`$"):
        check_plain(later, "f")

    async def later_one_by_one():
        yield

    for draws in (one_by_one, later_one_by_one):
        with pytest.raises(ConfigError, match=r"^f is a generator: it must `return` its result, and not `yield` it$"):
            check_plain(draws, "f")
    check_plain(len, "f")

    def behind_a_decorator(function):
        @functools.wraps(function)
        def called(*arguments):
            return function(*arguments)

        return called

    with pytest.raises(ConfigError, match=r"^f is async"):
        check_plain(behind_a_decorator(later), "f")
    with pytest.raises(ConfigError, match=r"^f is a generator"):
        check_plain(behind_a_decorator(later_one_by_one), "f")
    check_plain(behind_a_decorator(len), "f")


def test_an_object_that_is_called_is_what_its_method_is():
    class Later:
        async def __call__(self): ...

    class OneByOne:
        def __call__(self):
            yield

    class Plain:
        def __call__(self): ...

    with pytest.raises(ConfigError, match=r"^f is async"):
        check_plain(Later(), "f")
    with pytest.raises(ConfigError, match=r"^f is a generator"):
        check_plain(OneByOne(), "f")
    with pytest.raises(ConfigError, match=r"^f is async"):
        check_plain(functools.partial(Later.__call__, None), "f")
    for plain in (Plain(), Plain, dict, functools.partial(len, "a"), Plain().__call__):
        check_plain(plain, "f")


def test_how_many_arguments_a_function_takes_is_looked_at_before_it_is_called():
    check_takes(lambda a, b=2, *rest: a, ["x", "y", "z"], "f")
    check_takes(dict, ["anything"], "f")  # written in C, and says nothing of itself
    with pytest.raises(ConfigError, match=r"^f must take \(x, y\), and takes \(a, \*, b=1\)$"):
        check_takes(lambda a, *, b=1: a, ["x", "y"], "f")


@pytest.mark.parametrize("path", ["own_team:load", "own_team.parts:load", "own_team.parts.more:load"])
def test_a_package_that_is_not_there_is_named_without_what_should_be_in_it(here, path):
    with pytest.raises(ConfigError) as caught:
        import_by_path(path, "tasks")
    assert str(caught.value) == f"tasks '{path}': no module 'own_team' in the current folder, nor installed"


def test_a_module_that_misses_another_one_is_there_itself(here):
    (here / "own_needy.py").write_text("import own_absent\n")
    with pytest.raises(ConfigError) as caught:
        import_by_path("own_needy:load", "tasks")
    said = "ModuleNotFoundError: No module named 'own_absent' (own_needy.py, line 1)"
    assert str(caught.value) == f"tasks 'own_needy:load' cannot be imported: {said}"


def test_a_file_name_in_the_place_of_a_module_is_answered_by_the_module(here):
    (here / "own_file.py").write_text("")
    with pytest.raises(ConfigError, match=r"no module 'own_file\.py', did you mean 'own_file'\?$"):
        import_by_path("own_file.py:load", "tasks")
    with pytest.raises(ConfigError, match="no module 'zzz' in the current folder, nor installed"):
        import_by_path("zzz.py:load", "tasks")


def test_what_was_raised_is_told_with_the_last_line_of_the_users_first_file():
    def raises():
        raise ValueError("no")

    with pytest.raises(ValueError) as caught:
        raises()
    line = raises.__code__.co_firstlineno + 1  # and not that of the call
    assert raised_in(caught.value) == f"ValueError: no (test_choices.py, line {line})"
    assert raised_in(ValueError("never raised")) == "ValueError: never raised"


def test_a_choice_is_a_shipped_name_or_an_import_path():
    assert [check_choice(name, "reward", ["coach"], "m:f") for name in ("coach", "mine:f")] == ["coach", "mine:f"]
    said = r"^no reward 'coahc', did you mean 'coach'\? \(shipped: coach; your own: m:f\)$"
    with pytest.raises(ValueError, match=said):
        check_choice("coahc", "reward", ["coach"], "m:f")
    with pytest.raises(ConfigError, match=said):
        find_class("reward", "coahc", {"coach": "json:loads"}, "m:f")
    assert find_class("reward", "coach", {"coach": "json:loads"}, "m:f")("1") == 1


def test_a_module_that_was_edited_since_is_told_once_and_read_again_by_a_reload(here, caplog):
    file = here / "edited_coach.py"

    def imported(written_s):
        os.utime(file, (written_s, written_s))
        return import_by_path("edited_coach:score", "coach")()

    file.write_text("def score():\n    return 1\n")
    assert [imported(1000), imported(1000), caplog.text] == [1, 1, ""]
    file.write_text("def score():\n    return 22\n")
    assert [imported(2000), imported(2000)] == [1, 1]
    assert caplog.text.count("edited_coach.py was written anew since it was imported") == 1
    importlib.reload(sys.modules["edited_coach"])
    assert imported(2000) == 22
    assert caplog.text.count("written anew") == 1


def test_a_run_whose_current_folder_is_removed_still_finds_what_it_imported(here):
    (here / "own_here.py").write_text("def load(config): ...\n")
    load = import_by_path("own_here:load", "tasks")
    shutil.rmtree(here)
    assert import_by_path("own_here:load", "tasks") is load
    with pytest.raises(ConfigError, match="no module 'own_nowhere'"):
        import_by_path("own_nowhere:load", "tasks")


def test_a_module_that_makes_its_names_when_they_are_asked_for_may_fail(tmp_path, monkeypatch):
    lines = ("import importlib", "def __getattr__(name):", "    return importlib.import_module(f'own_lazy_{name}').it")
    (tmp_path / "own_lazy.py").write_text("\n".join(lines))
    (tmp_path / "own_lazy_good.py").write_text("it = 3")
    monkeypatch.chdir(tmp_path)
    assert import_by_path("own_lazy:good", "tasks") == 3
    with pytest.raises(ConfigError) as caught:
        import_by_path("own_lazy:bad", "tasks")
    said = "ModuleNotFoundError: No module named 'own_lazy_bad' (own_lazy.py, line 3)"
    assert str(caught.value) == f"tasks 'own_lazy:bad' cannot be imported: {said}"
