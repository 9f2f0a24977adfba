"""From run folders to verdicts, page and JSON: what is said, and what is said not to be computable."""

from __future__ import annotations

import itertools
import json
import math
import re
from html.parser import HTMLParser

import pytest
from audit_runs import ROLES, change_scores, fair, likes_sums, write_rescore, write_run
from typer.testing import CliRunner

from coachrl.audit.audit import Audit, audit_runs
from coachrl.audit.data.frame import read_audit_data, style_of
from coachrl.audit.report.page import as_html, as_json, lines
from coachrl.audit.selftest.selftest import CONDITIONS, self_test, table_line
from coachrl.audit.thresholds import crossed, parse_threshold
from coachrl.audit.topics.effect import FEWEST_TASKS
from coachrl.audit.verdicts import AuditVerdict
from coachrl.cli.main import app
from coachrl.errors import ConfigError
from coachrl.runs.folder import Run

RESAMPLES = 200


def audited(*runs: Run) -> Audit:
    """The audit, once its page and its JSON have been made too: no case may break them."""
    found = audit_runs([run.folder for run in runs], RESAMPLES)
    Page(as_html(found))
    json.loads(as_json(found))
    return found


def verdict(audit: Audit, topic: str, rater: str = "made-up") -> AuditVerdict:
    return next(v for v in audit.verdicts if v.topic == topic and v.rater == rater)


class Page(HTMLParser):
    """Fails on tags left open; keeps words and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_fair_coach_is_not_accused_and_a_biased_one_is_named(tmp_path):
    run = write_run(tmp_path, fair, tasks=32, outcome_to="none")
    write_rescore(run, "biased", likes_sums, coach="biased-model")
    audit = audited(run)
    assert verdict(audit, "category").grade == "ok"
    accused = verdict(audit, "category", "biased")
    assert accused.grade == "warning" and accused.text.startswith("scores sum ")
    assert "points higher than product [" in accused.text and "n = 384 actions" in accused.text
    assert verdict(audit, "auc").grade == "ok"


def test_the_first_rater_of_every_pipeline_is_open(tmp_path):
    runs = [write_run(tmp_path, name=name, pipeline=name) for name in ("mathchat", "debate")]
    write_rescore(runs[0], "again", fair)
    page = as_html(audited(*runs))
    assert page.count('<details class="rater">') == 1 and page.count('<section aria-labelledby="f') == 3


def test_a_judge_that_draws_lots_is_called_uninformative(tmp_path):
    run = write_run(tmp_path, fair, tasks=64, draws=4)
    write_rescore(run, "lots", lambda episode, action, rng: float(rng.integers(0, 11)))
    assert verdict(audited(run), "auc", "lots").text.startswith("uninformative: ")


def test_rescores_of_one_coach_are_compared_with_themselves(tmp_path):
    run = write_run(tmp_path)
    write_rescore(run, "first", fair, coach="m", repeat=0, seed=1)
    write_rescore(run, "second", fair, coach="m", repeat=1, seed=2)
    audit = audited(run)
    page = as_html(audit)
    assert page.count('<details class="rater"><summary><h2 id="f') == 2, "raters beyond the first are folded"
    assert page.index("made-up</h2>") < page.index('<details class="rater">') and "<script" not in page
    (between,) = audit.between
    pairs = {(pair.first, pair.second): pair for pair in between.agreement.pairs}
    assert pairs["first", "second"].retest and not pairs["made-up", "first"].retest
    assert between.agreement.icc.n == 192 and between.agreement.alpha.low is not None
    page = Page(as_html(audit)).text
    assert "so says m" in page and "so says made-up" in page  # rationales side by side


def test_scores_of_several_runs_are_pooled_by_coach(tmp_path):
    runs = [write_run(tmp_path, name="a"), write_run(tmp_path, name="b"), write_run(tmp_path, name="c", coach="third")]
    audit = audited(*runs)
    assert [(f.rater, f.counts.runs, f.counts.actions) for f in audit.findings] == [
        ("made-up", 2, 384),
        ("third", 1, 192),
    ]
    assert audit.between[0].coaches[0].adjusted is not None


def test_a_run_without_scores(tmp_path):
    audit = audited(write_run(tmp_path, None))
    assert audit.notes[0] == "run run: none of its 192 actions has a coach score: nothing to audit"
    assert audit.findings == [] and audit.verdicts == []


def test_a_run_without_episodes(tmp_path):
    run = write_run(tmp_path)
    for path in run.episode_files():
        path.unlink()
    assert "no training episodes" in audited(run).notes[0]


def test_a_coach_that_failed_throughout(tmp_path):
    audit = audited(write_run(tmp_path, lambda episode, action, rng: None))
    assert [v.grade for v in audit.verdicts] == ["alarm"]
    assert audit.verdicts[0].text == "none of its 192 calls gave a score (192 failed): nothing else can be said"


def test_a_stratum_of_one_task(tmp_path):
    run = write_run(tmp_path, tasks=2)
    audit = audited(run)
    assert verdict(audit, "category").grade == "unknown"
    assert "a category has one task only" in verdict(audit, "category").text
    assert any("category 'sum' has one task only (n = 12 actions)" in note for note in audit.findings[0].notes)
    assert "category 'sum' has one task only" in "\n".join(lines(audit))
    assert [verdict(audit, topic).grade for topic in ("length", "style", "reward_hacking")] == ["unknown"] * 3


def test_a_category_begins_no_line_of_its_own(tmp_path):
    run = write_run(tmp_path, tasks=2)
    for path in run.episode_files():
        path.write_text(path.read_text().replace('"task_category": "sum"', '"task_category": "sum\\n  fine   all"'))
    shown = lines(audited(run))
    assert any("category 'sum   fine   all' has one task only" in line for line in shown)
    assert not any("\n" in line for line in shown)


def test_one_episode_is_no_finding(tmp_path):
    audit = audited(write_run(tmp_path, tasks=1, steps=1, draws=1))
    assert not [v for v in audit.verdicts if v.grade in ("warning", "alarm")]
    assert lines(audit)[0].startswith("made-up in mathchat: 3 of 3 actions scored, 1 episode, 1 task")
    notes = audit.findings[0].notes
    assert any("all actions are of one task" in note for note in notes)
    assert any("one task category only (product)" in note for note in notes)
    assert any("1 training step only" in note for note in notes)


def test_the_one_of_several_kinds_that_stands_apart_is_named_first(tmp_path):
    run = write_run(tmp_path, lambda e, a, rng: min(10.0, fair(e, a, rng) + 2 * (e.task_id == "t0")), tasks=3, draws=40)
    for path in run.episode_files():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for index, record in enumerate(records):
            category = {"t0": "product", "t1": "sum", "t2": "difference"}[record["task_id"]]
            record |= {"task_category": category, "task_id": f"{category}-{index % 20}"}
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    said = [v.text for v in audited(run).verdicts if v.topic == "category"]
    assert said[0].startswith("scores product ") and "points higher than other categories" in said[0]
    assert all("points lower than other categories" in text for text in said[1:])


@pytest.mark.parametrize(("shown", "roles"), [("last", {"verifier"}), ("all", set(ROLES)), ("none", set())])
def test_a_figure_is_called_circular_where_the_coach_was_shown_the_outcome(tmp_path, shown, roles):
    audit = audited(write_run(tmp_path, outcome_to=shown))
    calibration = audit.findings[0].calibration
    whose = {prediction.of for prediction in calibration.predictions if prediction.circular}
    assert whose == (roles | {"last action"} if roles else set()) and calibration.circular == bool(roles)
    said, page = verdict(audit, "auc"), Page(as_html(audit)).text
    assert ("circular: the coach was shown this outcome" in said.text) == bool(roles)
    assert any("circular" in line for line in lines(audit)) == bool(roles)
    assert page.count("circular: the coach was shown this outcome") >= 3 if roles else "circular" not in page
    assert said.grade == ("note" if roles else "ok"), "what it was told it need not have judged"
    found = json.loads(as_json(audit))["findings"][0]
    assert found["scorer"]["outcome_to"] == shown
    assert {p["of"] for p in found["calibration"]["predictions"] if p["circular"]} == whose


def test_a_rescore_that_was_shown_no_outcome_is_not_circular(tmp_path):
    run = write_run(tmp_path)
    about = write_rescore(run, "blind", fair) / "coach.json"
    blind = json.loads(about.read_text()) | {"settings": {"coach.evidence.ground_truth": "none"}}
    about.write_text(json.dumps(blind))
    circular = {found.rater: found.calibration.circular for found in audited(run).findings}
    assert circular == {"made-up": True, "blind": False}


def test_too_few_tasks_accuse_nobody_and_say_how_many_are_needed(tmp_path):
    def likes_length(episode, action, rng):
        return float(min(10.0, max(0.0, len(action.response_ids) / 8 + rng.normal(0, 1))))

    said = verdict(audited(write_run(tmp_path, likes_length, name="few", tasks=8, draws=4)), "length")
    assert said.grade == "unknown" and "too few tasks to say whether it prefers response tokens" in said.text
    assert f"{FEWEST_TASKS} are needed" in said.text and said.value is None
    enough = verdict(audited(write_run(tmp_path, likes_length, name="many", tasks=FEWEST_TASKS)), "length")
    assert enough.grade == "warning" and "prefers more response tokens" in enough.text
    assert "may be deserved" in enough.text


def test_all_scores_equal(tmp_path):
    audit = audited(write_run(tmp_path, lambda episode, action, rng: 7.0))
    assert any(note.startswith("all 192 scores are 7:") for note in audit.findings[0].notes)
    assert verdict(audit, "saturation").grade == "warning" and verdict(audit, "auc").grade == "warning"
    assert verdict(audit, "category").grade == "unknown" and verdict(audit, "length").grade == "unknown"


@pytest.mark.parametrize(("every", "words"), [(16, "no slope: too few replies differ in it"), (4, "")])
def test_a_slope_is_stated_over_the_range_that_was_seen(tmp_path, every, words):
    """Replies of 20 tokens, and some of 21 that score 10: a line says hundreds of points for 100 tokens."""
    run = write_run(tmp_path, steps=4)
    count = itertools.count()
    for path in run.episode_files():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for action in (action for record in records for action in record["actions"] if action["score"]):
            longer = next(count) % every == 0
            action["response_ids"] = [5] * (20 + longer)
            if longer:
                action["score"]["process_0_10"] = 10.0
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    audit = audited(run)
    said = verdict(audit, "length").text
    assert ("prefers more response tokens" in said) == (words == "") and words in said
    assert verdict(audit, "length").grade == ("unknown" if words else "warning"), "no slope, no accusation"
    effect, page = json.loads(as_json(audit))["findings"][0]["style"][0], as_html(audit)
    if words:
        assert effect["slope"] is None and f"no slope: {effect['no_slope']}" == words
        assert f"– <small>{effect['no_slope']}</small>" in page
    else:
        assert 0 < effect["slope"]["low"] < effect["slope"]["high"] < 10 and 0.8 <= effect["span"] <= 1
        assert f"points for {effect['per']}" in said and f"<small>for {effect['per']}</small>" in page


def test_scores_without_a_number_count_as_failed(tmp_path):
    run = write_run(tmp_path)
    spoiled = iter(range(10_000))
    change_scores(run, lambda score: {**score, "process_0_10": None} if next(spoiled) < 30 else score)
    audit = audited(run)
    assert audit.findings[0].counts.failed == 30
    assert "30 of 192 scores of made-up are not numbers from 0 to 10" in audit.notes[0]
    assert verdict(audit, "failed").grade == "warning"


@pytest.mark.parametrize("value", ["8", True, math.nan, math.inf, -1.0, 11.0])
def test_episodes_with_a_score_that_is_none_are_left_out_and_counted(tmp_path, value):
    run = write_run(tmp_path)
    spoiled = iter(range(10_000))
    change_scores(run, lambda score: {**score, "process_0_10": value} if next(spoiled) < 30 else score)
    data = read_audit_data([run.folder])
    assert len(data.actions) == 162 and set(data.actions["status"]) == {"scored"}
    assert any("left out" in note and "process_0_10" in note for note in data.notes)


def test_runs_of_different_pipelines_are_not_mixed(tmp_path):
    runs = [write_run(tmp_path, name="a"), write_run(tmp_path, name="b", pipeline="dsbench")]
    audit = audited(*runs)
    assert [(f.pipeline, f.counts.actions) for f in audit.findings] == [("dsbench", 192), ("mathchat", 192)]
    assert any("different pipelines (dsbench, mathchat) are audited apart" in note for note in audit.notes)


def test_episodes_that_stand_twice_in_a_run_count_once(tmp_path):
    run = write_run(tmp_path)
    once = audited(run).findings[0].counts
    for path in run.episode_files():
        path.write_text(path.read_text() * 2)
    audit = audited(run)
    assert audit.findings[0].counts == once
    assert any("left out: the run has its actions already" in note for note in audit.notes)


def test_all_episodes_failed_and_broken_episodes(tmp_path):
    run = write_run(tmp_path)
    for path in run.episode_files():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for index, record in enumerate(records):
            record["outcome"]["success"] = False
            record["infra_error"] = "sandbox: broke" if index == 0 else None
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    audit = audited(run)
    assert "all 62 episodes failed, so no score can tell them apart" in verdict(audit, "auc").text
    assert any("no outcome is known of 6 scored actions" in note for note in audit.findings[0].notes)


def test_torn_lines_foreign_records_and_unknown_actions(tmp_path):
    run = write_run(tmp_path)
    folder = write_rescore(run, "other", fair)
    path = run.folder / "episodes" / "step-000002.jsonl"
    path.write_text(path.read_text() + '{"id": "half')
    (run.folder / "episodes" / "step-000003.jsonl").write_text('{"id": "x", "actions": [{}]}\n[1]\n')
    with (folder / "scores.jsonl").open("a") as file:
        file.write(json.dumps({"action_id": "nowhere/0", "status": "scored", "process_0_10": 5.0}) + "\n")
    notes = audited(run).notes
    assert any("step-000002.jsonl: line 33 is left out: cut short" in note for note in notes)
    assert any("not as coachrl writes it" in note for note in notes)
    assert any("rescore other: 1 scores of actions that were not read" in note for note in notes)


def test_hostile_text_stays_text(tmp_path):
    hostile = "</pre><script>alert(1)</script>{{ 7*7 }} \ud800"
    run = write_run(tmp_path, tasks=4)
    write_rescore(run, "other", lambda episode, action, rng: 0.0)
    for path in run.episode_files():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for action in (action for record in records for action in record["actions"]):
            action["text"] = hostile
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    text = as_html(audit_runs([run.folder], RESAMPLES))
    assert "<script" not in text and "alert(1)" in Page(text).text and "{{ 7*7 }}" in Page(text).text


def test_the_page_is_offline_and_no_figure_stands_without_its_n(tmp_path):
    run = write_run(tmp_path, likes_sums, tasks=32)
    page = Page(as_html(audit_runs([run.folder], RESAMPLES)))
    assert not [value for name, value in page.attributes if name in ("src", "href") and value != "data:,"]
    assert (
        page.text.index("Verdicts") < page.text.index("points higher than product") < page.text.index("Task categories")
    )
    assert page.text.count("n = ") > 40


def test_json_has_a_stable_schema(tmp_path):
    tree = json.loads(as_json(audit_runs([write_run(tmp_path).folder], RESAMPLES)))
    assert tree["schema"] == "coachrl-audit/1"
    assert set(tree) >= {"coachrl", "coverage", "resamples", "runs", "verdicts", "findings", "between", "notes"}
    assert set(tree["verdicts"][0]) == {"topic", "grade", "pipeline", "rater", "text", "value"}
    gap = tree["findings"][0]["contrasts"]["category"][0]["adjusted"]
    assert set(gap) == {"value", "low", "high", "n", "tasks", "of", "p", "clusters"}

    def figures(node):
        if isinstance(node, dict):
            yield from ([node] if "low" in node and "value" in node else [])
            for child in node.values():
                yield from figures(child)
        elif isinstance(node, list):
            for child in node:
                yield from figures(child)

    assert all(figure["n"] > 0 and figure["tasks"] > 0 for figure in figures(tree["findings"]))


def test_the_same_seed_gives_the_same_audit(tmp_path):
    folder = write_run(tmp_path).folder
    assert as_json(audit_runs([folder], RESAMPLES, 1)) == as_json(audit_runs([folder], RESAMPLES, 1))
    assert as_json(audit_runs([folder], RESAMPLES, 1)) != as_json(audit_runs([folder], RESAMPLES, 2))


def test_command_line(tmp_path):
    run, cli = write_run(tmp_path, likes_sums, tasks=32), CliRunner()
    done = cli.invoke(app, ["audit", str(run.folder), "--resamples", "200"])
    assert done.exit_code == 0 and "points higher than product" in done.output
    assert (run.folder / "audit.html").is_file()
    page, figures = tmp_path / "a.html", tmp_path / "a.json"
    args = ["audit", str(run.folder), "--html", str(page), "--json", str(figures), "--resamples", "200"]
    crossing = cli.invoke(app, [*args, "--fail-on", "category=1.0"])
    assert crossing.exit_code == 3 and "failed on category=1" in crossing.output
    assert page.is_file() and json.loads(figures.read_text())["verdicts"]
    quiet = ["audit", str(run.folder), "--json", "-", "--resamples", "200", "--fail-on", "category=5"]
    printed = cli.invoke(app, [*quiet, "--fail-on", "failed"])
    assert printed.exit_code == 0 and json.loads(printed.output)["schema"] == "coachrl-audit/1"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["audit"], "name at least one run folder"),
        (["audit", "nowhere"], "is not a run folder"),
        (["audit", "RUN", "RUN"], "is given twice"),
        (["audit", "RUN", "--fail-on", "categroy"], "did you mean 'category'?"),
        (["audit", "RUN", "--fail-on", "category=much"], "a topic with a number from 0 up"),
        (["audit", "RUN", "--fail-on", "any=1"], "write any alone"),
        (["audit", "RUN", "--html", "nowhere/a.html"], "there is no folder nowhere"),
        (["audit", "RUN", "--json", "/"], "/ is a folder: name a file"),
        (["audit", "RUN", "--self-test"], "name no runs with it"),
        (["audit", "--self-test", "--json", "a.json"], "no option but --repeats and --seed"),
        (["audit", "--self-test", "--resamples", "500"], "no option but --repeats and --seed"),
        (["audit", "--self-test", "--coach", "rules"], "no option but --repeats and --seed"),
    ],
)
def test_wrong_usage(tmp_path, args, sentence):
    run = write_run(tmp_path, tasks=2)
    done = CliRunner().invoke(app, [str(run.folder) if arg == "RUN" else arg for arg in args])
    assert isinstance(done.exception, ConfigError) and sentence in str(done.exception)


def test_more_resamples_than_memory_can_hold_are_refused(tmp_path):
    run = write_run(tmp_path, tasks=2)
    args = ["audit", str(run.folder), "--resamples", "100000000"]
    done = CliRunner().invoke(app, args, standalone_mode=False)
    assert re.search(r"\b100000\b", str(done.exception)), "the most that is taken"


def test_thresholds_on_what_was_not_measured_are_crossed(tmp_path):
    audit = audited(write_run(tmp_path, tasks=2))
    assert "not measured" in crossed(audit.verdicts, [parse_threshold("category=5")])[0]
    assert crossed([], [parse_threshold("any")]) == ["any: nothing was measured for any coach"]


def test_self_test_names_what_was_planted():
    chosen = [c for c in CONDITIONS if c.name in ("no bias", "category: +1.0 points", "inverted last role")]
    results = {r.condition.name: r for r in self_test(2, chosen)}
    assert results["category: +1.0 points"].power == 1.0 and results["inverted last role"].power == 1.0
    assert results["no bias"].power is None and results["no bias"].false_rate <= 0.1
    assert table_line(results["category: +1.0 points"]).startswith("| category: +1.0 points | category | 1.00 [0.16, ")


def test_form_is_counted_outside_of_code():
    share, markdown, hedging = style_of("# Title\nPerhaps so.\n```python\n# maybe\n```\n", "# maybe\n")
    assert 0 < share < 1
    assert markdown > 0 and hedging == pytest.approx(100 / 4)
    assert style_of("", None) == (0.0, 0.0, 0.0)


def test_rescores_are_read_without_their_about_file(tmp_path):
    run = write_run(tmp_path)
    (write_rescore(run, "other", fair, coach="m") / "coach.json").unlink()
    scorer = read_audit_data([run.folder]).scorers["other"]
    assert scorer.coach == "m"
