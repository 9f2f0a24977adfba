"""Choices by name: a shipped class from a table of import paths, or the user's own by `package.module:Class`."""

from __future__ import annotations

import asyncio
import dis
import functools
import importlib
import inspect
import logging
import pkgutil
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from coachrl.errors import CoachrlError, ConfigError
from coachrl.storage.files import current_folder
from coachrl.text import nearest, one_line, said

log = logging.getLogger(__name__)
T = TypeVar("T")

_PACKAGE = Path(__file__).parent.parent
_ENDING_S = 30.0  # for what code of the user's own does when it is told to end
_AFTERWARDS_S = 2.0  # for what it did not come to while other code held the event loop
_FILES = ("json", "jsonl", "csv", "tsv", "parquet", "yaml", "yml", "toml", "md", "txt")  # endings of what is no code
_RAISE = dis.opmap["RAISE_VARARGS"]
_read: dict[str, tuple[Any, int]] = {}  # by module: its spec, and when its file had been written, as last seen


def check_choice(value: str, kind: str, shipped: Collection[str], example: str) -> str:
    """`value`, where it is one of `shipped` or has the form of an import path; what it names is looked at later.

    Raises ValueError that names the nearest: for validators of the configuration."""
    if ":" not in value and value not in shipped:
        raise ValueError(_unknown(value, kind, shipped, example))
    return value


def _unknown(value: str, kind: str, shipped: Collection[str], example: str) -> str:
    close = with_colon(value, example) or nearest(value, shipped)
    return f"no {kind} '{one_line(value)}'{close} (shipped: {', '.join(shipped)}; your own: {example})"


def with_colon(value: str, example: str) -> str:
    """', did you mean …?' with the import path that a dotted name, or a file's, stands for; empty for another text."""
    module, _, name = value.rpartition(".")
    if name in _FILES or not all(part.isidentifier() for part in (*module.split("."), name)):
        return ""
    return f", did you mean '{module}:{example.partition(':')[2] if name == 'py' else name}'?"


@contextmanager
def user_code(what_failed: str, error: type[CoachrlError]) -> Iterator[None]:
    """The boundary to a function of the user's own: whatever it raises becomes one line that says where, in an `error`;
    errors that say themselves what they mean to a run pass through."""
    try:
        yield
    except CoachrlError:
        raise
    except BaseException as raised:  # the boundary: a user's function may raise anything
        if not is_own_doing(raised):
            raise
        raise error(f"{what_failed}: {raised_in(raised)}") from raised


async def awaited(given: Awaitable[T]) -> T:
    """What code of the user's own gives in the end. It has a task of its own: where it cancels the one that it runs in,
    that is none of the run's, and `is_own_doing` can tell. Raises ConfigError where it goes on though it was told to
    end: nobody waits for it any longer."""
    ending: list[BaseException] = []

    async def work() -> T | None:
        try:
            return await given
        except asyncio.CancelledError:
            raise
        except BaseException as raised:  # noqa: BLE001  what ends a program, asyncio lets out of the event loop
            ending.append(raised)
            return None

    working = asyncio.create_task(work())
    try:
        await _ended(working, getattr(given, "__qualname__", type(given).__name__))
        result = working.result()
    finally:
        if inspect.iscoroutine(given) and inspect.getcoroutinestate(given) == inspect.CORO_CREATED:
            given.close()  # it was given up before it began: Python would say that nobody awaits it
    if ending:
        raise ending[0]
    return cast(T, result)


async def _ended(working: asyncio.Task[Any], name: str) -> None:
    """Wait for a task, which is told to end where this one is."""
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:
        working.cancel()
        for most_s in (_ENDING_S, _AFTERWARDS_S):
            await _ended_within(most_s, working)
        if not working.done():
            raise ConfigError(
                f"{name} goes on {_ENDING_S:g} s after it was told to end: an `except` in it, or in what it awaits, "
                "takes asyncio.CancelledError, which has to be raised again"
            ) from None
        raise


async def _ended_within(most_s: float, working: asyncio.Task[Any]) -> None:
    """Wait for a task that was told to end, and is told again as often as this one is."""
    clock = asyncio.get_running_loop().time
    until_s = clock() + most_s
    while not working.done() and (left_s := until_s - clock()) > 0:
        try:
            await asyncio.wait([working], timeout=left_s)
        except asyncio.CancelledError:
            working.cancel()


def is_own_doing(raised: BaseException) -> bool:
    """Whether code of the user's own is why `raised` came out of it: it is no Ctrl-C, and not the end of the task that
    the code runs in. A task that the code itself has cancelled, and a KeyboardInterrupt that it raises, are its own
    doing."""
    if isinstance(raised, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs
            return True
        return task is None or not task.cancelling()
    return not isinstance(raised, KeyboardInterrupt) or _is_raised_in_words(raised)


def _is_raised_in_words(interrupt: KeyboardInterrupt) -> bool:
    """Whether a `raise` made the interrupt: Ctrl-C makes one between two instructions of whatever runs, or in asyncio's
    handler, or behind another one."""
    place = interrupt.__traceback__
    if place is None or isinstance(interrupt.__context__, KeyboardInterrupt):
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code
    return code.co_code[place.tb_lasti] == _RAISE and code.co_filename != asyncio.runners.__file__


def check_plain(function: Any, what: str) -> None:
    """Raises ConfigError where a call gives something to await or to draw from, in the place of its result."""
    if inspect.iscoroutinefunction(_called(function)):
        raise ConfigError(f"{what} is async: it must be a plain function, without `async`")
    check_no_generator(function, what)


def check_no_generator(function: Any, what: str) -> None:
    """Raises ConfigError where a call gives something to draw from, in the place of its result."""
    function = _called(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{what} is a generator: it must `return` its result, and not `yield` it")


def _called(function: Any) -> Any:
    """What runs in the end: behind decorators, and of an object with `__call__` that method."""
    function = inspect.unwrap(function)
    if inspect.isroutine(function) or isinstance(function, (type, functools.partial)):
        return function
    return inspect.unwrap(type(function).__call__)


def check_takes(function: Callable[..., Any], arguments: Iterable[str], what: str) -> None:
    """Raises ConfigError where `function` cannot be called with so many arguments, by their places."""
    names = list(arguments)
    try:
        signature = inspect.signature(function)
    except ValueError:  # what is written in C may have no signature
        return
    try:
        signature.bind(*names)
    except TypeError:
        found = one_line(str(signature.replace(return_annotation=inspect.Signature.empty)))
        raise ConfigError(f"{what} must take ({', '.join(names)}), and takes {found}") from None


def raised_in(raised: BaseException) -> str:
    """What somebody else's code raised, and in which line of the first file that is not coachrl's."""
    reason = one_line(f"{type(raised).__name__}: {said(raised)}")
    frames = [frame for frame in traceback.extract_tb(raised.__traceback__) if not _is_between(frame.filename)]
    if not frames or isinstance(raised, SyntaxError):  # which names its place itself
        return reason
    line = [frame.lineno for frame in frames if frame.filename == frames[0].filename][-1]
    return f"{reason} ({Path(frames[0].filename).name}, line {line})"


def _is_between(file: str) -> bool:
    """Whether the file is coachrl's or the import machinery's: it stands between the run and the user's own code."""
    return file.startswith("<frozen ") or Path(file).is_relative_to(_PACKAGE) or file == importlib.__file__


def find_class(kind: str, name: str, shipped: Mapping[str, str], example: str) -> Any:
    """What `name` stands for: a name of the table `shipped`, or an import path `package.module:Class`.

    kind: what the messages call it ("algorithm"). example: an import path that shows the form.
    Raises ConfigError that names the nearest known one.
    """
    path = shipped.get(name, name)
    if ":" not in path:
        raise ConfigError(_unknown(name, kind, shipped, example))
    return import_by_path(path, kind)


def import_by_path(path: str, kind: str) -> Any:
    """What the import path `package.module:name` names; the current folder is looked into as well.

    kind: what the messages call it. Raises ConfigError, which names the nearest module, or the nearest name in it,
    where there is none of that name."""
    module_name, _, name = path.partition(":")
    # A module of the user's own lies where the command is run; the path of an installed command does not hold that.
    here = current_folder()
    if here and here not in sys.path:
        sys.path.append(here)
    shown = f"{kind} '{one_line(path)}'"
    if not all(module_name.split(".")) or "/" in module_name:
        close = nearest(module_name.removesuffix(".py").rpartition("/")[2].strip("."), _modules_beside(""))
        raise ConfigError(f"{shown}: '{one_line(module_name)}' is no module's name, as in my_module:my_name{close}")
    module = _imported(module_name, shown)
    _warn_where_edited(module)
    with user_code(f"{shown} cannot be imported", ConfigError):  # a module may make its names when it is asked for them
        is_there = hasattr(module, name)
    own = here and _hidden_file(module_name, module)
    if own and (not is_there or module_name.partition(".")[0] in sys.stdlib_module_names):
        raise ConfigError(
            f"{shown}: Python takes '{module_name}' from {getattr(module, '__file__', None) or 'itself'}, which hides "
            f"{own} of the current folder: give that another name"
        )
    if not is_there:
        known = [each for each in vars(module) if not each.startswith("__")]
        raise ConfigError(f"{shown}: module '{module_name}' has no '{one_line(name)}'{nearest(name, known)}")
    return getattr(module, name)


def import_function(
    path: str, kind: str, arguments: Sequence[str], setting: str = "", may_be_async: bool = False
) -> Callable[..., Any]:
    """The function at an import path, which is called with so many arguments and returns its result.

    kind: what messages call it, unless it has a `setting` of its own ("tasks.source"). Raises ConfigError where there
    is none, it cannot be called so, it is a generator, or async and may not be."""
    shown = f"{setting}={one_line(path)}" if setting else f"{kind} '{one_line(path)}'"
    function = import_by_path(path, kind)
    if not callable(function):
        raise ConfigError(f"{shown} is no function: it must take ({', '.join(arguments)})")
    (check_no_generator if may_be_async else check_plain)(function, shown)
    check_takes(function, arguments, shown)
    return cast(Callable[..., Any], function)


def _imported(module_name: str, shown: str) -> ModuleType:
    """What a module prints goes to stderr: the output of a command may be read by a program. shown: what the messages
    call it."""
    try:
        with redirect_stdout(sys.stderr):
            return importlib.import_module(module_name)
    except BaseException as error:  # the boundary to a module of the user's own, which may raise anything
        if not is_own_doing(error):
            raise
        missing = error.name if isinstance(error, ModuleNotFoundError) and error.name else ""
        if missing and (missing == module_name or module_name.startswith(f"{missing}.")):
            close = nearest(missing, _modules_beside(missing)) or " in the current folder, nor installed"
            if module_name.endswith(".py") and missing == module_name:  # there is a file of that name
                close = f", did you mean '{one_line(module_name.removesuffix('.py'))}'?"
            raise ConfigError(f"{shown}: no module '{missing}'{close}") from error
        raise ConfigError(f"{shown} cannot be imported: {raised_in(error)}") from error


def _warn_where_edited(module: ModuleType) -> None:
    """Once for each time that its file is written anew: Python reads a module once. `importlib.reload`, which reads it
    again, gives it another spec."""
    try:
        written = Path(module.__file__ or "").stat().st_mtime_ns
    except (AttributeError, OSError, ValueError):
        return  # it has no file, or none any more
    spec, before = _read.get(module.__name__, (None, 0))
    _read[module.__name__] = (module.__spec__, written)
    if spec is not None and spec is module.__spec__ and written != before:
        log.warning(
            "%s was written anew since it was imported, and this process goes on with what it read then: start another "
            "one, or importlib.reload it before the next call",
            one_line(str(module.__file__)),
        )


def _hidden_file(module_name: str, module: ModuleType) -> str:
    """The file of the current folder that is called as a module from elsewhere is; empty where there is none."""
    top = module_name.partition(".")[0]
    places = [*vars(module).get("__path__", ()), getattr(module, "__file__", None) or ""]
    if any(Path(place).is_relative_to(Path.cwd()) for place in places):
        return ""
    return next((name for name in (f"{top}.py", f"{top}/__init__.py") if Path(name).is_file()), "")


def _modules_beside(module_name: str) -> Iterable[str]:
    """Full names of the modules in the package that should hold `module_name`."""
    package, dot, _ = module_name.rpartition(".")
    # Of all that is installed, hardly anything is meant by a wrong name: at the top the user's own folder counts alone.
    folders = getattr(sys.modules.get(package), "__path__", ()) if dot else filter(None, [current_folder()])
    return [f"{package}{dot}{found.name}" for found in pkgutil.iter_modules(list(folders))]
