"""How two agents' code works together, read from its syntax tree: a helper's `aux` and the main agent's entry function.

Nothing is executed, and a comment or a string is no call. Schemes are those of MAGRPO, App. B.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

AUX = "aux"
SCHEMES = ("fallback", "coordinator", "strategy_filter", "decorator", "wrapper", "ignored", "none")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Cooperation:
    """What the entry function makes of `aux`.

    called: it is called, or handed to something that calls it, where the entry function can reach it. used: some result
    of it is used. wrapper: the entry function does nothing but pass its own arguments on and the result back. schemes:
    of `SCHEMES`, those that are found; "none" where `aux` is not called.
    """

    called: bool
    used: bool
    wrapper: bool
    schemes: tuple[str, ...]


NO_COOPERATION = Cooperation(called=False, used=False, wrapper=False, schemes=("none",))


def parse_code(source: str) -> ast.Module | None:
    """The syntax tree, or None where `source` is not Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def defines(source: str, name: str, needs_return: bool = False) -> bool:
    """Whether `source` defines the function `name` at its top level; needs_return: with a `return` of its own.

    Of a source that does not parse as a whole the definition alone is looked at: from its `def` to the next line that
    is not indented.
    """
    tree = parse_code(source) or parse_code(_definition_text(source, name))
    function = _function(tree, name) if tree is not None else None
    return function is not None and (not needs_return or _returns(function))


def find_cooperation(main: str, entry_point: str) -> Cooperation:
    """What `entry_point`, as the main agent wrote it, makes of the helper's `aux`.

    A main agent that defines or rebinds `aux` itself calls its own. Code that can never run (after a return, under
    `if False`) does not count, nor does code that nests too deeply to be read.
    """
    tree = parse_code(main)
    try:
        return _cooperation(_Decided().visit(tree), entry_point) if tree is not None else NO_COOPERATION
    except RecursionError:  # an expression of a thousand terms, as a model that repeats itself writes
        return NO_COOPERATION


def _cooperation(tree: ast.Module, entry_point: str) -> Cooperation:
    entry = _function(tree, entry_point)
    if entry is None or _rebinds(tree, AUX):
        return NO_COOPERATION
    reached = _reached(tree, entry)
    uses = [use for function in reached for use in _Uses(function).found]
    if not uses:
        return NO_COOPERATION
    used = any(use.kept for use in uses)
    wrapper = len(reached) == 1 and _is_wrapper(entry)
    return Cooperation(True, used, wrapper, _schemes(uses, used, wrapper))


@dataclass(frozen=True)
class _Use:
    """One place where `aux` is called. kept: its result is used; the others say what surrounds it."""

    kept: bool
    guarded: bool
    repeated: bool
    deciding: bool


def _schemes(uses: list[_Use], used: bool, wrapper: bool) -> tuple[str, ...]:
    if not used:
        return ("ignored",)
    if wrapper:
        return ("wrapper",)
    kept = [use for use in uses if use.kept]
    found = (
        ("fallback", any(use.guarded for use in kept)),
        ("coordinator", any(use.repeated for use in kept)),
        ("strategy_filter", any(use.deciding for use in kept)),
    )
    return tuple(name for name, there in found if there) or ("decorator",)


class _Decided(ast.NodeTransformer):
    """Puts the branch that is taken in the place of a question whose answer stands there, as in `if True`."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        truth = _truth(node.test)
        return node if truth is None else (node.body if truth else node.orelse) or [ast.Pass()]

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        truth = _truth(node.test)
        return node if truth is None else node.body if truth else node.orelse


def _truth(test: ast.expr) -> bool | None:
    """What a constant, or `not` before one, says; None for what is known at run time alone."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand)
        return None if inner is None else not inner
    return bool(test.value) if isinstance(test, ast.Constant) else None


class _Uses(ast.NodeVisitor):
    """Walks what of a function can run, and notes each use of `aux` with what surrounds it."""

    def __init__(self, function: _Function) -> None:
        self.found: list[_Use] = []
        self._here = _Use(kept=True, guarded=False, repeated=False, deciding=False)
        self._nodes = list(_own_nodes(function))
        self._read = {n.id for n in self._nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        self._tested = {n.id for test in _tests(self._nodes) for n in ast.walk(test) if isinstance(n, ast.Name)}
        self._inside(function.body)

    def _inside(self, nodes: Iterable[ast.AST], **around: bool) -> None:
        """Visit expressions, or statements up to where they are left. around: what then surrounds a use."""
        before, self._here = self._here, replace(self._here, **around)
        for node in nodes:
            self.visit(node)
            if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
                break
        self._here = before

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id == AUX:
            self.found.append(self._here)
        elif any(isinstance(a, ast.Name) and a.id == AUX for a in _arguments(node)):
            # map(aux, ...), sorted(..., key=aux): something else calls it, for each
            self.found.append(replace(self._here, repeated=True))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """What stands by itself is dropped, but for a call of something that may keep it: a method, a function of the
        program's own."""
        called = node.value.func if isinstance(node.value, ast.Call) else None
        named = isinstance(called, ast.Name) and called.id != AUX and not hasattr(builtins, called.id)
        self._inside([node.value], kept=named or isinstance(called, ast.Attribute))

    def visit_Assert(self, node: ast.Assert) -> None:
        self._inside([node.test], kept=False)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        plain = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        kept = not plain or not self._read.isdisjoint(names)
        self._inside([node.value], kept=kept, deciding=self._here.deciding or not self._tested.isdisjoint(names))

    visit_AnnAssign = visit_Assign

    def visit_If(self, node: ast.If) -> None:
        self._inside([node.test], deciding=True)
        self._inside(node.body)
        self._inside(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._inside([node.test], deciding=True)
        self._inside([node.body, node.orelse])

    def visit_Match(self, node: ast.Match) -> None:
        self._inside([node.subject], deciding=True)
        for case in node.cases:
            self._inside(case.body)

    def visit_While(self, node: ast.While) -> None:
        self._inside([node.test], deciding=True, repeated=True)
        if _truth(node.test) is not False:
            self._inside(node.body, repeated=True)
        self._inside(node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._inside(node.body, repeated=True)
        self._inside(node.orelse)

    visit_AsyncFor = visit_For

    def visit_Try(self, node: ast.Try) -> None:
        handled = any(not _gives_up(handler.body) for handler in node.handlers)
        self._inside(node.body, guarded=self._here.guarded or handled)
        for handler in node.handlers:
            self._inside(handler.body)
        self._inside(node.orelse)
        self._inside(node.finalbody)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.visit(node.iter)
        self._inside(node.ifs, deciding=True, repeated=True)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for generator in node.generators:
            self.visit(generator)
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._inside(made, repeated=True)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_FunctionDef(self, node: _Function) -> None:
        """A function inside runs where it is called, which is taken as given; reads of it count."""
        self._inside(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef


def _is_wrapper(entry: _Function) -> bool:
    """`return aux(a, b)`, or the same through names, with nothing else but constants and a docstring."""
    held: dict[str, ast.expr] = {}
    for statement in entry.body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                held[name] = _held(value, held)
            case ast.Return(value=value):
                return _passes_on(_held(value, held))
            case _:
                return False
    return False


def _held(value: ast.expr | None, held: dict[str, ast.expr]) -> ast.expr:
    """What an expression stands for, where it is a name or gives one."""
    if isinstance(value, ast.NamedExpr):
        value = value.value
    if isinstance(value, ast.Name) and value.id in held:
        return held[value.id]
    return value if value is not None else ast.Constant(None)


def _passes_on(value: ast.expr) -> bool:
    match value:
        case ast.Call(func=ast.Name(id=name)) if name == AUX:
            return all(isinstance(a, ast.Name | ast.Constant | ast.Starred) for a in _arguments(value))
    return False


def _gives_up(handler: list[ast.stmt]) -> bool:
    """An except block without an answer of its own."""
    return all(isinstance(statement, ast.Pass | ast.Raise) for statement in handler)


def _tests(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test
        elif isinstance(node, ast.Match):
            yield node.subject


def _reached(tree: ast.Module, entry: _Function) -> list[_Function]:
    """The entry function and those of the same source that it calls, directly or through others."""
    reached, waiting = [], [entry]
    while waiting:
        function = waiting.pop()
        if function in reached:
            continue
        reached.append(function)
        names = {node.id for node in _own_nodes(function) if isinstance(node, ast.Name)}
        waiting += [f for name in names if (f := _function(tree, name)) is not None]
    return reached


def _rebinds(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) | ast.ClassDef(name=bound):
                pass
            case ast.Name(id=bound, ctx=ast.Store()) | ast.arg(arg=bound):
                pass
            case ast.alias():
                bound = node.asname or node.name
            case _:
                continue
        if bound == name:
            return True
    return False


def _function(tree: ast.Module, name: str) -> _Function | None:
    """The last function of that name at the top level: the one that counts."""
    named = [node for node in tree.body if isinstance(node, _Function) and node.name == name]
    return named[-1] if named else None


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


def _returns(function: _Function) -> bool:
    """Whether the function has a `return` that is not of a function inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            return True
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _definition_text(source: str, name: str) -> str:
    """The lines of `def name(...)` at the left margin, up to the next line that is not indented."""
    lines = source.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith((f"def {name}(", f"async def {name}("))]
    if not starts:
        return ""
    kept = [lines[starts[-1]]]
    for line in lines[starts[-1] + 1 :]:
        if line.strip() and not line[0].isspace() and not line.startswith(")"):
            break
        kept.append(line)
    return "\n".join(kept)
