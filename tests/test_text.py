"""Code as agents write it that are asked for code and run none."""

import pytest

from coachrl.text import written_code


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```\nassert f(1) == 1\nassert f(2) == 2\n```", "assert f(1) == 1\nassert f(2) == 2\n"),
        ("```python\nassert f(1) == 1\n```\nThat is all.", "assert f(1) == 1\n"),
        ("```py3\nx = 1", "x = 1\n"),
        ("Like this:\n```python\nx = 1\n```\nwhich prints\n```\n1\n```", "x = 1\n"),
        ("```\na = 1\n```\nand\n```\nb = 2\n```", "a = 1\nb = 2\n"),
        ("def f(x):\n    return x", "def f(x):\n    return x\n"),
        ("<think>```python\nx = 0\n```</think>x = 1", "x = 1\n"),
    ],
)
def test_no_line_of_the_code_is_lost(reply, code):
    assert written_code(reply) == code
