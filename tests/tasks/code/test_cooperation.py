"""What a main agent makes of its helper's function, read from the syntax tree."""

import pytest

from coachrl.tasks.code.cooperation import NO_COOPERATION, defines, find_cooperation


def main(body, head="def solve(xs):"):
    return head + "\n" + "".join(f"    {line}\n" for line in body.splitlines())


NOT_CALLED = {
    "a comment": "# aux(xs) does it\nreturn sorted(xs)",
    "a string": "note = 'aux(xs)'\nreturn note",
    "a docstring": "'''Calls aux(xs).'''\nreturn xs",
    "another object's": "return xs.aux(xs)",
    "after the return": "return xs\nreturn aux(xs)",
    "after a return that is always taken": "if True:\n    return xs\nreturn aux(xs)",
    "never true": "if False:\n    return aux(xs)\nreturn xs",
    "its own": "def aux(x):\n    return x\nreturn aux(xs)",
    "rebound": "aux = sorted\nreturn aux(xs)",
    "only named": "f = aux\nreturn xs",
    "too deep to be read": "return aux(xs)" + " + 1" * 1500,
}


@pytest.mark.parametrize("body", NOT_CALLED.values(), ids=NOT_CALLED)
def test_what_is_no_call(body):
    assert find_cooperation(main(body), "solve") == NO_COOPERATION


def test_a_call_that_the_entry_function_does_not_reach():
    elsewhere = "def other(x):\n    return aux(x)\n\n\n"
    assert find_cooperation(elsewhere + main("return xs"), "solve") == NO_COOPERATION
    assert find_cooperation(elsewhere + main("return other(xs) + 1"), "solve").used
    assert find_cooperation("from helper import aux\n" + main("return aux(xs) + 1"), "solve") == NO_COOPERATION
    assert find_cooperation("def aux(x):\n    return x\n" + main("return aux(xs) + 1"), "solve") == NO_COOPERATION
    assert find_cooperation("not python (", "solve") == NO_COOPERATION
    assert find_cooperation(main("return aux(xs)"), "other_name") == NO_COOPERATION


@pytest.mark.parametrize(
    ("body", "schemes"),
    [
        ("try:\n    return aux(xs)\nexcept Exception:\n    return sorted(xs)", ("fallback",)),
        ("try:\n    return 1 + aux(xs)\nexcept ValueError:\n    raise", ("decorator",)),
        ("if not xs:\n    return []\nreturn sorted(aux(xs))", ("decorator",)),
        ("total = 0\nfor x in xs:\n    total += aux(x)\nreturn total", ("coordinator",)),
        ("return [aux(x) for x in xs]", ("coordinator",)),
        ("return sum(map(aux, xs))", ("coordinator",)),
        ("return sorted(xs, key=aux)", ("coordinator",)),
        ("if aux(xs):\n    return 1\nreturn 2", ("strategy_filter",)),
        ("good = aux(xs)\nif good > 3:\n    return 1\nreturn 2", ("strategy_filter",)),
        ("return 1 if aux(xs) else 2", ("strategy_filter",)),
        ("return [x for x in xs if aux(x)]", ("coordinator", "strategy_filter")),
        ("return aux(xs)", ("wrapper",)),
        ("'''Doc.'''\nresult = aux(xs)\nreturn result", ("wrapper",)),
        ("result: list = aux(xs)\nsame = result\nscale = 1\npass\nreturn same", ("wrapper",)),
        ("return (result := aux(xs))", ("wrapper",)),
        ("if True:\n    return aux(xs)", ("wrapper",)),
        ("if not 0:\n    return aux(xs)\nreturn xs", ("wrapper",)),
        ("return aux(xs) if 1 else xs", ("wrapper",)),
        ("result = aux(xs)\nresult = sorted(result)\nreturn result", ("decorator",)),
        ("return aux(sorted(xs))", ("decorator",)),
        ("seen = []\nseen.append(aux(xs))\nreturn seen", ("decorator",)),
        ("aux(xs)\nreturn sorted(xs)", ("ignored",)),
        ("unused = aux(xs)\nreturn sorted(xs)", ("ignored",)),
        ("unused: list = aux(xs)\nreturn sorted(xs)", ("ignored",)),
        ("(unused := aux(xs))\nreturn sorted(xs)", ("ignored",)),
        ("print(aux(xs))\nreturn sorted(xs)", ("ignored",)),
        ("aux(xs) == 1\nreturn sorted(xs)", ("ignored",)),
        ("aux(xs) and None\nreturn sorted(xs)", ("ignored",)),
        ("assert aux(xs) or True\nreturn sorted(xs)", ("ignored",)),
        ("aux(xs)\nreturn aux(xs) + 1", ("decorator",)),
        ("try:\n    aux(xs)\nexcept ValueError:\n    return 1\nreturn aux(xs) + 1", ("decorator",)),
        ("while xs:\n    xs = aux(xs) + [1]\nreturn xs", ("coordinator", "strategy_filter")),
        ("while aux(xs):\n    xs.pop()\nreturn xs", ("coordinator", "strategy_filter")),
        ("match aux(xs):\n    case 1:\n        return 2\nreturn 3", ("strategy_filter",)),
        ("match len(xs):\n    case 1:\n        return 1 + aux(xs)\nreturn 3", ("decorator",)),
        ("return 1 + aux(xs) if xs else 2", ("decorator",)),
        ("return 1 if xs else 2 + aux(xs)", ("decorator",)),
        ("return solve(aux(xs)) if xs else 1", ("decorator",)),  # it calls itself
        ("for x in aux(xs):\n    print(x)\nelse:\n    return 1", ("decorator",)),
        ("result = aux(xs)\nprint(result)", ("decorator",)),
    ],
)
def test_schemes(body, schemes):
    found = find_cooperation(main(body), "solve")
    assert found.called and found.schemes == schemes
    assert found.used == (schemes != ("ignored",)) and found.wrapper == (schemes == ("wrapper",))


def test_definitions():
    assert defines("def aux(x):\n    return x", "aux", needs_return=True)
    assert not defines("def aux(x):\n    print(x)", "aux", needs_return=True)
    assert not defines("def aux(x):\n    def inner():\n        return x\n    inner()", "aux", needs_return=True)
    assert not defines("# def aux(x): return x\ntext = 'def aux(x): return x'", "aux")
    assert not defines("class A:\n    def aux(self):\n        return 1", "aux")
    assert defines("def aux(x):\n    return x\n\nprint((", "aux", needs_return=True), "the definition itself parses"
    assert not defines("def aux(x:\n    return x", "aux")
    assert defines("def aux(\n    x,\n):\n\n    return x\n\nprint((", "aux", needs_return=True)
    assert not defines("def aux(x):\n    print(x)\nreturn x\n(", "aux", needs_return=True), "that is not its own"
    assert defines("async def aux(x):\n    return x\n(", "aux") and not defines(
        "def aux_of(x):\n    return x\n(", "aux"
    )
    assert not defines("def aux(x):\n    return x\ndef aux(x):\n    print(x)\n(", "aux", needs_return=True), "the last"
