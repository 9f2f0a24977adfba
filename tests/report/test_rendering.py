"""A world's state in the report: drawn where it is a grid, else as the text it is."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from coachrl.report.episodes import Shown
from coachrl.report.page import environment
from coachrl.report.rendering import rendering_svg
from coachrl.testing.actions import make_action
from coachrl.types import Episode, Outcome, Reward


@pytest.mark.parametrize(
    ("text", "cells", "letters"),
    [
        ("A.#\n..G", 6, ["A", "G"]),
        ("#####\n#.A*#\n#####", 15, ["A", "B"]),
        ("1 . 3 4\n. 4 . .", 8, ["1", "3", "4", "4"]),
    ],
)
def test_grids_are_drawn(text, cells, letters):
    root = ElementTree.fromstring(str(rendering_svg(text)))
    boxes = [element for element in root if element.tag == "rect"]
    assert len(boxes) == cells and [element.text for element in root if element.tag == "text"] == letters
    assert root.attrib["aria-label"] == text.replace("\n", " / ")


@pytest.mark.parametrize("text", ["no grid at all", "ab\nabc", "x" * 40, "<script>\n<script>"])
def test_anything_else_stays_text_and_is_escaped(text):
    drawn = str(rendering_svg(text))
    assert "<script" not in drawn and ("<pre>" in drawn or "<svg" in drawn)


def test_a_state_that_is_too_long_is_cut_as_every_text_is():
    drawn = str(rendering_svg("x\n" * 1_000_000))
    assert len(drawn) < 21_000 and "[… 1,980,000 more characters are in the episode file]</pre>" in drawn


def test_the_timeline_shows_world_and_candidates():
    def action(candidate, text):
        said = {"prompt_text": "seen", "result": "Moves: R.", "rendering": "A.\n.G", "reward": Reward(0.5, 1.0)}
        return make_action("planner", text, id=f"e/0.{candidate}", candidate=candidate, **said)

    episode = Episode(
        "e", "t", "k", "planpath", (action(1, "[R]"),), Outcome(False), rejected_candidates=(action(0, "[U]"),)
    )
    template = environment().from_string(
        "{% import 'episode.html.j2' as show with context %}{{ show.timeline(shown, 4) }}"
    )
    page = template.render(shown=Shown("one", "step-000001.jsonl", episode, {}), colors={"planner": 0})
    assert "<svg" in page and "Moves: R." in page and "team 0.5, own 1" in page
    assert "1 candidate not taken" in page and "[U]" in page
    silent = replace(episode, actions=(replace(episode.actions[0], result=""),))
    page = template.render(shown=Shown("one", "step-000001.jsonl", silent, {}), colors={"planner": 0})
    assert "<svg" in page and ">Environment" not in page  # a world that says nothing is drawn all the same
