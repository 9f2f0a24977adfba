"""The parts of one's own that docs/your_own.md makes: each is taken, and all of them train together."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tiny_models import write_bundled_model_in_small
from typed_examples import typed

from coachrl.runs.folder import Run

pytestmark = pytest.mark.slow  # eight command lines, one of which trains

PAGE = (Path(__file__).parents[2] / "docs" / "your_own.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
*PARTS, (_, TOGETHER) = BLOCKS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with every file of the page; that each can be used alone is seen on the way."""
    here = tmp_path_factory.mktemp("own") / "here"
    cache = write_bundled_model_in_small(here.parent / "cache")
    for title, block in PARTS:
        done = typed(block, here, COACHRL_CACHE=str(cache))
        assert done.returncode == 0, (title, done.stderr)
        assert "tasks             " in done.stdout, title
    return here


def test_the_page_makes_one_of_each():
    parts = ["Problems", "A team with a tool", "A coach", "A reward", "A grader", "An algorithm", "A tracker"]
    assert [title for title, _ in BLOCKS] == [*parts, "All of them in one run"]


def test_all_parts_train_together(place):
    block = TOGETHER.replace("coachrl view runs/mine\n", "")  # which serves until it is stopped
    done = typed(block, place, COACHRL_CACHE=str(place.parent / "cache"))
    assert done.returncode == 0, done.stderr
    tried = Run.open(place / "runs" / "tried")
    assert tried.metrics()[-1]["train/tokens/writer"] > 0, "it ends its replies, so that they are trained on"
    run = Run.open(place / "runs" / "mine")
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["tasks"]["grader"] == "my_grader:close"
    assert [role.name for role in run.roles()] == ["planner", "writer"]
    assert "1,train/success," in (run.folder / "table.csv").read_text()
    episodes = [json.loads(line) for line in (run.folder / "episodes" / "step-000001.jsonl").open()]
    actions = [action for episode in episodes for action in episode["actions"]]
    assert {action["score"]["rationale"] for action in actions} <= {"short is good", "said before"}
    trained = [action["credit"] for action in actions if action["credit"]["advantage"] is not None]
    assert trained and all(abs(credit["advantage"]) == 1.0 for credit in trained)
    rewards = [action["credit"]["reward"] for action in actions if action["credit"]["reward"] is not None]
    assert rewards and all(0 <= reward <= 10 for reward in rewards)
