"""Reward functions of TRL, audited while they train: called as TRL calls them, and read back as an audit reads."""

from __future__ import annotations

import asyncio
import json
import math
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coachrl.audit.data.frame import read_audit_data
from coachrl.audit.data.imported import import_scores, import_settings
from coachrl.audit.trl import audited
from coachrl.cli.main import app
from coachrl.errors import ConfigError


def likes_length(completions, **given):
    return [min(1.0, len(text.split()) / 10) for text in completions]


def is_right(completions, answer, **given):
    return [float(text.endswith(right)) for text, right in zip(completions, answer, strict=True)]


def call(reward, step, **more):
    """One batch as GRPOTrainer hands it over: two prompts, four replies each."""
    given = {
        "prompts": [f"{step} + {number}?" for number in (1, 2) for _ in range(4)],
        "completions": [f"{'well ' * draw}{step + number}" for number in (1, 2) for draw in range(4)],
        "completion_ids": [[7] * (draw + 1) for _ in range(2) for draw in range(4)],
        "answer": [str(step + 1)] * 8,
        "subject": ["sum", "other"] * 4,
        "trainer_state": SimpleNamespace(global_step=step - 1, is_world_process_zero=True),
        "log_extra": lambda name, values: None,
        "log_metric": lambda name, value: None,
    }
    return reward(**{**given, **more})


def called(name):
    def reward(completions, **given):
        return likes_length(completions)

    reward.__name__ = name
    return reward


def test_the_log_is_what_an_audit_reads_and_the_reward_is_as_it_was(tmp_path):
    log = tmp_path / "logs" / "scores.jsonl"
    judge = audited(likes_length, log, outcome=is_right, category="subject")
    assert judge.__name__ == "likes_length"
    assert [call(judge, step) for step in (1, 2)] == [call(likes_length, step) for step in (1, 2)]
    table = read_audit_data([import_scores(log, import_settings("trl", (), "0:1"), tmp_path)]).actions
    assert table["score"].tolist() == [1.0, 2.0, 3.0, 4.0] * 4 and table["step"].tolist() == [1] * 8 + [2] * 8
    assert table["outcome"].tolist() == [1, 1, 1, 1, 0, 0, 0, 0] * 2 and table["tokens"].tolist() == [1, 2, 3, 4] * 4
    assert set(table["category"]) == {"sum", "other"} and table["task"].nunique() == 4


def test_trl_logs_what_the_last_steps_say(tmp_path):
    logged = []
    judge = audited(likes_length, tmp_path / "s.jsonl", outcome=is_right, every=2)
    for step in (1, 2, 3, 4):
        call(judge, step, log_metric=lambda name, value, step=step: logged.append((step, name, value)))
    assert {step for step, *_ in logged} == {2, 4}
    found = {name: value for step, name, value in logged if step == 4}
    assert found["audit/n"] == 16 and found["audit/length_rho"] == pytest.approx(1)
    assert "audit/auc_of_shown_outcome" in found
    other = SimpleNamespace(global_step=5, is_world_process_zero=False)
    call(judge, 6, trainer_state=other, log_metric=lambda name, value: pytest.fail("not on this process"))


def test_an_async_reward_stays_async_and_a_score_that_is_missing_is_a_failed_call(tmp_path):
    async def judge(completions, **given):
        await asyncio.sleep(0)
        return [None, *([0.5] * (len(completions) - 1))]

    asked = audited(judge, tmp_path / "s.jsonl", outcome=is_right)
    assert asyncio.iscoroutinefunction(asked) and asyncio.run(call(asked, 1)) == [None, *([0.5] * 7)]
    table = read_audit_data([import_scores(tmp_path / "s.jsonl", import_settings("trl", (), "0:1"), tmp_path)]).actions
    assert table["status"].tolist() == ["failed", *(["scored"] * 7)]


def test_what_cannot_be_logged_is_said_in_one_line(tmp_path):
    with pytest.raises(ConfigError, match="category='topic' is no column of the data set"):
        call(audited(likes_length, tmp_path / "a.jsonl", category="topic"), 1)
    with pytest.raises(ConfigError, match="3 values of 'short' for 8 replies"):
        call(audited(short, tmp_path / "b.jsonl"), 1)
    with pytest.raises(ConfigError, match="--scale 1: write the lowest and the highest score"):
        audited(likes_length, tmp_path / "c.jsonl", scale="1")
    with pytest.raises(ConfigError, match="a column of the log is called 'outcome'"):
        audited(called("outcome"), tmp_path / "a.jsonl", outcome=is_right)
    assert not (tmp_path / "a.jsonl").exists()


def test_nothing_that_an_audit_cannot_take_ends_training(tmp_path, caplog):
    def judge(completions, **given):
        return [math.nan, 2.0, None, 0.5] * 2

    logged = []
    asked = audited(judge, tmp_path / "s.jsonl", every=1)
    given = call(asked, 1, log_metric=lambda name, value: logged.append(name))
    assert math.isnan(given[0]) and given[1:4] == [2.0, None, 0.5], "the reward stays as it is"
    assert not logged and "audit/... is left out at step 1" in caplog.text and "2.0 is outside 0:1" in caplog.text
    rewards = [json.loads(line)["judge"] for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert rewards == [None, 2.0, None, 0.5] * 2


def test_figures_are_made_of_what_came_since_the_last_ones(tmp_path):
    """The log of a long run may be larger than memory, and what an earlier run left in it is none of this one's."""
    log, found = tmp_path / "s.jsonl", []
    log.write_text("an earlier run's\n")
    judge = audited(likes_length, log, every=2)
    for step in (1, 2, 3, 4):
        call(judge, step, log_metric=lambda name, value: found.append(value) if name == "audit/n" else None)
        if step == 2:
            log.write_text("x" * (log.stat().st_size - 1) + "\n")
    assert found == [16, 16]


def short(completions, **given):
    return [1.0] * 3


def test_columns_of_trls_own_parquet_are_read_beside_those_that_a_reward_logs(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = {
        "step": [1, 1, 2, 2],
        "prompt": [[{"role": "user", "content": "2 + 2?"}]] * 4,
        "completion": [[{"role": "assistant", "content": text}] for text in ("4", "5", "it is 4", "six")],
        "judge": [1.0, 0.0, 0.5, None],
        "outcome": [1.0, 0.0, 1.0, 0.0],
        "advantage": [1.0, -1.0, 1.0, -1.0],
    }
    file = tmp_path / "completions_00002.parquet"
    pandas.DataFrame(rows).to_parquet(file)
    table = read_audit_data([import_scores(file, import_settings("trl", (), "0:1"), tmp_path)]).actions
    assert table["score"].tolist()[:3] == [10, 0, 5] and table["status"].tolist() == ["scored"] * 3 + ["failed"]
    assert table["outcome"].tolist() == [1, 0, 1, 0] and table["task"].nunique() == 1


def test_the_command_line_audits_what_was_logged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    judge = audited(likes_length, "scores.jsonl", outcome=is_right, category="subject")
    for step in range(1, 21):
        call(judge, step)
    done = CliRunner().invoke(app, ["audit", "--from", "trl", "scores.jsonl", "--resamples", "100", "--json", "a.json"])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "a.json").read_text())
    assert "160 of 160" in done.output
    (auc,) = [verdict for verdict in found["verdicts"] if verdict["topic"] == "auc"]
    assert "circular" in auc["text"], "whether the judge saw outcomes is not known"
