"""Which of its assertions a suite makes about the function that is tested, by whatever name."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator

from coachrl.tasks.code.suite import Suite, SuiteError, parse_suite

_CHECK = "check"  # is called with the tested function (HumanEval's form)


def by_own_name(suite: Suite, entry_point: str) -> Suite:
    """The suite to be read, not to be run: in its assertions the tested function, and nothing else, has its own name.

    So the first parameter of `check` is spelled, and of a function that the suite hands the tested one and nothing
    else. Where the suite gives that name to something of its own, it is spelled otherwise. Raises SuiteError where it
    cannot be written anew: it nests too deeply, or holds a number of too many digits.
    """
    try:
        source = _by_own_name(ast.parse(suite.source), entry_point)
    except (RecursionError, ValueError) as error:
        raise SuiteError(f"the tests cannot be written anew: {error}") from error
    return parse_suite(source)


def _by_own_name(tree: ast.Module, entry_point: str) -> str:
    handed = _handed(tree, entry_point)
    parameters = {id(first) for _, first in handed}
    is_own = any(entry_point in _bound(node) for node in ast.walk(tree) if id(node) not in parameters)
    tested = {
        id(node)
        for function, first in handed
        if function.name == _CHECK or not is_own
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and node.id == first.arg
    }
    for node in ast.walk(tree):
        if id(node) in tested and isinstance(node, ast.Name):
            node.id = entry_point
        elif is_own and isinstance(node, ast.Name) and node.id == entry_point:
            node.id = f"own_{entry_point}"
    return ast.unparse(tree)


def _handed(tree: ast.Module, entry_point: str) -> list[tuple[ast.FunctionDef, ast.arg]]:
    """The functions at the top whose first parameter is what `entry_point` names, whoever calls them, and that one."""
    mentions, calls = Counter[str](), Counter[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name):
                mentions[name] += 1
            case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=given), *_]) if given == entry_point:
                calls[name] += 1
    found = []
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            continue
        is_called_so = function.name == _CHECK or 0 < calls[function.name] == mentions[function.name]
        first = next(iter([*function.args.posonlyargs, *function.args.args]), None)
        if not is_called_so or first is None:
            continue
        if not any(first.arg in _bound(node) for node in ast.walk(function) if node is not first):
            found.append((function, first))
    return found


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that it gives to something. An import under the function's own name means the tested one, but from the
    standard library."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            module = getattr(node, "module", None) or ""
            is_known = module.partition(".")[0] in sys.stdlib_module_names
            yield from (alias.asname or alias.name for alias in aliases if is_known or alias.asname)
