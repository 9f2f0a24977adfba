"""Data sets for TRL from a saved run: the agents' own messages, better replies against worse, judgements."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from saved_runs import reply_otherwise, save_run
from scripted_server import ScriptedServer, say

from coachrl.cli.main import main
from coachrl.coach.clients.ledger import read_ledger
from coachrl.coach.verdict import parse_verdict
from coachrl.commands.build import make_coach_pool
from coachrl.config import load_config
from coachrl.errors import ConfigError
from coachrl.export.trl import FORMATS, ExportFilter, export_run
from coachrl.rescore.rescoring import ActionFilter, rescore_run, rescored_by
from coachrl.runs.reading import training_episodes
from coachrl.storage.jsonl import read_jsonl
from coachrl.testing.scripted import CharacterTokenizer

MENDED = "Careless.\n<suggestion>\n```python\nprint(6)\n```\n</suggestion>\nPROCESS_SCORE: 4"


@pytest.fixture
def saved(tmp_path):
    return asyncio.run(save_run(tmp_path))


def export(run, form, path, **scope):
    done = export_run(run, form, path, ExportFilter(**scope))
    records = list(read_jsonl(path))
    assert sum(done.lines.values()) == len(records)
    assert len({tuple(record) for record in records}) == 1  # `datasets` wants the same columns on every line
    assert len(pd.read_json(path, lines=True)) == len(records)
    return done, records


def actions_of(run):
    return {action.id: action for scored in training_episodes(run) for action in scored.episode.actions}


async def rescore_with_suggestions(run, reply=MENDED):
    async with ScriptedServer([say("PROCESS_SCORE: ABSTAIN"), say(reply)]) as server:
        flags = {"coach.name": "openai/judge", "coach.api_base": server.openai_base, "coach.suggest": True}
        config = load_config(run.folder / "config.yaml", ["coach.max_attempts=1", "coach.concurrency=1"], flags)
        by, progress = rescored_by(config, 0), lambda done, total: None
        done = await rescore_run(run, config, by, ActionFilter(), progress, make_coach_pool)
        return done.rescore


def test_of_two_exports_into_one_file_the_later_one_is_told(saved, tmp_path, monkeypatch):
    path = tmp_path / "sft.jsonl"

    def meanwhile(*_):
        path.write_text("theirs")
        return iter([("reply", {"prompt": []})])

    monkeypatch.setitem(FORMATS, "sft", meanwhile)
    with pytest.raises(ConfigError, match=r"sft\.jsonl cannot be written: File exists"):
        export_run(saved, "sft", path, ExportFilter())
    assert path.read_text() == "theirs" and not list(tmp_path.glob(".sft*"))


async def test_a_file_that_the_disk_refuses_once_it_is_written_does_not_get_its_name(tmp_path, monkeypatch):
    def refused(descriptor):  # as network file systems do, which have taken all writes before
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    run = await save_run(tmp_path, samples_per_task=1)
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(ConfigError, match=r"sft\.jsonl cannot be written: Disk quota exceeded"):
        export(run, "sft", tmp_path / "sft.jsonl", min_score=0)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_demonstrations_are_replies_to_what_the_agent_really_read(saved, tmp_path):
    done, records = export(saved, "sft", tmp_path / "sft.jsonl", min_score=7.0)
    actions = actions_of(saved)
    assert done.lines == {"reply": 4} and done.left_out == {"scored below 7": 28}
    for record in records:
        read, [reply] = record["prompt"], record["completion"]
        action = actions[record["action_id"]]
        assert reply == {"role": "assistant", "content": action.text} and record["score"] >= 7
        assert CharacterTokenizer().encode_chat(read) == tuple(token for token in action.prompt_ids if token)
        assert action.turn == 1 and [m["role"] for m in read[-3:]] == ["user", "assistant", "user"]
        assert "print(x)" in read[-2]["content"], (
            "the crash before it, which was scored below 7, is in the prompt alone"
        )


def test_pairs_answer_one_and_the_same_prompt(saved, tmp_path):
    _, records = export(saved, "dpo", tmp_path / "dpo.jsonl")
    assert {record["agent"] for record in records} == {"problem_solver"}
    for record in records:
        assert record["chosen"] == [{"role": "assistant", "content": "2 + 3"}]
        assert record["rejected"] == [{"role": "assistant", "content": "I would rather not say."}]
        assert record["prompt"][-1]["role"] == "user" and record["source"] == "sibling"
        assert record["score_chosen"] - record["score_rejected"] >= 1
    assert len(records) == len({json.dumps(record["prompt"]) for record in records}) == 4


async def test_corrections_come_from_a_rescore(tmp_path):
    run = await save_run(tmp_path)
    rescore = await rescore_with_suggestions(run)
    done, records = export(run, "sft", tmp_path / "sft.jsonl", rescore=rescore.label, roles=("code_executor",))
    assert done.lines == {"correction": 16}
    assert {record["completion"][-1]["content"] for record in records} == {"```python\nprint(6)\n```"}
    assert all(record["score"] is None and record["source"] == "correction" for record in records)
    done, records = export(run, "dpo", tmp_path / "dpo.jsonl", rescore=rescore.label)
    assert {record["source"] for record in records} == {"correction"}
    assert all(record["chosen"][0]["content"] == "```python\nprint(6)\n```" for record in records)
    assert all(record["score_chosen"] is None and record["score_rejected"] == 4 for record in records)
    with pytest.raises(ConfigError, match="without a better reply"):
        export_run(run, "dpo", tmp_path / "none.jsonl", ExportFilter(rescore=rescore.label, min_gap=7))


async def test_a_correction_of_a_reply_that_is_gone_is_left_out(tmp_path):
    run = await save_run(tmp_path)
    rescore = await rescore_with_suggestions(run)
    assert actions_of(run)[reply_otherwise(run, 1)].role == "code_executor"
    done, _ = export(run, "sft", tmp_path / "sft.jsonl", rescore=rescore.label, roles=("code_executor",))
    assert done.lines == {"correction": 15} and done.left_out["scored when the run held another reply"] == 1


async def test_judgements_are_what_the_judge_was_asked_and_said(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    rescore = await rescore_with_suggestions(run)
    ledger = rescore.folder / "ledger.jsonl"
    ledger.write_text(ledger.read_text() * 2)  # as a resumed run notes again what it finds in its cache
    call = next(line for line in read_ledger(ledger) if line["kind"] == "call" and line["action_id"])
    with ledger.open("a") as file:
        file.write(json.dumps({**call, "reply": "PROCESS_SCORE: 9", "messages": []}) + "\n")
        for ending in ("length", "content_filter"):  # which the coach did not read
            file.write(json.dumps({**call, "reply": f"{ending}\nPROCESS_SCORE: 9", "finish_reason": ending}) + "\n")
    done, records = export(run, "reward-model", tmp_path / "rm.jsonl", rescore=rescore.label)
    assert done.lines == {"judgement": len(actions_of(run))}
    assert done.left_out["replies without a question"] == 1
    for record in records:
        action = actions_of(run)[record["action_id"]]
        assert action.text in record["prompt"][0]["content"] and record["coach"] == "openai/judge"
        assert record["completion"] == [{"role": "assistant", "content": MENDED}] and record["score"] == 4


async def test_a_torn_line_of_the_ledger_is_told_once(tmp_path, caplog):
    run = await save_run(tmp_path, samples_per_task=1)
    rescore = await rescore_with_suggestions(run)
    with (rescore.folder / "ledger.jsonl").open("a") as file:
        file.write('{"kind": "call", "act')
    done, _ = export(run, "reward-model", tmp_path / "rm.jsonl", rescore=rescore.label)
    assert done.lines == {"judgement": len(actions_of(run))}
    assert len([record for record in caplog.records if "cut short or foreign" in record.message]) == 1


def test_rules_give_judgements_that_a_model_could_learn_to_give(saved, tmp_path):
    _, records = export(saved, "reward-model", tmp_path / "rm.jsonl", roles=("verifier",))
    scores = {key: score for scored in training_episodes(saved) for key, score in scored.scores.items()}
    assert len(records) == 8
    for record in records:
        given = parse_verdict(record["completion"][0]["content"])
        assert given.process_0_10 == record["score"] == scores[record["action_id"]].process_0_10
        assert scores[record["action_id"]].rationale in given.rationale
        assert "PROCESS_SCORE" in record["prompt"][0]["content"]


async def test_what_cannot_be_learned_from_is_left_out_and_counted(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    [first, second, third, fourth] = training_episodes(run)
    cut = replace(first.episode.actions[0], finish_reason="length")
    first_scores = {**first.scores, cut.id: replace(first.scores[cut.id], process_0_10=9.0)}
    broken = replace(second.episode, infra_error="sandbox")
    episodes = [
        replace(first.episode, actions=(cut, *first.episode.actions[1:])),
        broken,
        third.episode,
        fourth.episode,
    ]
    failed = {key: replace(score, status="failed", process_0_10=None) for key, score in third.scores.items()}
    run.write_episodes("step-000001", episodes, {**first_scores, **second.scores, **failed})
    done, _ = export(run, "sft", tmp_path / "sft.jsonl", min_score=4)
    assert done.left_out == {
        "cut off": 1,
        "broken for no fault of the agent": 4,
        "failed": 4,
        "not scored": 4,
        "scored below 4": 2,
    }


async def test_candidates_of_one_state_are_siblings(tmp_path):
    run = await save_run(tmp_path, samples_per_task=1)
    [scored, *_] = training_episodes(run)
    action = scored.episode.actions[0]
    other = replace(action, id=f"{action.id}.1", candidate=1, text="2 + 4")
    scores = {**scored.scores, other.id: replace(scored.scores[action.id], action_id=other.id, process_0_10=9.0)}
    run.write_episodes("step-000001", [replace(scored.episode, rejected_candidates=(other,))], scores)
    _, [record] = export(run, "dpo", tmp_path / "dpo.jsonl", roles=("problem_solver",))
    assert (record["chosen"][0]["content"], record["action_id"]) == ("2 + 4", action.id)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "dop"], ["no format 'dop', did you mean 'dpo'? (--format", "reward-model, hub)"]),
        (["--format", "sft", "--min-gap", "2"], ["--min-gap", "sft"]),
        (["--format", "reward-model", "--min-score", "2"], ["--min-score", "reward-model"]),
        (["--format", "sft", "--min-score", "11"], ["--min-score 11", "0 and 10"]),
        (["--format", "sft", "--role", "verifer"], ["verifer", "did you mean 'verifier'"]),
        (["--format", "sft", "--rescore", "judge"], ["no rescore 'judge'"]),
        (["--format", "sft", "--min-score", "10"], ["nothing to export as sft", "scored below 10"]),
        (["--format", "sft", "--out", "no/such/folder/x.jsonl"], ["no folder no/such/folder"]),
        (["--format", "sft", "--out", "there.jsonl"], ["there.jsonl exists already"]),
        (["--format", "sft", "--out", "x.jsonl.gz"], ["x.jsonl.gz: files are written as they are", "leave out .gz"]),
    ],
)
def test_wrong_usage_is_one_line_and_leaves_nothing_behind(saved, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.jsonl").write_text("mine")
    out = [] if "--out" in arguments else ["--out", "x.jsonl"]
    monkeypatch.setattr(sys, "argv", ["coachrl", "export", str(saved.folder), *arguments, *out])
    with pytest.raises(SystemExit) as stopped:
        main()
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and all(word in error for word in words), error
    assert len(error.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "there.jsonl"]
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_the_command_says_what_it_wrote_and_what_it_left_out(saved, tmp_path, monkeypatch, capsys):
    path = tmp_path / "sft.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["coachrl", "export", str(saved.folder), "--format", "sft", "--min-score", "7", "--out", str(path)]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    shown = capsys.readouterr().out
    assert not stopped.value.code and "4 lines" in shown and "28 scored below 7" in shown
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4


async def test_judgements_by_criteria_keep_each_of_them(saved, tmp_path):
    names = ("correctness", "duty", "method", "hand_on")
    reply = "\n".join(f"REASON {name}: So.\nSCORE {name}: {place}" for place, name in enumerate(names))
    async with ScriptedServer([say(reply)]) as server:
        flags = {"coach.name": "openai/judge", "coach.api_base": server.openai_base, "coach.prompt": "criteria"}
        config = load_config(saved.folder / "config.yaml", [], flags)
        by, progress = rescored_by(config, 0), lambda done, total: None
        rescore = (await rescore_run(saved, config, by, ActionFilter(), progress, make_coach_pool)).rescore
    done, records = export(saved, "reward-model", tmp_path / "rm.jsonl", rescore=rescore.label)
    assert done.lines == {"judgement": len(actions_of(saved))}
    assert records[0]["criteria"] == [{"name": name, "score": place} for place, name in enumerate(names)]
    assert records[0]["score"] == pytest.approx((2 * 1 + 2 * 2 + 3) / 8)


def test_what_a_killed_export_left_goes_with_the_next_one(saved, tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    out = tmp_path / "out"
    out.mkdir()
    left = out / f".data.jsonl.0123abcd.{ended.pid}"
    left.write_text("cut sh")
    with pytest.raises(ConfigError, match="nothing to export"):
        export(saved, "sft", out / "data.jsonl", min_score=10.0)
    assert not list(out.iterdir())
    left.write_text("cut sh")
    export(saved, "sft", out / "data.jsonl", min_score=0.0)
    assert [path.name for path in out.iterdir()] == ["data.jsonl"]
