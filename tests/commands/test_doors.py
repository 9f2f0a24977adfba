"""`coachrl train --pipeline NAME`, typed as it stands: its tasks, its sizes, what it says before a model is loaded."""

import re
from pathlib import Path

import pytest
from command_line import coachrl
from tiny_models import write_bundled_model_in_small

from coachrl.config import find_config, load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import SHIPPED, find_pipeline
from coachrl.pipelines.defaults import pipeline_defaults
from coachrl.resources import cache_folder
from coachrl.runs.folder import Run

pytest.importorskip("torch", reason="needs the torch extra")
pytest.importorskip("litellm", reason="needs the llm extra")

KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY")
TASKS = {
    "mathchat": "word-problems: 512 training, 64 held out",
    "dsbench": "dsbench-lite: 14 training, 6 held out",
    "planpath": "planpath: 512 training, 64 held out",
    "sokoban": "sokoban: 512 training, 64 held out",
    "sudoku": "sudoku: 512 training, 64 held out",
    "math_duo": "word-problems: 512 training, 64 held out",
    "debate": "word-problems: 512 training, 64 held out",
    "mixture": "word-problems: 512 training, 64 held out",
    "code": "coop-code: 33 training, 11 held out",
    "coop_code": "coop-code: 33 training, 11 held out",
}
NO_KEY_OF_AN_ADVISER = ["--pipeline", "coop_code", "pipeline.options={feedback: coach, adviser: gpt-4o, turns: 2}"]
WRONG = {
    "tasks of another kind": (
        ["--pipeline", "dsbench", "--coach", "gemini-2.5-pro", "tasks.source=word-problems"],
        "pipeline dsbench takes dsbench-lite, dsbench; set tasks.source=dsbench-lite, or --pipeline mathchat",
    ),
    "no key": (["--pipeline", "dsbench", "--coach", "gemini-2.5-pro"], "set GEMINI_API_KEY"),
    "no key of an adviser": (NO_KEY_OF_AN_ADVISER, "set OPENAI_API_KEY"),
    "the rules mistyped": (["--coach", "rule"], "no coach 'rule', did you mean 'rules'?"),
    "a key without its section": (["steps=4"], "unknown key 'steps', did you mean 'train.steps'?"),
    "a name and its whole section": (
        ["--coach", "gpt-4o", "coach={name: rules}"],
        "coach.name is given twice, by an option and by an override",
    ),
    "an empty folder of data": (["tasks.train=empty"], "data set empty: the folder holds no data files"),
    "a folder of tables mistyped": (
        ["--pipeline", "dsbench", "tasks.root=emty"],
        "tasks.root: no folder emty, did you mean 'empty'?",
    ),
    "a file in the place of runs": (["--out", "mine.py", "--name", "x"], "cannot be written: mine.py is no folder"),
    "text that YAML reads as no text": (["model=7"], """model: it must be text (got 7); write it as model='"…"'"""),
    "a prompt for rules": (["--coach-prompt", "strict"], "'rules' takes no prompt"),
    "no such prompt": (["--coach", "gemini-2.5-pro", "--coach-prompt", "strickt"], "did you mean 'strict'"),
    "a cache that is none": (
        ["--coach", "hosted_vllm/judge", "--coach-api-base", "http://127.0.0.1:1/v1", "coach.cache=mine.py"],
        "coach cache mine.py cannot be used: file is not a database",
    ),
    "no such device": (["torch.device=cuda:77"], "device 'cuda:77' cannot be used here"),
    "no such model": (["--model", "./no/such/model"], "no/such/model"),
    "a run of this name": (["--name", "latest"], "name 'latest' is taken"),
    "no package of a tracker": (["--track", "trackio"], "pip install 'coachrl[trackio]'"),
}


OWN = {
    "no such coach": (["--coach", "mine:coch"], "module 'mine' has no 'coch', did you mean 'coach'?"),
    "no module of a coach": (["--coach", "mien:coach"], "no module 'mien', did you mean 'mine'?"),
    "a coach without a score": (["--coach", "mine:Idle"], "coach 'mine:Idle' is no coach: it must be a class with"),
    "no such tasks": (["tasks.source=mine:lod"], "module 'mine' has no 'lod', did you mean 'load'?"),
    "no such grader": (["tasks.train=a.json", "tasks.grader=mine:gradr"], "did you mean 'grade'?"),
    "no such tracker": (["--track", "mine:Trackr"], "did you mean 'Tracker'?"),
    "no such reward": (["reward.source=mine:rewrd"], "did you mean 'reward'?"),
    "no such pipeline": (["--pipeline", "mine:Tem"], "did you mean 'Team'?"),
    "no such algorithm": (["algorithm.name=mine:Algorithn"], "did you mean 'Algorithm'?"),
}
MINE = """
def coach(request): return 5.0
def load(config): return []
def grade(answer, reference): return True
def reward(episode): return 1.0
class Idle: pass
class Tracker: pass
class Team: pass
class Algorithm: pass
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)


def resolved(*overrides, config=None, **flags):
    return load_config(find_config(config) if config else None, overrides, flags, pipeline_defaults)


@pytest.mark.parametrize("name", [name for name in SHIPPED if find_pipeline(name).Options.complete()])
def test_every_pipeline_has_a_plan_without_any_setting(tmp_path, name):
    done = coachrl("train", "--pipeline", name, "--coach", "rules", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"tasks             {TASKS[name]}\n" in done.stdout and "8 steps, 128 episodes" in done.stdout
    assert ("scripts/dsbench_lite.sh" in done.stdout) == (name == "dsbench")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def without_packages(tmp_path):
    """A folder from which trackio cannot be imported."""
    hidden = tmp_path / "hidden"
    (hidden / "trackio").mkdir(parents=True)
    (hidden / "trackio" / "__init__.py").write_text("raise ModuleNotFoundError('hidden', name='trackio')\n")
    return hidden


@pytest.mark.parametrize("case", WRONG)
def test_a_dry_run_ends_where_the_run_would_and_with_its_words(tmp_path, without_packages, case):
    arguments, words = WRONG[case]
    place = tmp_path / "here"
    place.mkdir()
    if "package" in case:  # the folder of the command comes first on its path
        for folder in without_packages.iterdir():
            folder.rename(place / folder.name)
    (place / "mine.py").write_text(MINE)
    (place / "empty").mkdir()
    before = sorted(place.rglob("*"))
    said = [coachrl("train", *arguments, *dry, cwd=place) for dry in ([], ["--dry-run"])]
    assert [done.returncode for done in said] == [2, 2], said
    # An estimate of the price is had without a key, which only a dry run has to say.
    more = ". For the price alone any text will do: a dry run asks nobody" if "no key" in case else ""
    assert said[1].stderr == said[0].stderr.rstrip("\n") + more + "\n" and words in said[0].stderr, said
    assert len(said[0].stderr.splitlines()) == 1 and not said[1].stdout
    assert not [path for path in sorted(place.rglob("*")) if path not in before and "__pycache__" not in path.parts]


@pytest.mark.parametrize("case", OWN)
def test_code_that_cannot_be_had_is_said_before_the_first_line_of_a_run(tmp_path, case):
    arguments, words = OWN[case]
    (tmp_path / "mine.py").write_text(MINE)
    said = [coachrl("train", *arguments, *dry, cwd=tmp_path) for dry in ([], ["--dry-run"])]
    assert [(done.returncode, done.stdout) for done in said] == [(2, "")] * 2, said
    assert said[0].stderr == said[1].stderr and words in said[0].stderr and len(said[0].stderr.splitlines()) == 1, said
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


@pytest.mark.parametrize("arguments", [["eval", *NO_KEY_OF_AN_ADVISER], ["rollout", "--coach", "gpt-4o"]])
def test_without_a_key_the_first_line_of_other_verbs_says_which_variable_to_set(tmp_path, arguments):
    done = coachrl(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout, done.stdout
    [line] = done.stderr.splitlines()
    assert re.search("error: coach '.*/?gpt-4o' needs a key: set OPENAI_API_KEY", line)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """COACHRL_CACHE with the bundled model in small, and the data sets that were made already."""
    cache = tmp_path_factory.mktemp("cache")
    for made in cache_folder().glob("dsbench-lite*"):
        (cache / made.name).symlink_to(made)
    return write_bundled_model_in_small(cache)


@pytest.mark.parametrize("name", ["dsbench", "mixture"])
def test_a_pipeline_trains_as_it_stands_but_for_its_sizes(tmp_path, name, small_model):
    sizes = ["train.steps=1", "train.tasks_per_step=1", "tasks.heldout_count=1", "train.keep_checkpoints=0"]
    sizes += ["tasks.train_count=1", "pipeline.max_new_tokens=8", "torch.threads=1"]
    done = coachrl("train", "--pipeline", name, "--coach", "rules", "--name", "run", *sizes, cwd=tmp_path,
                   COACHRL_CACHE=str(small_model))  # fmt: skip
    assert done.returncode == 0, done.stderr
    source = TASKS[name].partition(":")[0]
    lines, folder = done.stdout.splitlines(), Path("runs", "run")
    assert lines[0] == f"run {folder}; watch it with: coachrl view {folder}"
    assert lines[1].startswith(f"{name} on {source}: 1 training and 1 held-out tasks; smollm2-135m; coach rules; ")
    assert lines[2].startswith("1 step, 1 episode to train on and 2 to measure, at most ")
    assert ("scripts/dsbench_lite.sh" in lines[3]) == (name == "dsbench")
    assert lines[-3:] == [
        f"read its episodes: coachrl view {folder}",
        f"ask whether its coach is fair: coachrl audit {folder}",
        f"set it against another run: coachrl compare {folder} OTHER",
    ]
    run = Run.open(tmp_path / "runs" / "run")
    assert run.config().pipeline.prompt_style == "short" and run.metrics()[1]["train/faulty_fraction"] == 0


def test_what_is_closer_to_the_user_counts_more(tmp_path):
    own = resolved("pipeline.name=dsbench")
    assert (own.tasks.source, own.pipeline.prompt_style, own.pipeline.max_new_tokens) == ("dsbench-lite", "short", 288)
    path = tmp_path / "mine.yaml"
    path.write_text("pipeline: {name: dsbench, max_new_tokens: 99, roles: {modeler: {max_new_tokens: 5}}}\n")
    config = load_config(path, ["pipeline.prompt_style=full"], {"train.steps": 3}, pipeline_defaults)
    assert (config.pipeline.max_new_tokens, config.pipeline.prompt_style, config.train.steps) == (99, "full", 3)
    assert (config.pipeline.roles["modeler"].max_turns, config.pipeline.roles["modeler"].max_new_tokens) == (2, 5)


def test_a_pipeline_of_ones_own_gets_steps_and_lengths_that_the_bundled_model_can_take(tmp_path, monkeypatch):
    (tmp_path / "team_of_mine.py").write_text(
        "from coachrl.pipelines.base import Pipeline\n\n\n"
        "class Mine(Pipeline):\n"
        "    name = 'mine'\n\n"
        "    async def run(self, task, team, workspace): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    mine = resolved("pipeline.name=team_of_mine:Mine")
    assert (mine.train.steps, mine.train.tasks_per_step, mine.train.learning_rate) == (8, 16, 2e-5)
    assert (mine.pipeline.max_new_tokens, mine.pipeline.prompt_style) == (256, "full")
    assert resolved("pipeline.name=team_of_mine:Mine", "train.steps=3").train.steps == 3
    tried = resolved("pipeline.name=team_of_mine:Mine", "model=tiny-random")
    assert (tried.train, tried.pipeline) == (mine.train, mine.pipeline)
    larger = resolved("pipeline.name=team_of_mine:Mine", "model=Qwen/Qwen3-4B")
    assert (larger.train.steps, larger.pipeline.max_new_tokens) == (100, 4096)


@pytest.mark.parametrize(
    ("truth", "settings", "source"),
    [
        ("MathTruth", [], "word-problems"),
        ("MathTruth", ["tasks.train=a.csv"], "math"),
        ("CodeTruth", [], "coop-code"),
        ("object", ["tasks.train=a.csv", "tasks.fields.problem=text"], "math"),
        ("str", [], "word-problems"),
    ],
)
def test_a_pipeline_of_ones_own_takes_files_as_the_shipped_one_of_its_ground_truth_does(
    tmp_path, monkeypatch, truth, settings, source
):
    (tmp_path / f"team_of_{truth}.py").write_text(
        "from coachrl.pipelines.base import Pipeline\n"
        "from coachrl.tasks.code.problems import CodeTruth\n"
        "from coachrl.tasks.math.problems import MathTruth\n\n\n"
        "class Mine(Pipeline):\n"
        "    name = 'mine'\n"
        f"    ground_truth = {truth}\n\n"
        "    async def run(self, task, team, workspace): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    assert resolved(f"pipeline.name=team_of_{truth}:Mine", *settings).tasks.source == source


def test_a_larger_model_gets_the_full_prompts_and_its_own_length():
    config = resolved("pipeline.name=debate", "model=Qwen/Qwen3-4B")
    assert (config.tasks.source, config.pipeline.prompt_style, config.pipeline.max_new_tokens) == (
        "word-problems",
        "full",
        4096,
    )


@pytest.mark.parametrize(
    ("pipeline", "setting", "source"),
    [
        ("dsbench", "tasks.root=data", "dsbench"),
        ("mathchat", "tasks.train=a.json", "math"),
        ("code", "tasks.heldout=a.jsonl", "code"),
        ("mathchat", "tasks.levels=[2]", "word-problems"),
        ("sokoban", "tasks.boxes=2", "sokoban"),
        ("mathchat", "tasks.source=math", "math"),
    ],
)
def test_a_setting_that_one_task_set_reads_chooses_it(pipeline, setting, source):
    assert resolved(f"pipeline.name={pipeline}", setting).tasks.source == source


@pytest.mark.parametrize(
    "name", ["quickstart", "one_gpu", "one_gpu_team", "dsbench_lite", "mathchat_8gpu", "dsbench_8gpu"]
)
def test_a_config_that_says_all_is_what_it_was(name):
    config, alone = resolved(config=name), load_config(find_config(name))
    changed = [
        key for key, value in config.model_dump().items() if value != alone.model_dump()[key] and key != "torch"
    ]  # fmt: skip
    assert not changed
    assert config.torch == alone.torch or name.startswith("one_gpu")  # of the backend that these do not use


def test_tasks_that_do_not_fit_are_named_with_the_fix(tmp_path):
    from coachrl.commands.build import play_of

    with pytest.raises(ConfigError, match=r"tasks.source=sudoku: .*set tasks.source=planpath, or --pipeline sudoku$"):
        play_of(resolved("pipeline.name=planpath", "tasks.source=sudoku"))


def test_a_dry_run_names_a_folder_that_is_taken_last(tmp_path):
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    for coach, said in [("gemini-2.5-flash", "GEMINI_API_KEY"), ("rules", "run folder runs/taken exists")]:
        done = coachrl("train", "--name", "taken", "--coach", coach, "--dry-run", cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr


def test_a_dry_run_says_folder_disk_and_what_is_known_of_the_time(tmp_path):
    done = coachrl("train", "--name", "mine", "--dry-run", cwd=tmp_path)
    for line in (
        "run folder        runs/mine",
        "disk              4.8 GB for checkpoints, at most; episodes and scores come on top",  # 3 x 134.5 million x 12
        "time              not known before the first step, which says what is left",
    ):
        assert f"{line}\n" in done.stdout
    tiny = coachrl("train", "--dry-run", "--model", "tiny-random", cwd=tmp_path)
    assert re.search(r"^disk +[1-9][0-9] MB for checkpoints", tiny.stdout, re.MULTILINE)
    run = Run.create(resolved("name=before", f"out={tmp_path / 'runs'}"))
    run.append_metrics({"step": 1, "time/step_s": 30.0})
    again = coachrl("train", "--dry-run", "train.tasks_per_step=32", cwd=tmp_path)
    assert "time              about 8 min, by the steps of the last run of this team and model\n" in again.stdout
    other = coachrl("train", "--dry-run", "--pipeline", "debate", cwd=tmp_path)
    assert "time              not known" in other.stdout


def test_checkpoints_that_do_not_fit_the_disk_are_refused_alike_before_a_model_is_loaded(tmp_path):
    many = ["train.keep_checkpoints=999999", "train.checkpoint_every=1", "train.steps=1000000"]
    for more in ([], ["--dry-run"]):
        done = coachrl("train", *many, *more, cwd=tmp_path)
        assert done.returncode == 2 and "checkpoints take 484" in done.stderr, done.stderr
        assert "set out=FOLDER on another disk, or a smaller train.keep_checkpoints" in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("keeps", "more", "words"),
    [
        (0, [], "has no checkpoint to load; it kept none: train.keep_checkpoints=0"),
        (1, ["seed=3"], "--resume continues a run as it was configured: 'seed' cannot change now"),
    ],
)
def test_a_run_that_cannot_go_on_says_so_before_the_first_line(tmp_path, keeps, more, words):
    run = Run.create(load_config(None, ["train.steps=1", f"train.keep_checkpoints={keeps}"], {"out": str(tmp_path)}))
    run.append_metrics({"step": 1})
    if keeps:
        with run.checkpoint(1, keep=1) as folder:  # all of its steps are done
            (folder / "team").mkdir()
    said = [coachrl("train", "--resume", str(run.folder), *more, *dry, cwd=tmp_path) for dry in ([], ["--dry-run"])]
    assert all(done.returncode > 0 and not done.stdout and words in done.stderr for done in said), said
    assert (said[0].returncode, said[0].stderr) == (said[1].returncode, said[1].stderr)
