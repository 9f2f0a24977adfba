"""Which assertions of a suite are about the tested function, `gaps`."""

import pytest

from coachrl.tasks.code.suite import parse_suite
from coachrl.tasks.code.tested import by_own_name


def asserted(source: str) -> tuple[str, ...]:
    return by_own_name(parse_suite(source), "gaps").assertions


@pytest.mark.parametrize(
    "source",
    [
        "assert gaps(3) == 1",
        "def check(candidate):\n    assert candidate(3) == 1",
        "def check(f, *more):\n    def inner():\n        assert f(3) == 1\n    inner()",
        "def check(gaps, /):\n    assert gaps(3) == 1",
        "def check(candidate):\n    assert candidate(3) == 1\ncheck(gaps)",
        "def run(f):\n    assert f(3) == 1\nrun(gaps)",
        "def test_gaps():\n    assert gaps(3) == 1",
        "def gaps(n): return n\ndef check(f):\n    assert f(3) == 1",  # who calls `check` hands it the tested one
        "from solution import gaps\nassert gaps(3) == 1",
        "import math\nf = math.sqrt\nassert gaps(3) == 1",
    ],
)
def test_the_tested_function_is_found_by_whatever_name(source):
    assert asserted(source) == ("gaps(3) == 1",)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("assert candidate(3) == 3", "candidate"),
        ("def candidate(x): return x\nassert candidate(3) == 3", "candidate"),
        ("candidate = lambda x: x\nassert candidate(3) == 3", "candidate"),
        ("def check(candidate): pass\nassert candidate(3) == 3", "candidate"),
        ("def check(f):\n    f = abs\n    assert f(3) == 3", "f"),
        ("def check(f):\n    for f in (abs,):\n        assert f(3) == 3", "f"),
        ("@replaced\ndef check(f):\n    assert f(3) == 3", "f"),
        ("def check():\n    assert f(3) == 3", "f"),
        ("def run(f):\n    assert f(3) == 3\nrun(abs)", "f"),
        ("def run(f):\n    assert f(3) == 3\nrun(gaps)\nrun(abs)", "f"),
        ("def run(f):\n    assert f(3) == 3\nrun(gaps)\nmap(run, [abs])", "f"),
        ("def run(f):\n    assert f(3) == 3", "f"),
        ("gaps = abs\ndef run(f):\n    assert f(3) == 3\nrun(gaps)", "f"),
        ("class A:\n    def check(f):\n        assert f(3) == 3", "f"),
    ],
)
def test_another_function_keeps_its_name(source, name):
    assert asserted(source) == (f"{name}(3) == 3",)


@pytest.mark.parametrize(
    "binding",
    [
        "def gaps(x): return x",
        "async def gaps(x): return x",
        "class gaps: pass",
        "gaps = abs",
        "(gaps := abs)",
        "for gaps in [abs]: pass",
        "from math import sqrt as gaps",
        "import math as gaps",
        "match abs:\n    case gaps: pass",
        "match [abs]:\n    case [*gaps]: pass",
        "match {}:\n    case {**gaps}: pass",
        "try: pass\nexcept Exception as gaps: pass",
        "def check(gaps): gaps = abs",
    ],
)
def test_what_a_suite_gives_the_functions_name_is_not_the_function(binding):
    assert asserted(f"{binding}\nassert gaps(3) == 3") == ("own_gaps(3) == 3",)
    assert asserted(f"assert gaps(3) == 3\n{binding}") == ("own_gaps(3) == 3",)


def test_an_import_from_the_standard_library_is_another_function():
    suite = parse_suite("from math import gcd\nassert gcd(4, 6) == 2")
    assert by_own_name(suite, "gcd").assertions == ("own_gcd(4, 6) == 2",)
