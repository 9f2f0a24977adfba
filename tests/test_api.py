"""coachrl from Python: light to import, errors as exceptions, tables of a saved run; training is in tests/trainers."""

import asyncio
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from saved_runs import save_run

import coachrl
from coachrl.api import Rollout
from coachrl.config import AlgorithmConfig, TrainConfig
from coachrl.errors import CoachrlError, ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.frames import EpisodeFrames, PlacedEpisode
from coachrl.runs.records import ScoredEpisode
from coachrl.testing.actions import make_action
from coachrl.types import ActionCredit, Episode, Outcome, Reward


def half(request):
    """A coach of these tests' own."""
    return 5.0


class Half:
    """The same as a class."""

    def score(self, request):
        return half(request)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    saved = asyncio.run(save_run(tmp_path_factory.mktemp("api")))
    saved.append_metrics({"step": 0, "eval/success": 0.5})
    saved.append_metrics({"step": 1, "train/success": 0.25})
    return saved


def in_python(code, cwd="."):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd)
    return done.stdout.strip()


def test_the_package_imports_nothing_heavy():
    code = "import coachrl, sys; print([name for name in ('torch', 'pandas', 'numpy', 'rich') if name in sys.modules])"
    assert in_python(code) == "[]"


def test_every_name_is_there_and_an_unknown_one_is_an_attribute_error():
    assert all(callable(getattr(coachrl, name)) for name in coachrl.__all__)
    assert set(coachrl.__all__) <= set(dir(coachrl))
    assert not {"importlib", "Any", "_name"} & set(dir(coachrl))  # which a notebook would offer as completions
    with pytest.raises(AttributeError, match="no attribute 'tarin', did you mean 'train'"):
        _ = coachrl.tarin
    with pytest.raises(AttributeError, match=r"no attribute 'fit'$"):
        _ = coachrl.fit


def test_functions_are_functions_whichever_module_was_imported_first():
    """In one process, in which only this package is imported anew: what it needs takes seconds."""
    code = """
import importlib, sys
for first in ("coachrl.audit.audit", "coachrl.rescore.store", "coachrl.cli.main"):
    for name in [name for name in sys.modules if name.partition(".")[0] == "coachrl"]:
        del sys.modules[name]
    importlib.import_module(first)
    import coachrl.audit.audit, coachrl.rescore.store
    print(coachrl.audit.__module__, coachrl.rescore.__module__)
"""
    assert in_python(code).splitlines() == ["coachrl.api coachrl.api"] * 3


def test_the_package_is_marked_as_typed():
    assert (Path(coachrl.__file__).parent / "py.typed").is_file()


def test_settings_are_said_by_section_by_dotted_key_by_word_and_by_object():
    config = coachrl.configure(
        "quickstart", train={"steps": 3}, **{"eval.every": 2}, coach=half, tasks="word-problems", reward="environment",
        pipeline={"roles": {"verifier": {"max_new_tokens": 5}}}, out=Path("elsewhere"),
    )  # fmt: skip
    assert (config.train.steps, config.train.tasks_per_step, config.eval.every) == (3, 32, 2)
    assert config.coach.name == f"{__name__}:half" and config.reward.source == "environment"
    assert config.pipeline.roles["verifier"].max_new_tokens == 5
    assert config.pipeline.roles["problem_solver"].max_new_tokens == 16
    assert coachrl.configure({"train": {"steps": 3}}, train=TrainConfig(steps=4)).train.steps == 4
    assert coachrl.configure(config) == config
    assert coachrl.configure(config, seed=9) == config.model_copy(update={"seed": 9})


def test_a_dictionary_says_what_keywords_say():
    said = {"pipeline": "debate", "coach": half, "train": {"steps": 3}}
    assert coachrl.configure(said) == coachrl.configure(**said)
    assert coachrl.configure(said, train={"steps": 5}).train.steps == 5


def test_none_within_a_section_is_null_and_a_keyword_that_is_none_was_not_given(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("seed: 3\ntrain: {ppo_mini_batch_size: 4, episode_timeout_s: 60}\n")
    for config in (file, coachrl.configure(file), {"train": {"ppo_mini_batch_size": 4}}):
        assert coachrl.configure(config, train={"ppo_mini_batch_size": None}).train.ppo_mini_batch_size is None
    assert coachrl.configure(file, **{"train.episode_timeout_s": None}).train.episode_timeout_s is None
    assert coachrl.configure(file, seed=None, train=None) == coachrl.configure(file)
    with pytest.raises(ConfigError, match=r"train\.steps: .*\(got None\)"):
        coachrl.configure(file, train={"steps": None})


def test_an_evaluation_says_that_it_does_not_draw_as_training_does(caplog):
    for settings in ({"eval": {"temperature": 0}}, {"sampling": {"temperature": 0.5}}):
        with pytest.raises(ConfigError, match="episodes_file is 5"):
            coachrl.evaluate("quickstart", episodes_file=5, **settings)
    assert caplog.messages == [
        "sampling.temperature is that of training: an evaluation draws its replies at eval.temperature"
    ]


def test_a_tree_of_settings_is_left_as_it_was():
    tree = {"train": {"steps": 3}}
    coachrl.configure(tree, train={"steps": 4})
    assert tree == {"train": {"steps": 3}}


def test_what_the_command_line_resolves_python_resolves_too():
    from coachrl.cli.options import TeamOptions

    by_command = TeamOptions(["train.steps=2"], None, "dsbench").resolve()
    assert coachrl.configure(pipeline="dsbench", train={"steps": 2}) == by_command
    assert by_command.tasks.source == "dsbench-lite"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: coachrl.configure("quickstrat"), "did you mean 'quickstart'"),
        (lambda: coachrl.configure(train={"stps": 1}), "unknown key 'train.stps', did you mean 'steps'"),
        (lambda: coachrl.configure(coach=lambda request: 5), "define it at the top level"),
        (lambda: coachrl.configure(coach=Half()), "class or a function of your own, and not what it makes"),
        (lambda: coachrl.configure(tasks=[1, 2]), "tasks is .*: give a name"),
        (lambda: coachrl.configure({1: 2}), "a setting's name is text, and 1 is none"),
        (lambda: coachrl.configure(train={"learning_rate": float("nan")}), "learning_rate: Input should be a finite"),
        (lambda: coachrl.configure(pipeline="mathcat"), "did you mean 'mathchat'"),
        (lambda: coachrl.train("no/such.yaml"), "no config file"),
        (lambda: coachrl.rollout(count=0), "count=0"),
        (lambda: coachrl.rollout("quickstart", quiet=True), "quiet is for train"),
        (lambda: coachrl.rescore("runs/none"), "is not a run folder"),
        (lambda: coachrl.audit(), "name at least one run"),
        (lambda: coachrl.train("quickstart", resume="runs/none"), "give no config"),
    ],
)
def test_a_wrong_call_is_one_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: coachrl.train(5), "config is 5: give the name of a shipped one, a YAML file, a dictionary"),
        (lambda run: coachrl.train(["quickstart"]), r"config is \['quickstart'\]: give the name"),
        (lambda run: coachrl.train(Half), "config is <class .*Half'>: give the name"),
        (lambda run: coachrl.train(run), r"config is a run: train\(resume=run\) goes on with it"),
        (lambda run: coachrl.rollout(count="2"), "count='2': it is a whole number of episodes, from 1 up"),
        (lambda run: coachrl.rescore(run, sample=-2), "sample=-2: it is a whole number of actions, from 1 up"),
        (lambda run: coachrl.rescore(run, sample="3"), "sample='3': it is a whole number of actions"),
        (lambda run: coachrl.rescore(run, repeat=-1), "repeat=-1: .* from 0 up"),
        (lambda run: coachrl.audit(run, resamples="x"), "resamples='x': it is a whole number of bootstrap resamples"),
        (lambda run: coachrl.audit(run, resamples=1), "resamples=1: .*, from 2 up"),  # one alone has no spread
        (lambda run: coachrl.audit(run, resamples=10**9), "resamples=1000000000: at most 100,000 are drawn"),
        (lambda run: coachrl.configure(pipeline={"options": {"turns": object()}}), r"pipeline\.options\.turns is <obj"),
        (lambda run: coachrl.train(resume=run, coach={"budget_usd": {1, 2}}), r"coach\.budget_usd is {1, 2}: give"),
        (lambda run: coachrl.evaluate(run.folder), "there is no checkpoint|no checkpoint"),
        (lambda run: coachrl.evaluate("x" * 5000), "config file x.*: a path has at most 4095 bytes"),
        (lambda run: coachrl.evaluate(run.folder, swap_policies=3), 'swap_policies is 3: give two policies, as "a,b"'),
        (lambda run: coachrl.evaluate(run.folder, episodes_file=3), "episodes_file is 3: give the path of a file"),
        (lambda run: coachrl.rescore(run, coach=3), "coach is 3: give a name, a dictionary"),
        (lambda run: coachrl.rescore(run, coach_prompt=3), "coach_prompt is 3: give the path of a file"),
        (lambda run: coachrl.rescore(run, seed="x"), "seed='x': it is a whole number that actions are drawn by"),
        (lambda run: coachrl.rescore(run, seed=3), "seed draws a sample of the actions, and all are asked about: give"),
        (lambda run: coachrl.audit(run, seed=-1), "seed=-1: it is a whole number .*, from 0 up"),
        (lambda run: coachrl.audit(run, seed=True), "seed=True: it is a whole number"),
        (lambda run: coachrl.audit([run]), r"a run is named by its folder, as 'runs/latest', and not by \["),
        (lambda run: coachrl.train(resume=3), "a run is named by its folder, .* not by 3"),
        (lambda run: coachrl.Run.open(None), "a run is named by its folder, .* not by None"),
        (lambda run: coachrl.Run("runs/latest"), r"a saved run is opened by Run\.open\('runs/latest'\)"),
    ],
)
def test_an_argument_of_another_kind_is_one_line(run, call, message):
    with pytest.raises(CoachrlError, match=message) as caught:
        call(run)
    assert "\n" not in str(caught.value)


def test_numbers_may_be_of_numpy_and_a_coach_a_dictionary(run, tmp_path):
    run = Run.open(shutil.copytree(run.folder, tmp_path / "run"))
    assert coachrl.audit(run, resamples=np.int64(10), seed=np.int64(1)).resamples == 10
    options = {"turns": np.int64(3), "share": [np.float32(0.5)], "x": np.arange(2), "y": [{"z": np.True_}]}
    planned = coachrl.configure(pipeline={"options": options}, seed=np.int64(4))
    assert planned.pipeline.options == {"turns": 3, "share": [0.5], "x": [0, 1], "y": [{"z": True}]}
    assert planned.seed == 4
    named = coachrl.configure(pipeline={"options": {"by.size": np.int64(3)}})  # a key that no dotted one could say
    assert named.pipeline.options == {"by.size": 3}
    again = coachrl.rescore(run, coach={"name": "rules"}, sample=np.int64(1), repeat=np.int64(7))
    assert again.asked == 1 and again.folder.name == "rules-r7"


def test_what_a_rescore_may_not_change_is_refused(run):
    with pytest.raises(ConfigError, match="settings of the coach only can change"):
        coachrl.rescore(run, **{"train.steps": 3})


def test_a_rescore_tells_what_its_coach_does_not_read(run, tmp_path, caplog):
    folder = shutil.copytree(run.folder, tmp_path / "saved")
    coachrl.rescore(folder, coach="rules", **{"coach.temperature": 0.7})
    assert "nothing reads coach.temperature without a language model in coach.name" in caplog.text


def test_frames_hold_what_the_files_hold(run):
    frames = Run.open(str(run.folder)).frames
    episodes, scores = run.read_episodes("step-000001")
    played = [episode for label in ("step-000001", "eval-000001") for episode in run.read_episodes(label)[0]]
    assert sorted(frames.episodes["episode"]) == sorted(episode.id for episode in played)
    assert set(frames.episodes["split"]) == {"train", "eval"} and "metric/correct" in frames.episodes
    actions = frames.actions
    assert len(actions) == sum(len(episode.actions) for episode in played)
    trained = actions[actions["split"] == "train"].set_index("action")
    assert trained["score"].to_dict() == {key: score.process_0_10 for key, score in scores.items()}
    assert actions[actions["split"] == "eval"]["score"].isna().all()
    assert trained.loc[episodes[0].actions[0].id, "text"] == episodes[0].actions[0].text
    assert set(frames.scores["rater"]) == {"run"} and len(frames.scores) == len(scores)
    assert frames.metrics["eval/success"].tolist()[0] == 0.5 and frames.metrics["train/success"].isna().tolist()[0]


def test_a_row_of_an_action_says_what_it_was_trained_on_and_what_its_world_paid():
    credits = [ActionCredit(0.7, -0.2), ActionCredit(None, None, "unscored"), None]
    actions = [
        make_action(index=n, credit=credit, reward=Reward(1.0, 0.5) if n else None) for n, credit in enumerate(credits)
    ]
    played = ScoredEpisode(Episode("e", "t", "sums", "ask", tuple(actions), Outcome(True)), {})
    rows = EpisodeFrames([PlacedEpisode("train", 1, played)]).actions
    assert rows["reward"].tolist()[0] == 0.7 and rows["advantage"].tolist()[0] == -0.2
    assert rows["reward"].isna().tolist() == rows["advantage"].isna().tolist() == [False, True, True]
    assert rows["left_out"].fillna("").tolist() == ["", "unscored", ""]
    assert rows["environment_reward"].isna().tolist() == [True, False, False]
    assert rows["team_reward"].tolist()[1:] == [1.0, 1.0]


def test_a_run_shows_itself_and_escapes_what_stands_in_its_folder(tmp_path):
    folder = tmp_path / "<b>x"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"step": 0, "eval/success": 0.5}\n')
    (folder / "report.html").write_text("")
    shown = Run.open(folder)._repr_html_()
    assert "&lt;b&gt;x" in shown and "<b>x" not in shown and "eval/success" in shown and "report.html" in shown
    assert repr(Run.open(folder)) == f"Run('{folder}')"


def test_a_rollout_shows_how_many_episodes_it_holds_and_none_of_their_tokens(run):
    episodes, scores = run.read_episodes("step-000001")
    shown = f"{sum(episode.outcome.success for episode in episodes)} succeeded, {len(scores)} scores"
    assert repr(Rollout(tuple(episodes), scores)) == f"Rollout({len(episodes)} episodes, {shown})"


def test_frames_of_an_empty_run_have_their_columns(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    frames = Run.open(tmp_path).frames
    for frame, column in ((frames.episodes, "success"), (frames.actions, "score"), (frames.scores, "rater")):
        assert frame.empty and column in frame
    assert frames.metrics.empty and "no metrics yet" in Run.open(tmp_path)._repr_html_()


async def test_a_saved_run_is_rescored_and_audited_inside_of_a_running_loop(run, capfd):
    done = coachrl.rescore(run, coach=half)
    actions = len(run.read_episodes("step-000001")[1])
    assert done.asked == actions and done.comparison.after.scored == actions
    assert {score.process_0_10 for score in done.scores.values()} == {5.0}
    assert coachrl.rescore(str(run.folder), coach=half).asked == 0
    scores = run.frames.scores
    assert scores[scores["rater"] == done.folder.name]["score"].tolist() == [5.0] * actions
    found = coachrl.audit(run, resamples=100)
    assert {finding.rater for finding in found.findings} >= {"rules"} and found.verdicts
    assert capfd.readouterr() == ("", "")


def test_an_algorithm_section_stands_for_itself():
    assert coachrl.configure(algorithm=AlgorithmConfig(name="outcome")).algorithm.name == "outcome"


def test_the_version_is_the_distributions():
    assert importlib.metadata.version("coachrl") == coachrl.__version__
