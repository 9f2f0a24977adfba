"""The agent's process: runs code as `__main__` and ends as plain Python would, without a frame of ours in sight.

The same code gives the same result: strings hash with PYTHONHASHSEED=0 (set by whoever starts the interpreter), and the
global generators of `random` and `numpy.random` start from seed 0 in each execution. Generators that ask the operating
system for entropy (`numpy.random.default_rng()`) stay random.
"""

# ruff: noqa: PTH109, PTH118

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import io
import linecache
import os
import random
import sys
import threading
import traceback
import types
import warnings
from typing import Any, NoReturn

FILE_NAME = "main.py"
_NO_FILE = "/dev/null/main.py"  # there can be none
_MOST_FRAMES = 1000  # the last ones, as an interpreter prints them; a million, which code may allow, take minutes
# Characters. Two functions that call each other without end come to 120,000, and what the error is stands last.
_MOST_TOLD = 12_000
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def run_and_exit(code: str) -> NoReturn:
    """Run `code` in the current process, which must be expendable: it never returns."""
    leave = os._exit  # the code may change what `os` holds, and every function of this module
    exit_code = 1
    try:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = _text_stream(1, "strict")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _text_stream(2, "backslashreplace")  # type: ignore[misc]
        sys.argv = [FILE_NAME]
        threading.excepthook = _report_of_thread
        _reseed()
        main = _fresh_main(code)
        exit_code = _finish(main, _execute(code, main.__dict__))
    finally:
        leave(exit_code)


def _text_stream(fd: int, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        open(fd, "wb", closefd=False),
        encoding="utf-8",
        errors=errors,
        line_buffering=fd == 2,
    )


def _reseed() -> None:
    random.seed(0)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(0)


def _fresh_main(code: str) -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __file__=os.path.join(os.getcwd(), FILE_NAME))
    sys.modules["__main__"] = main
    sys.path.insert(0, os.getcwd())
    # Tracebacks and `inspect` find the source here, although no such file exists.
    lines = code.splitlines(keepends=True)
    for name in (FILE_NAME, main.__dict__["__file__"]):
        linecache.cache[name] = (len(code), None, lines, name)
    return main


def _execute(code: str, namespace: dict[str, Any]) -> int:
    try:
        compiled = _compile(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        traceback.print_exception(error.with_traceback(None))
        return 1
    try:
        exec(compiled, namespace)
    except SystemExit as error:
        return _exit_code(error.code)
    except BaseException as error:  # noqa: BLE001  whatever the code raised ends it, as it would end an interpreter
        _report(error)
        return 1
    return 0


def _compile(code: str) -> types.CodeType:
    """For an error of syntax the compiler reads the line from the file whose name it is given. Agents may have saved
    another program under ours, or made a pipe there that nobody writes to."""
    if os.path.lexists(FILE_NAME):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are told below
                compile(code, _NO_FILE, "exec", dont_inherit=True)
        except SyntaxError as error:
            error.filename = FILE_NAME
            raise
    return compile(code, FILE_NAME, "exec", dont_inherit=True)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def _report(error: BaseException) -> None:
    _forget_first_frame(error)
    with contextlib.suppress(BaseException):  # the code may have closed it, or put something else in its place
        sys.stdout.flush()
    if sys.excepthook is sys.__excepthook__:
        _print(error)
        return
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as broken:  # noqa: BLE001  the code's own hook failed: it is printed with the first error
        _forget_first_frame(broken)
        _print(broken)


def _print(error: BaseException | None) -> None:
    most = getattr(sys, "tracebacklimit", None)
    limit = -max(most, 0) if isinstance(most, int) else -_MOST_FRAMES
    told = "".join(traceback.format_exception(error, limit=limit))
    if len(told) > _MOST_TOLD:
        told = f"{told[: _MOST_TOLD // 2]}\n[…]\n{told[-_MOST_TOLD // 2 :]}"
    print(told, end="", file=sys.stderr)  # noqa: T201


def _report_of_thread(args: threading.ExceptHookArgs) -> None:
    """As the interpreter does it, with the code's own lines: before Python 3.13 it looks for them in a file of our
    name, under which agents may have saved another program."""
    if args.exc_type is SystemExit or sys.stderr is None:
        return
    name = threading.get_ident() if args.thread is None else args.thread.name
    print(f"Exception in thread {name}:", file=sys.stderr)  # noqa: T201
    _print(args.exc_value)


def _forget_first_frame(error: BaseException) -> None:
    """It is one of this module's."""
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None


def _finish(main: types.ModuleType, exit_code: int) -> int:
    """What an interpreter does at its end: join threads, exit handlers, destroy globals (open files), flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        try:
            _flush_streams()
        finally:
            _flush_kept()  # of what is collected together, a file may be closed before what writes to it is flushed
            main.__dict__.clear()
            gc.collect()
            _flush_kept()  # what was written as the rest was destroyed
    except SystemExit as error:
        return _exit_code(error.code)
    except BaseException:  # noqa: BLE001  an exit handler of the code failed: an interpreter prints it and goes on
        traceback.print_exc()
        return exit_code or 120
    return exit_code


def _flush_streams() -> None:
    """While the globals last, of which what the code has put in their place may make use: its errors are the code's.
    None of them, and a closed one, is no error."""
    for stream in (getattr(sys, name, None) for name in ("stdout", "stderr")):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _flush_kept() -> None:
    """What was written to files that are still open: also those that others than the code's globals hold, modules of
    its own, and the streams in whose place it has put others."""
    with contextlib.suppress(MemoryError):
        for kept in gc.get_objects():
            if type(kept) in _BUFFERED:
                with contextlib.suppress(Exception):
                    # At another pipe a thread of the code may wait for ever, and keep everybody from what it writes to.
                    if kept.fileno() in (1, 2) or kept.seekable():
                        kept.flush()
