"""The team in examples/own_team: its agents call their tool, and a run is configured by its import paths."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

import coachrl
from coachrl.coach.kinds.own import OwnCoach
from coachrl.pipelines import make_pipeline
from coachrl.tasks import load_tasks
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout

FOLDER = Path(__file__).parents[2] / "examples" / "own_team"


@pytest.fixture
def config(monkeypatch):
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield coachrl.configure(pipeline="own_team:ScoutAndWriter", coach="own_team:coach", tasks="own_team:load")
    sys.modules.pop("own_team", None)


def reply(call):
    if call.policy == "writer":
        return "Teide" if "3715" in call.prompt else "I do not know."
    if "3715" in call.prompt:
        return "Teide has 3715 metres."
    return f"<tool_call>{json.dumps({'name': 'height_of', 'arguments': {'mountain': 'Teide'}})}</tool_call>"


def test_it_plays_and_is_scored(config):
    train, heldout = load_tasks(config)
    assert (len(train), len(heldout)) == (14, 1)
    task = next(task for task in train if task.ground_truth == "Teide")
    seen = []
    context = RolloutContext(make_pipeline(config.pipeline), ScriptedPolicy(reply), None, submit=seen.append)
    [episode] = asyncio.run(rollout([EpisodeSpec("e", task, 0)], context))
    assert episode.outcome.success and [action.role for action in episode.actions] == ["scout", "scout", "writer"]
    assert [call.result for call in episode.actions[0].tool_calls] == ["3715"]
    coach = OwnCoach(config.coach.name)
    assert [asyncio.run(coach.score(request)).process_0_10 for request in seen] == [8.0, 2.0, 7.0]
