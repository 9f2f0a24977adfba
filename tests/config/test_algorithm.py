"""The algorithm's section: the keys of the chosen one, and no others."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import yaml

import coachrl
from coachrl.commands.configure import rescore_config
from coachrl.config import RunConfig, dump_config, load_config, with_absolute_paths
from coachrl.config.algorithm import SHIPPED, algorithm_label, find_algorithm, own_keys, read_algorithm
from coachrl.errors import ConfigError
from coachrl.report.contents import read_contents
from coachrl.runs.folder import Run
from coachrl.trainers.algorithms import make_algorithm
from coachrl.trainers.algorithms.grpo import GRPOConfig

FITTING = {
    "grpo": ["train.group_size=2"],
    "magrpo": ["train.group_size=2"],
    "at_grpo": ["sampling.scheme=tree", "coach.evidence.ground_truth=none"],
    "retrospective": ["coach.name=x/y", "coach.evidence.ground_truth=none"],
}
OWN = """
from typing import Literal

from pydantic import Field

from coachrl.config.algorithm import AlgorithmConfig
from coachrl.trainers.algorithms.base import Algorithm
from coachrl.trainers.algorithms.grpo import GRPO


class Settings(AlgorithmConfig):
    baseline: Literal["mean", "best"] = "mean"
    shrink: float = Field(1.0, gt=0)


class Mine(Algorithm):
    Config = Settings

    def advantages(self, samples, rewards):
        raise NotImplementedError


class Sibling(GRPO):
    pass


class WrongSettings(Mine):
    Config = dict


class NoAlgorithm:
    pass


class NoRewards(Mine):
    def advantages(self, samples):
        raise NotImplementedError


class OtherLoss(Mine):
    loss = "PPO"


class OtherScheme(Mine):
    scheme = "forest"


class NoSize(Mine):
    min_group_size = "2"


class Misspelled(Mine):
    min_groupsize = 2


class MisspelledProperty(Mine):
    @property
    def needs_refrence(self):
        return True


class ChecksNothing(Mine):
    def check(self):
        raise NotImplementedError


class BrokenCheck(Mine):
    def check(self, config):
        return config.no_such_section


class OwnCheck(Mine):  # without `super().check`
    min_group_size = 2

    def check(self, config):
        pass


class OwnRewards(Mine):
    def rewards(self, episode, scores):
        return {}


class Awaited(Mine):
    async def advantages(self, samples, rewards):
        raise NotImplementedError


class Unmade(Mine):
    def __init__(self):
        raise NotImplementedError


class NoSuper(Mine):
    def __init__(self, settings):
        self.mean = 0


class Broken(Mine):
    def __init__(self, settings):
        raise RuntimeError("no table")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own in the folder where the command runs."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_one_is_found_by_its_own_name_and_reads_back(tmp_path, name):
    assert find_algorithm(name).Config().name == name
    config = load_config(None, [f"algorithm.name={name}", *FITTING.get(name, [])])
    assert type(config.algorithm) is find_algorithm(name).Config
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == load_config(path, saved=True) == config
    assert yaml.safe_load(path.read_text())["algorithm"].keys() == set(own_keys(name))
    assert type(with_absolute_paths(config).algorithm) is type(config.algorithm)


def test_a_key_of_the_chosen_one_is_set_from_the_command_line(tmp_path):
    overrides = ["algorithm.name=grpo", "algorithm.group_by=turn", "train.group_size=2"]
    assert load_config(None, overrides).algorithm == GRPOConfig(group_by="turn")
    path = tmp_path / "c.yaml"
    path.write_text("algorithm: {name: grpo}\ntrain: {group_size: 2}\n")
    assert load_config(path, ["algorithm.group_by=turn"]).algorithm == GRPOConfig(group_by="turn")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.name=grop"], r"^no algorithm 'grop', did you mean 'grpo'\? \(shipped: reinforce_pp, .*my_module"),
        (["algorithm.kl_bata=1"], r"^unknown key 'algorithm.kl_bata', did you mean 'kl_beta'\?$"),
        (
            ["algorithm.group_by=turn"],
            "^unknown key 'algorithm.group_by': it is of grpo, and reinforce_pp takes name",
        ),
        (["algorithm.kl_beta=-1"], r"^algorithm.kl_beta: .*greater than or equal to 0 \(got -1\)$"),
        (["algorithm.name=outcome", "algorithm.normalize_over=rol"], "algorithm.normalize_over: .*did you mean 'role'"),
        (["algorithm.name=3"], r"^algorithm.name: it must be text \(got 3\); write it as "),
        (["algorithm=grpo"], "^algorithm: it is a section of keys: set algorithm.name to .* import path of your own"),
        (["algorithm.name=pathlib:Path"], "^algorithm 'pathlib:Path' is no algorithm: it must be a subclass of"),
        (["algorithm.name=coachrl.trainers.algorithms.base:Algorithm"], "is no algorithm"),
        (["algorithm.name=coachrl.trainers.algorithms.gpro:GRPO"], "did you mean 'coachrl.trainers.algorithms.grpo'"),
        (["algorithm.name=coachrl.trainers.algorithms.grpo:GPRO"], "has no 'GPRO', did you mean 'GRPO'"),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(overrides, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, overrides)
    assert "\n" not in str(caught.value)


def test_another_name_over_a_file_refuses_its_keys_and_says_how_to_drop_them(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("algorithm: {normalize_over: role, kl_beta: 0.2}\ntrain: {group_size: 2}\n")
    assert load_config(path, ["algorithm.name=outcome"]).algorithm.model_dump() == {
        "name": "outcome", "returns": "own", "normalize_over": "role", "kl_beta": 0.2,
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["algorithm.name=grpo"])
    assert str(caught.value).startswith(f"{path}: unknown key 'algorithm.normalize_over': it is of reinforce_pp, ")
    assert "'algorithm.kl_beta'" in str(caught.value) and str(caught.value).endswith("set 'algorithm={name: grpo}'")
    assert load_config(path, ["algorithm={name: grpo}"]).algorithm == GRPOConfig()


def test_an_own_one_by_import_path_has_its_own_keys_read_and_checked(own, tmp_path):
    config = load_config(None, [f"algorithm.name={own}:Mine", "algorithm.baseline=best"])
    assert (config.algorithm.name, config.algorithm.baseline, config.algorithm.shrink) == (f"{own}:Mine", "best", 1.0)
    path = tmp_path / "c.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    for keys, message in [
        (["algorithm.baselin=best"], "unknown key 'algorithm.baselin', did you mean 'baseline'"),
        (["algorithm.baseline=bets"], "algorithm.baseline: .*did you mean 'best'"),
        (["algorithm.shrink=0"], "algorithm.shrink: .*greater than 0"),
        (
            ["algorithm.kl_beta=0"],
            f"it is of reinforce_pp, retrospective, outcome, and {own}:Mine takes name",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_config(None, [f"algorithm.name={own}:Mine", *keys])


def test_a_saved_run_is_read_without_the_code_of_its_own_algorithm(own, tmp_path, monkeypatch):
    config = load_config(None, [f"algorithm.name={own}:Mine", "algorithm.baseline=best", "name=mine"])
    run = Run.open(Run.create(config).folder)
    own_class = type(make_algorithm(run.config().algorithm))
    assert make_algorithm(run.config().algorithm).settings == own_class.Config(name=f"{own}:Mine", baseline="best")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delitem(sys.modules, own)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    importlib.invalidate_caches()
    again = Run.open(run.folder)
    saved = again.config()
    assert saved.algorithm.model_dump() == {"name": f"{own}:Mine", "baseline": "best", "shrink": 1.0}
    assert yaml.safe_load(dump_config(saved)) == yaml.safe_load((again.folder / "config.yaml").read_text())
    assert read_contents(again).config == saved
    assert rescore_config(again, [], {"coach.name": "rules"}).coach.name == "rules"
    with pytest.raises(ConfigError, match=f"^algorithm '{own}:Mine': no module '{own}'"):
        make_algorithm(saved.algorithm)  # what would train with it


def test_what_a_saved_run_says_of_its_own_algorithm_is_checked_by_what_trains_with_it(own):
    saved = load_config({"algorithm": {"name": f"{own}:Mine", "shrink": 0}}, saved=True)
    with pytest.raises(ConfigError, match=r"shrink: .*greater than 0"):
        make_algorithm(saved.algorithm)


def test_a_card_names_no_coach_where_the_algorithm_asks_none():
    grpo = load_config(None, ["algorithm.name=grpo", "train.group_size=2", "reward.source=environment"])
    for config, words in [
        (load_config(None), "coach `rules`"),
        (load_config(None, ["algorithm.name=outcome"]), "no coach"),
        (grpo, "`environment`"),
    ]:
        assert words in make_algorithm(config.algorithm).rewarded_by(config)


def test_a_subclass_of_a_shipped_one_takes_its_keys(own):
    config = load_config(None, [f"algorithm.name={own}:Sibling", "algorithm.group_by=turn", "train.group_size=2"])
    assert (config.algorithm.name, config.algorithm.group_by) == (f"{own}:Sibling", "turn")
    with pytest.raises(ConfigError, match=f"algorithm.name={own}:Sibling compares episodes of one task"):
        load_config(None, [f"algorithm.name={own}:Sibling"])


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (":Mien", "has no 'Mien', did you mean 'Mine'"),
        (":NoAlgorithm", "is no algorithm"),
        (":WrongSettings", "its Config must be a subclass of"),
        (":NoRewards", r"its advantages must take \(self, samples, rewards\), and takes \(self, samples\)$"),
        (":OtherLoss", r"its loss is .PPO., did you mean .ppo.\? \(one of ppo, policy_gradient\)"),
        (":OtherScheme", r"its scheme is .forest.* \(one of parallel, tree\)"),
        (":NoSize", "its min_group_size must be a whole number, 1 or more"),
        (":Misspelled", "nothing reads its min_groupsize, did you mean 'min_group_size'"),
        (":MisspelledProperty", "nothing reads its needs_refrence, did you mean 'needs_reference'"),
        (":ChecksNothing", r"its check must take \(self, config\), and takes \(self\)"),
        (":BrokenCheck", r"failed in check: AttributeError: .*no_such_section.* \(own_.*\.py, line"),
        (":OwnCheck", "compares episodes of one task: set train.group_size to 2 or more"),
        (":OwnRewards", r"its rewards must take \(self, episode, scores, reward\), and takes \(self"),
        (":Awaited", "its advantages is async"),
        (":Unmade", "cannot be made of its settings: TypeError: .* takes 1 positional argument"),
        (":NoSuper", r"has no settings: call super\(\).__init__\(settings\) in __init__"),
        (":Broken", r"cannot be made of its settings: RuntimeError: no table \(own_.*\.py, line"),
        ("s:Mine", "no module 'own_.*s', did you mean 'own_"),
    ],
)
def test_an_own_one_that_is_none_is_one_clear_line(own, tail, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, [f"algorithm.name={own}{tail}"])
    assert "\n" not in str(caught.value)


def test_the_section_that_is_proposed_in_place_of_a_files_keeps_the_own_keys(own):
    proposed = re.escape(f"set 'algorithm={{name: {own}:Mine, shrink: 2}}'")
    with pytest.raises(ConfigError, match=proposed):
        load_config({"algorithm": {"kl_beta": 0.0}}, [f"algorithm.name={own}:Mine", "algorithm.shrink=2"])


def test_a_key_of_an_own_one_that_a_file_left_behind_is_told_how_to_drop(own):
    with pytest.raises(ConfigError, match=r"unknown key 'algorithm.shrink'; to drop .* set 'algorithm={name: grpo}'"):
        load_config({"algorithm": {"name": f"{own}:Mine", "shrink": 2}}, ["algorithm.name=grpo"])
    with pytest.raises(ConfigError, match=r"did you mean '[a-z_]+'\?$"):
        load_config(None, ["algorithm.name=grpo", "algorithm.importance_kap=2"])


def test_people_are_told_the_settings_of_an_own_one_also_of_a_saved_run(own, tmp_path):
    config = load_config(None, [f"algorithm={{name: {own}:Mine, shrink: 2}}"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    for read in (config, load_config(path, saved=True)):
        assert algorithm_label(read.algorithm) == f"{own}:Mine (baseline=mean, shrink=2.0)"
    assert algorithm_label(load_config(None, ["algorithm.name=outcome"]).algorithm) == "outcome"


def test_the_settings_of_a_run_whose_algorithm_is_gone_name_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("seed: 3\nalgorithm: {name: 'gone_away:Theirs', their_key: 1}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: .*algorithm 'gone_away:Theirs': no module 'gone_away'"):
        load_config(path)


def test_settings_under_a_name_that_is_not_theirs_are_refused():
    with pytest.raises(ValueError, match="GRPOConfig does not hold the settings of algorithm outcome"):
        read_algorithm(GRPOConfig(name="outcome"))
    assert RunConfig.model_validate({"algorithm": GRPOConfig(), "train": {"group_size": 2}}).algorithm == GRPOConfig()


def test_only_the_table_and_the_algorithms_themselves_know_their_names():
    """The set is open: what a run must know is asked of the algorithm. (The other names are words of other things.)"""
    package = Path(coachrl.__file__).parent
    elsewhere = [path for path in package.rglob("*.py") if path.parts[-2:] != ("config", "algorithm.py")]
    readers = [path for path in elsewhere if "algorithms" not in path.relative_to(package).parts]
    named = [
        (path.name, name)
        for path in readers
        for name in ("reinforce_pp", "grpo", "at_grpo")
        if f'"{name}"' in path.read_text(encoding="utf-8")
    ]
    assert len(readers) > 100 and not named
