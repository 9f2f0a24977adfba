"""An algorithm of one's own is tried before a run begins: what is refused, what is only told, and what it is shown."""

import logging

import pytest

from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.pipelines import make_pipeline
from coachrl.trainers.algorithms import trial
from coachrl.trainers.algorithms.trial import try_algorithm
from coachrl.types import Task

HEAD = """
from coachrl.errors import ConfigError
from coachrl.trainers.algorithms.base import Algorithm, all_samples, known_rewards, mask_unscored, with_advantages

seen = []

class Mine(Algorithm):
    notes = None
    needs_reference = True

"""
TASKS = [Task("t0", "sums", "1 + 1"), Task("t1", "sums", "1 + 2")]


@pytest.fixture
def tried(tmp_path, monkeypatch, request):
    """Tries an algorithm with these lines as its `advantages`, and more methods; gives the module it is in."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"tried_{abs(hash(request.node.name))}"

    def attempt(body, more="", overrides=()):
        lines = "".join(f"        {line}\n" for line in body.splitlines())
        (tmp_path / f"{name}.py").write_text(f"{HEAD}    def advantages(self, samples, rewards):\n{lines}{more}")
        config = load_config(None, [f"algorithm.name={name}:Mine", *overrides])
        try_algorithm(config, make_pipeline(config.pipeline).roles, TASKS)
        return __import__(name)

    return attempt


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return with_advantages(samples, rewardz)", r"failed: NameError: .*rewardz.* \(tried_.*\.py, line 12\)"),
        ("return with_advantages(samples)", r"failed: TypeError: .* \(tried_.*\.py, line 12\)"),
        ("return self.noted", r"failed: AttributeError: .*'noted'.* \(tried_"),
        ("import no_such_module", r"failed: ModuleNotFoundError: .* \(tried_"),
        ("return None", "gave NoneType: `advantages` must return what"),
        ("return with_advantages({}, {})", "gave other samples than it got"),
        ("return with_advantages(samples, {'a': 1.0})", "advantages are given for 'a', which is no action"),
        (
            "return with_advantages(samples, dict.fromkeys(rewards, (1.0, 2.0)))",
            "the advantage of action .* must be one number",
        ),
    ],
)
def test_what_would_fail_in_any_step_is_refused_in_one_line(tried, body, said):
    with pytest.raises(ConfigError, match=f"^algorithm 'tried_.*:Mine':? {said}") as caught:
        tried(body)
    assert str(caught.value).endswith(" (tried on a made-up step, before anything was played)")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('rewards must be 0 or 1')",
        "raise ConfigError('rewards must be 0 or 1')",
        "return {}['of a table']",
        "assert set(rewards.values()) <= {0.0, 1.0}",
        "return with_advantages(samples, dict.fromkeys(rewards, float('inf')))",
    ],
)
def test_what_made_up_figures_may_have_brought_about_is_told_and_no_more(tried, body, caplog):
    tried(body)
    [warned] = caplog.records
    assert warned.levelno == logging.WARNING and "(tried on a made-up step; a real one may" in warned.message


def test_one_that_is_told_something_by_its_rewards_first_may_miss_it(tried, caplog):
    rewards = "    def rewards(self, episode, scores, reward):\n        self.notes = {}\n        return {}\n"
    tried("return self.notes['a']", rewards)
    assert "TypeError" in caplog.text and len(caplog.records) == 1


BODY = (
    "self.notes = 1\nseen.append((self, samples, rewards))\nreturn with_advantages(mask_unscored(samples, rewards), {})"
)


def test_it_is_shown_what_a_real_step_shows_it(tried, caplog):
    module = tried(BODY, overrides=["train.tasks_per_step=3", "train.group_size=2"])
    [(_, samples, rewards)] = module.seen
    everything = [sample for group in samples.values() for sample in group]
    assert list(samples) == ["problem_solver", "code_executor", "verifier"] and not caplog.records
    assert len(everything) == 3 * 2 * (1 + 2 + 1) and {s.turn for s in samples["code_executor"]} == {0, 1}
    assert {sample.task_id for sample in everything} == {"t0", "t1"}
    assert set(rewards) == {sample.action_id for sample in everything} and all(0 <= r < 1 for r in rewards.values())
    assert [sample.masked_because for sample in everything].count("truncated") == 1
    assert all(s.ref_logprobs_L is not None and s.trainer_logprobs_L is None for s in everything)
    config = load_config(None, [f"algorithm.name={module.__name__}:Mine"])
    assert trial.make_algorithm(config.algorithm).notes is None, "another instance was tried"


def test_candidates_of_a_tree_share_a_place(tried):
    more = "    scheme = 'tree'\n"
    tree = [
        "sampling.scheme=tree",
        "sampling.candidates=3",
        "coach.evidence.ground_truth=none",
        "train.tasks_per_step=1",
        "train.group_size=1",
    ]
    module = tried(BODY, more, [*tree, "pipeline.name=debate"])
    [(_, samples, _)] = module.seen
    ids = [sample.action_id.partition("/")[2] for group in samples.values() for sample in group]
    assert ids[:3] == ["0.0", "0.1", "0.2"] and len(ids) % 3 == 0
    assert len({sample.episode_id for group in samples.values() for sample in group}) == 1


def test_a_shipped_one_needs_no_try():
    try_algorithm(load_config(None), (), ())
