"""Which cases of a parametrized test CI runs."""

import pytest


def every(nth, cases):
    """Every nth of the cases, from the first; --thorough runs the others too. For families whose cases are alike."""
    return [case if number % nth == 0 else thorough(case) for number, case in enumerate(cases)]


def but(left_out, cases):
    """All but those left out, which --thorough runs."""
    return [thorough(case) if case in left_out else case for case in cases]


def thorough(case):
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.thorough], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
