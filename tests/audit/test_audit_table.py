"""An audit's figures as a table."""

import pandas as pd
from audit_runs import write_rescore, write_run

from coachrl.audit.audit import audit_runs
from coachrl.audit.table import COLUMNS
from coachrl.runs.labels import Label, add_labels


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
    assert tuple(table.columns) == COLUMNS and not table.duplicated(["rater", "topic", "figure"]).any()
    mean = table[table["topic"] == "mean"].pivot(index="figure", columns="rater", values="value")
    assert mean.loc["mean score of verifier", "other"] - mean.loc["mean score of code_executor", "other"] > 1.5
    tested = [effect for found in audit.findings for topic in found.topics for effect in topic.effects]
    assert tested and table["p"].notna().sum() == len([effect for effect in tested if effect.p is not None])
    assert table["named"].sum() == len([effect for effect in tested if effect.is_certain])
    [agreement] = audit.between[0].agreement.pairs
    row = table[table["figure"].str.startswith("points more than")].iloc[0]
    assert (row["value"], row["low"], row["high"]) == (agreement.shift.value, *agreement.shift.bounds)
    assert {"kappa", "ICC", "points more"} <= set(table[table["topic"] == "people"]["figure"])


def test_the_table_of_a_run_without_scores_is_empty(tmp_path):
    table = audit_runs([write_run(tmp_path, None).folder], 100).table
    assert table.empty and tuple(table.columns) == COLUMNS
    assert pd.api.types.is_float_dtype(table["value"])
