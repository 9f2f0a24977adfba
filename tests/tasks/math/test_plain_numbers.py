"""When two numbers are one, and what a number is that has words behind it."""

from fractions import Fraction

import pytest

from coachrl.tasks.math.plain_numbers import read_number, same_number

MILLIONTH = Fraction(1, 10**6)


@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        (7 + MILLIONTH, Fraction(7), True),
        (7 - MILLIONTH * 2, Fraction(7), False),
        (Fraction(2_000_001), Fraction(2_000_000), False),  # a whole number is not rounded by its size
        (Fraction(4_000_003, 2), Fraction(4_000_001, 2), True),  # 2,000,001.5 for 2,000,000.5
        (Fraction(4_000_007, 2), Fraction(4_000_001, 2), False),
        (Fraction(333_333, 10**6), Fraction(1, 3), True),
        (Fraction(33_333, 10**5), Fraction(1, 3), False),
        (Fraction(-1, 2), Fraction(-1, 2) * (1 + MILLIONTH), True),
        (Fraction(0), Fraction(1, 10**7), False),
    ],
)
def test_a_whole_number_is_near_in_itself_and_another_by_its_size(given, right, same):
    assert same_number(Fraction(given), right) == same


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 dozen", 24),
        ("3 thirds", 1),
        (r"5\text{ tenths}", Fraction(1, 2)),
        ("7 hundredths", Fraction(7, 100)),
        (r"7\text{ thousandths}", Fraction(7, 1000)),
        ("7 twelfths", Fraction(7, 12)),
        ("3 hundred thousand dollars", 300_000),
        ("−4 billion", -4 * 10**9),
        ("1.5e-2", Fraction(15, 1000)),
        ("12,345,678 eggs", 12_345_678),
        ("1,23", None),
        ("7 squared", None),
        ("7 or eight", None),
        ("7 eggs 8", None),
    ],
)
def test_words_behind_a_number(text, value):
    assert read_number(text) == value
