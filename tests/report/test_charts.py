from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from coachrl.report.charts import Chart, Series, forest
from coachrl.stats import Estimate


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8), st.booleans())
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
