from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coachrl.report.charts import Chart, Series, forest, number, reliability
from coachrl.report.page import _duration
from coachrl.stats import Estimate


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8), st.booleans())
@example([1.7e308, -1.7e308], False)
@example([1e308, 1e308], True)
def test_any_numbers_can_be_drawn(values: list[float], stacked: bool) -> None:
    values = [abs(v) for v in values] if stacked else values
    points = [(float(step), value) for step, value in enumerate(values)]
    svg = str(Chart("<b>", [Series("<i>", points)], "n", stacked=stacked).svg())
    assert "nan" not in svg and "inf" not in svg and "<b>" not in svg and "<i>" not in svg


def test_names_of_a_forest_stand_whole_however_long() -> None:
    name = "a category whose name is longer than any row of a picture could be wide: " + "x" * 80
    picture = str(forest("gaps", [(name, Estimate(0.5, 0.1, 0.9, 4, 4)), ("<b>", Estimate(0.0, None, None, 4, 4))]))
    assert f"<span>{name}</span>" in picture and "<b>" not in picture and picture.count('class="dot') == 2
    lowest = [float(y) for y in re.findall(r'class="tick" x="[^"]*" y="([^"]*)"', picture)]
    assert len(lowest) > 2 and max(lowest) < 24  # the scale's numbers lie inside of its picture


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (12.345, "12.3"),
        (-250.6, "-251"),
        (12_345, "12.3k"),
        (-20_000, "-20k"),
        (0.0005, "5.0e-4"),
        (-9_990_000, "-9.99e6"),
        (1.2e300, "1.2e300"),
    ],
)
def test_a_number_fits_the_margin(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_scale_holds_zero_and_what_is_stacked_is_summed_at_each_step() -> None:
    one, two = Series("one", [(1.0, 2.0), (2.0, 3.0)]), Series("two", [(1.0, 4.0)])
    assert Chart("t", [one, two], "n", stacked=True)._limits() == (0.0, 6.0)
    assert Chart("t", [one, two], "n")._limits() == (0.0, 4.0)
    assert Chart("t", [Series("s", [(1.0, -1.0), (2.0, -3.0)])], "n")._limits() == (-3.0, 0.0)
    assert Chart("t", [Series("s", [(1.0, 0.0)])], "n")._limits() == (0.0, 1.0)
    assert Chart("t", [], "n").ends(one) == "2 → 3" and Chart("t", [], "n").ends(two) == "4 at step 1"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(59.94, "59.9 s"), (61, "1 min 1 s"), (3599.6, "1 h 0 min"), (3725, "1 h 2 min")]
)
def test_a_time_is_told_in_its_own_unit(seconds: float, shown: str) -> None:
    assert _duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (9999, "9999"),
        (10_000, "10k"),
        (99.96, "100"),
        (100, "100"),
        (0.001, "0.001"),
        (0.00099, "9.9e-4"),
        (999_499, "999k"),
        (999_500, "1e6"),
    ],
)
def test_a_number_changes_its_form_at_round_bounds(value: float, shown: str) -> None:
    assert number(value) == shown and number(-value) == f"-{shown}"


def test_the_last_step_has_room_for_its_number() -> None:
    svg = str(Chart("t", [Series("s", [(1.0, 1.0), (1000.0, 2.0)])], "n").svg())
    [(place, width)] = zip(re.findall(r'x="([^"]*)" y="[^"]*" text-anchor="middle">1000<', svg), ["380"], strict=True)
    half = 4 * 7.7 / 2  # digits of 12 pixels are 7.7 wide at most
    assert float(place) + half <= float(width)


def test_a_picture_of_reliability_puts_scores_across_and_success_upwards() -> None:
    bins = [("low", 0.0, Estimate(0.0, None, None, 4, 4)), ("high", 10.0, Estimate(1.0, 0.5, 1.0, 4, 4))]
    svg = str(reliability(bins))
    assert re.findall(r'<circle class="dot n0" cx="([^"]*)" cy="([^"]*)"', svg) == [
        ("40.0", "260.0"),
        ("290.0", "10.0"),
    ]
    assert re.findall(r'<path class="whisker n0" d="([^"]*)"', svg) == ["M290.0 135.0L290.0 10.0"]
    assert re.findall(r'<path class="grid" d="([^"]*)"', svg)[0] == "M40.0 260.0L290.0 260.0"
    assert re.findall(r'text-anchor="(?:end|middle)">([^<]*)<', svg) == [
        *("0", "0.2", "0.4", "0.6", "0.8", "1"),
        *("0", "2", "4", "6", "8", "10", "mean score of the last action"),
    ]
    assert "<title>success by score</title><desc>low: 0.00 (n = 4 actions, 4 tasks); high: 1.00 [0.50" in svg


def test_a_curve_is_described_in_words() -> None:
    one = Series("one", [(1.0, 2.0), (2.0, 3.0)])
    svg = str(Chart("reward", [one, Series("two", [(1.0, 0.5)])], "n", unit="points").svg())
    assert "<title>reward (points) by training step</title><desc>one: 2 → 3; two: 0.5 at step 1</desc>" in svg
    assert "<title>reward by training step</title>" in str(Chart("reward", [one], "n").svg())


def test_names_in_pictures_turn_round_and_hide_nothing() -> None:
    name, shown = "a\u202e<b>\x9b\x1b", r"a\u202e&lt;b&gt;\x9b\x1b"
    chart = Chart(name, [Series(name, [(1.0, 2.0), (2.0, 3.0)])], "", name)
    rows = forest(name, [(name, Estimate(0.5, 0.1, 0.9, 4, 4))])
    pictures = chart.svg() + rows + reliability([(name, 5.0, Estimate(0.5, 0.1, 0.9, 4, 4))])
    assert shown in chart.svg() and shown in rows and not {"\u202e", "\x9b", "\x1b"} & set(pictures)
