"""Length and style on a handful of replies, each figure worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from audit_tables import sample

from coachrl.audit.stats.style import _amount, _usual_range, style_effect


def test_a_slope_is_that_inside_of_cells_over_the_usual_range():
    """One point for each 10 tokens inside of two cells that lie far apart; percentiles 10 and 90 of 0, 10 and 20."""
    rows = [
        {"task": f"t{n}", "episode": f"{o}{n}", "outcome": o, "tokens": 10 * n + 500 * int(o), "score": n + 3 * o}
        for o in (0.0, 1.0)
        for n in range(3)
    ]
    found = style_effect(sample(*rows), "tokens", "")
    assert found.span == pytest.approx(16.0) and found.per == "16 tokens more" and found.rho.n == 6
    assert found.rho.value == pytest.approx(1.0)
    assert style_effect(sample(*(row | {"tokens": 5} for row in rows)), "tokens", "") is None


def test_length_is_measured_where_most_replies_were_cut_at_their_limit():
    cut = [{"task": f"t{n}", "episode": f"c{n}", "state": "cut", "tokens": 40, "score": 5.0} for n in range(30)]
    whole = [{"task": f"t{n}", "episode": f"w{n}", "state": "ran", "tokens": n, "score": n / 2} for n in range(20)]
    found = style_effect(sample(*cut, *whole), "tokens", "")
    assert found.slope.value == pytest.approx(found.span / 2) and found.span == pytest.approx(0.8 * 19)
    cut = [row | {"score": float(n % 2)} for n, row in enumerate(cut)]
    assert style_effect(sample(*cut, *whole), "tokens", "").rho.value == pytest.approx(1), "of those that could differ"


def test_the_usual_range_is_that_of_the_median_actions_cell():
    values, cells = np.array([0.0, 1, 0, 2, 0, 100, 50, 50, 50]), np.array([0, 0, 1, 1, 2, 2, 2, 2, 2])
    assert _usual_range(values, cells) == pytest.approx(60.0)  # of 0.8 and 1.6 twice each, and 60 five times
    assert _usual_range(values[:6], cells[:6]) == pytest.approx(1.6)
    assert _usual_range(values[[0, 1, 6, 7, 8]], cells[[0, 1, 6, 7, 8]]) == pytest.approx(0.8), "of those that differ"
    assert _usual_range(values[6:], cells[6:]) == 0


@pytest.mark.parametrize(
    ("feature", "span", "words"),
    [
        ("tokens", 1.0, "1 token more"),
        ("tokens", 9.99, "10 tokens more"),
        ("tokens", 10.0, "10 tokens more"),
        ("tokens", 1234.6, "1,235 tokens more"),
        ("code_share", 0.01, "1 point more of code"),
        ("code_share", 0.125, "12 points more of code"),
        ("markdown", 0.5, "0.5 marks more per 1000 characters"),
        ("hedging", 1.0, "1 hedging word more per 100 words"),
        ("hedging", 2.0, "2 hedging words more per 100 words"),
    ],
)
def test_an_amount_of_a_feature_is_told_in_its_own_unit(feature, span, words):
    assert _amount(feature, span) == words
