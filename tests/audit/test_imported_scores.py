"""Files of other trainers, audited as runs: what each becomes, and what is refused in one line."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit_runs import write_run
from command_line import coachrl
from typer.testing import CliRunner

from coachrl.audit.audit import audit_runs
from coachrl.audit.data.foreign import _plain, _reward, _traces
from coachrl.audit.data.frame import read_audit_data
from coachrl.audit.data.imported import _write, import_scores, import_settings
from coachrl.audit.report.page import lines
from coachrl.cli.main import app
from coachrl.errors import ConfigError


def jsonl(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def table_of(file: Path, out: Path, source: str, *columns: str, scale: str = "0:1"):
    folder = import_scores(file, import_settings(source, columns, scale), out)
    return read_audit_data([folder]).actions


def test_completions_of_trl_become_one_action_each(tmp_path):
    fixed = {"mode": "train", "completion": "It is 7.", "format_reward": 1.0, "advantage": 0.0}
    rows = [
        {**fixed, "step": step, "prompt": f"How many is {step}?", "judge": 0.25 * draw}
        for step in (5, 6)
        for draw in range(3)
    ]
    file = jsonl(tmp_path / "completions.jsonl", rows)
    table = table_of(file, tmp_path, "trl", "score=judge")
    assert table["score"].tolist() == [0, 2.5, 5] * 2 and table["step"].tolist() == [5] * 3 + [6] * 3
    assert table["task"].nunique() == 2 and table["outcome"].isna().all()
    with pytest.raises(ConfigError, match=r"which reward is audited.*format_reward, judge"):
        table_of(file, tmp_path, "trl")


def test_conversations_are_read_as_what_the_agent_was_told_and_what_it_said(tmp_path):
    rollout = {
        "example_id": 3,
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}],
        "completion": [
            {"role": "assistant", "content": "Let me see.\n```python\nprint(4)\n```"},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": [{"type": "text", "text": "It is 4."}]},
        ],
        "reward": 0.75,
        "correct": 1.0,
    }
    table = table_of(jsonl(tmp_path / "results.jsonl", [rollout]), tmp_path, "verifiers", "outcome=correct")
    (row,) = table.to_dict("records")
    assert (row["score"], row["outcome"], row["task"], row["has_code"]) == (7.5, 1.0, "3", True)
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    (action,) = json.loads((folder / "episodes" / "step-000001.jsonl").read_text())["actions"]
    assert action["prompt_text"] == "Be brief.\n\n2 + 2?" and action["text"].endswith("```\n\nIt is 4.")


def test_a_group_of_art_is_one_task(tmp_path):
    def trajectory(reward, question="2 + 2?"):
        choice = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "Four."}}
        told = {"role": "user", "content": question}
        return {"reward": reward, "metrics": {"solved": reward > 0}, "messages_and_choices": [told, choice]}

    first = [trajectory(0.0), trajectory(1.0, "2 + 2, you said?")]
    groups = [{"trajectories": first}, {"trajectories": [trajectory(0.5, "3 + 1?")]}, {"trajectories": []}]
    table = table_of(jsonl(tmp_path / "t.jsonl", groups), tmp_path, "art", "outcome=metrics.solved")
    one, same, other = table["task"].tolist()
    assert one == same != other
    assert table["outcome"].tolist() == [0, 1, 1] and table["score"].tolist() == [0, 10, 5]


def test_the_tables_that_art_writes_of_each_step_are_one_run(tmp_path):
    """As `write_trajectory_groups_parquet` of ART 0.5.18 writes them: objects as JSON text, groups from 0 in each."""
    pytest.importorskip("pyarrow")
    said = {"tool_calls": None, "tool_call_id": None}
    (tmp_path / "train").mkdir()
    for step in (1, 2):
        rows = [
            {
                "group_index": nth // 2,
                "reward": nth / 4,
                "metrics": json.dumps({"solved": nth > 1}),
                "metadata": None,
                "messages": [
                    {"role": "user", "content": f"How many are {nth // 2}?", "trainable": False, **said},
                    {"role": "assistant", "content": "I count.", "trainable": True, **said},
                    {"role": "tool", "content": "7", "trainable": False, **said},
                    {"role": "assistant", "content": None, "trainable": True, **said},
                ],
            }
            for nth in range(4)
        ]
        pd.DataFrame(rows).to_parquet(tmp_path / "train" / f"{step:04d}.parquet")
    table = table_of(tmp_path / "train", tmp_path, "art", "outcome=metrics.solved")
    assert table["step"].tolist() == [1] * 4 + [2] * 4 and table["task"].nunique() == 2
    assert table["score"].tolist() == [0, 2.5, 5, 7.5] * 2 and table["outcome"].tolist() == [0, 0, 1, 1] * 2
    (folder,) = tmp_path.glob("imported-*")
    (action, *_) = json.loads((folder / "episodes" / "step-000001.jsonl").read_text().splitlines()[0])["actions"]
    assert (action["prompt_text"], action["text"]) == ("How many are 0?", "I count.\n\n")


def test_an_episode_of_verifiers_is_a_reply_of_each_of_its_agents(tmp_path):
    """As verifiers 0.4.0 writes traces.jsonl: messages are a graph, of which the agent sampled some."""

    def node(role, content, parent, **more):
        return {"parent": parent, "message": {"role": role, "content": content}, "timestamp": 1.0, **more}

    def trace(name, rewards, said):
        nodes = [node("system", "Be brief.", None), node("user", "2 + 2?", 0), node("assistant", "5?", 1)]
        nodes += [node("assistant", said, 2, sampled=True, token_ids=[1, 2])]
        task = {"type": "Sum", "data": {"idx": 3, "subject": "sums"}, "key": "sum-3"}
        return {"task": task, "agent": {"name": name}, "nodes": nodes, "rewards": rewards, "metrics": {"right": 1.0}}

    judged = {"judge": {"score": 0.5, "weight": 1.0}, "format": {"score": 1.0, "weight": 0.25}}
    traces = [trace("solver", judged, "4"), trace("checker", {}, "yes")]
    run = {"type": "train", "id": "r", "work": {"type": "train", "step": 7}}
    file = jsonl(tmp_path / "traces.jsonl", [{"id": "e", "run": run, "traces": traces}])
    table = table_of(file, tmp_path, "verifiers", "outcome=metrics.right", "category=task.data.subject")
    assert table["score"].tolist()[0] == 7.5 and table["status"].tolist() == ["scored", "failed"]
    assert table["role"].tolist() == ["solver", "checker"] and set(table["step"]) == {7}
    assert set(table["task"]) == {"sum-3"} and set(table["category"]) == {"sums"} and table["outcome"].all()
    (folder,) = tmp_path.glob("imported-*")
    episodes = (folder / "episodes" / "step-000007.jsonl").read_text().splitlines()
    (action,) = json.loads(episodes[0])["actions"]
    assert action["prompt_text"] == "Be brief.\n\n2 + 2?" and action["text"] == "4"


def test_a_table_of_art_without_messages_is_named_by_its_group(tmp_path):
    pytest.importorskip("pyarrow")
    rows = [{"group_index": nth, "reward": 0.5, "messages": [{"role": "user"}] if nth == 0 else None} for nth in (0, 1)]
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a.parquet, group 2: a trajectory of ART has a list 'messages'$"):
        table_of(tmp_path / "a.parquet", tmp_path, "art")


def test_rewards_count_by_their_weight_and_one_that_is_no_number_makes_none(tmp_path):
    given = [{"a": {"score": 0.5, "weight": 2.0}, "b": {"score": 0.25}}, {"a": {"score": "high"}}, {}, None]
    assert [_reward(rewards) for rewards in given] == [1.25, None, None, None]


def test_an_agent_that_sampled_nothing_was_told_everything_and_said_nothing():
    """The first message that was sampled ends what the agent was told; a task without a key is known by its hash."""
    nodes = [{"message": name, "sampled": name in said} for said in (("b", "d"),) for name in "abcd"]
    traces = [{"task": {"hash": "h"}, "nodes": nodes}, {"nodes": nodes[:1]}]
    first, second = _traces({"traces": traces})
    assert (first["prompt"], first["completion"], first["example_id"]) == (["a"], ["b", "d"], "h")
    assert (second["prompt"], second["completion"], second["example_id"]) == (["a"], [], None)
    assert list(_traces({"reward": 1})) == [{"reward": 1}]


def test_nan_is_no_value_however_deep_it_stands():
    assert _plain({"a": [math.nan, {"b": math.nan}], "c": 0.0}) == {"a": [None, {"b": None}], "c": 0.0}


def test_replies_to_one_prompt_are_of_one_task_where_a_rollout_names_none(tmp_path):
    rows = [{"prompt": f"q{nth // 2}", "completion": "c", "reward": 0.5} for nth in range(4)]
    assert table_of(jsonl(tmp_path / "r.jsonl", rows), tmp_path, "verifiers")["task"].nunique() == 2


def test_a_reward_of_verifiers_that_no_float_holds_is_outside_the_scale(tmp_path):
    rows = [{"traces": [{"nodes": [], "rewards": {"right": {"score": 10**400, "weight": 1.0}}}]}]
    with pytest.raises(ConfigError, match="reply 1: the score inf is outside 0:1"):
        table_of(jsonl(tmp_path / "traces.jsonl", rows), tmp_path, "verifiers")


def test_the_widest_scale_is_one(tmp_path):
    rows = [{"s": s, "reply": "r"} for s in (0, 1e308)]
    table = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", "score=s", "text=reply", scale="0:1e308")
    assert table["score"].tolist() == [0, 10]


NAMED = ("score=s", "text=reply", "task=id", "outcome=won", "role=who")


def test_scores_are_brought_to_ten_by_their_scale_and_a_missing_one_is_a_failed_call(tmp_path):
    rows = [{"s": s, "reply": "r", "id": "a", "won": True, "who": "judge"} for s in (1, 3, 5, None)]
    table = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", *NAMED, scale="1:5")
    assert table["score"].tolist()[:3] == [0, 5, 10] and table["status"].tolist()[3] == "failed"
    assert set(table["role"]) == {"judge"}


def test_columns_that_have_the_names_of_fields_need_not_be_named(tmp_path):
    rows = [{"score": 0.5, "text": "a", "task": n, "who": "b", "outcome": n % 2, "reply": "c"} for n in range(4)]
    table = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", "role=who")
    assert table["task"].tolist() == ["0", "1", "2", "3"] and table["score"].tolist() == [5.0] * 4
    assert table["outcome"].tolist() == [0, 1, 0, 1] and set(table["role"]) == {"b"}


def test_a_column_that_the_first_rows_lack_is_read_all_the_same(tmp_path):
    said = {"text": "r", "score": 0.5}
    rows = [said, {**said, "outcome": None}, {**said, "outcome": True, "more": {"kind": "sums"}}]
    table = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", "category=more.kind")
    assert table["outcome"].isna().tolist() == [True, True, False] and list(table["category"]) == ["all", "all", "sums"]
    unlike = [{"completion": "c", "prompt": "p", "judge": None}, {"completion": "c", "prompt": "p", "judge": 1.0}]
    assert table_of(jsonl(tmp_path / "t.jsonl", unlike), tmp_path, "trl")["score"].tolist()[1] == 10


def test_a_category_and_a_role_may_be_numbered_from_0(tmp_path):
    rows = [{"text": "r", "score": 0.5, "category": kind, "role": kind} for kind in (0, 1, "", None)]
    table = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl")
    assert list(table["category"]) == ["0", "1", "all", "all"] and list(table["role"]) == ["0", "1", "agent", "agent"]


def test_a_file_under_another_name_is_another_step_and_what_was_made_meanwhile_is_taken(tmp_path):
    message = {"role": "assistant", "content": "c"}
    group = {"trajectories": [{"reward": 0.5, "messages_and_choices": [message]}]}
    settings, steps = import_settings("art", (), "0:1"), {}
    for name in ("0001", "0007"):
        folder = import_scores(jsonl(tmp_path / f"{name}.jsonl", [group]), settings, tmp_path)
        steps[folder] = [path.name for path in (folder / "episodes").iterdir()]
    assert list(steps.values()) == [["step-000001.jsonl"], ["step-000007.jsonl"]]
    _write(folder, {9: []}, import_settings("jsonl", (), "0:1"))
    assert [path.name for path in (folder / "episodes").iterdir()] == ["step-000007.jsonl"]
    assert not list(tmp_path.glob(".imported*"))


@pytest.mark.parametrize(
    ("rows", "columns", "reason"),
    [
        ([], NAMED, "holds no scored reply"),
        ([[1]], NAMED, "line 1: no JSON object"),
        ([{"s": 1}], ("score=s",), "--column text=NAME is needed"),
        ([{"s": 1}], (), "--column score=NAME and --column text=NAME are needed, of: s"),
        ([{"s": 1, "reply": "r"}], ("score=s", "text=replay"), "no column 'replay' for text, did you mean 'reply'"),
        ([{"s": 10**400, "reply": "r"}], ("score=s", "text=reply"), "reply 1: the score 1000.* is outside 0:1"),
        (
            [{"s": 1, "reply": "r", "n": 10**8}],
            ("score=s", "text=reply", "tokens=n"),
            "tokens is a whole number up to 1,000,000",
        ),
        ([{"s": 7, "reply": "r"}], ("score=s", "text=reply"), "reply 1: the score 7 is outside 0:1"),
        ([{"s": "high", "reply": "r"}], ("score=s", "text=reply"), "the score is no number but 'high'"),
        ([{"s": True, "reply": "r"}], ("score=s", "text=reply"), "the score is no number but True"),
        ([{"s": 1, "reply": "r", "w": 0.5}], ("score=s", "text=reply", "outcome=w"), "an outcome is true or false"),
        ([{"s": 1, "reply": "r", "t": "x"}], ("score=s", "text=reply", "step=t"), "step is a whole number"),
        ([{"s": 1, "reply": "r", "t": 2e300}], ("score=s", "text=reply", "step=t"), "step is a whole number up to"),
        ([{"s": 1, "reply": "r"}, {"s": 1}], ("score=s", "text=reply"), "reply 2: no column 'reply' for text"),
        ([{"s": 1, "reply": "r"}], ("scores=s",), "write field=column"),
    ],
)
def test_what_is_not_as_it_should_be_is_one_line(tmp_path, rows, columns, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", *columns)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["f.jsonl"]  # nothing half made


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "RUN", "--probe", "5"],
        ["audit", "RUN", "--fault-localization", "5", "--coach", "rules"],
        ["rescore", "RUN", "--coach", "rules"],
        ["coaches", "try", "strict", "--action", "RUN#1", "--dry-run"],
        ["export", "RUN", "--format", "sft", "--out", "sft.jsonl"],
        ["train", "--resume", "RUN"],
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_no_coach_is_asked_about_another_trainers_run_and_it_is_not_trained_on(tmp_path, words):
    rows = jsonl(tmp_path / "f.jsonl", [{"s": 1, "reply": "r", "id": 7}])
    folder = import_scores(rows, import_settings("jsonl", ("score=s", "text=reply", "task=id"), "0:1"), tmp_path)
    before = sorted(folder.rglob("*.jsonl"))
    done = CliRunner().invoke(app, [word.replace("RUN", str(folder)) for word in words])
    assert "holds another trainer's scores, and neither its team nor its tasks" in str(done.exception or done.output)
    assert sorted(folder.rglob("*.jsonl")) == before


def test_replies_of_no_task_are_told_of_with_the_columns_that_may_name_it(tmp_path, caplog):
    rows = jsonl(tmp_path / "f.jsonl", [{"s": 1, "reply": "r", "id": 7, "subject": "sums"}])
    for _ in range(2):  # the second time the run folder is there already
        caplog.clear()
        table_of(rows, tmp_path, "jsonl", "score=s", "text=reply")
        assert "--column task=NAME" in caplog.messages[0] and caplog.messages[0].endswith("other columns: id, subject")
    caplog.clear()
    table_of(rows, tmp_path, "jsonl", "score=s", "text=reply", "task=id")
    assert not caplog.messages


@pytest.mark.parametrize(("scale", "said"), [("1:5", ", 1:5 as 0 to 10"), ("0:1", ", 0:1 as 0 to 10"), ("0:10", "")])
def test_scores_on_another_scale_are_said_to_be(scale, said):
    assert import_settings("jsonl", (), scale).rescaled == said


def test_names_that_would_break_a_line_or_color_a_terminal_are_shown_plain_and_stay_apart(tmp_path):
    rows = [{"s": 1, "reply": "r", "who": who} for who in ("a\nb", "a b", "\x1b[31ma b")]
    roles = table_of(jsonl(tmp_path / "f.jsonl", rows), tmp_path, "jsonl", "score=s", "text=reply", "role=who")["role"]
    assert roles.nunique() == 3 and all(name.isprintable() for name in roles)


def test_empty_lines_are_none_and_a_list_of_texts_is_text(tmp_path):
    file = tmp_path / "f.jsonl"
    file.write_text('\n{"s": 1, "reply": ["one two three four", "five six"]}\n\n{"s": 0, "reply": "r"}\n \n')
    table = table_of(file, tmp_path, "jsonl", "score=s", "text=reply")
    assert table["score"].tolist() == [10, 0] and table["tokens"].iloc[0] > 5


def test_a_list_of_objects_and_a_folder_without_files_are_one_line(tmp_path):
    listed = tmp_path / "l.jsonl"
    listed.write_text(json.dumps([{"s": 1, "reply": "r"}], indent=1))
    with pytest.raises(ConfigError, match=r"l.jsonl, line 1: .* the beginning of a list; write one object a line$"):
        table_of(listed, tmp_path, "jsonl", *NAMED)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty holds no file \*.parquet or \*.jsonl$"):
        table_of(tmp_path / "empty", tmp_path, "trl")


@pytest.mark.parametrize("scale", ["1", "5:1", "0:inf", "a:b", "-1e308:1e308"])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(ConfigError, match="--scale"):
        import_settings("jsonl", [], scale)


def test_a_judge_that_likes_length_is_seen_whoever_ran_it(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(600):
        words = int(rng.integers(5, 60))
        score = float(np.clip(0.2 + words / 80 + rng.normal(0, 0.05), 0, 1))
        won = bool(rng.random() < 0.5)
        rows.append({"s": score, "reply": "word " * words, "id": f"t{number // 10}", "won": won, "who": "agent"})
    settings = import_settings("jsonl", NAMED, "0:1")
    file = jsonl(tmp_path / "f.jsonl", rows)
    folder = import_scores(file, settings, tmp_path)
    assert import_scores(file, settings, tmp_path) == folder
    [verdict] = [verdict for verdict in audit_runs([folder], 200).verdicts if verdict.topic == "length"]
    assert verdict.grade == "warning"


def test_a_terminal_is_told_a_few_notes_of_many_and_of_no_episode_that_it_broke(tmp_path):
    rows = [{"text": "r", "score": number / 20, "task": number, "category": number} for number in range(20)]
    file = jsonl(tmp_path / "f.jsonl", rows)
    audit = audit_runs([import_scores(file, import_settings("jsonl", (), "0:1"), tmp_path)])
    told = [line for line in lines(audit) if line.startswith("  note")]
    assert len(told) == 7 and told[-1].endswith("more, which the page has")
    assert "no outcome is known of 20 scored actions: a stratum of their own" in audit.findings[0].notes


def test_the_command_makes_the_run_and_its_page(tmp_path):
    rows = [{"example_id": n // 4, "prompt": "p", "completion": "c", "reward": n % 4 / 4} for n in range(40)]
    jsonl(tmp_path / "results.jsonl", rows)
    done = coachrl("audit", "--from", "verifiers", "results.jsonl", "--resamples", "100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (page,) = (tmp_path / "runs").glob("imported-verifiers-*/audit.html")
    assert "imported from verifiers" in page.read_text()


@pytest.mark.parametrize(("flags", "needed"), [(("--scale", "1:5"), "add --from"), (("--repeats", "3"), "--self-test")])
def test_a_flag_that_would_do_nothing_is_refused(tmp_path, flags, needed):
    result = CliRunner().invoke(app, ["audit", str(write_run(tmp_path, tasks=1, steps=1).folder), *flags])
    assert isinstance(result.exception, ConfigError) and needed in str(result.exception)


def test_replies_take_a_few_times_the_room_of_their_file(tmp_path):
    """Their made-up tokens would take more than their texts, and their lines as much again."""
    text = " ".join(map(str, range(1000)))
    file = jsonl(tmp_path / "long.jsonl", [{"score": 0.5, "text": f"{n} {text}", "task": n % 9} for n in range(200)])
    settings = import_settings("jsonl", (), "0:1")
    tracemalloc.start()
    try:
        import_scores(file, settings, tmp_path)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 5 * file.stat().st_size
