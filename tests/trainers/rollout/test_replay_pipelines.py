"""Shipped pipelines played again from every decision: what programs and worlds answer is what is on record."""

from dataclasses import replace

import pytest

from coachrl.config import PipelineConfig, SandboxConfig
from coachrl.config.tasks import SokobanTasks
from coachrl.pipelines import make_pipeline
from coachrl.sandbox import make_sandbox
from coachrl.tasks.tabular.grading import TabularTruth
from coachrl.tasks.worlds.sokoban import generate_sokoban, solve
from coachrl.testing.scripted import ScriptedPolicy
from coachrl.trainers.algorithms.counterfactual import Counterfactual, CounterfactualConfig
from coachrl.trainers.rollout.replay import ReplaySettings, decisions_of, measure
from coachrl.trainers.rollout.rollout import EpisodeSpec, RolloutContext, rollout
from coachrl.types import Task

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENGINEER = """
import pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
train[["floor"]].to_pickle("X_train.pkl")
train["rent"].to_pickle("y_train.pkl")
test[["floor"]].to_pickle("X_test.pkl")
print(train.describe())
"""
MODELER = """
import pickle, warnings, sys
import pandas as pd
from sklearn.ensemble import RandomForestRegressor
warnings.warn("a warning that names its file and line")
model = RandomForestRegressor(n_estimators=5, random_state=0)
model.fit(pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl"))
pickle.dump(model, open("model.pkl", "wb"))
print("fitted", round(model.score(pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")), 3))
"""
FAILS = "import pandas as pd\nprint(pd.read_pickle('X_train.pkl').shape)\nraise ValueError('no model yet')"
ANALYST = """
import pickle
import pandas as pd
test = pd.read_csv("test.csv")
rent = pickle.load(open("model.pkl", "rb")).predict(pd.read_pickle("X_test.pkl"))
pd.DataFrame({"room": test["room"], "rent": rent}).to_csv("submission.csv", index=False)
"""


def block(code):
    return f"```python\n{code}\n```"


async def measured_everywhere(pipeline, task, reply, others=1, **settings):
    """Every decision of one episode, measured with replies that `reply` gives in their place."""
    policy = ScriptedPolicy(reply)
    sandbox = make_sandbox(SandboxConfig())
    try:
        context = RolloutContext(make_pipeline(PipelineConfig(name=pipeline, **settings)), policy, sandbox)
        spec = EpisodeSpec("e", task, seed=3)
        episodes = await rollout([spec], context)
        assert episodes[0].infra_error is None
        measured = await measure(decisions_of([spec], episodes), context, ReplaySettings(others, 1, True))
        explored = await Counterfactual(CounterfactualConfig(others=others)).explore(episodes, [spec], context)
    finally:
        await sandbox.close()
    return episodes[0], measured, explored


async def test_a_data_science_episode_is_reproduced_from_every_turn(tmp_path):
    rows = "".join(f"{n},{400 + 30 * (n % 7)},{n % 7}\n" for n in range(1, 41))
    (tmp_path / "train.csv").write_text(f"room,rent,floor\n{rows}")
    (tmp_path / "test.csv").write_text("room,floor\n50,3\n51,1\n")
    (tmp_path / "answers.csv").write_text("room,rent\n50,490\n51,430\n")
    files = {name: tmp_path / name for name in ("train.csv", "test.csv")}
    truth = TabularTruth("regression", "rmse", "room", ("rent",), tmp_path / "answers.csv")
    task = Task("rents", "regression", "Predict the rent.", files=files, ground_truth=truth)

    def reply(call):
        if call.policy == "modeler":  # its first turn fails, with a traceback
            return block(MODELER if "no model yet" in call.prompt else FAILS)
        return block({"data_engineer": ENGINEER, "analyst": ANALYST}[call.policy])

    episode, measured, explored = await measured_everywhere("dsbench", task, reply)
    assert episode.outcome.success, episode.outcome.reason
    assert [(a.role, a.execution.state) for a in episode.actions] == [
        ("data_engineer", "ok"),
        ("modeler", "error"),
        ("modeler", "ok"),
        ("analyst", "ok"),
    ]
    assert [one.problem for one in measured] == [""] * 4
    assert [one.action.value for one in measured] == [1.0] * 4 and [one.advantage for one in measured] == [0.0] * 4
    assert explored.metrics["replay/not_reproduced"] == 0
    assert [action.value for action in explored.episodes[0].actions] == [1.0] * 4


async def test_a_sokoban_episode_is_worth_what_its_moves_are():
    task = generate_sokoban(SokobanTasks(train_count=1, size=4, boxes=1), 0, "train")[0]
    moves = solve(task.ground_truth)
    first, rest = moves[: len(moves) // 2], moves[len(moves) // 2 :]

    def reply(call):
        if call.policy == "tool":
            return block(f"print('[{','.join(moves)}]')")
        nothing_done = "Nothing has been done" in call.prompt
        if call.sampling.seed == seeds.get(nothing_done, call.sampling.seed):  # what is on record: half by half
            seeds.setdefault(nothing_done, call.sampling.seed)
            return f"##### [{','.join(first if nothing_done else rest)}]"
        return "##### []"

    seeds = {}
    episode, measured, explored = await measured_everywhere("sokoban", task, reply, options={"turns": 2})
    assert episode.outcome.success and [a.role for a in episode.actions] == ["tool", "planner"] * 2
    assert [one.problem for one in measured] == [""] * 4
    by_role = {role: [one for one in measured if one.action.role == role] for role in ("tool", "planner")}
    assert [one.advantage for one in by_role["planner"]] == [1.0, 1.0], "without either half it is not solved"
    assert [len(one.others) for one in measured] == [1] * 4
    assert explored.metrics["replay/decisions"] == 4 and explored.metrics["replay/not_reproduced"] == 0
    assert replace(explored.episodes[0], actions=(), rejected_candidates=()) == replace(
        episode, actions=(), rejected_candidates=()
    )
