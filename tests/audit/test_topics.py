"""What a coach may be accused of role by role, on worlds that share no code with the audit."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from audit_runs import fair, write_rescore, write_run
from cases import every

from benchmarks.audit_power import CELLS, FAULTS, accusations, row, run
from benchmarks.audit_worlds import FAIR, Fault, World, play
from coachrl.audit.audit import Audit, audit_data, audit_runs
from coachrl.audit.data.frame import AuditData, Scorer, make_frame, plain_name
from coachrl.audit.thresholds import crossed
from coachrl.audit.topics.failures import missing_scores
from coachrl.audit.topics.self_preference import family
from coachrl.audit.topics.subjects import find_topics
from coachrl.audit.verdicts import AuditVerdict, topic_verdicts

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "learning" / "results"
RESAMPLES = 200


def audited(data: AuditData) -> Audit:
    return audit_data(data, RESAMPLES)


def said(audit: Audit, topic: str) -> AuditVerdict:
    return next(verdict for verdict in audit.verdicts if verdict.topic == topic)


def dsbench_lite_run(name: str) -> AuditData:
    """A run with the committed figures of a real one: by step and role its mean score and its share of replies whose
    code ran; 14 tasks, each twice a step. Which hand-overs the modeler failed on is drawn."""
    steps, rng, rows = json.loads((RESULTS / f"{name}.json").read_text())["steps"], np.random.default_rng(0), []
    roles = ("data_engineer", "modeler", "analyst")
    for step in range(1, 11):
        figures = steps[str(step)]
        for draw in range(28):
            task, episode = draw // 2, f"{step}.{draw}"
            success = float(rng.random() < figures["train/success"])
            for place, role in enumerate(roles):
                ran = rng.random() < figures[f"behavior/ran/{role}"]
                score = np.clip(round(2 * (figures[f"coach/score/{role}"] + rng.normal(0, 1.5))) / 2, 0, 10)
                who = (f"{episode}/{place}", role, 0, place == 2, "rules", "rules", "", "scored", float(score), success)
                after = (100, 0.5, 0.0, 0.0, True, "ok" if ran else "error")
                kind = ("classification", "regression")[task % 2]
                rows.append(("run", "dsbench", step, episode, f"t{task}", kind, *who, *after))
    empty = play(World(tasks=2, draws=2)).heldout
    return AuditData(make_frame(rows), empty, {"rules": Scorer("", "rules", "")}, [], {})


def test_the_engineers_game_of_a_real_run_is_named_for_what_it_was():
    audit = audited(dsbench_lite_run("dsbench_lite_blind_coach"))
    verdict = said(audit, "handover")
    assert verdict.grade == "warning" and verdict.text.startswith("data_engineer is paid more while modeler after it")
    assert "or modeler got worse by itself: late in training it fails on" in verdict.text
    mended = said(audited(dsbench_lite_run("dsbench_lite")), "handover")
    assert mended.grade != "warning", "the coach that looks at the features"


@pytest.mark.parametrize("cell", [cell for cell in FAULTS if "0.1 more often" not in cell.name], ids=lambda c: c.name)
def test_a_fault_of_a_large_run_is_named(cell):
    louder = replace(cell, fault=replace(cell.fault, points=1.6 * cell.fault.points))
    assert cell.topic in accusations(louder, seed=3)


def test_calls_that_fail_on_bad_work_are_more_feared_than_those_that_fail_on_good_work():
    """p is 0.008 on both sides: enough for the side to which most of the error rate goes."""
    cell = next(cell for cell in FAULTS if cell.name == "calls on the worse half fail 0.1 more often")
    assert accusations(cell, seed=60066) == {"failures"}


def test_a_difference_between_guessed_halves_is_brought_to_that_of_the_halves_themselves():
    """Between the halves that the audit guesses, 0.2 more failures are 0.1 more."""
    worse = Fault("failures", 0.2, "bad")
    found = [missing_scores(play(World(failed=0.05), worse, seed).actions).effects[0].estimate for seed in range(6)]
    assert 0.13 < np.mean([estimate.value for estimate in found]) < 0.22


@pytest.mark.parametrize("name", every(2, FAIR))
def test_a_fair_coach_is_accused_of_nothing(name):
    cell = next(cell for cell in CELLS if cell.name == f"fair: {name}")
    assert sum(bool(accusations(cell, seed)) for seed in (101, 102)) == 0


def test_a_better_team_is_not_called_a_lenient_coach():
    verdict = said(audited(play(World(progress=1.0), seed=1)), "leniency")
    assert verdict.grade == "note" and "cannot be known" in verdict.text and "audit.reference_set" in verdict.text


def test_few_tasks_accuse_nobody_and_say_what_would_have_been_seen():
    audit = audited(play(World(tasks=8, draws=3), Fault("category", 3.0)))
    verdict = said(audit, "category")
    assert verdict.grade == "unknown" and "16 are needed" in verdict.text
    seen = re.search(r"from ([\d.]+) points on it would have been seen", said(audit, "leniency").text)
    large = re.search(r"from ([\d.]+) points on it would have been seen", said(audited(play(World())), "leniency").text)
    assert seen and large and float(seen.group(1)) > 2 * float(large.group(1))


def test_what_would_have_been_seen_is_seen():
    fair_run = audited(play(World(), seed=5))
    [effect] = next(t for t in fair_run.findings[0].topics if t.topic == "leniency").effects
    found = [said(audited(play(World(), Fault("leniency", effect.visible), s)), "leniency").grade for s in range(5)]
    assert found.count("warning") >= 4


def test_a_gap_between_categories_says_that_it_may_be_deserved():
    verdict = said(audited(play(World(), Fault("category", 1.0))), "category")
    assert verdict.grade == "warning" and "may be deserved" in verdict.text and "--probe" in verdict.text


def test_all_tests_of_an_audit_share_one_error_rate():
    audit = audited(play(World()))
    effects = [effect for topic in audit.findings[0].topics for effect in topic.effects if effect.p is not None]
    assert len(effects) > 10 and all(effect.p >= effect.estimate.p for effect in effects)
    least = min(effects, key=lambda effect: effect.estimate.p / effect.weight)
    share = least.weight / sum(effect.weight for effect in effects)
    assert least.p == pytest.approx(min(1.0, least.estimate.p / share))


def test_topics_are_found_from_the_words_of_tasks_and_the_same_each_time():
    texts = [f"Answer this. {subject} number {n}" for n in range(10) for subject in ("apples trees", "ships harbour")]
    topics = find_topics(texts)
    assert len(set(topics)) == 2 and topics == find_topics(texts) and set(topics[::2]).isdisjoint(topics[1::2])
    assert find_topics([f"word{n}" for n in range(20)]) == [""] * 20


def test_models_are_known_by_their_family_and_coaches_without_their_provider():
    names = (
        "gemini/gemini-2.5-pro",
        "Qwen/Qwen2.5-7B",
        "meta-llama/Llama-3.1-8B",
        "o3-mini",
        "gpt-4o",
        "own:strict",
    )
    assert [family(name) for name in names] == ["gemini", "qwen", "llama", "gpt", "gpt", "own:strict"]
    assert family("ollama/llama3:8b") == "llama"
    assert plain_name("models/Gemini-2.5-pro") == plain_name("gemini/gemini-2.5-pro") == "gemini-2.5-pro"
    assert plain_name("mean of a/b, c/d") == "mean of b, d"


def test_one_coach_under_two_names_is_a_retest_and_other_evidence_is_none(tmp_path):
    made = write_run(tmp_path, fair, coach="judge")
    for label, files in (("again", True), ("blind", False)):
        about = write_rescore(made, label, fair, coach="hosted_vllm/judge") / "coach.json"
        settings = {"coach.evidence.ground_truth": "last", "coach.evidence.files": files}
        about.write_text(json.dumps({**json.loads(about.read_text()), "prompt_hash": "", "settings": settings}))
    audit = audit_runs([made.folder], RESAMPLES)
    pairs = {(pair.first, pair.second): pair for pair in audit.between[0].agreement.pairs}
    assert pairs["judge", "again"].retest and not pairs["judge", "blind"].retest
    assert pairs["judge", "blind"].differing_evidence == ["coach.evidence.files"]
    assert any("shown different things (coach.evidence.files)" in verdict.text for verdict in audit.verdicts)


def test_self_preference_needs_families_that_are_crossed(tmp_path):
    runs = [write_run(tmp_path, fair, name=name, coach=f"{name}-coach") for name in ("a", "b")]
    verdict = said(audit_runs([made.folder for made in runs], RESAMPLES), "self_preference")
    assert verdict.grade == "unknown" and "no family is both beside others" in verdict.text


def documented() -> dict[str, tuple[float, float, float, float]]:
    """Cell -> the intervals of its two shares in docs/audit_statistics.md."""
    found = {}
    for line in (ROOT / "docs" / "audit_statistics.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] in {cell.name for cell in CELLS}:
            shares = [re.search(r"\[([\d.]+), ([\d.]+)\]", cell) for cell in cells[2:]]
            low, high = (float(bound) for bound in shares[0].groups()) if shares[0] else (0.0, 1.0)
            found[cells[0]] = (low, high, *(float(bound) for bound in shares[1].groups()))
    return found


def test_the_documented_table_has_every_world():
    assert set(documented()) == {cell.name for cell in CELLS}


@pytest.mark.thorough
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_documented_table_holds_at_small_size(cell):
    """The exact interval of a few fresh runs meets the documented one."""
    low, high, false_low, false_high = documented()[cell.name]
    fresh = row(cell, run(cell, range(1000, 1002)))
    named, false = [part.strip() for part in fresh.strip("|").split("|")][2:]
    for text, bottom, top in ((named, low, high), (false, false_low, false_high)):
        if text != "–":
            small_low, small_high = map(float, re.search(r"\[([\d.]+), ([\d.]+)\]", text).groups())
            assert small_low <= top and bottom <= small_high, f"{fresh}, documented {bottom} to {top}"


def test_a_gate_on_failed_calls_lets_a_coach_through_whose_calls_were_all_answered():
    scored = pd.DataFrame({"status": ["scored"] * 3})
    [said] = topic_verdicts(missing_scores(scored), "mathchat", "rules")
    assert (said.grade, said.value) == ("ok", 0.0) and crossed([said], [("failures", None), ("failures", 0.1)]) == []
