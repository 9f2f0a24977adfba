from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from report_runs import HOSTILE, ROLES, make_episode, read, synthetic_run

from coachrl.config import parse_config
from coachrl.config.tasks import PlanPathTasks, SudokuTasks
from coachrl.pipelines.team.state import StepResult
from coachrl.pipelines.worlds.game import Game
from coachrl.pipelines.worlds.planpath import PlanPathEnvironment
from coachrl.pipelines.worlds.sudoku import SudokuEnvironment
from coachrl.report import headline, write_report
from coachrl.report.contents import EpisodeFile, read_contents
from coachrl.report.episodes import choose
from coachrl.report.outcome import table2_rows
from coachrl.report.page import _charts, _context
from coachrl.report.rendering import rendering_svg
from coachrl.runs.folder import Run
from coachrl.runs.records import episode_record
from coachrl.tasks.tabular.grading import table2
from coachrl.tasks.worlds.planpath import generate_planpath
from coachrl.tasks.worlds.sudoku import generate_sudoku
from coachrl.types import Action, CoachScore, Episode, Execution, Outcome


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return synthetic_run(tmp_path_factory.mktemp("runs"))


def test_a_finished_run_shows_its_result_curves_and_episodes(finished: Run) -> None:
    page = read(write_report(finished))
    assert "mathchat on word-problems: 3 roles with 3 sets of weights, smollm2-135m, coach" in page.text
    assert "seed 0; 12 of 12 training steps" in page.text and "unfinished" not in page.text
    assert "share of replies that ended by themselves" in page.text and "whose code ran without error" in page.text
    assert "Better: the interval of the paired difference lies above zero." in page.text
    assert "n = 24 episodes, 24 tasks" in page.text and "1-step" in page.text and "2-step" in page.text
    assert "Solved only after training" in page.text and "What agents did" in page.text
    pictures = [svg for svg in page.tags("svg") if svg.get("role") == "img"]
    assert len(pictures) == 13 and all(svg["aria-label"] for svg in pictures)
    assert "Not drawn" not in page.text
    assert len(page.tags("table")) == len(page.tags("caption")) == 2
    assert not list(finished.folder.glob(".report*"))


def test_the_page_asks_for_nothing_and_runs_its_own_script_alone(finished: Run) -> None:
    path = write_report(finished)
    page = read(path)
    assert len(page.tags("script")) == 1 and not page.tags("iframe") and not page.tags("img")
    for tag, attributes in page.seen:
        assert not any(name.startswith("on") for name in attributes), tag
        assert attributes.get("src") is None and (attributes.get("href") or "#").startswith(("#", "data:,"))
    policy = next(meta["content"] for meta in page.tags("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")
    script = path.read_text(encoding="utf-8").rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "form-action 'none'" in policy


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0)
    episode, _ = make_episode("step-000001.000.t.0", HOSTILE, HOSTILE, 0.0, np.random.default_rng(1))
    fields = {
        **vars(episode.actions[1]),
        "text": HOSTILE,
        "prompt_text": HOSTILE,
        "files_after": (HOSTILE,),
        "role": HOSTILE,
    }
    fields["execution"] = Execution("error", HOSTILE, HOSTILE)
    score = CoachScore(str(fields["id"]), "failed", rationale=HOSTILE)
    hostile = Episode(HOSTILE, HOSTILE, HOSTILE, "p", (Action(**fields),), Outcome(False, {HOSTILE: 1.0}, HOSTILE))
    # Halves of characters can be in a run's folder as JSON escapes only.
    path = run.folder / "episodes" / "step-000001.jsonl"
    path.write_text(json.dumps(episode_record(hostile, {score.action_id: score})) + "\n", encoding="utf-8")
    run.append_metrics({"step": 1, "train/success": 0.5, "coach/score/<script>alert(3)</script>": 4.0})
    page = read(write_report(run))
    assert len(page.tags("script")) == 1 and not page.tags("img")
    assert "<script>alert(1)</script>" in page.text and "{{ 7*7 }}" in page.text and "coach: failed" in page.text


def test_the_models_are_those_that_the_policies_began_with(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0)
    config = run.config().model_dump(mode="json")
    for count, shown in ((1, "mine/0, smollm2-135m, coach"), (3, "3 initial models, coach")):
        config["policies"] = {role: {"model": f"mine/{i}"} for i, role in enumerate(ROLES[:count])}
        (run.folder / "config.yaml").write_text(yaml.safe_dump(config))
        words = read(write_report(run)).text
        assert shown in words


@pytest.mark.parametrize(("pipeline", "drawn"), [("my_team:Pair", ["units"]), ("gateway", ["units"]), ("debate", [])])
def test_what_a_team_of_ones_own_measures_is_drawn_but_no_second_success(
    finished: Run, pipeline: str, drawn: list[str]
):
    contents = read_contents(finished)
    assert contents.config is not None
    named = contents.config.pipeline.model_copy(update={"name": pipeline})
    file = contents.training[-1]
    measured = [
        replace(one, outcome=replace(one.outcome, metrics={"correct": 1.0, "units": 2.0, "external/calls": 1.0}))
        for one in file.episodes
    ]
    contents = replace(
        contents,
        config=contents.config.model_copy(update={"pipeline": named}),
        training=[replace(file, episodes=tuple(measured))],
        steps={step: {**metrics, "train/units": 2.0 * step} for step, metrics in contents.steps.items()},
    )
    charts = {chart.title: chart for chart in _charts(contents, {}, dict.fromkeys(ROLES, 0))}
    assert [title for title in charts if title in ("units", "correct", "external/calls")] == drawn
    assert not drawn or [line.name for line in charts["units"].series] == ["training"]


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    page = read(write_report(synthetic_run(tmp_path, steps=3)))
    assert "3 of 12 training steps (unfinished)" in page.text
    assert "There is no second evaluation of these tasks to compare with." in page.text


def test_an_empty_run_says_what_is_missing(tmp_path: Path) -> None:
    run = Run.create(parse_config({"name": "empty", "out": str(tmp_path)}, ""))
    page = read(write_report(run))
    assert not page.tags("figure")
    for sentence in ("no training step recorded", "there is no answer yet", "No episode is written yet", "Not drawn"):
        assert sentence in page.text
    assert headline(run) == ["held-out success: not measured"]


def test_an_evaluation_alone(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0)
    page = read(write_report(run))
    assert "no training step recorded" in page.text and "a failure" in page.text
    assert headline(run)[0].startswith("held-out success 0.") and "->" not in headline(run)[0]


def in_a_world(episode: Episode, steps: Iterator[StepResult]) -> Episode:
    """The episode as if each of its actions had been carried out in a world, with a candidate that was not taken."""
    actions = tuple(
        replace(action, result=step.text, rendering=step.rendering, reward=step.reward)
        for action, step in zip(episode.actions, steps, strict=False)
    )
    other = replace(actions[-1], id=f"{actions[-1].id}.1", candidate=1, text="<b> " * 2500)
    return replace(episode, actions=actions, rejected_candidates=(other,))


def steps_of(world: Game[Any, Any], answer: str) -> Iterator[StepResult]:
    action = make_episode("e", "t", "k", 1.0, np.random.default_rng(0))[0].actions[0]
    step = asyncio.run(world.apply(replace(action, role="planner", text=answer), None))
    assert step.rendering == world.render()
    return itertools.repeat(step)


def test_a_page_of_worlds_that_are_drawn_stays_small(tmp_path: Path) -> None:
    """Many more than fit: three boards of an episode take 260 kB in a maze, 40 kB in sudoku, a candidate 30 kB."""
    rng, run = np.random.default_rng(0), synthetic_run(tmp_path, steps=0, tasks=2)
    [maze] = generate_planpath(PlanPathTasks(train_count=1, size=30), 0, "train")
    [puzzle] = generate_sudoku(SudokuTasks(train_count=1, size=9), 0, "train")
    worlds = {
        1: steps_of(PlanPathEnvironment(maze.ground_truth, mover="planner"), "[U,D,L,R]"),
        2: steps_of(SudokuEnvironment(puzzle.ground_truth, mover="planner"), "[]"),
    }
    for step, steps in worlds.items():
        made = [make_episode(f"step-{step:06d}.{i:03d}.t{i}.0", f"t{i}", "k", 0.5, rng) for i in range(100)]
        scores = {key: score for _, its_scores in made for key, score in its_scores.items()}
        run.write_episodes(f"step-{step:06d}", [in_a_world(episode, steps) for episode, _ in made], scores)
    path = write_report(run)
    shown, total = choose(run, [])
    boards = [rendering_svg(action.rendering) for one in shown for action in one.episode.actions if action.rendering]
    assert {one.source for one in shown} == {f"episodes/{path.name}" for path in run.episode_files()}
    assert len(shown) < total == 202 and path.read_text(encoding="utf-8").count('class="board"') == len(boards)
    assert sum(map(len, boards)) > 1_000_000
    assert 2_500_000 < path.stat().st_size < 3_500_000


def long_winded(episode: Episode, files: int) -> Episode:
    """The episode with texts of 80 kB on a page, and with `files` more files after its last action."""
    actions = [replace(action, text="<" * 20_000, prompt_text="<" * 20_000) for action in episode.actions]
    actions[-1] = replace(actions[-1], files_after=tuple(f"part-{i:04d}" for i in range(files)))
    return replace(episode, actions=tuple(actions))


@pytest.mark.parametrize("ends", [(0,), (0, 12)])
def test_what_is_too_long_for_the_top_of_a_page_gives_way(tmp_path: Path, ends: tuple[int, ...]) -> None:
    run = synthetic_run(tmp_path, steps=0)
    for step in ends:
        made = run.read_episodes("eval-000000")[0]
        texts = [long_winded(e, 0) if e.task_id != "heldout-007" else e for e in made]
        episodes = [replace(e, outcome=Outcome(False), id=e.id.replace("000000", f"{step:06d}")) for e in texts]
        run.write_episodes(f"eval-{step:06d}", episodes, {})
    context = _context(read_contents(run), {})
    shown = [one for _, *pair in context["pairs"] for one in pair] + context["singles"]
    if len(ends) == 1:  # an episode of 480 kB fits where it stands alone
        assert [one.episode.task_id for one in shown] == ["heldout-000"]
    else:
        assert [one.episode.task_id for one in shown] == ["heldout-007"] * 2
    assert write_report(run).stat().st_size < 5_000_000


def test_of_many_files_that_appeared_some_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0, tasks=1)
    [episode] = run.read_episodes("eval-000000")[0]
    many = replace(long_winded(episode, 5000), actions=long_winded(episode, 5000).actions[-1:])
    run.write_episodes("eval-000000", [many], {})
    page = read(write_report(run))
    assert "part-0039" in page.text and "part-0040" not in page.text and "and 4960 more" in page.text


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=2)
    with (run.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "train/su')
    (run.folder / "episodes" / "step-000009.jsonl").write_text('{"foreign": 1}\n', encoding="utf-8")
    (run.folder / "versions.json").unlink()
    page = read(write_report(run))
    assert "metrics.jsonl" in page.text and "line 4" in page.text
    assert "step-000009.jsonl" in page.text and "versions.json cannot be read" in page.text
    assert "2 of 12 training steps" in page.text


def test_a_configuration_that_is_not_understood_is_said_and_the_rest_of_the_run_is_shown(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0)
    (run.folder / "config.yaml").write_text("seed: 77\nstepz: 3\ntrain: {steps: many}\n", encoding="utf-8")
    page = read(write_report(run))
    assert "unknown key 'stepz'" in page.text and "train.steps: Input should be" in page.text
    assert "held-out success before training" in page.text and "code_executor" in page.text


def test_headline_names_both_ends_their_n_and_the_paired_difference(finished: Run) -> None:
    lines = headline(finished)
    assert " -> " in lines[0] and "(n = 24 episodes, 24 tasks; 95% intervals)" in lines[0]
    assert lines[1].startswith("paired difference +") and "training time" in lines[2] and "$0.00" in lines[2]


def test_spend_is_not_known_where_a_price_is_missing(tmp_path: Path) -> None:
    run = Run.create(parse_config({"name": "unpriced", "out": str(tmp_path)}, ""))
    run.append_metrics({"step": 1, "time/step_s": 2.0, "cost/usd": 0.5})
    run.append_metrics({"step": 2, "time/step_s": 2.0})
    assert "at least $0.50 in 1 training step; the price of 1 more is not known" in headline(run)[1]


def test_calls_to_external_models_are_counted_with_what_they_cost(tmp_path: Path) -> None:
    run = Run.create(parse_config({"name": "external", "out": str(tmp_path)}, ""))
    run.append_metrics({"step": 1, "time/step_s": 2.0, "cost/external/calls": 8.0, "cost/external/usd": 0.5})
    assert "external models 8 calls, $0.50, in 1 training step" in headline(run)[1]
    run.append_metrics({"step": 2, "time/step_s": 2.0, "cost/external/calls": 4.0})
    assert "external models 12 calls, at a price that is not known, in 2 training steps" in headline(run)[1]


def test_what_scoring_the_reference_set_again_cost_is_told_beside_the_steps_own_spend(tmp_path: Path) -> None:
    run = Run.create(parse_config({"name": "audited", "out": str(tmp_path)}, ""))
    again = {"cost/reference_set/calls": 50.0, "cost/reference_set/usd": 0.25}
    run.append_metrics({"step": 1, "time/step_s": 2.0, "cost/usd": 0.5, **again})
    assert "coach spend $0.50 in 1 training step; reference set 50 calls, $0.25, in 1 audit" in headline(run)[1]


def test_the_end_and_the_page_of_a_run_without_any_advantage_say_that_nothing_was_learned(tmp_path: Path) -> None:
    run = Run.create(parse_config({"name": "flat", "out": str(tmp_path)}, ""))
    run.append_metrics({"step": 1, "train/success": 0.0, "train/trained_actions": 48.0})
    said = "Nothing was learned: in 1 step every advantage was 0"
    assert any(line.startswith(said) for line in headline(run)) and said in read(write_report(run)).text
    run.append_metrics({"step": 2, "train/success": 0.5, "train/trained_actions": 48.0, "train/loss/team": 0.1})
    assert not any(line.startswith(said) for line in headline(run)) and said not in read(write_report(run)).text


def test_broken_episodes_are_left_out_and_counted(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0, tasks=4)
    contents = read_contents(run)
    broken = [
        Episode(**{**vars(e), "infra_error": "sandbox: gone"}) if i == 0 else e
        for i, e in enumerate(contents.evaluations[0].episodes)
    ]
    run.write_episodes("eval-000000", broken, {})
    page = read(write_report(run))
    assert (
        "n = 3 episodes, 3 tasks" in page.text
        and "1 episode of episodes/eval-000000.jsonl broke and is left out" in page.text
    )


def test_an_episode_that_stands_twice_counts_once_and_is_said(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=0, tasks=4)
    counted_once = [row.n_before for rows in _context(read_contents(run), {})["behavior"].values() for row in rows]
    [path] = run.episode_files("eval")
    path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[0])
    contents = read_contents(run)
    assert contents.problems == ["eval-000000.jsonl: 1 episode left out: the run has its actions already"]
    assert [row.n_before for rows in _context(contents, {})["behavior"].values() for row in rows] == counted_once


def test_where_a_later_evaluation_broke_altogether_the_last_that_measured_is_shown_whole(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path, steps=2, planned=2, tasks=4)
    episodes, _ = run.read_episodes("eval-000002")
    for label in ("eval-000003", "eval-000004"):
        ids = (episode.id.replace("eval-000002", label) for episode in episodes)
        broken = [replace(e, id=new, infra_error="gone") for new, e in zip(ids, episodes, strict=True)]
        run.write_episodes(label, broken, {})
    contents = read_contents(run)
    first, _, last, *others = contents.evaluations
    assert all(episode.actions for file in (first, last) for episode in file.episodes) and len(others) == 2
    context = _context(contents, {})
    assert context["last"] == last and context["broken"] == [(file.name, 4) for file in others]
    assert [row.n_after for rows in context["behavior"].values() for row in rows[:1]] == [4] * len(ROLES)


def test_fair_and_raw_metrics_agree_with_table2() -> None:
    rng = np.random.default_rng(5)
    episodes = []
    for t in range(12):
        success, category = bool(rng.random() < 0.6), ("classification", "regression")[t % 2]
        names = ("accuracy", "f1", "roc_auc") if category == "classification" else ("mae_pct_range", "rmse_pct_range")
        metrics = {name: float(rng.random()) for name in names} if success else {}
        episodes.append(Episode(f"eval-000000.t{t}.0", f"t{t}", category, "dsbench", (), Outcome(success, metrics)))
    rows = table2_rows(EpisodeFile("episodes/eval-000000.jsonl", 0, tuple(episodes), {}), None)
    expected = table2([(e.task_category, e.outcome) for e in episodes])
    found = sorted(row.before.value for row in rows if row.before is not None)
    assert found == pytest.approx(sorted(v for k, v in expected.items() if k.endswith(("_raw", "_fair"))))


def test_a_run_that_asked_no_coach_says_so_while_it_trains_and_after(tmp_path):
    outcome = parse_config({"name": "alone", "out": str(tmp_path), "algorithm": {"name": "outcome"}}, "")
    run, rng = Run.create(outcome), np.random.default_rng(0)
    assert read_contents(run).coach == "none"
    run.write_episodes("step-000001", [make_episode("step-000001.000.t.0", "t", "1-step", 0.5, rng)[0]], {})
    page = read(write_report(run))
    assert "no coach, outcome" in page.text and "rules" not in page.text
    assert read_contents(synthetic_run(tmp_path, steps=1, tasks=2)).coach == "rules"
