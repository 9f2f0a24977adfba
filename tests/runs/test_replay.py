"""A saved run read again: the coach is asked what it was asked, and the messages are those that the agents read."""

from dataclasses import replace

import pytest
from saved_runs import save_run

from coachrl.errors import ConfigError
from coachrl.runs.reading import conversations, requests_of, team_of, training_episodes
from coachrl.tasks import load_tasks
from coachrl.testing.scripted import CharacterTokenizer


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
        overrides=[f"coach.evidence.ground_truth={outcome_to}"],
    )
    again = replayed(run, outcome_to)
    assert len(again) == 16
    assert sorted(again, key=lambda r: r.action.id) == sorted(asked, key=lambda r: r.action.id)


async def test_messages_are_the_tokens_that_the_agents_read(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    turns = []
    for scored in training_episodes(run):
        read = conversations(scored.episode, team_of(run))
        for action in scored.episode.actions:
            turns.append(action.turn)
            assert CharacterTokenizer().encode_chat(read[action.id]) == tuple(t for t in action.prompt_ids if t)
    assert turns.count(1) == 4  # the executor's second turns, which go on from the first


async def test_the_team_is_that_of_the_run_even_where_its_prompts_have_changed(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    [solver, *others] = run.roles()
    run.write_roles([replace(solver, description="as it was"), *others])
    assert team_of(run)[0].description == "as it was"


async def test_a_broken_episode_keeps_only_what_did_not_wait_for_its_outcome(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    config = run.config()
    tasks = {task.id: task for task in load_tasks(config)[0]}
    episode = next(training_episodes(run)).episode
    first, *rest = episode.actions
    broken = replace(episode, infra_error="sandbox", actions=(replace(first, infra_error="infrastructure"), *rest))
    left = requests_of(broken, tasks, team_of(run), "last")
    assert [request.action.role for request in left] == ["code_executor", "code_executor"]
    assert requests_of(broken, tasks, team_of(run), "all") == []


async def test_what_a_run_no_longer_holds_is_named(tmp_path, caplog):
    run = await save_run(tmp_path, samples_per_task=1)
    episode = next(training_episodes(run)).episode
    with pytest.raises(ConfigError, match=f"task {episode.task_id} is not in"):
        requests_of(episode, {}, team_of(run), "all")
    with pytest.raises(ConfigError, match="no role 'verifier'"):
        conversations(episode, team_of(run)[:2])
    path = run.folder / "episodes" / "step-000002.jsonl"
    path.write_text('{"id": "x", "actions": []}\n')
    assert len(list(training_episodes(run))) == 4
    assert "saved: step-000002.jsonl: line 1 is left out: not as coachrl writes it: it has no task_id" in caplog.text
