"""Rescoring a saved run: who is asked, what is written, what a stopped rescore repeats, how the scores compare."""

import asyncio
import collections
import importlib
import json
import linecache
import os
import signal
import sys
from dataclasses import replace

import pytest
from command_line import coachrl, start
from saved_runs import reply_otherwise, save_run
from scripted_server import ScriptedServer, say, status

from coachrl.cli.main import main
from coachrl.commands.build import make_coach_pool
from coachrl.config import load_config, parse_config
from coachrl.errors import CoachUnavailable, ConfigError
from coachrl.rescore.rescoring import ActionFilter, SavedActions, ScoredAction, choose, rescore_run, rescored_by
from coachrl.rescore.store import read_rescores
from coachrl.runs.beginning import keep_tasks
from coachrl.runs.folder import Run
from coachrl.runs.reading import tasks_of
from coachrl.storage.jsonl import read_jsonl
from coachrl.tasks import load_tasks
from coachrl.tasks.math.problems import MathTruth
from coachrl.types import GIVEN_UP, CoachScore

ACTIONS = 32  # 4 tasks, 2 episodes of each, 4 actions in each


def silent(done, total): ...


def judge_config(run, server, *overrides):
    flags = {"coach.name": "openai/judge", "coach.api_base": server.openai_base}
    return load_config(run.folder / "config.yaml", ["coach.max_attempts=1", *overrides], flags)


async def rescore(run, server, *overrides, repeat=0, **wish):
    config = judge_config(run, server, *overrides)
    done = await rescore_run(run, config, rescored_by(config, repeat), ActionFilter(**wish), silent, make_coach_pool)
    return done.actions, done.rescore


def judged(server):
    """The prompts that asked for a score."""
    return [received.prompt for received in server.requests if "AGENT_OUTPUT" in received.prompt]


@pytest.fixture
def saved(tmp_path):
    return asyncio.run(save_run(tmp_path))


def cli(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["coachrl", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0


async def test_a_judge_scores_every_action_once_beside_the_old_scores(tmp_path):
    run = await save_run(tmp_path)
    before = [path.read_bytes() for path in run.episode_files()]
    async with ScriptedServer(lambda received: say("Fine.\nPROCESS_SCORE: 6")) as server:
        actions, found = await rescore(run, server)
        assert len(judged(server)) == ACTIONS
        again, same = await rescore(run, server)
        assert len(judged(server)) == ACTIONS  # nothing left to ask
    assert len(actions) == len(again) == ACTIONS
    assert {action.action_id for action in actions} == set(found.scores) == set(same.scores)
    assert {(s.status, s.process_0_10, s.model) for s in found.scores.values()} == {("scored", 6.0, "openai/judge")}
    assert [path.read_bytes() for path in run.episode_files()] == before
    calls = [line for line in read_jsonl(found.folder / "ledger.jsonl") if line["kind"] == "call"]
    assert {call["action_id"] for call in calls if call["action_id"]} == set(found.scores)
    assert found.by.coach == "openai/judge" and found.by.settings["coach.evidence.ground_truth"] == "all"


async def test_what_a_resumed_run_has_in_place_of_a_scored_reply_is_asked_about_anew(tmp_path, caplog):
    run = await save_run(tmp_path)
    async with ScriptedServer(lambda received: say("PROCESS_SCORE: 6")) as server:
        await rescore(run, server)
        changed = reply_otherwise(run)
        assert [len(scores) for scores in (run.frames.scores.query("rater != 'run'"),)] == [ACTIONS - 1]
        server.script = [say("PROCESS_SCORE: 3")]
        before = len(judged(server))
        _, found = await rescore(run, server)
    assert [prompt.count(" Or so.") > 0 for prompt in judged(server)[before:]] == [True]
    assert "1 score of the rescore left out, of replies that the run" in caplog.text
    assert {key for key, score in found.scores.items() if score.process_0_10 == 3} == {changed}
    assert len(found.scores) == len(run.frames.scores.query("rater != 'run'")) == ACTIONS


async def test_a_task_whose_answer_was_edited_since_is_told(tmp_path, caplog):
    """The rules compare with the reference answer as it is now, and the outcome is of the one that it was."""
    run = await save_run(tmp_path, samples_per_task=1)
    config = run.config()
    train, heldout = load_tasks(config)
    asked = ActionFilter(), silent, make_coach_pool
    keep_tasks(run, train, heldout)
    await rescore_run(run, config, rescored_by(config, 1), *asked)
    assert "not the tasks" not in caplog.text
    (run.folder / "tasks.json").unlink()
    keep_tasks(run, [replace(train[0], ground_truth=MathTruth("777")), *train[1:]], heldout)
    await rescore_run(run, config, rescored_by(config, 2), *asked)
    assert f"not the tasks that the run began with: of 4 training tasks 1 changed ({train[0].id})" in caplog.text


async def test_repeats_lie_side_by_side(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    async with ScriptedServer(lambda received: say("PROCESS_SCORE: 6")) as server:
        await rescore(run, server)
        await rescore(run, server, repeat=1)
        assert len(judged(server)) == ACTIONS
    first, second = read_rescores(run.folder)
    assert second.label == f"{first.label}-r1" and (first.by.repeat, second.by.repeat) == (0, 1)
    assert first.scores.keys() == second.scores.keys()


async def test_failures_are_kept_and_asked_again_only_when_told_to(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    broken = True

    def last_only(received):
        return status(400) if broken and "The answer is" in received.prompt else say("PROCESS_SCORE: 6")

    async with ScriptedServer(last_only) as server:
        _, found = await rescore(run, server)
        failed = {key for key, score in found.scores.items() if score.status == "failed"}
        assert 0 < len(failed) < len(found.scores)
        assert all(found.scores[key].process_0_10 is None and found.scores[key].rationale for key in failed)
        asked = len(judged(server))
        await rescore(run, server)
        assert len(judged(server)) == asked
        broken = False
        with (found.folder / "ledger.jsonl").open("a") as ledger:
            ledger.write('{"kind": "ca')  # as a kill leaves it
        _, found = await rescore(run, server, failed_only=True)
        assert len(judged(server)) - asked == len(failed)
        assert all(json.loads(line) for line in (found.folder / "ledger.jsonl").open())
    assert {score.status for score in found.scores.values()} == {"scored"}


async def test_an_unreadable_reply_is_asked_for_anew_and_not_read_from_the_cache(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    async with ScriptedServer(lambda received: say(text)) as server:
        text = "Hard to say."
        _, found = await rescore(run, server)
        assert {score.status for score in found.scores.values()} == {"failed"}
        text = "PROCESS_SCORE: 6"
        _, found = await rescore(run, server, failed_only=True)
    assert {score.process_0_10 for score in found.scores.values()} == {6.0}
    assert not any(score.usage.calls_from_cache for score in found.scores.values())


def test_an_episode_that_stands_twice_is_scored_once(saved, monkeypatch, capsys):
    [path] = saved.episode_files("step")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[0], lines[1]]))
    assert cli(monkeypatch, "rescore", saved.folder, "--coach", "rules") == 0
    [found] = read_rescores(saved.folder)
    assert len(list(read_jsonl(found.folder / "scores.jsonl"))) == len(found.scores) == ACTIONS
    assert "2 episodes left out: the run has its actions already" in capsys.readouterr().err


def test_actions_are_not_judged_by_another_problem_that_has_the_id_of_theirs(saved, monkeypatch, capsys):
    path = saved.folder / "episodes" / "step-000001.jsonl"
    first, *others = read_jsonl(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in [{**first, "task_prompt": "Of then."}, *others]))
    assert cli(monkeypatch, "rescore", saved.folder, "--coach", "rules") == 2
    assert not (saved.folder / "rescores").exists()
    assert "is another problem now than the one that was played: put the task set back" in capsys.readouterr().err


def test_a_reply_that_nobody_waited_for_is_not_asked_about(saved):
    [first, *others], scores = saved.read_episodes("step-000001")
    *actions, last = first.actions
    given_up = replace(last, response_ids=(), logprobs=(), text="", result=GIVEN_UP)
    saved.write_episodes("step-000001", [replace(first, actions=(*actions, given_up)), *others], scores)
    assert len(list(SavedActions(saved, saved.config()))) == ACTIONS - 1


def test_an_id_of_both_sets_is_that_of_the_task_that_was_trained_on(tmp_path):
    for part, problem in (("train", "2 + 2?"), ("test", "3 + 3?")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "data.jsonl").write_text(json.dumps({"problem": problem, "answer": 4}) + "\n")
    files = {"train": str(tmp_path / "train" / "data.jsonl"), "heldout": str(tmp_path / "test" / "data.jsonl")}
    run = Run.create(parse_config({"name": "r", "out": str(tmp_path), "tasks": {"source": "math", **files}}, ""))
    assert tasks_of(run, run.config())["data-1"].prompt == "2 + 2?"


def test_where_nothing_failed_nothing_is_asked_or_written(saved, monkeypatch, capsys):
    assert cli(monkeypatch, "rescore", saved.folder, "--failed-only") == 0
    assert capsys.readouterr().out == "nothing was asked: no failed score is left\n"
    assert not (saved.folder / "rescores").exists()
    assert cli(monkeypatch, "rescore", saved.folder) == 0
    capsys.readouterr()
    assert cli(monkeypatch, "rescore", saved.folder) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "nothing was asked: all were asked about before" and f"{ACTIONS} scored" in rest[1]


async def test_a_killed_rescore_goes_on_and_repeats_no_finished_call(tmp_path):
    run = await save_run(tmp_path)
    async with ScriptedServer(lambda received: say("PROCESS_SCORE: 6", latency_s=0.1)) as server:
        arguments = ["rescore", run.folder, "--coach", "openai/judge", "--coach-api-base", server.openai_base]
        arguments += ["coach.concurrency=2", "--json"]
        command = start(*arguments, cwd=tmp_path)
        while len(judged(server)) < ACTIONS // 2:
            assert command.running
            await asyncio.sleep(0.01)
        os.kill(command.pid, signal.SIGKILL)
        assert command.finish().returncode == -signal.SIGKILL
        [half] = read_rescores(run.folder)
        assert 0 < len(half.scores) < ACTIONS

        done = await asyncio.to_thread(coachrl, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        prompts = collections.Counter(judged(server))
    printed = json.loads(done.stdout)
    assert printed["after"]["scored"] == ACTIONS and printed["label"] == half.label
    lines = [record["action_id"] for record in read_jsonl(half.folder / "scores.jsonl")]
    assert len(lines) == len(set(lines)) == ACTIONS
    assert prompts.total() <= ACTIONS + 2  # only the two in flight when it was killed are asked again


async def test_a_sample_is_drawn_by_its_seed_and_grows_into_the_whole(tmp_path):
    run = await save_run(tmp_path)
    async with ScriptedServer(lambda received: say("PROCESS_SCORE: 6")) as server:
        _, few = await rescore(run, server, sample=5, seed=1)
        _, same = await rescore(run, server, sample=5, seed=1)
        assert set(few.scores) == set(same.scores) and len(few.scores) == len(judged(server)) == 5
        _, more = await rescore(run, server, sample=5, seed=2)
        assert 5 < len(more.scores) <= 10
        _, whole = await rescore(run, server)
        assert len(whole.scores) == len(judged(server)) == ACTIONS


async def test_other_settings_do_not_mix_with_what_is_there(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    async with ScriptedServer(lambda received: say("PROCESS_SCORE: 6")) as server:
        await rescore(run, server, sample=2)
        asked = len(server.requests)
        with pytest.raises(ConfigError, match=r"coach\.temperature=0\.0.*coach\.temperature=0\.7.*--repeat"):
            await rescore(run, server, "coach.temperature=0.7")
        assert len(server.requests) == asked
        await rescore(run, server, "coach.concurrency=1", "coach.timeout_s=9")


def test_an_own_coach_whose_file_has_changed_does_not_answer_with_its_old_scores(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    asked = ("rescore", saved.folder, "--coach", "changing_coach:judge")
    # 1.5 and 9 differ in length: Python takes a file of the same length and second for the one that it has compiled.
    for number, repeat, code in [(1.5, (), 0), (1.5, (), 0), (9, (), 2), (9, ("--repeat", "1"), 0)]:
        (tmp_path / "changing_coach.py").write_text(f"def judge(request):\n    return {number}\n")
        sys.modules.pop("changing_coach", None)
        importlib.invalidate_caches()
        linecache.checkcache()
        assert cli(monkeypatch, *asked, *repeat) == code, capsys.readouterr().err
    assert "was scored with code of changing_coach:judge=" in capsys.readouterr().err
    assert {score.process_0_10 for score in read_rescores(saved.folder)[-1].scores.values()} == {9.0}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_coach_whose_every_call_fails_is_an_error_of_the_command(saved, tmp_path, monkeypatch, capsys, form):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "failing_coach.py").write_text("def judge(request):\n    raise RuntimeError('no quota')\n")
    monkeypatch.delitem(sys.modules, "failing_coach", raising=False)
    assert cli(monkeypatch, "rescore", saved.folder, "--coach", "failing_coach:judge", *form) == 1
    assert '"scored": 0' in (said := capsys.readouterr().out) or "0 scored" in said


async def test_a_coach_that_cannot_be_used_leaves_nothing_behind(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    async with ScriptedServer([status(401, "wrong key")]) as server:
        with pytest.raises(CoachUnavailable, match="wrong key"):
            await rescore(run, server)
    assert not (run.folder / "rescores").exists()


def test_the_same_rules_agree_with_themselves(saved, monkeypatch, capsys):
    assert cli(monkeypatch, "rescore", saved.folder, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["before"]["scored"] == printed["after"]["scored"] == ACTIONS
    assert printed["overall"]["shift"]["value"] == 0 and printed["near"]["value"] == 1
    assert printed["pearson"]["value"] == pytest.approx(1)
    assert set(printed["by_role"]) == {"problem_solver", "code_executor", "verifier"}
    assert "2-steps" in printed["by_category"] and len(printed["by_category"]) > 1
    assert cli(monkeypatch, "rescore", saved.folder) == 0
    shown = capsys.readouterr().out
    assert f"{ACTIONS} pairs" in shown and "role verifier" in shown and "category 2-steps" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.steps=2"], ["train.steps=2", "coach.key=value"]),
        (["coach.temprature=1"], ["temprature", "temperature"]),
        (["--failed-only", "--sample", "3"], ["--failed-only", "--sample"]),
        (["--coach", "opnai/x", "--coach-api-base", "http://127.0.0.1:1/v1"], ["opnai", "openai"]),
        (["--coach", "openai/x", "--coach-api-base", "http://127.0.0.1:1/v1", "coach.max_attempts=1"], ["openai/x"]),
        (["--coach", "openai/x", "--coach-prompt", "no.md"], ["no.md"]),
        (["--coach-prompt", "strict"], ["rules", "no prompt"]),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing_behind(saved, monkeypatch, capsys, arguments, words):
    assert cli(monkeypatch, "rescore", saved.folder, *arguments) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1 and all(word in error for word in words), error
    assert not list(saved.folder.glob("rescores/*/*"))


def test_a_folder_that_is_no_run_and_a_run_without_actions_are_refused(saved, tmp_path, monkeypatch, capsys):
    assert cli(monkeypatch, "rescore", tmp_path / "no") == 2
    assert "is not a run folder" in capsys.readouterr().err
    for path in saved.episode_files():
        path.unlink()
    assert cli(monkeypatch, "rescore", saved.folder) == 2
    assert "no action of a training step" in capsys.readouterr().err


def test_who_is_asked():
    def action(name, status):
        return ScoredAction(name, "r", "t", "k", CoachScore(name, status, 5.0 if status == "scored" else None))

    actions = [action("a", "scored"), action("b", "failed"), action("c", "failed"), action("d", "abstained")]
    assert choose(actions, {}, ActionFilter()) == ["a", "b", "c", "d"]
    assert choose(actions, {}, ActionFilter(failed_only=True)) == ["b", "c"]
    done = {"a": CoachScore("a", "failed"), "b": CoachScore("b", "scored", 1.0)}
    assert choose(actions, done, ActionFilter()) == ["c", "d"]
    assert choose(actions, done, ActionFilter(failed_only=True)) == ["a", "c"]
    assert choose(actions, {}, ActionFilter(sample=9)) == ["a", "b", "c", "d"]
