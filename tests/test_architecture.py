"""How the rooms of the package stand: nothing is imported from a higher floor, and no modules import each other in a
circle, imports inside functions included."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

FLOORS = (
    ("types", "errors", "text", "storage", "seeding", "prompts", "machine", "resources", "parsing", "stats"),
    ("config",),
    ("sandbox", "tasks"),
    ("coach", "pipelines", "runs"),
    ("gateway",),
    ("trainers",),
    ("rescore", "export", "report", "audit", "doctor", "testing"),
    ("commands",),
    ("cli", "api"),
    ("__main__",),
)
"""The rooms from the ground up; those of one floor may import each other, as long as there is no circle."""

FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    found = {}
    for path in sorted((ROOT / "coachrl").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(tree: ast.AST) -> Iterator[str]:
    """Every dotted name that code imports when it runs, wherever in it: what is for type checkers alone is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{name.name}" for name in node.names)
        else:
            yield from imported_names(node)


@functools.cache
def imports() -> dict[str, set[str]]:
    """Module -> the modules of the package that it names in its imports."""
    known = modules()
    graph = {}
    for module, path in known.items():
        found = set()
        for name in imported_names(ast.parse(path.read_text(encoding="utf-8"))):
            # "from package.module import thing" names the thing: its module is what is imported.
            target = name if name in known else name.rpartition(".")[0]
            if target in known and target != module:
                found.add(target)
        graph[module] = found
    return graph


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_a_floor_and_every_floor_its_rooms() -> None:
    assert {room(module) for module in modules()} - {""} == FLOOR.keys()


def test_the_page_on_the_architecture_names_every_room_and_no_file_that_is_gone() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.partition("| package |")[2].partition("## Reading order")[0]
    named = {
        name for row in rooms.splitlines() for name in re.findall(r"`(\w+)/?`", row.split("|")[1] if "|" in row else "")
    }
    assert named == FLOOR.keys() - {"api", "__main__"}
    files = re.findall(r"`(coachrl/[\w/.]+)`", page)
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(imports()).prepare()  # raises CycleError, with the circle


def test_nothing_is_imported_from_a_higher_floor() -> None:
    upward = [
        (module, target)
        for module, targets in imports().items()
        for target in targets
        if room(module) and room(target) and FLOOR[room(module)] < FLOOR[room(target)]
    ]
    assert sorted(upward) == []


def test_imports_inside_functions_are_seen_and_those_for_type_checkers_are_not() -> None:
    code = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b.c import d\n    if x:\n        import e\n"
    assert set(imported_names(ast.parse(code))) == {"b.c.d", "e"}


def test_what_comes_before_the_first_line_of_a_run_imports_no_torch() -> None:
    code = (
        "import sys, coachrl.cli.main, coachrl.commands.build, coachrl.commands.configure, coachrl.runs.folder\n"
        "print(sorted({'torch', 'transformers', 'sklearn', 'scipy', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_whoever_acts_scores_and_reports_imports_no_torch_and_no_providers_library() -> None:
    rooms = ("sandbox", "tasks", "coach", "pipelines", "report", "audit")
    programs = re.compile(r"_program$|\.inside\b")  # that run as processes of their own
    names = [module for module in modules() if room(module) in rooms and not programs.search(module)]
    code = (
        f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'transformers', 'trl', 'litellm', 'google.genai'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_two_modules_of_the_tests_share_a_name() -> None:
    """pytest imports a test's file by its bare name; each environment collects its own part of these folders."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
