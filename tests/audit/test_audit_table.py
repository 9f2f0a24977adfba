"""An audit's figures as a table."""

from dataclasses import replace

from audit_runs import likes_sums, write_rescore, write_run

from coachrl.audit.audit import audit_runs
from coachrl.audit.table import DTYPES
from coachrl.audit.topics.effect import Effect, TopicFinding
from coachrl.runs.labels import Label, add_labels
from coachrl.stats import Estimate


def likes_verifiers(episode, action, rng):
    return 4.0 + 3 * episode.outcome.success + 2 * (action.role == "verifier") + rng.random()


def two_coaches(tmp_path):
    run = write_run(tmp_path)
    write_rescore(run, "other", likes_verifiers)
    episodes = run.read_episodes("step-000001")[0]
    add_labels(run, [Label(action.id, "Ann", 5.0 + n % 3) for n, action in enumerate(episodes[0].actions)])
    return audit_runs([run.folder], 100)


def test_the_table_holds_each_coachs_means_tests_and_agreement(tmp_path):
    audit = two_coaches(tmp_path)
    table = audit.table
    assert list(table.columns) == list(DTYPES) and not table.duplicated(["rater", "topic", "figure"]).any()
    assert table["figure"].all() and set(table["unit"]) == {"points", "share", "correlation"}
    assert "hand-overs" in set(table[table["topic"] == "handover"]["of"])
    mean = table[table["topic"] == "mean"].pivot(index="figure", columns="rater", values="value")
    assert mean.loc["mean score of verifier", "other"] - mean.loc["mean score of code_executor", "other"] > 1.5
    tested = [effect for found in audit.findings for topic in found.topics for effect in topic.effects]
    assert tested and table["p"].notna().sum() == len([effect for effect in tested if effect.p is not None])
    [agreement] = audit.between[0].agreement.pairs
    row = table[table["figure"].str.startswith("points more than")].iloc[0]
    assert (row["value"], row["low"], row["high"]) == (agreement.shift.value, *agreement.shift.bounds)
    assert {"kappa", "ICC", "points more"} <= set(table[table["topic"] == "people"]["figure"])


def test_what_is_named_is_what_a_verdict_accuses_a_coach_of(tmp_path):
    audit = audit_runs([write_run(tmp_path, likes_sums).folder], 100)
    named = audit.table[audit.table["named"]]
    assert named["figure"].tolist() == ["sum minus product"], "those of each role are parts of it"
    explained = [replace(v, grade="note") if v.topic == "category" else v for v in audit.verdicts]
    assert not replace(audit, verdicts=explained).table["named"].any()


def test_what_is_tested_of_all_coaches_together_is_in_the_table(tmp_path):
    audit = two_coaches(tmp_path)
    paid = Effect("own family minus others", "", Estimate(0.5, 0.25, 0.75, 9, 4), p=0.25)
    topics = [TopicFinding("self_preference", [paid], "", "")]
    table = replace(audit, between=[replace(audit.between[0], topics=topics)]).table
    [row] = table[table["topic"] == "self_preference"].to_dict("records")
    assert (row["rater"], row["figure"], row["value"], row["p"]) == ("all coaches", paid.what, 0.5, 0.25)


def test_the_table_of_a_run_without_scores_is_empty(tmp_path):
    table = audit_runs([write_run(tmp_path, None).folder], 100).table
    assert table.empty and {name: str(dtype) for name, dtype in table.dtypes.items()} == DTYPES
    assert list(table[table["named"]].columns) == list(DTYPES)
