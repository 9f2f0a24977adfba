"""A saved run read again: the coach is asked what it was asked, and the messages are those that the agents read."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from saved_runs import save_run

from coachrl.errors import ConfigError
from coachrl.runs.folder import Run
from coachrl.runs.reading import conversations, requests_of, team_of, training_episodes
from coachrl.tasks import load_tasks
from coachrl.testing.actions import make_action
from coachrl.testing.scripted import CharacterTokenizer
from coachrl.types import Episode, Outcome


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return asyncio.run(save_run(tmp_path_factory.mktemp("saved"), samples_per_task=1))


@pytest.fixture
def run(saved, tmp_path):
    """One to write to."""
    return Run(shutil.copytree(saved.folder, tmp_path / "saved"))


def replayed(run, outcome_to):
    config = run.config()
    tasks = {task.id: task for task in load_tasks(config)[0]}
    return [
        request
        for scored in training_episodes(run)
        for request in requests_of(scored.episode, tasks, team_of(run), outcome_to)
    ]


@pytest.mark.parametrize("outcome_to", ["all", "last", "none"])
async def test_the_coach_is_asked_of_a_saved_run_what_it_was_asked_while_it_ran(tmp_path, outcome_to):
    asked = []
    run = await save_run(
        tmp_path,
        asked=asked,
        write_team=False,
        samples_per_task=1,
        overrides=[f"coach.evidence.ground_truth={outcome_to}", "tasks.train_count=2", "tasks.heldout_count=1"],
    )
    again = replayed(run, outcome_to)
    assert len(again) == 8
    assert sorted(again, key=lambda r: r.action.id) == sorted(asked, key=lambda r: r.action.id)


def test_messages_are_the_tokens_that_the_agents_read(run):
    turns = []
    for scored in training_episodes(run):
        read = conversations(scored.episode, team_of(run))
        for action in scored.episode.actions:
            turns.append(action.turn)
            assert CharacterTokenizer().encode_chat(read[action.id]) == tuple(t for t in action.prompt_ids if t)
    assert turns.count(1) == 4  # the executor's second turns, which go on from the first


def test_the_team_is_that_of_the_run_even_where_its_prompts_have_changed(run):
    [solver, *others] = run.roles()
    run.write_roles([replace(solver, description="as it was"), *others])
    assert team_of(run)[0].description == "as it was"


def test_a_broken_episode_keeps_only_what_did_not_wait_for_its_outcome(run):
    config = run.config()
    tasks = {task.id: task for task in load_tasks(config)[0]}
    episode = next(training_episodes(run)).episode
    first, *rest = episode.actions
    broken = replace(episode, infra_error="sandbox", actions=(replace(first, infra_error="infrastructure"), *rest))
    left = requests_of(broken, tasks, team_of(run), "last")
    assert [request.action.role for request in left] == ["code_executor", "code_executor"]
    assert requests_of(broken, tasks, team_of(run), "all") == []


def test_what_a_run_no_longer_holds_is_named(run, caplog):
    episode = next(training_episodes(run)).episode
    with pytest.raises(ConfigError, match=f"task {episode.task_id} is not in"):
        requests_of(episode, {}, team_of(run), "all")
    with pytest.raises(ConfigError, match="no role 'verifier'"):
        conversations(episode, team_of(run)[:2])
    path = run.folder / "episodes" / "step-000002.jsonl"
    path.write_text('{"id": "x", "actions": []}\n')
    assert len(list(training_episodes(run))) == 4
    assert "saved: step-000002.jsonl: line 1 is left out: not as coachrl writes it: it has no task_id" in caplog.text


def episode_of(name, *indices):
    return Episode(name, "t", "k", "p", tuple(make_action(episode=name, index=i) for i in indices), Outcome(True))


def test_an_action_that_the_run_has_already_is_not_read_again_with_any_of_its_episode(tmp_path, caplog):
    run = Run(tmp_path)
    (tmp_path / "episodes").mkdir()
    run.write_episodes("step-000010", [episode_of("a", 0, 1)], {})
    run.write_episodes("step-000011", [episode_of("b", 0), episode_of("a", 1, 2), episode_of("c", 3, 3)], {})
    run.write_episodes("step-000012", [episode_of("a", 2), episode_of("b", 0)], {})
    run.write_episodes("eval-000009", [episode_of("d", 0)], {})
    read = [(each.episode.id, len(each.episode.actions)) for each in training_episodes(run)]
    assert read == [("a", 2), ("b", 1), ("a", 1)]
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "step-000011.jsonl: 2 episodes left out: the run has its actions already",
        "step-000012.jsonl: 1 episode left out: the run has its actions already",
    ]
