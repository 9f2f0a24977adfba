"""The list of episodes: what its rows say, who was at fault, what the pages bear of hostile and huge episodes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from report_runs import HOSTILE, ROLES, Outline, make_episode, synthetic_run
from typer.testing import CliRunner

from coachrl.cli.main import app
from coachrl.pipelines import make_pipeline
from coachrl.report import write_report
from coachrl.report.agents import agent_colors
from coachrl.report.episodes import Shown, choose, clear_failure, pages, read_shown
from coachrl.report.fault import find_fault
from coachrl.report.view import episodes_page
from coachrl.types import ActionCredit, CoachScore, Outcome

SUMMARY = "Reference answer: 7 (3 + 4). Final answer: 12. The final answer is not correct."


def failed(episode_id: str, *given: float | None, contributions: tuple[float, ...] = ()):
    """A failed episode of the three roles, with these scores."""
    episode, _ = make_episode(episode_id, "t1", "1-step", 0.0, np.random.default_rng(3))
    outcome = Outcome(False, {"correct": 0.0}, "wrong answer", SUMMARY)
    credit = ActionCredit(4.0, -0.625)
    actions = tuple(replace(action, credit=credit) for action in episode.actions)
    episode = replace(episode, actions=actions, outcome=outcome, task_prompt="Tom has 3 apples and gets 4 more.")
    made = {
        action.id: CoachScore(
            action.id, "scored", score, rationale=f"so it was with {action.role}", contribution=contribution
        )
        for action, score, contribution in zip(
            episode.actions, given, contributions or (None,) * len(given), strict=True
        )
        if score is not None
    }
    return episode, made


@pytest.fixture
def run(tmp_path):
    """A run whose last training step holds a failure with a clear culprit."""
    made = synthetic_run(tmp_path, steps=2, planned=2, tasks=4)
    made.write_roles(make_pipeline(made.config().pipeline).roles)
    episode, scores = failed("step-000002.000.t1.0", 9.0, 2.0, 8.0)
    vague, more = failed("step-000002.001.t1.0", 2.0, 2.0, 2.0)
    made.write_episodes("step-000002", [vague, episode], {**scores, **more})
    return made


def section(page: str, start: str, end: str) -> str:
    return Outline(page[page.index(start) : page.index(end, page.index(start)) + len(end)]).text


def test_the_first_screen_shows_a_failure_and_whom_the_coach_blames(run):
    page = write_report(run).read_text(encoding="utf-8")
    first = section(page, '<aside class="failed"', "</aside>")
    assert "Tom has 3 apples and gets 4 more." in first and SUMMARY in first
    assert "code_executor , turn 1 . Lowest score: 2 of 10; the next lowest is 8, of 3 actions." in first
    assert "so it was with code_executor" in first and "no measured cause" in first
    assert page.index('<aside class="failed"') < page.index("<table>") < page.index('id="curves"')
    assert page.count('id="e.step-000002.000.t1.0"') == 1 and 'href="#e.step-000002.000.t1.0"' in page


def test_a_row_holds_the_problem_and_its_agents_by_name_and_the_episode_its_outcome_and_figures(run):
    page = episodes_page(run, "step-000002")
    row = section(page, "<summary>", "</summary>")
    assert "Tom has 3 apples and gets 4 more. failure problem_solver 2 code_executor 2 verifier 2" in row
    whole = section(page, '<article class="episode" id="e.step-000002.000.t1.0"', "</article>")
    assert f"Outcome {SUMMARY} (correct 0)" in whole
    assert "code_executor turn 1 score 2 / 10 reward 4 advantage -0.62 lowest of the episode" in whole
    assert "verifier turn 1 score 8 / 10 reward 4 advantage -0.62" in whole


def test_a_reply_without_text_is_said_to_be_one(run):
    episode, scores = failed("step-000002.002.t1.0", 9.0, 0.0, 8.0)
    solver, executor, verifier = episode.actions
    silent = replace(executor, text="\n", response_ids=(1,), logprobs=(-0.5,), finish_reason="stop")
    run.write_episodes("step-000002", [replace(episode, actions=(solver, silent, verifier))], scores)
    shown = section(episodes_page(run, "step-000002"), '<ol class="timeline">', "</ol>")
    assert "lowest of the episode 1 token What it saw" in shown and shown.count("It wrote no text.") == 1


def test_training_comes_first(run):
    categories = [shown.category for shown in choose(run, [])[0]]
    assert categories == sorted(categories, reverse=True) and set(categories) == {"training", "held-out"}


def test_an_agent_has_one_color_whatever_a_page_shows(run):
    episode, scores = failed("step-000001.000.t1.0", 1.0, 2.0, 3.0)
    backwards = replace(episode, actions=tuple(reversed(episode.actions)))
    run.write_episodes("step-000001", [backwards], scores)
    colors = agent_colors(run)
    assert list(colors) == list(ROLES)
    for page in (write_report(run).read_text(encoding="utf-8"), episodes_page(run, "step-000001")):
        found = set(re.findall(r'class="agent c(\d)">(\w+)<', page))
        assert found == {(str(color), role) for role, color in colors.items()}
    (run.folder / "roles.json").unlink()  # of an older run: the order of its first episode holds for all pages
    assert set(re.findall(r'class="agent c(\d)">(\w+)<', episodes_page(run, "step-000002"))) == {
        (str(color), role) for role, color in agent_colors(run).items()
    }


def test_an_agents_color_is_of_nothing_else(run):
    """Lines of agents have the agents' colors; shares, reasons, times and references have grays."""
    for step in (0, 1):
        of_agents = {f"coach/score/{role}": 5.0 for role in ROLES}
        others = {"train/success": 0.5, "eval/success": 0.5, "time/rollout_s": 2.0, "time/update_s": 1.0}
        run.append_metrics({"step": step, **of_agents, **others, "train/masked/truncated": 1.0})
    page = write_report(run).read_text(encoding="utf-8")
    legends = re.findall(r'class="(?:line|area) ([cn])\d[^"]*"[^>]*/></svg>([^<]*?) <span', page)
    assert {("c", role) for role in ROLES} | {("n", "training"), ("n", "truncated"), ("n", "rollout")} <= set(legends)
    assert all((kind == "c") == (name in ROLES) for kind, name in legends)


def test_a_contribution_says_more_than_a_score():
    found = find_fault(*failed("e", 2.0, 9.0, 9.0, contributions=(1.0, -6.0, 0.5)))
    assert found.culprit.role == "code_executor" and found.margin == 6.5
    assert found.words == (
        "Lowest contribution by the coach that walked back from the outcome: -6 (-10 to 10); the next lowest is 0.5, "
        "of 3 actions."
    )


def test_nobody_is_named_where_the_coach_names_nobody():
    assert find_fault(*failed("e", 3.0, 3.0, 9.0)).culprit is None
    alike = find_fault(*failed("e", 3.0, 3.0, 9.0)).words
    assert alike == "The coach gave 2 of 3 actions the lowest score: 3 of 10, so it names no single one."
    assert find_fault(*failed("e", None, None, None)).culprits == ()
    assert find_fault(*failed("e", None, 4.0, None)).words == "Only this action has a score: 4 of 10."


def test_the_failure_to_begin_with_is_of_the_latest_step_with_a_culprit():
    def shown(step: int, *scores: float | None) -> Shown:
        episode_id = f"step-{step:06d}.000.t.0"
        return Shown(episode_id, f"episodes/step-{step:06d}.jsonl", *failed(episode_id, *scores))

    early, small, clear, vague = shown(1, 0.0, 10.0, 10.0), shown(2, 1, 2, 3), shown(2, 1, 9, 9), shown(3, 1, 1, 1)
    assert clear_failure([early, small, clear, vague]) is clear
    assert clear_failure([vague]) is vague
    solved = replace(clear, episode=replace(clear.episode, outcome=Outcome(True)))
    broken = replace(clear, episode=replace(clear.episode, infra_error="sandbox: gone"))
    heldout = replace(clear, source="episodes/eval-000002.jsonl")
    assert clear_failure([solved, broken, heldout, shown(1, None, None, None)]) is None


def test_hostile_words_neither_close_a_tag_nor_turn_round_what_follows(run):
    hostile = HOSTILE + "\x1b[31m \u202ereversed\u2066 \u200b"
    episode, scores = failed("step-000002.000.t1.0", 9.0, 2.0, 8.0)
    actions = tuple(replace(a, role=a.role + hostile, text=hostile, prompt_text=hostile) for a in episode.actions)
    scores = {key: replace(score, rationale=hostile) for key, score in scores.items()}
    outcome = Outcome(False, {hostile: 1.0}, hostile, hostile)
    episode = replace(episode, id=hostile, task_id=hostile, task_prompt=hostile, actions=actions, outcome=outcome)
    path = run.folder / "episodes" / "step-000002.jsonl"
    run.write_episodes("step-000002", [episode], scores)
    pages_of_it = [write_report(run).read_text(encoding="utf-8"), episodes_page(run, path.stem)]
    for page in pages_of_it:
        outline = Outline(page)
        assert outline.open == [] and len(outline.tags("script")) == 1 and not outline.tags("img")
        assert not any(name.startswith("on") for _, attributes in outline.seen for name in attributes)
        assert not set(page) & {"\x00", "\x1b", "\u202e", "\u2066", "\u200b", "\ud800"}
        assert "\\u202e" in page and re.search(r'id="e\.[0-9a-f]{16}"', page)


def test_an_episode_of_thousands_of_actions_and_huge_replies_is_shown_in_part(run):
    episode, _ = failed("step-000001.000.t1.0", 9.0, 2.0, 8.0)
    giant = replace(
        episode,
        actions=tuple(
            replace(episode.actions[1], id=f"g/{i}", index=i, turn=i, text="x" * 200, code="open('a')", files_after=())
            for i in range(1000)
        ),
    )
    huge = replace(episode, id="huge", actions=tuple(replace(a, text="<" * 200_000) for a in episode.actions))
    run.write_episodes("step-000001", [giant, *(replace(huge, id=f"huge{i}") for i in range(30))], {})
    page = episodes_page(run, "step-000001")
    assert len(page) < 5_000_000 and "800 more actions in between" in page and "180,000 more characters" in page
    assert "part 1 of" in page and 'href="?page=2"' in page
    parts = list(pages(read_shown(run.folder / "episodes" / "step-000001.jsonl", [])))
    assert sum(map(len, parts)) == 31 and len(parts) > 1
    last = episodes_page(run, "step-000001", len(parts))
    assert last is not None and "huge29" in last and len(last) < 5_000_000
    assert episodes_page(run, "step-000001", len(parts) + 1) is None
    assert write_report(run).stat().st_size < 5_000_000


def test_one_episode_that_is_too_long_does_not_hide_its_files_others(tmp_path):
    run = synthetic_run(tmp_path, steps=1, planned=1, tasks=2)
    path = run.folder / "episodes" / "step-000001.jsonl"
    first, *others = read_shown(path, [])
    long = replace(first.episode, actions=tuple(replace(a, text="<" * 20_000) for a in first.episode.actions))
    scores = {key: replace(score, process_0_10=0.0) for key, score in first.scores.items()}
    for other in others:
        scores |= other.scores
    run.write_episodes("step-000001", [long, *(other.episode for other in others)], scores)
    chosen = {shown.episode.id for shown in choose(run, [], budget=200_000)[0] if shown.category == "training"}
    assert long.id not in chosen and chosen


def test_two_runs_stand_side_by_side_on_one_page(tmp_path):
    one, two = synthetic_run(tmp_path / "a", steps=0, tasks=4), synthetic_run(tmp_path / "b", steps=0, tasks=4, seed=9)
    episodes, _ = two.read_episodes("eval-000000")
    flipped = replace(episodes[2], outcome=Outcome(not one.read_episodes("eval-000000")[0][2].outcome.success))
    same = [replace(e, outcome=o.outcome) for e, o in zip(episodes, one.read_episodes("eval-000000")[0], strict=True)]
    two.write_episodes("eval-000000", [*same[:2], flipped, same[3]], {})
    place = tmp_path / "both.html"
    done = CliRunner().invoke(app, ["compare", str(one.folder), str(two.folder), "--html", str(place)])
    assert done.exit_code == 0 and f"page: {place}" in done.output
    page = place.read_text(encoding="utf-8")
    outline = Outline(page)
    assert outline.open == [] and not outline.tags("script") and page.count('<article class="episode"') == 8
    assert page.index(f">{flipped.task_id}<") < page.index(f">{same[0].task_id}<")  # what differs comes first
    assert "4 of 4 shared draws" in outline.text and page.count(">differs<") == 1
    lost = CliRunner().invoke(app, ["compare", str(one.folder), str(two.folder), "--html", str(tmp_path / "no" / "x")])
    assert lost.exit_code != 0 and "there is no folder" in str(lost.exception)
